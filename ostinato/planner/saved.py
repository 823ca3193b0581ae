"""Plans as files: the JSON form of a program's plan, with hashes over everything it says, and what a plan must have been made for to be used again.

The file also holds the graph of every entry that recomputes values, since that graph is a result of planning; all other graphs are made anew from the model.
`program_from_json` raises `PlanError` for text that is no plan or was changed after it was saved; `read_plan` raises `StaleArtifact`, with every difference,
for a plan of another version, library, target, graph, bucket or other options. Neither proves the plan: `check.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from ostinato.ir.errors import OstinatoError, PlanError, StaleArtifact
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.ir.text import graph_hash, parse_graph, print_graph
from ostinato.ir.version import VERSION
from ostinato.planner.plan import PLAN_VERSION, EntryPlan, PlanHashes, ProgramPlan

__all__ = ["Purpose", "SavedProgram", "open_plan", "program_from_json", "program_to_json", "read_plan"]

_FORMAT = "ostinato-plan"
_MOST_PROBLEMS = 1000
_AGAIN = "give the options that it was made with, or plan again and save that"


@dataclass(frozen=True, slots=True)
class Purpose:
    """What an entry's plan must be for: the graph (before recomputation), its bucket, and the printed options."""

    graph: Graph
    dims: Mapping[str, int]
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A plan that was read back, and the graphs of its entries that recompute values."""

    plan: ProgramPlan
    graphs: Mapping[str, Graph]


class _Envelope(BaseModel):
    """The saved form: the plan, the hashes it must have, and the text of the graphs that come with it."""

    model_config = ProgramPlan.model_config

    format: str
    hashes: PlanHashes
    graphs: Mapping[str, str]
    plan: ProgramPlan


class _Head(BaseModel):
    """What tells a plan of another version from a damaged one."""

    class _Version(BaseModel):
        version: int
        package_version: str = "none stated"

    format: str
    plan: _Version


def program_to_json(program: ProgramPlan, graphs: Mapping[str, Graph] | None = None) -> str:
    """The saved form of a plan, hashes included. `graphs` are the planned graphs by entry, of which those with clones are saved too.

    Raises `PlanError` for an entry with clones whose graph is not among them.
    """
    cloned = [name for name, entry in program.entries.items() if entry.clones]
    if missing := [name for name in cloned if name not in (graphs or {})]:
        raise PlanError(
            f"entries {missing} recompute values, and their graphs are not given", hint="pass the planned graphs"
        )
    texts = {name: print_graph((graphs or {})[name]) for name in cloned}
    return _Envelope(format=_FORMAT, hashes=program.hashes, graphs=texts, plan=program).model_dump_json(indent=1)


def program_from_json(text: str) -> ProgramPlan:
    """Reads what `program_to_json` wrote; raises `StaleArtifact` for another format version, `PlanError` for missing fields and where a hash does not fit."""
    return _open(text).plan


def open_plan(text: str) -> SavedProgram:
    """The plan with the graphs that come with it, whatever it is for. Raises what `program_from_json` raises, and `PlanError` for a graph that is damaged."""
    envelope = _open(text)
    return SavedProgram(envelope.plan, _graphs(envelope))


def _open(text: str) -> _Envelope:
    try:
        head = _Head.model_validate_json(text)
    except ValidationError as error:
        raise PlanError(f"not a saved plan: {_problems(error)}", hint="save the plan again") from None
    if head.format != _FORMAT:
        raise PlanError(f"expected format {_FORMAT!r}, found {head.format!r}", hint="save the plan again")
    if head.plan.version != PLAN_VERSION:
        differences = [_difference("plan version", head.plan.version, PLAN_VERSION)]
        if head.plan.package_version != VERSION:
            differences.append(_difference("library", head.plan.package_version, VERSION))
        raise StaleArtifact("the saved plan cannot be read:", differences=tuple(differences), hint=_AGAIN)
    try:
        envelope = _Envelope.model_validate_json(text)
    except ValidationError as error:
        raise PlanError(f"damaged plan: {_problems(error)}", hint="save the plan again") from None
    found, stated = envelope.plan.hashes, envelope.hashes
    if found != stated:
        parts = {"shared regions": (stated.shared, found.shared), "program": (stated.program, found.program)}
        for name in {**stated.entries, **found.entries}:
            parts[f"entry {name}"] = (stated.entries.get(name, "absent"), found.entries.get(name, "absent"))
        wrong = [f"\n  {part}: stated {a}, found {b}" for part, (a, b) in parts.items() if a != b]
        raise PlanError(
            f"damaged plan, hashes differ:{''.join(wrong)}", hint="the text was changed: save the plan again"
        )
    return envelope


def _graphs(envelope: _Envelope) -> dict[str, Graph]:
    """The saved graphs, each the one that its entry's plan belongs to."""
    graphs: dict[str, Graph] = {}
    for name, entry in envelope.plan.entries.items():
        if not entry.clones:
            continue
        try:
            graph = parse_graph(envelope.graphs.get(name, ""))
        except OstinatoError as error:
            raise PlanError(f"damaged plan: the graph of entry {name}: {error}", hint="save the plan again") from None
        if (found := graph_hash(graph)) != entry.graph_hash:
            raise PlanError(
                f"damaged plan: the graph of entry {name} has hash {found}, its plan says {entry.graph_hash}",
                hint="the text was changed: save the plan again",
            )
        graphs[name] = graph
    return graphs


def _problems(error: ValidationError) -> str:
    if error.error_count() > _MOST_PROBLEMS:  # to list them takes memory for each
        return f"{error.error_count()} values are not as they are written"
    items = [f"{'.'.join(map(str, item['loc'])) or 'text'}: {item['msg']}" for item in error.errors(include_url=False)]
    return "; ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def read_plan(text: str, target: Target, purposes: Mapping[str, Purpose]) -> SavedProgram:
    """Reads a plan that is to serve these entries on that target; raises what `program_from_json` raises, and `StaleArtifact` that lists all that differs."""
    envelope = _open(text)
    if differences := tuple(_differences(envelope.plan, target, purposes)):
        raise StaleArtifact("the saved plan was made for something else:", differences=differences, hint=_AGAIN)
    return SavedProgram(envelope.plan, _graphs(envelope))


def _differences(plan: ProgramPlan, target: Target, purposes: Mapping[str, Purpose]) -> Iterator[str]:
    if plan.package_version != VERSION:
        yield _difference("library", plan.package_version, VERSION)
    for name in dict.fromkeys((*plan.entries, *purposes)):
        entry, purpose = plan.entries.get(name), purposes.get(name)
        if entry is None or purpose is None:
            yield f"entry {name}: {'the plan has none' if entry is None else 'only the plan has it'}"
            continue
        for what, stated, expected in _facts(entry, target, purpose):
            if stated != expected:
                yield _difference(f"entry {name}, {what}", stated, expected)


def _facts(entry: EntryPlan, target: Target, purpose: Purpose) -> Iterator[tuple[str, object, object]]:
    """What the plan was made for and what it is wanted for, side by side."""
    yield "graph", entry.source_hash, graph_hash(purpose.graph)
    yield "target", entry.target, target.name
    yield "rows of the target", entry.target_rows, target.rows_hash
    yield "device", entry.device, target.device
    yield "alignment", entry.alignment, target.alignment
    for what, stated, expected in (("dimension", entry.dims, purpose.dims), ("option", entry.options, purpose.options)):
        for key in dict.fromkeys((*stated, *expected)):
            yield f"{what} {key}", stated.get(key, "absent"), expected.get(key, "absent")


def _difference(what: str, stated: object, expected: object) -> str:
    return f"{what}: the plan has {stated}, wanted is {expected}"
