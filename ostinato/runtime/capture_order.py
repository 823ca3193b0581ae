"""Which steps must come before which others, and whether the edges of a captured graph see to it.

Hazards are worked out anew from the bytes that steps read and write, by address, so that memory bound by a caller counts as what it is. A walk over the steps
keeps the last writer of every byte and who has read it since. What it lists is enough: any two steps that touch the same byte, one of them writing, are in
order when every listed pair is, since order is transitive.

Whether one node runs before another is asked of sets of ancestors, one bit a node, which are dropped when nothing follows from them any more: a chain of nodes
holds one set at a time. Nothing here is recursive.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Access", "Hazard", "hazards_of", "order_of", "read_too_early", "unordered_pairs"]


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes [start, end) of memory that a step reads, writes, or both; `name` is what it calls them. `early`: it may read them before it waits."""

    name: str
    start: int
    end: int
    reads: bool
    writes: bool
    early: bool = False


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two steps that touch the same bytes, the first of them at `start`: `earlier` must be over when `later` begins."""

    earlier: int
    later: int
    kind: str
    name: str
    start: int


@dataclass(slots=True)
class _Cell:
    """Bytes from `start` to the next cell: the step that wrote them last (-1: none), and those that have read them since."""

    start: int
    writer: int = -1
    readers: list[int] = field(default_factory=list)


class _Bytes:
    """All addresses as sorted cells without gaps."""

    def __init__(self) -> None:
        self._starts = [0]
        self._cells = [_Cell(0)]

    def over(self, start: int, end: int) -> list[_Cell]:
        first, last = self._cut(start), self._cut(end)
        return self._cells[first:last]

    def write(self, start: int, end: int, writer: int) -> None:
        first, last = self._cut(start), self._cut(end)
        self._cells[first:last] = [_Cell(start, writer)]
        self._starts[first:last] = [start]

    def _cut(self, at: int) -> int:
        """The index of the cell that starts at this byte."""
        index = bisect_right(self._starts, at) - 1
        cell = self._cells[index]
        if cell.start != at:
            index += 1
            self._cells.insert(index, _Cell(at, cell.writer, list(cell.readers)))
            self._starts.insert(index, at)
        return index


def hazards_of(steps: Sequence[Sequence[Access]]) -> list[Hazard]:
    """What must be in order among steps that follow one another in this list; each pair of steps once."""
    memory = _Bytes()
    found: dict[tuple[int, int], Hazard] = {}
    for step, accesses in enumerate(steps):
        touched = [access for access in accesses if access.end > access.start]
        for access in (access for access in touched if access.reads):
            for cell in memory.over(access.start, access.end):
                if cell.writer >= 0:
                    _note(found, cell.writer, step, "read after write", access.name, cell.start)
                if not cell.readers or cell.readers[-1] != step:
                    cell.readers.append(step)
        for access in (access for access in touched if access.writes):
            for cell in memory.over(access.start, access.end):
                if cell.writer >= 0 and cell.writer != step:
                    _note(found, cell.writer, step, "write after write", access.name, cell.start)
                for reader in cell.readers:
                    if reader != step:
                        _note(found, reader, step, "write after read", access.name, cell.start)
            memory.write(access.start, access.end, step)
    return list(found.values())


def _note(found: dict[tuple[int, int], Hazard], earlier: int, later: int, kind: str, name: str, start: int) -> None:
    found.setdefault((earlier, later), Hazard(earlier, later, kind, name, start))


def read_too_early(steps: Sequence[Sequence[Access]]) -> list[Hazard]:
    """The first early read of each step that finds bytes which a step before it in this list wrote."""
    memory = _Bytes()
    found: list[Hazard] = []
    for step, accesses in enumerate(steps):
        written = (
            Hazard(cell.writer, step, "early read after write", access.name, cell.start)
            for access in accesses
            if access.early and access.reads and access.end > access.start
            for cell in memory.over(access.start, access.end)
            if cell.writer >= 0
        )
        found += [first] if (first := next(written, None)) is not None else []
        for access in accesses:
            if access.writes and access.end > access.start:
                memory.write(access.start, access.end, step)
    return found


def order_of(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The nodes in an order that the edges allow, the lowest number first where several may come; without those that lie on a cycle or behind one."""
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for first, second in edges:
        after[first].append(second)
        waiting[second] += 1
    ready = [node for node in range(count) if not waiting[node]]  # sorted, hence a heap
    order: list[int] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    return order


def unordered_pairs(
    order: Sequence[int], edges: Iterable[tuple[int, int]], wanted: Mapping[int, Iterable[int]]
) -> list[tuple[int, int]]:
    """The pairs (earlier, later), of `wanted[later]`, that no path of edges leads through. `order` has the nodes as `order_of` gives them."""
    place = {node: position for position, node in enumerate(order)}
    before: dict[int, list[int]] = {node: [] for node in order}
    followers = dict.fromkeys(order, 0)
    for first, second in edges:
        if first in place and second in place:
            before[second].append(first)
            followers[first] += 1
    found: list[tuple[int, int]] = []
    ancestors: dict[int, int] = {}
    for node in order:
        known = 0
        for other in before[node]:
            known |= ancestors[other] | 1 << place[other]
            followers[other] -= 1
            if not followers[other]:
                del ancestors[other]
        ancestors[node] = known
        found += [(other, node) for other in wanted.get(node, ()) if other in place and not known >> place[other] & 1]
        if not followers[node]:
            del ancestors[node]
    return found
