"""What to keep across the peak and what to compute again below it: a minimum cut.

Of the values made before the peak, those read after it must be there then: each is either kept, which costs its bytes, or computed again, which costs work
and asks the same question of whatever its step reads. What the peak's own step touches is there anyhow and costs nothing to keep. As a network: an edge from
the source into each step that costs its work, an edge from a step (from the source, where the step must not run twice) into each value it makes that costs the
value's bytes, and edges that cannot be cut from a value into the steps that read it and from the values read below the peak into the sink.

A cut of least weight says which steps run again (those on the sink's side) and which values are kept (their own edge is cut). Bytes are weighed against work by
a price, which rises until enough bytes are free; of several cuts of the same weight the one that runs fewest steps again is taken, which is unique.

The weight of a least cut is also what no script goes below, in work and in what it keeps alive there (Lagrange's bound): `Bounds`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate

from ostinato.planner.recompute.model import RecomputeModel

__all__ = ["Bounds", "Cut", "Cuts"]

PRICES = tuple(4**power for power in range(1, 24))
"""Work that a byte is worth; work is counted in 256ths of an operation."""
_WORK = 256


@dataclass(frozen=True, slots=True)
class Cut:
    """At the step `turn`: storages `dropped` before it although they are read after it, and storages `kept` past their last reader to compute those from."""

    turn: int
    dropped: frozenset[int]
    kept: frozenset[int]


class Cuts:
    """Cuts of a model, by step and budget."""

    def __init__(self, model: RecomputeModel) -> None:
        self._model = model
        self._networks: dict[int, _Network] = {}

    def at(self, turn: int, budget: int) -> list[Cut]:
        """Cuts at a step: first the one that runs least again of those that bring the step within `budget` bytes, or the one that frees most where none does;
        then others that were met on the way to it and free less."""
        if turn not in self._networks:
            self._networks[turn] = _Network(self._model, turn)
        network = self._networks[turn]
        excess = network.load - budget
        found: dict[Cut, int] = {}
        low, high = 0, len(PRICES) - 1
        while low <= high and network.needed:
            middle = (low + high) // 2
            cut, freed, _ = network.cut(PRICES[middle])
            if freed >= excess:
                high = middle - 1
                found = {other: less for other, less in found.items() if less < excess}
            else:
                low = middle + 1
            if freed > 0:
                found[cut] = freed
        return sorted(found, key=lambda cut: -found[cut])


class Bounds:
    """What no script of a model goes below: `least` bytes, whatever runs twice; and the work that it takes to stay within a budget."""

    def __init__(self, model: RecomputeModel, peak: int) -> None:
        """`peak` is the step at which most bytes are alive where nothing runs twice."""
        bound = _pinned(model)
        self.least = max(bound, default=0)
        self._network = _Network(model, peak, early=True)
        if bound:
            network = _Network(model, bound.index(self.least), early=True)
            freed = network.cut(PRICES[-1])[1] if network.needed else 0
            self.least = max(self.least, network.load - freed)

    def work(self, budget: int) -> int:
        """Work that clones take at least in a script within so many bytes."""
        network = self._network
        if network.load <= budget or not network.needed:
            return 0
        most, low, high = 0, 0, len(PRICES) - 1
        while low <= high:
            price = PRICES[middle := (low + high) // 2]
            _, freed, weight = network.cut(price)
            most = max(most, weight - price * (budget - network.own))
            low, high = (middle + 1, high) if network.load - freed > budget else (low, middle - 1)
        return most // _WORK


def _pinned(model: RecomputeModel) -> list[int]:
    """For each step the bytes alive there in every script: its own, and of the values read below it those that cannot be made again by then."""
    change = [0] * (len(model.turns) + 1)
    own = [model.need(turn) for turn in model.turns]
    for storage, (maker, uses) in enumerate(zip(model.maker, model.uses, strict=True)):
        turn, size = model.turns[maker], model.sizes[storage]
        first, last = max(maker + 1, turn.until if turn.repeatable else 0), uses[-1] if uses else 0
        if first < last:
            change[first] += size
            change[last] -= size
            for use in uses[bisect_left(uses, first) : -1]:  # counted as its own there
                own[use] -= size
    return [pinned + needed for pinned, needed in zip(accumulate(change), own, strict=False)]


class _Network:
    """The values made above a step from which those read below it can be computed. `early`: computed at any time below it, and not only for their readers."""

    def __init__(self, model: RecomputeModel, turn: int, *, early: bool = False) -> None:
        self.model, self.turn = model, turn
        self._cuts: dict[int, tuple[Cut, int, int]] = {}
        here = model.turns[turn]
        self.present = {*here.reads, *here.makes}
        self.needed = [
            storage
            for storage, (maker, uses) in enumerate(zip(model.maker, model.uses, strict=True))
            if maker < turn < (uses[-1] if uses else -1) and storage not in self.present
        ]
        self.own = model.need(here)
        self.load = self.own + sum(model.sizes[storage] for storage in self.needed)
        self.steps: dict[int, None] = {}
        self.storages: dict[int, None] = {}
        # when each is read below the peak, the last of the steps that it would be made again for
        read = {storage: model.uses[storage][bisect_right(model.uses[storage], turn)] for storage in self.needed}
        waiting = [(-model.maker[storage], storage) for storage in self.needed]
        heapify(waiting)
        while waiting:  # from below, so that all that a step is run again for is known when it is met
            _, storage = heappop(waiting)
            if storage in self.storages:
                continue
            self.storages[storage] = None
            maker = model.maker[storage]
            if storage in self.present or not model.turns[maker].may_run(turn + 1 if early else read[storage]):
                continue  # it is there, or it must be kept: nothing above it matters
            self.steps[maker] = None
            for source in model.turns[maker].reads:
                read[source] = max(read.get(source, -1), read[storage])
                heappush(waiting, (-model.maker[source], source))

    def cut(self, price: int) -> tuple[Cut, int, int]:
        """The cut of least weight at a price of bytes, the bytes it frees at the step, and its weight."""
        if price not in self._cuts:
            self._cuts[price] = self._cut(price)
        return self._cuts[price]

    def _cut(self, price: int) -> tuple[Cut, int, int]:
        import networkx  # only plans within a limit of memory need it, and loading it takes a tenth of a second

        model = self.model
        steps = {step: number for number, step in enumerate(self.steps)}
        values = {storage: number for number, storage in enumerate(self.storages, len(steps))}
        source, sink = -1, -2
        graph: networkx.DiGraph[int] = networkx.DiGraph()
        for step, number in steps.items():
            graph.add_edge(source, number, capacity=model.turns[step].work * _WORK)
            graph.add_edges_from((values[storage], number) for storage in model.turns[step].reads)
        for storage, number in values.items():
            if storage not in self.present:
                maker = steps.get(model.maker[storage], source)
                graph.add_edge(maker, number, capacity=model.sizes[storage] * price)
        graph.add_edges_from((values[storage], sink) for storage in self.needed)
        weight, (_, below) = networkx.minimum_cut(graph, source, sink)
        kept = {
            storage
            for storage, number in values.items()
            if number in below and storage not in self.present and steps.get(model.maker[storage]) not in below
        }
        dropped = frozenset(self.needed) - kept
        late = frozenset(kept.difference(self.needed))
        freed = sum(model.sizes[storage] for storage in dropped) - sum(model.sizes[storage] for storage in late)
        return Cut(self.turn, dropped, late), freed, int(weight)
