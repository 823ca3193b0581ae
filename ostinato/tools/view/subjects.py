"""What can be looked at, as entries: graphs with their plans and decisions, from whatever stage a program has reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ostinato.compiler import Lowered, Planned, Traced
from ostinato.embedder import Embedder
from ostinato.ir.decision import Decision
from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Graph
from ostinato.ir.step import Region
from ostinato.llm import LLM
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.training import PlannedTraining, TracedTraining

__all__ = ["Entry", "Subject", "Viewable", "subject_of"]

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
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A graph by the name of its entry, its plan where it has one, and why each node runs as it does where that was decided."""

    name: str
    graph: Graph
    plan: EntryPlan | None = None
    decisions: Mapping[str, Decision] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at: its entries, what stage it is ("a plan for host"), and where there are some the plan of the whole program and the addresses of its
    regions."""

    stage: str
    entries: tuple[Entry, ...]
    plan: ProgramPlan | None = None
    addresses: Mapping[Region, int] = field(default_factory=dict)

    @property
    def graphs(self) -> dict[str, Graph]:
        """The graphs by entry."""
        return {entry.name: entry.graph for entry in self.entries}


def subject_of(given: Viewable) -> Subject:
    """The entries of a graph, of a traced, lowered or planned model or training step, of a program, or of whatever runs one. Raises `ConfigError` for something
    that is none of these."""
    if isinstance(given, Graph):
        return Subject("a graph", (Entry(given.name, given),))
    if isinstance(given, Traced):
        return Subject("traced", (Entry(given.graph.name, given.graph),))
    if isinstance(given, TracedTraining):
        return subject_of(given.traced)
    if isinstance(given, Lowered):
        return Subject(f"lowered for {given.target.name}", (Entry(given.name, given.graph, None, given.decisions),))
    if isinstance(given, PlannedTraining):
        return subject_of(given.planned)
    if isinstance(given, Planned):
        lowered = given.lowered
        entry = Entry(lowered.name, given.graph, given.plan, lowered.decisions)
        return Subject(f"planned for {lowered.target.name}", (entry,), given.program)
    if isinstance(given, LLM | Embedder):
        return subject_of(given.executable)
    if isinstance(given, Executable):
        placed = {region: address for region, address, _ in given.regions.placed.regions}
        stage = f"on {given.device.name} ({given.device.isa}), {given.mode}"
        return Subject(stage, _entries(given.program), given.program.plan, placed)
    program: Any = given  # callers are not type-checked
    if not isinstance(program, Program):
        raise ConfigError(
            f"{type(program).__name__} cannot be looked at",
            hint="give a graph, a traced, lowered or planned model or training step, an executable, an LLM or an Embedder",
        )
    return Subject(f"planned for {program.target.name}", _entries(program), program.plan)


def _entries(program: Program) -> tuple[Entry, ...]:
    return tuple(
        Entry(name, graph, program.plan.entries[name], program.decisions.get(name, {}))
        for name, graph in program.graphs.items()
    )
