"""The judge of harm: executes a plan on tagged bytes, in every interleaving that its lanes, signals and waits allow.

Every byte of every value has its own tag, and an operator is "write the tags of the results". A step is two moments: at its begin it fills its results
and its workspace with junk of its own (except bytes that it may take over), at its end it looks whether its operands, its junk and its workspace are
untouched and writes the results. A plan is harmful if any order of moments finds a foreign tag, ends with one in an output or in state, lets an ordered
effect begin before the one ahead of it is over, or does not end.

What a kernel's operand number i means follows from the graph and the row alone; of a plan the judge takes addresses, order and events, never names, sizes
or flags. It shares nothing with planner or checker. Bytes that no access tells apart are one cell, so that offsets may be as large as they like; the tag
of a byte is the pair (value, address of the value's byte 0), which is the same all over a cell. States met before are not explored again; no other order
is left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.opdef import Effect, OpDef
from ostinato.ir.step import ByteRange, Step, StepKind
from ostinato.ir.target import Impl, Target
from ostinato.planner.plan import EntryPlan, ProgramPlan
from tests.planner.tagged_values import ValueBytes, bytes_of_values

__all__ = ["Judge"]

_EFFECTS = "effects"
"""The region of one byte that ordered effects pass on to each other."""
_Place = tuple[Hashable, int]  # region and address
_Span = tuple[Hashable, int, int, Hashable]  # region, first byte, end, tag
_Piece = tuple[
    int, int, tuple[str, int]
]  # first byte of a state, end, (content, byte of the state where the content begins)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a kernel does with one operand: the value it finds there, the value it leaves there, or scratch. `name` is the row's."""

    name: str
    reads: str | None = None
    becomes: str | None = None
    scratch: bool = False
    updates: bool = False

    @property
    def writes(self) -> bool:
        return self.scratch or self.becomes is not None


@dataclass(slots=True)
class _Moves:
    """A step as spans of tagged bytes: what must be there at the begin, what it fills in, what must be there at the end, what it leaves."""

    wanted: list[_Span] = field(default_factory=list)
    junk: list[_Span] = field(default_factory=list)
    read: list[_Span] = field(default_factory=list)
    written: list[_Span] = field(default_factory=list)


class Judge:
    """Judges plans of one graph."""

    def __init__(self, graph: Graph, target: Target, ops: Mapping[str, OpDef]) -> None:
        self._graph, self._ops = graph, ops
        self.values: Mapping[str, ValueBytes] = bytes_of_values(graph, ops)
        self._nodes = {node.name: node for node in graph.nodes if not ops[node.op].is_view}
        self._rows = {name: _row(target, node) for name, node in self._nodes.items()}
        self._parts = {name: tuple(self._parts_of(node, self._rows[name])) for name, node in self._nodes.items()}
        ordered = [name for name, node in self._nodes.items() if ops[node.op].effect is Effect.ORDERED]
        self._turns = {name: turn for turn, name in enumerate(ordered)}
        self._last_state = self._final_states()

    @property
    def has_gaps(self) -> bool:
        """Whether some value is a view with gaps between its elements."""
        return any(value.has_gaps for value in self.values.values())

    def is_harmful(self, program: ProgramPlan, entry: EntryPlan, *, gaps: bool = False) -> bool:
        """Whether some interleaving gives wrong bytes. With `gaps` an operand counts from its first byte to its last, bytes between its elements included."""
        moves = [self._moves(position, step, gaps) for position, step in enumerate(entry.steps)]
        before, after = self._initial(program, entry), self._final(program, entry)
        return _Interleavings(entry.steps, moves, before, after).find_harm()

    # what kernels do

    def _parts_of(self, node: Node, row: Impl) -> Iterator[_Part | None]:
        """One part for each operand of the row's kernel, None where it is absent."""
        opdef = self._ops[node.op]
        operands = dict(zip((spec.name for spec in opdef.operands), node.operands, strict=False))
        fixed = opdef.results if not opdef.results[-1].endswith("*") else opdef.results[:-1]
        stem = opdef.results[-1].removesuffix("*")
        names = [fixed[i] if i < len(fixed) else f"{stem}{i - len(fixed)}" for i in range(len(node.results))]
        results = dict(zip(names, (value.name for value in node.results), strict=True))
        taken = {opdef.operands[operand].name: names[result] for result, operand in opdef.aliased(node.operands)}
        for name in row.operands:
            source = next((operand for operand, result in taken.items() if result == name), None)
            if operands.get(name) is not None and name in taken:
                yield _Part(name, operands[name], results[taken[name]], updates=True)
            elif operands.get(name) is not None:
                yield _Part(name, operands[name])
            elif source is not None:
                yield _Part(name, None if source in row.operands else operands[source], results[name], updates=True)
            elif name in results:
                yield _Part(name, becomes=results[name])
            elif name == "workspace":
                yield _Part(name, scratch=True)
            elif name == "count" and (count := self._count(node, opdef)) is not None:
                yield _Part(name, count)
            else:
                yield None

    def _count(self, node: Node, opdef: OpDef) -> str | None:
        """The input that says how many leading rows of the node's work are valid."""
        named = dict(zip((spec.name for spec in opdef.operands), node.operands, strict=False))
        named.update(
            zip(
                (name.removesuffix("*") for name in opdef.results), (value.name for value in node.results), strict=False
            )
        )
        counted = named[opdef.extent] if opdef.extent else node.results[0].name
        axes = () if counted is None else self._graph.types[counted].axes
        return dict(self._graph.extents).get(axes[0]) if axes and axes[0] else None

    # a step as spans

    def _moves(self, position: int, step: Step, gaps: bool) -> _Moves:
        if step.kind is StepKind.COPY:
            source, target = step.operands
            assert source is not None
            assert target is not None
            # a copy knows no elements: it carries every byte of its range
            read, written = (self._spans(step.node, _address(operand.range), True) for operand in (source, target))
            junk: list[_Span] = [(region, start, end, ("junk", position, 1)) for region, start, end, _ in written]
            return _Moves([], junk, read, written)
        found = [
            (part, operand.range)
            for part, operand in zip(self._parts[step.node], step.operands, strict=True)
            if part is not None and operand is not None
        ]
        moves = _Moves()
        for number, (part, place) in enumerate(found):
            at = _address(place)
            if part.reads is not None:
                moves.read += self._spans(part.reads, at, gaps)
            if part.writes and not self._takes_over(number, found, self._rows[step.node]):
                moves.junk.append((*at, at[1] + self._size(part, place), ("junk", position, number)))
            if part.becomes is not None:
                moves.written += self._spans(part.becomes, at, gaps)
        turn = self._turns.get(step.node)
        if turn is not None:
            moves.wanted.append((_EFFECTS, 0, 1, turn))
            moves.written.append((_EFFECTS, 0, 1, turn + 1))
        return moves

    def _spans(self, value: str, at: _Place, gaps: bool) -> list[_Span]:
        """A value at an address: the bytes of its elements, each with the tag that its content has there."""
        held, (region, address) = self.values[value], at
        tag = (held.content, address - held.first)
        return [(region, address + start, address + start + size, tag) for start, size in held.cover(gaps=gaps)]

    def _size(self, part: _Part, place: ByteRange) -> int:
        value = part.becomes or part.reads
        return place.size if value is None else self.values[value].span

    def _takes_over(self, number: int, found: Sequence[tuple[_Part, ByteRange]], row: Impl) -> bool:
        """Whether a written operand lies in bytes that the step reads and may overwrite while it does: those of its own update, or of an in-place pair."""
        part, place = found[number]
        start, end = place.offset, place.offset + self._size(part, place)
        allowed: list[bool] = []
        for index, (other, there) in enumerate(found):
            size = self._size(other, there)
            apart = there.region != place.region or not size or not (there.offset < end and start < there.offset + size)
            if other.reads is None or apart:
                continue
            own = index == number or (part.updates and other.updates and part.becomes == other.becomes)
            pair = (part.name, other.name) in row.in_place and part.becomes is not None and not other.writes
            same = there.offset == start and (
                own or (pair and self.values[part.becomes or ""].order == self.values[other.reads].order)
            )
            allowed.append(same)
        return bool(allowed) and all(allowed)

    # before and after a run

    def _initial(self, program: ProgramPlan, entry: EntryPlan) -> list[_Span]:
        spans: list[_Span] = [(_EFFECTS, 0, 1, 0)]
        places = {binding.name: binding.range for binding in (*entry.inputs, *program.state)}
        places.update((slot.name, slot.range) for slot in (*program.weights, *program.parameters))
        for item in self._graph.with_role(Role.CONSTANT):
            assert item.data is not None
            data = item.data.tobytes()
            slot = next(slot for slot in program.constants if (slot.type, slot.data) == (item.value.type, data))
            places[item.value.name] = slot.range
        for item in self._graph.inputs:
            spans += self._spans(item.value.name, _address(places[item.value.name]), False)
        others = [binding for binding in program.state if binding.name not in self.values]
        return spans + [_foreign(binding.name, binding.range) for binding in others]

    def _final(self, program: ProgramPlan, entry: EntryPlan) -> list[_Span]:
        spans: list[_Span] = [(_EFFECTS, 0, 1, len(self._turns))]
        for binding in entry.outputs:
            spans += self._spans(binding.name, _address(binding.range), False)
        held = [(binding.name, binding.range) for binding in (*program.state, *entry.inputs)]
        for name, place in (*held, *((slot.name, slot.range) for slot in program.parameters)):
            if name in self._last_state:
                region, begin = _address(place)
                for start, end, (content, first) in self._last_state[name]:
                    spans.append((region, begin + start, begin + end, (content, begin + first)))
            else:
                spans.append(_foreign(name, place))
        return spans

    def _final_states(self) -> dict[str, list[_Piece]]:
        """State and inputs -> what their bytes hold in the end: every update in the graph's order, over what its operand held."""
        pieces: dict[str, list[_Piece]] = {}
        home: dict[str, tuple[str, int]] = {}  # content -> the state it lies in, and where its first byte is
        for item in (item for item in self._graph.inputs if item.role in (Role.STATE, Role.PARAMETER, Role.INPUT)):
            name = item.value.name
            home[name] = (name, 0)
            pieces[name] = [(0, item.value.type.nbytes, (name, 0))]
        for node in self._nodes.values():
            for result, operand in self._ops[node.op].aliased(node.operands):
                taken, made = self.values[node.operands[operand] or ""], node.results[result].name
                if taken.content in home:
                    state, first = home[taken.content]
                    home[made] = (state, first + taken.first)
                    pieces[state] = _painted(pieces[state], home[made][1], self.values[made].span, made)
        return pieces


def _painted(pieces: Sequence[_Piece], start: int, size: int, content: str) -> list[_Piece]:
    """The pieces with a new one over them."""
    end = start + size
    kept = [(a, min(b, start), tag) for a, b, tag in pieces if a < start]
    kept += [(max(a, end), b, tag) for a, b, tag in pieces if b > end]
    return [*kept, (start, end, (content, start))] if size else list(pieces)


class _Interleavings:
    """All orders in which the moments of the steps may come."""

    def __init__(
        self, steps: Sequence[Step], moves: Sequence[_Moves], before: Sequence[_Span], after: Sequence[_Span]
    ) -> None:
        spans = [*before, *after]
        for found in moves:
            spans += [*found.wanted, *found.junk, *found.read, *found.written]
        cells = _Cells(spans)
        self._before, self._after = cells.of(before), cells.of(after)
        self._count = cells.count
        lanes: dict[int, list[int]] = {}
        for position, step in enumerate(steps):
            lanes.setdefault(step.lane, []).append(position)
        self._lanes = tuple(lanes.values())
        place = {position: (lane, turn) for lane, row in enumerate(self._lanes) for turn, position in enumerate(row)}
        signaller: dict[int, int] = {}
        for position, step in enumerate(steps):
            for event in step.signals:
                signaller.setdefault(event, position)
        # for each step: the (lane, moments passed on it) that it waits for; an event that nobody signals never comes
        never = (0, 2 * len(steps) + 1)
        self._waits = [
            [
                (place[signaller[event]][0], 2 * place[signaller[event]][1] + 2) if event in signaller else never
                for event in step.waits
            ]
            for step in steps
        ]
        self._begins = [(cells.of(found.wanted), cells.of(found.junk)) for found in moves]
        self._ends = [(cells.of([*found.read, *found.junk]), cells.of(found.written)) for found in moves]

    def find_harm(self) -> bool:
        """Depth first over the next moment of each lane, up to the first harm."""
        start = (0,) * len(self._lanes), _written(bytes(2 * self._count), self._before)
        seen = {start}
        stack = [start]
        while stack:
            passed, memory = stack.pop()
            ready = [lane for lane in range(len(self._lanes)) if self._is_ready(lane, passed)]
            if not ready:
                over = all(moment == 2 * len(steps) for moment, steps in zip(passed, self._lanes, strict=True))
                if not over or not _holds(memory, self._after):
                    return True
            for lane in ready:
                moment = passed[lane]
                position = self._lanes[lane][moment // 2]
                expected, left = (self._ends if moment % 2 else self._begins)[position]
                if not _holds(memory, expected):
                    return True
                state = (*passed[:lane], moment + 1, *passed[lane + 1 :]), _written(memory, left)
                if state not in seen:
                    seen.add(state)
                    stack.append(state)
        return False

    def _is_ready(self, lane: int, passed: tuple[int, ...]) -> bool:
        moment, steps = passed[lane], self._lanes[lane]
        if moment % 2:
            return True
        return moment < 2 * len(steps) and all(
            passed[other] >= least for other, least in self._waits[steps[moment // 2]]
        )


_Cut = tuple[int, int, bytes]  # bytes [first, end) of the memory and what they hold: two bytes a cell


class _Cells:
    """Bytes that no span tells apart are one cell; a memory holds the number of a tag for each, in two bytes."""

    def __init__(self, spans: Sequence[_Span]) -> None:
        edges: dict[Hashable, set[int]] = {}
        for region, start, end, _ in spans:
            edges.setdefault(region, set()).update((start, end))
        self._edges = {region: sorted(found) for region, found in edges.items()}
        self._first: dict[Hashable, int] = {}
        self.count = 0
        for region, found in self._edges.items():
            self._first[region] = self.count
            self.count += len(found)
        self._tags: dict[Hashable, int] = {}

    def of(self, spans: Sequence[_Span]) -> tuple[_Cut, ...]:
        cuts = []
        for region, start, end, tag in spans:
            edges, first = self._edges[region], self._first[region]
            low, high = bisect_left(edges, start), bisect_left(edges, end)
            number = self._tags.setdefault(tag, len(self._tags) + 1)
            cuts.append((2 * (first + low), 2 * (first + high), number.to_bytes(2, "little") * (high - low)))
        return tuple(cuts)


def _holds(memory: bytes, expected: Sequence[_Cut]) -> bool:
    return all(memory[first:end] == found for first, end, found in expected)


def _written(memory: bytes, left: Sequence[_Cut]) -> bytes:
    changed = bytearray(memory)
    for first, end, found in left:
        changed[first:end] = found
    return bytes(changed)


def _address(place: ByteRange) -> _Place:
    return place.region, place.offset


def _foreign(name: str, place: ByteRange) -> _Span:
    """State of another entry, which is none of this graph's business."""
    return place.region, place.offset, place.end, ("foreign", name)


def _row(target: Target, node: Node) -> Impl:
    found = target.row(node.op, node.impl or "")
    assert found is not None, node
    return found
