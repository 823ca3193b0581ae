"""Why a value has its address.

An address is a region and an offset. Of the arena the answer says who shares the bytes in place, who had them before and gets them after, and what lies below
and above while the value lives: that is all that an offset follows from. Linear in the number of slots, for each value that is asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ostinato.ir.explain import one_for_all_layers, unknown_name
from ostinato.ir.graph import Graph, Location
from ostinato.ir.naming import matches
from ostinato.ir.step import WORKSPACE, ByteRange
from ostinato.ir.views import ViewTable
from ostinato.planner.explain.steps import TouchedSlots
from ostinato.planner.plan import EntryPlan, ProgramPlan, Slot, spelled
from ostinato.planner.problem import align_up

__all__ = ["AddressAnswer", "ExplainedAddress", "explain_address"]

_NAMED = 3


@dataclass(frozen=True, slots=True)
class ExplainedAddress:
    """A value of an entry: its bytes, what it is ("weight", "slot", "view of ...", ...), its type, the line that made it, and the reasons, one a line.

    `steps` is the half-open interval of steps during which a slot is taken, None of what has its bytes all the time. `address` is where the bytes are in this
    process, None where nothing is loaded.
    """

    entry: str
    name: str
    kind: str
    type: str
    place: ByteRange
    steps: tuple[int, int] | None
    location: Location | None
    reasons: tuple[str, ...]
    address: int | None = None

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location is not None else ""
        here = f" = {self.address:#x}" if self.address is not None else ""
        head = f"{self.entry}: {spelled((self.name,))}: {self.type}{where}"
        bytes_ = f"  {self.place}{here}, {self.place.size} bytes: {self.kind}"
        return "\n".join((head, bytes_, *(f"  {text}" for text in self.reasons)))


@dataclass(frozen=True, slots=True)
class AddressAnswer:
    """The values that a question found. Prints as text, a paragraph each; layers of which the same is to be said have one."""

    values: tuple[ExplainedAddress, ...]

    def __str__(self) -> str:
        return one_for_all_layers((value.name, str(value)) for value in self.values)


def explain_address(plan: ProgramPlan, graphs: Mapping[str, Graph], pattern: object) -> AddressAnswer:
    """Why the values of a name or pattern lie where they do, in every entry; "#workspace of NODE" is a step's workspace.

    `graphs` are those that the entries are the plans of. Raises `ConfigError` for a name that finds none, with names that are like it.
    """
    text = str(pattern).removeprefix("%")
    found: list[ExplainedAddress] = []
    known: dict[str, None] = {}
    for name, entry in plan.entries.items():
        reading = _Addresses(plan, entry, graphs[name])
        for value in reading.names:
            known[value] = None
            if text == value or matches(text, value):
                found.append(reading.explained(value))
    if not found:
        raise unknown_name(pattern, known, "value with an address")
    return AddressAnswer(tuple(found))


class _Addresses(TouchedSlots):
    """An entry's values with their places."""

    def __init__(self, plan: ProgramPlan, entry: EntryPlan, graph: Graph) -> None:
        super().__init__(entry, graph)
        self._plan = plan
        self._storage = ViewTable(graph)
        tables = (("weight", plan.weights), ("parameter", plan.parameters), ("state", plan.state))
        self._table = {slot.name: (kind, slot.range) for kind, slots in tables for slot in slots}
        bound = (("input", entry.inputs), ("output", entry.outputs))
        self._bound = {item.name: (kind, item.range) for kind, items in bound for item in items}
        for item in graph.inputs:
            slot = None if item.data is None else plan.constant(item.value.type, item.data.tobytes())
            if slot is not None:
                self._table[item.value.name] = ("constant", slot.range)
        operands = (operand for step in entry.steps for operand in step.operands if operand is not None)
        self._place = {operand.value: operand.range for operand in operands if operand.value != WORKSPACE}

    @property
    def names(self) -> Iterator[str]:
        """What has an address: values of the graph, but for those that nothing reads, and workspaces."""
        for name in self.graph.types:
            if self._of(name) is not None:
                yield name
        for slot in self.entry.slots:
            yield from (value for value in slot.values if value.startswith(WORKSPACE))

    def _of(self, name: str) -> str | None:
        """The value whose bytes a value is: what it is a view of or written over, or itself; None for what has none."""
        base = self._storage[name].base if name in self._storage else name
        for found in (base, name):
            if found in self.slot or found in self._table or found in self._bound or found in self._place:
                return found
        return None

    def explained(self, name: str) -> ExplainedAddress:
        owner = self._of(name) or name
        producer, tensor = self.graph.producers.get(name), self.graph.types.get(name)
        slot = self.slot.get(owner)
        if slot is not None:
            kind, whole, steps = "a slot of the arena", slot.range, (slot.first, slot.last)
        else:
            kind, whole = self._table.get(owner) or self._bound.get(owner) or ("value", self._place[owner])
            steps = None
        reasons = tuple(self._fixed(kind, whole) if slot is None else self._slot(slot, owner))
        return ExplainedAddress(
            entry=self.entry.name,
            name=name,
            kind=kind if owner == name else f"the bytes of %{owner}, {kind}",
            type="a step's bytes for itself" if tensor is None else str(tensor),
            place=whole if owner == name else self._place.get(name, whole),
            steps=steps,
            location=None if producer is None else producer.location,
            reasons=reasons,
        )

    def _fixed(self, kind: str, place: ByteRange) -> Iterator[str]:
        match place.region.kind:
            case "weights":
                yield "the weights of all entries lie one after another in the order in which they are first read, each once, and stay"
            case "state":
                yield "state and parameters lie one after another and keep their bytes from run to run"
            case "constants":
                yield "constants lie by content: equal ones of any name and entry are one"
            case "io":
                yield f"inputs and outputs of an entry lie one after another in io; `bind` puts a buffer of yours in the place of {kind}s"

    def _slot(self, slot: Slot, owner: str) -> Iterator[str]:
        first, last = slot.first, slot.last
        yield f"taken from step {first} ({self.node_at(first)}) to step {last - 1} ({self.node_at(last - 1)}), the last that touches it"
        if len(slot.values) > 1:
            sharing = tuple(value for value in slot.values if value != owner)
            shown = (
                spelled(sharing)
                if len(sharing) <= _NAMED
                else f"{spelled(sharing[:_NAMED])} and {len(sharing) - _NAMED} more, up to {spelled(sharing[-1:])}"
            )
            yield f"shared in place with {shown}: each takes the bytes of one that nobody reads any more"
        others = [other for other in self.entry.slots if other is not slot and other.range.region == slot.range.region]
        yield from self._over_time(slot, others)
        yield from self._offset(slot, [other for other in others if other.first < last and first < other.last])

    def _over_time(self, slot: Slot, others: Sequence[Slot]) -> Iterator[str]:
        """Who has the same bytes at other times."""
        same = [other for other in others if other.range.overlaps(slot.range)]
        before = max((o for o in same if o.last <= slot.first), key=lambda o: o.last, default=None)
        after = min((o for o in same if o.first >= slot.last), key=lambda o: o.first, default=None)
        told = [
            f"{spelled(other.values[:1])} {word} (steps {other.first} to {other.last - 1})"
            for word, other in (("before", before), ("after", after))
            if other is not None
        ]
        if told:
            also = f"; {len(same)} slots in all have some of them at some time" if len(same) > len(told) else ""
            yield f"these bytes are of {' and of '.join(told)}{also}"
        else:
            yield "nobody else ever has these bytes"

    def _offset(self, slot: Slot, living: Sequence[Slot]) -> Iterator[str]:
        """Why the offset is what it is: what lives at the same time, below and above."""
        unit, offset = self.entry.alignment, slot.range.offset
        below = [other for other in living if other.range.end <= offset and other.range.size]
        above = [other for other in living if other.range.offset >= slot.range.end and other.range.size]
        if offset == 0:
            yield "at the bottom of the arena"
        elif not below:
            yield "nothing that lives at the same time lies below; another offset would gain nothing here"
        else:
            neighbour = max(below, key=lambda other: other.range.end)
            edge = align_up(neighbour.range.end, unit)
            free = "directly above" if edge == offset else f"{offset - edge} bytes above the end of"
            lower = _lowest(slot, living, unit)
            why = (
                "no lower place is free for all of its steps"
                if lower >= offset
                else f"it would fit at {lower} too: a lower offset does not make the arena smaller"
            )
            yield f"{free} {_who(neighbour)}; {why}"
        if above:
            neighbour = min(above, key=lambda other: other.range.offset)
            yield f"above it lies {_who(neighbour)}, from {neighbour.range.offset} on"


def _who(slot: Slot) -> str:
    return f"{spelled(slot.values[:1])} (steps {slot.first} to {slot.last - 1}, up to {slot.range.end})"


def _lowest(slot: Slot, living: Sequence[Slot], unit: int) -> int:
    """The lowest offset at which a slot meets nobody who lives while it does."""
    offset = 0
    for other in sorted(living, key=lambda item: item.range.offset):
        if other.range.size and other.range.offset < offset + slot.range.size and offset < other.range.end:
            offset = align_up(other.range.end, unit)
    return offset
