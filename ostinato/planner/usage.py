"""How an arena is used over time: live bytes and extent at each step, and who takes bytes that another had.

The extent of a step is the end of its highest live byte; what of it is not live is fragmentation: holes that the placement left, and padding up to the
alignment. Worked out from the slots alone, in n log n.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ByteSet", "StepUsage", "Tenancy", "reuse_count", "usage_changes", "usage_of"]


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Bytes [offset, offset + size) held during the half-open interval of steps [first, last)."""

    first: int
    last: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class StepUsage:
    """Bytes live at a step, and the end of the highest of them."""

    live: int
    extent: int

    @property
    def fragmentation(self) -> float:
        """The part of the extent that is not live; 0 where nothing is."""
        return 1 - self.live / self.extent if self.extent else 0.0


class ByteSet:
    """Bytes, as disjoint sorted intervals."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def meets(self, start: int, end: int) -> bool:
        place = bisect_right(self._ends, start)
        return place < len(self._starts) and self._starts[place] < end


def usage_changes(tenancies: Iterable[Tenancy]) -> tuple[tuple[int, StepUsage], ...]:
    """(step, the use from it on) at every step where a tenant comes or goes, in order."""
    waiting = sorted(((t.first, t.last, t.offset + t.size, t.size) for t in tenancies if t.size), reverse=True)
    change: dict[int, int] = {}
    for first, last, _, size in waiting:
        change[first] = change.get(first, 0) + size
        change[last] = change.get(last, 0) - size
    highest: list[tuple[int, int]] = []  # (-end, last) of those that are live, and of some that died below a higher one
    found: list[tuple[int, StepUsage]] = []
    live = 0
    for step in sorted(change):
        live += change[step]
        while waiting and waiting[-1][0] == step:
            _, last, end, _ = waiting.pop()
            heapq.heappush(highest, (-end, last))
        while highest and highest[0][1] <= step:
            heapq.heappop(highest)
        found.append((step, StepUsage(live, -highest[0][0] if highest else 0)))
    return tuple(found)


def usage_of(tenancies: Iterable[Tenancy], steps: int) -> tuple[StepUsage, ...]:
    """The use of an arena at each of the steps 0 to `steps` - 1."""
    found: list[StepUsage] = []
    now = StepUsage(0, 0)
    for step, usage in usage_changes(tenancies):
        found += [now] * (min(step, steps) - len(found))
        now = usage
    return (*found, *([now] * (steps - len(found))))


def reuse_count(tenancies: Iterable[Tenancy]) -> int:
    """How many tenants take a byte that an earlier one had."""
    had = ByteSet()
    found = 0
    for tenancy in sorted(tenancies, key=lambda t: (t.first, t.offset)):
        if tenancy.size:
            found += had.meets(tenancy.offset, tenancy.offset + tenancy.size)
            had.add(tenancy.offset, tenancy.offset + tenancy.size)
    return found
