"""The greedy portfolio: eight orders by two fits, each placing one buffer after another, the lowest result wins.

A run is given up as soon as one buffer ends at or above the best height so far, and the portfolio stops when the lower bound is reached, so that on
transformer graphs one or two runs are all it takes. Placed buffers are indexed by time section: those alive when a new buffer's life begins, and those
that begin later during it, are exactly the ones it can collide with, each met once. Work is counted, not timed: after the first run a budget of touched
buffers ends the portfolio, so that dense problems stay bounded and the result depends on nothing but the problem.

It proves nothing beyond reaching the bound, and never says that a capacity is impossible unless the bound exceeds it.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ostinato.planner.problem import Problem, Solution, lower_bound
from ostinato.planner.solvers.outcome import NO_LIMITS, Limits, Outcome, StopTest, status_of

__all__ = ["ORDERS", "Fit", "best_fit"]

WORK_BUDGET = 3_000_000
"""Buffers touched (scanned or indexed) after which no further run is started or finished."""


class Fit(enum.Enum):
    """Which gap a buffer takes: the lowest that holds it, or the one it fills best."""

    LOWEST = "lowest"
    TIGHTEST = "tightest"


@dataclass(frozen=True, slots=True)
class _Sections:
    """Time compressed to the moments at which a life begins: buffer i is alive in the sections [first[i], last[i])."""

    first: tuple[int, ...]
    last: tuple[int, ...]
    load: tuple[int, ...]


def _sections(problem: Problem) -> _Sections:
    moments = sorted({buffer.lower for buffer in problem.buffers})
    first = tuple(bisect_left(moments, buffer.lower) for buffer in problem.buffers)
    last = tuple(bisect_left(moments, buffer.upper) for buffer in problem.buffers)
    change = [0] * (len(moments) + 1)
    for buffer, begin, end in zip(problem.buffers, first, last, strict=True):
        change[begin] += buffer.size
        change[end] -= buffer.size
    return _Sections(first, last, tuple(accumulate(change)))


OrderKey = Callable[[Problem, _Sections], Sequence[int | tuple[int, ...]]]


def _peak_load(problem: Problem, sections: _Sections) -> Sequence[int]:
    """The largest load that each buffer lives through."""
    del problem
    blocks = _SparseMaximum(sections.load)
    return [blocks.over(begin, end) for begin, end in zip(sections.first, sections.last, strict=True)]


def _distance_from_peak(problem: Problem, sections: _Sections) -> Sequence[int]:
    """Sections between each buffer's life and the most loaded section."""
    del problem
    peak = max(range(len(sections.load)), key=sections.load.__getitem__)
    return [max(begin - peak, peak - end + 1, 0) for begin, end in zip(sections.first, sections.last, strict=True)]


class _SparseMaximum:
    """Maxima over ranges in constant time, from maxima over all ranges of power-of-two length."""

    def __init__(self, values: Sequence[int]) -> None:
        self._levels: list[list[int]] = [list(values)]
        width = 1
        while 2 * width <= len(values):
            below = self._levels[-1]
            self._levels.append([max(a, b) for a, b in zip(below, below[width:], strict=False)])
            width *= 2

    def over(self, begin: int, end: int) -> int:
        level = (end - begin).bit_length() - 1
        row = self._levels[level]
        return max(row[begin], row[end - (1 << level)])


# keys sort ascending; ties fall to the earlier and longer life, then to the place in the problem
ORDERS: tuple[tuple[str, OrderKey], ...] = (
    ("size", lambda p, s: [-b.size for b in p.buffers]),
    ("area", lambda p, s: [-b.size * (b.upper - b.lower) for b in p.buffers]),
    ("peak", lambda p, s: [(-load, -b.size) for load, b in zip(_peak_load(p, s), p.buffers, strict=True)]),
    ("from_peak", lambda p, s: [(d, -b.size) for d, b in zip(_distance_from_peak(p, s), p.buffers, strict=True)]),
    ("length", lambda p, s: [(b.lower - b.upper, -b.size) for b in p.buffers]),
    ("start", lambda p, s: [(b.lower, -b.size) for b in p.buffers]),
    ("end", lambda p, s: [(-b.upper, -b.size) for b in p.buffers]),
    ("long_area", lambda p, s: [-b.size * (b.upper - b.lower) ** 2 for b in p.buffers]),
)


class _Packer:
    """Places buffers in a given order; `work` counts the buffers touched over all runs."""

    def __init__(self, problem: Problem, sections: _Sections) -> None:
        self.sections = sections
        self.sizes = [buffer.size for buffer in problem.buffers]
        self.alignments = [buffer.alignment for buffer in problem.buffers]
        self.fixed = [buffer.offset for buffer in problem.buffers]
        self.work = 0

    def pack(self, order: Sequence[int], fit: Fit, limit: int | None, budget: int | None) -> Solution | None:
        """Offsets below `limit`, or None once a buffer does not fit there or the budget is spent."""
        count = len(self.sections.load)
        alive: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # (offset, end) of all that live in the section
        begun: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # those whose life begins with it
        offsets = [0] * len(order)
        height = 0
        tightest = fit is Fit.TIGHTEST
        for index in order:
            size = self.sizes[index]
            begin, end = self.sections.first[index], self.sections.last[index]
            offset = self.fixed[index]
            if offset is None and size:
                placed = list(alive[begin])
                for later in begun[begin + 1 : end]:
                    placed += later
                placed.sort()
                self.work += len(placed)
                offset = _gap(placed, size, self.alignments[index], tightest)
            if offset is None:
                continue  # nothing to place: zero bytes lie anywhere
            top = offset + size
            if limit is not None and top >= limit:
                return None
            offsets[index] = offset
            height = max(height, top)
            if size:
                entry = (offset, top)
                begun[begin].append(entry)
                for section in alive[begin:end]:
                    section.append(entry)
            self.work += end - begin
            if budget is not None and self.work > budget:
                return None
        return Solution(tuple(offsets), height)


def _gap(placed: list[tuple[int, int]], size: int, alignment: int, tightest: bool) -> int:
    """An aligned offset at which `size` bytes are free, `placed` being sorted."""
    free = 0  # everything below is taken or was looked at
    best: int | None = None
    best_slack = 0
    for offset, end in placed:
        if offset > free:
            start = -(-free // alignment) * alignment
            slack = offset - start - size
            if slack >= 0:
                if not tightest or slack == 0:
                    return start
                if best is None or slack < best_slack:
                    best, best_slack = start, slack
        free = max(free, end)
    return -(-free // alignment) * alignment if best is None else best


def _runs(problem: Problem, sections: _Sections) -> Iterator[tuple[str, list[int], Fit]]:
    """Fixed buffers first, then by each order; every order with both fits."""
    buffers = problem.buffers
    for name, key in ORDERS:
        keys = key(problem, sections)
        order = sorted(
            range(len(buffers)),
            key=lambda i: (buffers[i].offset is None, keys[i], buffers[i].lower, -buffers[i].upper, i),
        )
        for fit in Fit:
            yield f"best_fit/{name}/{fit.value}", order, fit


def best_fit(problem: Problem, limits: Limits = NO_LIMITS, stop: StopTest | None = None) -> Outcome:
    """The lowest placement that the portfolio finds; colliding fixed offsets are left to `violations`.

    Its cost is bounded, so that it heeds neither `limits` nor `stop`.
    """
    del limits, stop
    bound = lower_bound(problem)
    best = Solution((0,) * len(problem.buffers), 0)
    solver = "best_fit/empty"
    if problem.buffers:
        sections = _sections(problem)
        packer = _Packer(problem, sections)
        found: Solution | None = None
        for name, order, fit in _runs(problem, sections):
            first = found is None
            run = packer.pack(order, fit, None if first else best.height, None if first else WORK_BUDGET)
            if run is not None:
                found = best = run
                solver = name
            if best.height <= bound.height or packer.work > WORK_BUDGET:
                break
    return Outcome(best, bound, solver, status_of(problem, best.height, bound.height))
