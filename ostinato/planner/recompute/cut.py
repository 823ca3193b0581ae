"""What to keep across the peak and what to compute again below it: a minimum cut.

Of the values made before the peak, those read after it must be there then: each is either kept, which costs its bytes, or computed again, which costs work
and asks the same question of whatever its step reads. What the peak's own step touches is there anyhow and costs nothing to keep. As a network: an edge from
the source into each step that costs its work, an edge from a step (from the source, where the step must not run twice) into each value it makes that costs the
value's bytes, and edges that cannot be cut from a value into the steps that read it and from the values read below the peak into the sink.

A cut of least weight says which steps run again (those on the sink's side) and which values are kept (their own edge is cut). Bytes are weighed against work by
a price, which rises until enough bytes are free; of several cuts of the same weight the one that runs fewest steps again is taken, which is unique.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from ostinato.planner.recompute.model import RecomputeModel

__all__ = ["Cut", "cuts_at"]

PRICES = tuple(4**power for power in range(1, 24))
"""Work that a byte is worth; work is counted in 256ths of an operation."""
_WORK = 256


@dataclass(frozen=True, slots=True)
class Cut:
    """At the step `turn`: storages `dropped` before it although they are read after it, and storages `kept` past their last reader to compute those from."""

    turn: int
    dropped: frozenset[int]
    kept: frozenset[int]


def cuts_at(model: RecomputeModel, turn: int, budget: int) -> list[Cut]:
    """Cuts at a step: first the one that runs least again of those that bring the step within `budget` bytes, or the one that frees most where none does; then
    others that were met on the way to it."""
    network = _Network(model, turn)
    excess = network.load - budget
    found: dict[Cut, int] = {}
    enough: Cut | None = None
    low, high = 0, len(PRICES) - 1
    while low <= high and network.needed:
        middle = (low + high) // 2
        cut, freed = network.cut(PRICES[middle])
        if freed > 0:
            found[cut] = freed
        if freed >= excess:
            high, enough = middle - 1, cut
        else:
            low = middle + 1
    return sorted(found, key=lambda cut: (cut is not enough, -found[cut]))


class _Network:
    """The values made above a step from which those read below it can be computed."""

    def __init__(self, model: RecomputeModel, turn: int) -> None:
        self.model, self.turn = model, turn
        here = model.turns[turn]
        self.present = {*here.reads, *here.makes}
        self.needed = [
            storage
            for storage, (maker, uses) in enumerate(zip(model.maker, model.uses, strict=True))
            if maker < turn < (uses[-1] if uses else -1) and storage not in self.present
        ]
        self.load = model.need(here) + sum(model.sizes[storage] for storage in self.needed)
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
            if storage in self.present or not model.turns[maker].may_run(read[storage]):
                continue  # it is there, or it must be kept: nothing above it matters
            self.steps[maker] = None
            for source in model.turns[maker].reads:
                read[source] = max(read.get(source, -1), read[storage])
                heappush(waiting, (-model.maker[source], source))

    def cut(self, price: int) -> tuple[Cut, int]:
        """The cut of least weight at a price of bytes, and the bytes it frees at the step."""
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
        _, (_, below) = networkx.minimum_cut(graph, source, sink)
        kept = {
            storage
            for storage, number in values.items()
            if number in below and storage not in self.present and steps.get(model.maker[storage]) not in below
        }
        dropped = frozenset(self.needed) - kept
        late = frozenset(kept.difference(self.needed))
        freed = sum(model.sizes[storage] for storage in dropped) - sum(model.sizes[storage] for storage in late)
        return Cut(self.turn, dropped, late), freed
