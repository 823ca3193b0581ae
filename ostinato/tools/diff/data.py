"""What a comparison of two graphs or plans finds, as frozen plain data: "before" is the first one, "after" the second.

Only what differs is listed, with counts of what does not. An absent side is None: a node, slot or step that only the other one has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["EntryDiff", "Fact", "Figure", "GraphDiff", "NodeDiff", "PlanDiff", "SlotDiff", "StepDiff"]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is said in words on both sides: the row of a node, the layout of a value, an option; "" where a side says nothing."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before or 'none'} -> {self.after or 'none'}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number on both sides, equal or not; `unit` is "B" for bytes and "" for a count. None where a side does not have it."""

    name: str
    before: int | None
    after: int | None
    unit: str = ""

    @property
    def differs(self) -> bool:
        return self.before != self.after

    @property
    def change(self) -> int:
        """By how much it grew; below 0 where it shrank. What a side does not have counts as 0."""
        return (self.after or 0) - (self.before or 0)

    @property
    def growth(self) -> float:
        """`change` as a part of what it was: 0.03 for 3 %; infinite where it was 0 and is not."""
        if not self.change:
            return 0.0
        return self.change / self.before if self.before else float("inf")


@dataclass(frozen=True, slots=True)
class NodeDiff:
    """A node (or an input) of which something differs. `before` and `after` are its names, None where only the other graph has it.

    `facts` say what: "operator", "row", "level", "type of %x", "layout of %x", "operand 0", "attribute eps", "origins", "records", "note". `place` is its
    position in the graph that has it, the second one's where both do; inputs have none.
    """

    before: str | None
    after: str | None
    op: str
    facts: tuple[Fact, ...] = ()
    place: int | None = None

    @property
    def kind(self) -> str:
        """ "added", "removed", "renamed" (nothing but its name differs) or "changed"."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "changed" if self.facts else "renamed"

    @property
    def name(self) -> str:
        """What it is called in the second graph, or in the first where only that has it."""
        return self.after or self.before or ""


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """Two graphs: the nodes and inputs that differ, in the order of the second one, and how many nodes are the same in both.

    `moved` counts nodes which are the same and stand in another order. `matched` names the nodes that are one, first graph -> second.
    """

    name: str
    nodes: tuple[NodeDiff, ...]
    inputs: tuple[NodeDiff, ...]
    outputs: tuple[Fact, ...]
    same: int
    moved: int
    figures: tuple[Figure, ...]
    matched: tuple[tuple[str, str], ...]

    @property
    def differs(self) -> bool:
        return bool(self.nodes or self.inputs or self.outputs or self.moved)

    def of_kind(self, kind: str) -> tuple[NodeDiff, ...]:
        """The nodes that were "added", "removed", "renamed" or "changed"."""
        return tuple(node for node in self.nodes if node.kind == kind)


@dataclass(frozen=True, slots=True)
class SlotDiff:
    """A slot of the arena which lies, lives or is shared otherwise: its values, offset, bytes and half-open interval of steps on both sides."""

    device: str
    values_before: tuple[str, ...]
    values_after: tuple[str, ...]
    offset: tuple[int | None, int | None]
    bytes: tuple[int | None, int | None]
    steps_before: tuple[int, int] | None
    steps_after: tuple[int, int] | None

    @property
    def kind(self) -> str:
        """ "added", "removed", "resized", "reshared" (other values share it), "moved" (it only lies elsewhere) or "shifted" (it only lives at other steps)."""
        if not self.values_before:
            return "added"
        if not self.values_after:
            return "removed"
        if self.bytes[0] != self.bytes[1]:
            return "resized"
        if self.values_before != self.values_after:
            return "reshared"
        return "moved" if self.offset[0] != self.offset[1] else "shifted"

    @property
    def name(self) -> str:
        """The first value that has it on both sides, or that it has on the side which knows it."""
        both = (value for value in self.values_after if value in self.values_before)
        return next(both, (self.values_after or self.values_before)[0])


@dataclass(frozen=True, slots=True)
class StepDiff:
    """A step of which something other than addresses differs: the nodes it is of, its place, and what differs ("kernel", "launch", "parameters", ...)."""

    before: str | None
    after: str | None
    kernel: str
    place: int
    facts: tuple[Fact, ...] = ()

    @property
    def kind(self) -> str:
        """ "added", "removed" or "changed"."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    @property
    def name(self) -> str:
        return self.after or self.before or ""


@dataclass(frozen=True, slots=True)
class EntryDiff:
    """The plans of one entry. `figures` are all of them, equal ones too: arena, bound, sum, io, steps, launches, copies, nodes of a capture and more.

    `facts` are what the plans were made for and by: graph, target, rows, device, dimensions, options, solver, status. `order` counts steps that both have and
    that come in another order.
    """

    name: str
    figures: tuple[Figure, ...]
    facts: tuple[Fact, ...]
    steps: tuple[StepDiff, ...]
    order: int
    slots: tuple[SlotDiff, ...]
    same_steps: int
    same_slots: int

    @property
    def differs(self) -> bool:
        changed = any(figure.differs for figure in self.figures)
        return bool(changed or self.facts or self.steps or self.order or self.slots)


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Two plans of programs: entries by name, the names that only one has, bytes of the regions, and the shared tables that differ."""

    entries: tuple[EntryDiff, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    regions: tuple[Figure, ...]
    facts: tuple[Fact, ...]

    @property
    def differs(self) -> bool:
        entries = any(entry.differs for entry in self.entries)
        regions = any(figure.differs for figure in self.regions)
        return bool(entries or regions or self.only_before or self.only_after or self.facts)

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Every figure with what it is of: the name of an entry, or "regions"."""
        for entry in self.entries:
            for figure in entry.figures:
                yield entry.name, figure
        for figure in self.regions:
            yield "regions", figure
