"""What can be looked at, as entries: graphs with their plans and decisions, from whatever stage a program has reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ostinato.embedder import Embedder
from ostinato.frontend.model import Model
from ostinato.frontend.source import CheckpointSource
from ostinato.ir.checks import shown
from ostinato.ir.decision import Decision
from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Graph
from ostinato.ir.step import Region
from ostinato.ir.verify import verify
from ostinato.llm import LLM
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.saving.read import is_artifact, read_artifact
from ostinato.stages import Lowered, Planned, Traced
from ostinato.tools.named import Dump
from ostinato.training import PlannedTraining, TracedTraining

__all__ = ["Entry", "Viewable", "Viewed", "subject_of"]

Viewable = (
    Graph
    | Traced
    | Lowered
    | Planned
    | Program
    | Executable
    | TracedTraining
    | PlannedTraining
    | LLM
    | Embedder
    | Dump
    | str
    | os.PathLike[str]
)
"""A path is that of an artifact."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A graph by the name of its entry, its plan where it has one, and why each node runs as it does where that was decided."""

    name: str
    graph: Graph
    plan: EntryPlan | None = None
    decisions: Mapping[str, Decision] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Viewed:
    """What is looked at: what it is called, what stage it is ("planned for host"), its entries, and where there are some the plan of the whole program and the
    addresses of its regions."""

    title: str
    stage: str
    entries: tuple[Entry, ...]
    plan: ProgramPlan | None = None
    addresses: Mapping[Region, int] = field(default_factory=dict)

    @property
    def graphs(self) -> dict[str, Graph]:
        """The graphs by entry."""
        return {entry.name: entry.graph for entry in self.entries}

    @property
    def decisions(self) -> dict[str, Mapping[str, Decision]]:
        """Why nodes run as they do, by entry."""
        return {entry.name: entry.decisions for entry in self.entries}


def subject_of(given: Viewable) -> Viewed:
    """The entries of a graph, of a traced, lowered or planned model or training step, of a program, of whatever runs one, or of an artifact by its path.

    Raises `ConfigError` for something that is none of these, and what `read_artifact` raises.
    """
    if isinstance(given, Graph):
        return Viewed(given.name, "graph", (Entry(given.name, given),))
    if isinstance(given, TracedTraining):
        return subject_of(given.traced)
    if isinstance(given, PlannedTraining):
        return subject_of(given.planned)
    if isinstance(given, Traced):
        return Viewed(_model(given.model), "traced", (Entry(given.graph.name, given.graph),))
    if isinstance(given, Lowered):
        entry = Entry(given.name, given.graph, None, given.decisions)
        return Viewed(_model(given.model), f"lowered for {given.target.name}", (entry,))
    if isinstance(given, Planned):
        lowered = given.lowered
        entry = Entry(lowered.name, given.graph, given.plan, lowered.decisions)
        return Viewed(_model(given.model), f"planned for {lowered.target.name}", (entry,), given.program)
    if isinstance(given, LLM | Embedder):
        return subject_of(given.executable)
    if isinstance(given, Executable):
        placed = {region: address for region, address, _ in given.regions.placed.regions}
        stage = f"{given.device.name} ({given.device.isa}), {given.mode}"
        return replace(_program(given.program), stage=stage, addresses=placed)
    if isinstance(given, Dump):
        return _dump(given)
    if isinstance(given, str | os.PathLike) and is_artifact(given):
        return _artifact(given)
    program: Any = given  # callers are not type-checked
    if not isinstance(program, Program):
        raise ConfigError(
            f"{shown(given) if isinstance(given, str) else type(given).__name__} cannot be looked at",
            hint="give a graph, a traced, lowered or planned model or training step, an executable, an LLM, an Embedder, or the path of an artifact (.ost)",
        )
    return _program(program)


def _program(program: Program) -> Viewed:
    source, entries = program.source, _entries(program.plan, program.graphs, program.decisions)
    title = _called(source.checkpoint.path) if isinstance(source, CheckpointSource) else entries[0].name
    return Viewed(title, f"planned for {program.target.name}", entries, program.plan)


def _artifact(path: str | os.PathLike[str]) -> Viewed:
    found = read_artifact(path)
    for graph in found.every_graph:
        verify(graph, phase="selected")
    entries = _entries(found.plan, found.graphs, found.decisions)
    return Viewed(Path(path).name, f"saved for {found.device} ({found.target})", entries, found.plan)


def _dump(dump: Dump) -> Viewed:
    for graph in dump.graphs.values():
        verify(graph)
    plans = {} if dump.plan is None else dump.plan.entries
    entries = tuple(Entry(name, graph, plans.get(name)) for name, graph in dump.graphs.items())
    if not entries:
        raise ConfigError(
            "a plan without graphs cannot be looked at", hint="give the folder with its graphs, or the model"
        )
    return Viewed(entries[0].name, "stages" if dump.plan is None else "dumped", entries, dump.plan)


def _entries(
    plan: ProgramPlan, graphs: Mapping[str, Graph], decisions: Mapping[str, Mapping[str, Decision]]
) -> tuple[Entry, ...]:
    return tuple(Entry(name, graphs[name], made, decisions.get(name, {})) for name, made in plan.entries.items())


def _model(model: Model) -> str:
    return _called(model.checkpoint.path)


def _called(path: Path) -> str:
    """What a checkpoint is called: its folder, or the package around a folder that is only called "model"."""
    return path.parent.name if path.name == "model" and path.parent.name else path.name
