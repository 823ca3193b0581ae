"""What `ostinato diff` holds of one side: what there is of a plan, of graphs and of decisions, whatever it was given (`tools/named.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ostinato.ir.decision import Decision
from ostinato.ir.graph import Graph
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.program import Program
from ostinato.saving.manifest import Manifest
from ostinato.saving.read import read_artifact
from ostinato.tools.named import Dump, Planning, open_named
from ostinato.training import PlannedTraining

__all__ = ["DiffSide", "open_side"]


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One side: what there is of a plan, of graphs by entry (or by stage) and of the decisions of their nodes. `kind` says what it was read from,
    `made_with` what an artifact says of what it was made of and on. Graphs are those before recomputation, of which the decisions are."""

    name: str
    kind: str
    plan: ProgramPlan | None = None
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    decisions: Mapping[str, Mapping[str, Decision]] = field(default_factory=dict)
    made_with: Mapping[str, str] = field(default_factory=dict)


def open_side(text: str, planning: Planning) -> DiffSide:
    """Reads or plans one side. Raises what `open_named` and `read_artifact` raise."""
    found = open_named(text, planning)
    if isinstance(found, Path):
        artifact = read_artifact(found)
        made_with = dict(_made_with(artifact.manifest))
        return DiffSide(text, "artifact", artifact.plan, artifact.originals, artifact.decisions, made_with)
    if isinstance(found, Program | PlannedTraining):
        kind, program = ("model", found) if isinstance(found, Program) else ("training", found.program)
        graphs = {entry: program.original(entry) for entry in program.plan.entries if entry in program.graphs}
        return DiffSide(text, kind, program.plan, graphs, program.decisions)
    if isinstance(found, Dump):
        return DiffSide(text, "stages" if found.plan is None else "dump", found.plan, found.originals)
    if isinstance(found, Graph):
        return DiffSide(text, "graph", graphs={found.name: found})
    return DiffSide(text, "plan", found)


def _made_with(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """What an artifact was made of and on, fact by fact."""
    yield "library", manifest.package_version
    yield "native interface", str(manifest.abi_version)
    for what, value in manifest.request.model_dump(exclude_defaults=True).items():
        yield f"asked {what}", str(value)
    for what, value in manifest.environment.model_dump().items():
        yield f"made on {what}", str(value)
    for what, table in (("row", manifest.rows), ("kernel", manifest.kernels)):
        yield from ((f"{what} {name}", value) for name, value in table.items())
    for what in ("operators", "rows", "kernels"):
        yield from ((f"your {what} {name}", value) for name, value in getattr(manifest.extensions, what).items())
    yield "model", f"{manifest.model.architecture} ({manifest.model.format}), {len(manifest.model.tensors)} tensors"
    yield "weights", manifest.model.whole or manifest.model.sampled
    yield "weights inside", "yes" if manifest.standalone else "no"
