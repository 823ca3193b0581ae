"""What a plan promises besides right bytes, and whether a changed plan still keeps it: the other half of the judge.

A mutant that breaks one of these is `unlawful`: to be refused, whatever its bytes. The promises, each checked against the plan that was changed, never
against planner or checker:

- calls: every node that runs has one step, with the kernel, parameters, device, and operands (value, bytes, reads, writes) that its row says; a copy says
  what it copies. Operand and result of an update that the kernel takes apart are one range;
- places: operands keep their alignment, lie inside their region, and in `io` inside one input or output;
- owners: only arena, outputs and (by updates) state and carried inputs are written; a write to the arena lies in a slot that lists its value or workspace;
- gaps: the bytes between the elements of a strided operand belong to it as well: a kernel may load them (`Judge.is_harmful(gaps=True)`);
- `early` stands only at reads of bytes that no step above writes;
- events are signalled once, above all their waits, on lanes from 0;
- bindings are aligned, of their size, inside `io` and apart; statistics count the steps and cover the arena; identity and types are as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from ostinato.ir.step import ByteRange, Region, Step, StepKind, StepOperand
from ostinato.planner.plan import EntryPlan, ProgramPlan, slot_name

__all__ = ["Promises"]

_Call = tuple[object, ...]


class Promises:
    """What the plan of one entry promises; `carried` are the names of its inputs that are updated."""

    def __init__(self, entry: EntryPlan, carried: Collection[str] = ()) -> None:
        self._entry = entry
        self._carried = carried
        self._launches = {step.node: step for step in entry.steps if step.kind is StepKind.LAUNCH}
        self._sizes = {o.value: o.range.size for step in entry.steps for o in _present(step)}
        self._places = {node: _residues(step, entry.alignment) for node, step in self._launches.items()}
        self._calls = {node: _call(step) for node, step in self._launches.items()}

    def broken(self, program: ProgramPlan, entry: EntryPlan) -> str | None:
        """The first promise that the entry of this program breaks."""
        sizes = {item.region: item.bytes for item in program.regions}
        return next(self._problems(entry, sizes), None)

    def _problems(self, entry: EntryPlan, sizes: Mapping[Region, int]) -> Iterator[str]:
        for name in ("name", "graph_hash", "target", "device", "alignment"):
            if getattr(entry, name) != getattr(self._entry, name):
                yield name
        yield from self._calls_and_places(entry, sizes)
        yield from _owners(entry, self._carried)
        yield from _early(entry)
        yield from _events(entry)
        yield from self._bindings(entry, sizes)
        yield from _statistics(entry, sizes)

    def _calls_and_places(self, entry: EntryPlan, sizes: Mapping[Region, int]) -> Iterator[str]:
        ran = Counter(step.node for step in entry.steps if step.kind is StepKind.LAUNCH)
        if ran != Counter(list(self._launches)):
            yield "every node has one step"
        for step in entry.steps:
            if step.kind is StepKind.COPY:
                yield from self._copy(step, entry.alignment)
            elif _call(step) != self._calls.get(step.node):
                yield f"{step.node}: the call"
            else:
                residues = zip(_residues(step, entry.alignment), self._places[step.node], strict=True)
                if any(
                    found not in (0, before) for found, before in residues
                ):  # of the storage, or of the bytes themselves
                    yield f"{step.node}: alignment"
                if any(operand.range.region.device != step.device for operand in _present(step)):
                    yield f"{step.node}: on its own device"
                if _twins(self._launches[step.node]) - _twins(step):
                    yield f"{step.node}: an update is one range"
            for operand in _present(step):
                place = operand.range
                if place.offset < 0 or place.end > sizes.get(place.region, -1):
                    yield f"{step.node}: inside the region"
                if place.region.kind == "io" and place.size and entry.binding_of(place) is None:
                    yield f"{step.node}: inside one binding"

    def _copy(self, step: Step, alignment: int) -> Iterator[str]:
        flags = [None if o is None else (o.value, o.range.size, o.reads, o.writes) for o in step.operands]
        size = self._sizes.get(step.node)
        if flags != [(step.node, size, True, False), (step.node, size, False, True)] or step.kernel or step.params:
            yield f"copy of {step.node}: the call"
        elif (step.device, step.node_count) != (_present(step)[1].range.region.device, 1):
            yield f"copy of {step.node}: the device"
        elif _present(step)[1].range.offset % alignment:
            yield f"copy of {step.node}: alignment"

    def _bindings(self, entry: EntryPlan, sizes: Mapping[Region, int]) -> Iterator[str]:
        for bound, before in ((entry.inputs, self._entry.inputs), (entry.outputs, self._entry.outputs)):
            if [(b.name, b.type, b.range.size) for b in bound] != [(b.name, b.type, b.range.size) for b in before]:
                yield "bindings"
        end = 0
        for place in sorted((b.range for b in (*entry.inputs, *entry.outputs)), key=lambda p: (p.offset, p.end)):
            if place.offset % entry.alignment or place.end > sizes.get(place.region, -1) or place.offset < 0:
                yield "a binding is aligned and inside io"
            if place.size and place.offset < end:
                yield "bindings lie apart"
            end = max(end, place.end)
        if end > entry.io_bytes:
            yield "io_bytes covers the bindings"


def _present(step: Step) -> list[StepOperand]:
    return [operand for operand in step.operands if operand is not None]


def _call(step: Step) -> _Call:
    """All that a step says but for its order and places."""
    operands = tuple(None if o is None else (o.value, o.range.size, o.reads, o.writes) for o in step.operands)
    return (repr(step.params), operands, replace(step, operands=(), params=(), lane=0, waits=(), signals=()))


def _residues(step: Step, alignment: int) -> list[int]:
    return [o.range.offset % alignment if o.range.size else 0 for o in _present(step)]


def _twins(step: Step) -> set[tuple[int, int]]:
    """Operands that are written in one range: both sides of an update."""
    written = [(i, o.range) for i, o in enumerate(step.operands) if o is not None and o.writes and o.range.size]
    return {(i, j) for i, place in written for j, other in written if i < j and place == other}


def _owners(entry: EntryPlan, carried: Collection[str]) -> Iterator[str]:
    inputs = [binding.range for binding in entry.inputs if binding.name in carried]
    slots: dict[str, list[ByteRange]] = {}
    for slot in entry.slots:
        for value in slot.values:
            slots.setdefault(value, []).append(slot.range)
    for step in entry.steps:
        for operand in _present(step):
            place, kind = operand.range, operand.range.region.kind
            if not operand.writes or not place.size:
                continue
            name = slot_name(step.node, operand.value)
            if kind == "arena" and not any(slot.contains(place) for slot in slots.get(name, ())):
                yield f"{step.node}: a slot lists {name}"
            to_input = any(held.contains(place) for held in inputs)
            if kind == "io" and not to_input and not any(binding.range.contains(place) for binding in entry.outputs):
                yield f"{step.node}: writes an output, a carried input or nothing of io"
            if (kind == "state" or to_input) and not (operand.reads and operand.writes) and not _twins(step):
                yield f"{step.node}: state and inputs are written by updates"
            if kind not in ("arena", "io", "state"):
                yield f"{step.node}: writes {kind}"


def _early(entry: EntryPlan) -> Iterator[str]:
    written: list[ByteRange] = []
    for step in entry.steps:
        for operand in _present(step):
            if operand.early and operand.range.size and any(operand.range.overlaps(place) for place in written):
                yield f"{step.node}: early"
        written += [operand.range for operand in _present(step) if operand.writes and operand.range.size]


def _events(entry: EntryPlan) -> Iterator[str]:
    signalled: set[int] = set()
    for step in entry.steps:
        if step.lane < 0 or not signalled.issuperset(step.waits):
            yield f"{step.node}: events above, lanes from 0"
        for event in step.signals:
            if event in signalled:
                yield f"{step.node}: event {event} twice"
            signalled.add(event)


def _statistics(entry: EntryPlan, sizes: Mapping[Region, int]) -> Iterator[str]:
    stats = entry.stats
    tops = {Region(arena.device, "arena"): 0 for arena in stats.arenas}
    for place in (operand.range for step in entry.steps for operand in _present(step)):
        if place.region.kind == "arena":
            tops[place.region] = max(tops.get(place.region, 0), place.end)
    for region, top in tops.items():
        arena = next((found for found in stats.arenas if found.device == region.device), None)
        if arena is None or not max(top, arena.lower_bound) <= arena.arena_bytes <= sizes.get(region, 0):
            yield "statistics cover every arena"
    copies = sum(step.kind is StepKind.COPY for step in entry.steps)
    if (stats.steps, stats.launches, stats.copies) != (len(entry.steps), len(entry.steps) - copies, copies):
        yield "statistics count the steps"
