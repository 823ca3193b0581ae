"""What is wrong within one program: every node of some steps beside its operator's reference on the very operands it was given.

Three things come of one walk (`walk.py`): a table of errors by operator and row; the first node that is wrong by itself (`Cause`: its kernel, or an operand
that somebody wrote over); and where NaN or infinity begins (`NonFinite`). `judgement.py` says what a result may be off by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ostinato.backend_hip.evidence.trials import ulp
from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.ops import OP
from ostinato.ir.types import Array
from ostinato.runtime.executable import Executable
from ostinato.tools.compare.differences import (
    bits_equal,
    first_changed,
    place_of_largest,
    root_mean_square,
)
from ostinato.tools.compare.judgement import Judged, judged
from ostinato.tools.compare.report import Cause, Finite, NodePlace, NonFinite, OperatorError
from ostinato.tools.compare.runs import poison_memory
from ostinato.tools.compare.walk import Visit, Walk
from ostinato.tools.compare.workload import WorkStep

__all__ = ["Examination", "examine", "find_unrepeatable", "node_place"]


@dataclass(frozen=True, slots=True)
class Examination:
    """What a walk found: errors by operator, the first node that is wrong by itself, and where a value that is not finite began."""

    operators: tuple[OperatorError, ...]
    cause: Cause | None
    non_finite: NonFinite | None


@dataclass(slots=True)
class _Row:
    """The errors of one operator and row so far."""

    node: Node
    nodes: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)
    largest: float = 0.0
    squares: float = 0.0
    count: int = 0
    relative: float = 0.0
    ulp: float = 0.0
    ratio: float = -1.0
    place: NodePlace | None = None


def examine(
    executable: Executable,
    side: str,
    steps: Sequence[WorkStep],
    *,
    poison: bool = True,
    state_poison: bool = False,
    only: tuple[int, str] | None = None,
) -> Examination:
    """Walks a fresh executable through the steps. `only` asks for the reference of one node, (number of the step, name), and of no other.

    `state_poison` fills the caches with NaN first, for kernels that read what nobody wrote; references are then not asked, since a reference may read it too,
    and only values that are not finite are found.
    """
    walk = Walk(executable)
    walked = walk.executable
    if state_poison:
        poison_memory(walked, state=True)
    rows: dict[tuple[str, str | None], _Row] = {}
    cause: Cause | None = None
    tainted = _Taint(walk, side, asks=not state_poison)
    for number, step in enumerate(steps):
        graph = walked.program.graphs[step.entry]
        if poison:
            poison_memory(walked, state=False)
        tainted.enter(graph)
        for visit in walk.run(step.entry, step.inputs):
            at = _At(graph, step.entry, number, visit)
            if cause is None and visit.spoilt:
                cause = _overwritten(at, side)
            asks = not state_poison and only in (None, (number, visit.node.name))
            expected = walk.reference(step.entry, visit) if asks else None
            if expected is not None:
                found = _judge(at, expected, rows, partial(walk.plain, step.entry, visit))
                if cause is None and found is not None:
                    cause = found.model_copy(update={"side": side})
            tainted.visit(at, expected)
        tainted.leave(step.output)
    return Examination(tuple(_summary(row) for row in rows.values()), cause, tainted.found)


def find_unrepeatable(executable: Executable, side: str, steps: Sequence[WorkStep], replays: int) -> Cause | None:
    """The first node that gives other bits in a later one of `replays` walks, all of which begin alike."""
    walk = Walk(executable)
    first: dict[tuple[int, int], tuple[Array, ...]] = {}
    for replay in range(replays):
        walk.executable.reset_state()
        for number, step in enumerate(steps):
            graph = walk.executable.program.graphs[step.entry]
            for visit in walk.run(step.entry, step.inputs):
                valid = visit.valid_results
                if replay == 0:
                    first[number, visit.position] = valid
                    continue
                before = first[number, visit.position]
                for index, (a, b) in enumerate(zip(before, valid, strict=True)):
                    if not bits_equal(a, b):
                        name = visit.node.results[index].name
                        place = _At(graph, step.entry, number, visit).place(name, first_changed(a, b))
                        at = place.index
                        return Cause(
                            kind="unrepeatable", side=side, place=place, expected=float(a[at]), found=float(b[at])
                        )
    return None


def node_place(graph: Graph, node: Node, entry: str, step: int, value: str, index: tuple[int, ...]) -> NodePlace:
    """A node and an element as reports have them."""
    line = node.location
    return NodePlace(
        node=node.name,
        op=node.op,
        row=node.impl,
        file=None if line is None else line.file,
        line=None if line is None else line.line,
        entry=entry,
        step=step,
        value=value,
        index=index,
    )


@dataclass(frozen=True, slots=True)
class _At:
    graph: Graph
    entry: str
    step: int
    visit: Visit

    def place(self, value: str, index: tuple[int, ...]) -> NodePlace:
        return node_place(self.graph, self.visit.node, self.entry, self.step, value, index)


def _overwritten(at: _At, side: str) -> Cause:
    spoilt = at.visit.spoilt[0]
    place = node_place(at.graph, at.visit.node, at.entry, at.step, spoilt.value, spoilt.index)
    return Cause(
        kind="overwritten", side=side, place=place, expected=spoilt.made, found=spoilt.found, writer=spoilt.writer
    )


def _judge(
    at: _At,
    expected: tuple[Array, ...],
    rows: dict[tuple[str, str | None], _Row],
    plain: Callable[[], tuple[Array, ...]],
) -> Cause | None:
    """Enters a node's errors; the cause where they are beyond what is allowed."""
    node = at.visit.node
    row = rows.setdefault((node.op, node.impl), _Row(node))
    row.nodes.add(node.name)
    cause: Cause | None = None
    for one in judged(node, at.visit.valid_results, expected, plain):
        ratios, name = one.ratio, one.value.name
        index = place_of_largest(ratios)
        ratio = float(ratios[index])
        finite = one.difference[np.isfinite(one.difference)]
        row.largest = max(row.largest, float(one.difference.max()))
        row.squares, row.count = row.squares + float(np.sum(np.square(finite))), row.count + finite.size
        relative, units = _relative(one)
        row.relative, row.ulp = max(row.relative, relative), max(row.ulp, units)
        if ratio > row.ratio:
            row.ratio, row.place = ratio, at.place(name, index)
        if ratio > 1:
            row.outside.add(node.name)
            if cause is None:
                cause = Cause(
                    kind="kernel",
                    side="",
                    place=at.place(name, index),
                    expected=float(one.wanted[index]),
                    found=float(one.found[index]),
                    allowed=float(one.allowed[index]),
                    in_place=at.visit.in_place,
                )
    return cause


def _relative(one: Judged) -> tuple[float, float]:
    """The largest error as a share of the expected value, and in its units in the last place; of small values as those of the root mean square."""
    if not one.difference.any():
        return 0.0, 0.0
    b, typical = np.abs(one.wanted.astype(np.float64)), root_mean_square(one.wanted)
    size = np.where(np.isfinite(b), np.maximum(b, typical), typical)
    share, units = np.zeros_like(one.difference), np.zeros_like(one.difference)
    np.divide(one.difference, size, out=share, where=size > 0)
    if one.value.type.dtype.is_float:
        np.divide(one.difference, ulp(size, one.value.type), out=units, where=size > 0)
    return float(share.max()), float(units.max())


def _summary(row: _Row) -> OperatorError:
    place = row.place or NodePlace(
        node=row.node.name,
        op=row.node.op,
        row=row.node.impl,
        file=None,
        line=None,
        entry="",
        step=0,
        value="",
        index=(),
    )
    return OperatorError(
        op=row.node.op,
        row=row.node.impl,
        nodes=len(row.nodes),
        max=row.largest,
        rms=float(np.sqrt(row.squares / row.count)) if row.count else 0.0,
        relative=row.relative,
        ulp=row.ulp,
        outside=len(row.outside),
        worst_ratio=max(0.0, row.ratio),
        worst=place,
    )


class _Taint:
    """Follows values that are not finite from where they begin to an output. State is not followed: what nobody wrote there may be anything."""

    def __init__(self, walk: Walk, side: str, *, asks: bool) -> None:
        self.found: NonFinite | None = None
        self._walk, self._side, self._asks = walk, side, asks
        self._origin: dict[str, NonFinite] = {}
        self._state: set[str] = set()
        self._graph: Graph | None = None

    def enter(self, graph: Graph) -> None:
        """Begins a step."""
        self._graph, self._origin = graph, {}
        self._state = {item.value.name for item in graph.updated}

    def leave(self, output: str) -> None:
        """Ends a step: what reached its output is found."""
        if self.found is None:
            self.found = self._origin.get(output)

    def visit(self, at: _At, expected: tuple[Array, ...] | None) -> None:
        """Passes on what a node's operands had, or notes that it begins here."""
        node = at.visit.node
        updates = {result for result, _ in OP[node.op].aliased(node.operands)}
        for number, (value, valid) in enumerate(zip(node.results, at.visit.valid_results, strict=True)):
            if number in updates or valid.dtype.kind in "iub" or _all_finite(valid):
                continue
            before = self._before(at)
            if before is not None:
                self._origin[value.name] = before
                continue
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(valid.astype(np.float64)))[0])
            if expected is None and self._asks:
                expected = self._walk.reference(at.entry, at.visit)
            self._origin[value.name] = NonFinite(
                side=self._side,
                place=at.place(value.name, index),
                found=_kind(valid[index]),
                reference=_kind(expected[number][index]) if expected is not None else "finite",
                weight=self._bad_weight(at),
            )

    def _before(self, at: _At) -> NonFinite | None:
        """The origin of an operand that is not finite, through views."""
        pending = [name for name in at.visit.node.operands if name is not None]
        while pending:
            name = pending.pop(0)
            if name in self._origin:
                return self._origin[name]
            producer = at.graph.producers.get(name)
            if producer is not None and OP[producer.op].is_view:
                pending += [item for item in producer.operands if item is not None]
        return None

    def _bad_weight(self, at: _At) -> str | None:
        fixed = {
            item.value.name: item
            for role in (Role.WEIGHT, Role.PARAMETER, Role.CONSTANT, Role.INPUT)
            for item in at.graph.with_role(role)
        }
        for name, array in zip(at.visit.node.operands, at.visit.operands, strict=True):
            if name in fixed and array is not None and array.dtype.kind not in "iub" and not _all_finite(array):
                return name
        return None


def _all_finite(array: Array) -> bool:
    kind = array.dtype
    return bool(np.isfinite(array if kind in (np.float32, np.float64) else array.astype(np.float32)).all())


def _kind(value: object) -> Finite:
    number = float(value)  # type: ignore[arg-type]
    if np.isnan(number):
        return "NaN"
    return "finite" if np.isfinite(number) else "inf" if number > 0 else "-inf"
