"""Repeated layers of a graph, found by structure and not by name.

Two stretches of the node list are repeats of one another when their nodes do the same (operator, row, attributes, result types) and read the same: a value of
their own stretch at the same place, a value that lies the same distance back, the very same value, or an input of the same role and type (each layer its own
weights and caches). Imported graphs without names are therefore collapsed like traced ones. The search is linear in the nodes for each of a few candidate
periods, which are the distances at which equal nodes recur most often; no recursion, so a chain of any length works.

A training step reads one repeat from another, in the opposite order: the layers' backward begins at the last layer. Once repeats are known the rest is
searched again, and there a value at the same place of the next layer of a known repeat (or of the previous one, in all of a stretch) is the same too, until
nothing more is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from ostinato.ir.graph import Graph, Node

__all__ = ["Repeat", "find_repeats"]

_CANDIDATES = 12
"""Periods tried: the commonest distances between equal nodes. Layers recur in every one of their nodes, so theirs is always among the first."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Nodes [start, start + period * count) of a graph: `count` stretches of `period` nodes that do the same."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """One past the last node."""
        return self.start + self.period * self.count

    @property
    def hidden(self) -> int:
        """Nodes that a picture of one stretch leaves out."""
        return self.period * (self.count - 1)


def find_repeats(graph: Graph) -> tuple[Repeat, ...]:
    """Disjoint repeats in program order, those that hide most nodes preferred, the shortest period where several hide as many."""
    stretches = _Stretches(graph)
    kept: list[Repeat] = []
    shifts: tuple[int, ...] = (0,)
    while True:
        found = [
            (repeat, shift)
            for shift in shifts
            for period in stretches.periods()
            for repeat in stretches.repeats(period, shift)
        ]
        found.sort(key=lambda each: (-each[0].hidden, each[0].period, each[0].start))
        fresh = [repeat for repeat, shift in found if stretches.take(repeat, shift or 1)]
        if not fresh:
            return tuple(sorted(kept, key=lambda repeat: repeat.start))
        kept += fresh
        shifts = (-1, 1)


class _Made(NamedTuple):
    """An operand made by a node: the node's index, and which of its results."""

    node: int
    result: int


class _Given(NamedTuple):
    """An operand that is an input: its name, and what it is (role and type)."""

    name: str
    kind: Hashable


class _Place(NamedTuple):
    """Where a value stands: the repeat by its first node, the node's position in a stretch, which of its results, and the layer: the stretch, with its sign
    changed where the repeat goes through the layers backwards. What enters the first stretch has the layer before it."""

    repeat: int
    position: int
    result: int
    layer: int


class _Stretches:
    """The nodes of a graph as what they do (`keys`, small integers) and what they read (`reads`)."""

    def __init__(self, graph: Graph) -> None:
        numbers: dict[Hashable, int] = {}
        self._results = [len(node.results) for node in graph.nodes]
        self._keys = [numbers.setdefault(_key(node), len(numbers)) for node in graph.nodes]
        place = {
            value.name: _Made(index, slot)
            for index, node in enumerate(graph.nodes)
            for slot, value in enumerate(node.results)
        }
        outside = {item.value.name: (item.role, item.value.type) for item in graph.inputs}
        self._reads: list[tuple[_Made | _Given | None, ...]] = [
            tuple(
                None if name is None else place[name] if name in place else _Given(name, outside.get(name))
                for name in node.operands
            )
            for node in graph.nodes
        ]

        self._taken = bytearray(len(graph.nodes))
        self._places: dict[_Made | _Given, set[_Place]] = {}

    def take(self, repeat: Repeat, order: int) -> bool:
        """Makes a repeat known, if none that is known has a node of it: later searches leave its nodes out and see its values by their places. `order` is 1
        where its stretches come in the order of the layers, -1 where they come in the opposite one."""
        if any(self._taken[repeat.start : repeat.stop]):
            return False
        self._taken[repeat.start : repeat.stop] = b"\x01" * (repeat.stop - repeat.start)
        for index in range(repeat.start, repeat.stop):
            stretch, position = divmod(index - repeat.start, repeat.period)
            for result in range(self._results[index]):
                self._places.setdefault(_Made(index, result), set()).add(
                    _Place(repeat.start, position, result, order * stretch)
                )
        for index in range(repeat.start, repeat.start + repeat.period):
            # what enters the first stretch where later ones read their predecessor stands at that place of a stretch before the first
            for a, b in zip(self._reads[index], self._reads[index + repeat.period], strict=True):
                if a is not None and a != b and isinstance(b, _Made) and 0 <= b.node - repeat.start < repeat.period:
                    self._places.setdefault(a, set()).add(_Place(repeat.start, b.node - repeat.start, b.result, -order))
        return True

    def periods(self) -> list[int]:
        """The candidate periods, commonest first."""
        last: dict[int, int] = {}
        distances: Counter[int] = Counter()
        for index, key in enumerate(self._keys):
            if self._taken[index]:
                continue
            if key in last:
                distances[index - last[key]] += 1
            last[key] = index
        return [period for period, _ in distances.most_common(_CANDIDATES)]

    def repeats(self, period: int, shift: int = 0) -> Iterator[Repeat]:
        """The longest runs of one period among the nodes of no known repeat, each stretch of which reads known ones `shift` layers on from where its
        predecessor does (0: reads of known ones must be the same)."""
        first: int | None = None
        for index in range(len(self._keys) - period + 1):
            matches = index + period < len(self._keys) and self._match(index, period, shift)
            if matches and first is None:
                first = index
            elif not matches and first is not None:
                if index - first >= period:
                    start = self._extended(first, period, shift)
                    count = (index + period - start) // period
                    yield Repeat(self._aligned(start, period, index + period - start - count * period), period, count)
                first = None

    def _match(self, index: int, period: int, shift: int) -> bool:
        """Whether a node and the one a period later do and read the same."""
        if self._taken[index] or self._taken[index + period] or self._keys[index] != self._keys[index + period]:
            return False
        mine, later = self._reads[index], self._reads[index + period]
        return len(mine) == len(later) and all(
            self._same(a, b, period, shift) for a, b in zip(mine, later, strict=True)
        )

    def _same(self, a: _Made | _Given | None, b: _Made | _Given | None, period: int, shift: int) -> bool:
        """Whether two reads mean the same in stretches that lie a period apart."""
        if isinstance(a, _Made) and isinstance(b, _Made) and a.result == b.result and b.node - a.node in (0, period):
            return True
        if isinstance(a, _Given) and isinstance(b, _Given) and (a.name == b.name or a.kind == b.kind):
            return True
        if a is None or b is None:
            return a is b
        theirs = self._places.get(b, ()) if shift else ()
        return any(place._replace(layer=place.layer + shift) in theirs for place in self._places.get(a, ()))

    def _aligned(self, start: int, period: int, slack: int) -> int:
        """The start within `slack` nodes that cuts where the fewest values pass from one stretch to the next: between layers, not inside one."""
        last_reader: dict[_Made, int] = {}
        for index in range(start + period, min(start + slack + 2 * period, len(self._reads))):
            for read in self._reads[index]:
                if isinstance(read, _Made) and read.node >= start:
                    last_reader[read] = index
        crossing = [0] * (slack + 2)
        for made, reader in last_reader.items():
            # it crosses the cuts after its node up to its last reader
            lowest, highest = max(0, made.node + 1 - start - period), min(slack, reader - start - period)
            if lowest <= highest:
                crossing[lowest] += 1
                crossing[highest + 1] -= 1
        totals = list(accumulate(crossing[:-1]))
        return start + totals.index(min(totals))

    def _extended(self, first: int, period: int, shift: int) -> int:
        """The start moved back into a first stretch that differs only in what enters it: what later ones read of their predecessor comes from elsewhere."""
        lowest = first
        while (
            lowest > max(0, first - period)
            and not self._taken[lowest - 1]
            and self._keys[lowest - 1] == self._keys[lowest - 1 + period]
        ):
            lowest -= 1
        for start in range(lowest, first):
            if all(self._enters(index, start, period, shift) for index in range(start, first)):
                return start
        return first

    def _enters(self, index: int, start: int, period: int, shift: int) -> bool:
        """Whether a node of a first stretch does what the one a period later does, but for reading from before `start` where that reads its predecessor."""
        mine, later = self._reads[index], self._reads[index + period]
        return len(mine) == len(later) and all(
            self._same(a, b, period, shift)
            or (
                isinstance(b, _Made)
                and start <= b.node < start + period
                and (isinstance(a, _Given) or (isinstance(a, _Made) and a.node < start))
            )
            for a, b in zip(mine, later, strict=True)
        )


def _key(node: Node) -> Hashable:
    return (node.op, node.impl, node.attrs, tuple(value.type for value in node.results))
