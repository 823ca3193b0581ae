"""What an order of the steps costs, in numbers alone: who needs whom, which bytes each step touches, what it may take over.

The bytes alive at a step are the very ones that `liveness` computes for the same order (tests hold the two together): arena storages from first to last
use, workspaces for one step, a result in the bytes of a dying operand where row and bytes allow it. Inputs, outputs, state, weights and constants cost
nothing here, nor do copies to outputs: a copy stands right behind the step that makes its bytes and needs none beside them.

A legal order keeps data before its readers, every access to bytes that an update overwrites on its side of the update, and effects that cannot be seen from
operands (`ordered`, or `state` without a declared update) in the order of the program. Random operators are functions of their operands like others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ostinato.ir.calls import NodeCall
from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import Effect, OpDef
from ostinato.planner.liveness import in_place_pairs, taken_over
from ostinato.planner.problem import align_up
from ostinato.planner.storage import Place, Storages

__all__ = ["OrderModel", "order_model"]


@dataclass(frozen=True, slots=True)
class OrderModel:
    """Steps 0, 1, ... in program order, storages 0, 1, ... of the arena.

    `before`: the steps that must be done before each, all of them above it. `touches`: the storages each step reads or writes. `workspaces`: bytes for the
    step alone. `takes`: (result, operand) pairs of storages, in the order of the row; the result needs no bytes of its own when the step is the operand's
    last use. `sizes`: aligned bytes of each storage. `maker`: the step that each storage begins with.
    """

    before: tuple[tuple[int, ...], ...]
    touches: tuple[tuple[int, ...], ...]
    workspaces: tuple[int, ...]
    takes: tuple[tuple[tuple[int, int], ...], ...]
    sizes: tuple[int, ...]
    maker: tuple[int, ...]

    def reindexed(self, order: Sequence[int]) -> OrderModel:
        """The same steps, numbered by their places in a legal order of them."""
        place = {step: place for place, step in enumerate(order)}
        return OrderModel(
            tuple(tuple(sorted(place[other] for other in self.before[step])) for step in order),
            tuple(self.touches[step] for step in order),
            tuple(self.workspaces[step] for step in order),
            tuple(self.takes[step] for step in order),
            self.sizes,
            tuple(place[step] for step in self.maker),
        )

    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each storage the steps that touch it, ascending."""
        found: list[list[int]] = [[] for _ in self.sizes]
        for step, touched in enumerate(self.touches):
            for storage in touched:
                found[storage].append(step)
        return tuple(map(tuple, found))

    def profile(self, order: Sequence[int]) -> tuple[list[int], list[int]]:
        """Bytes alive during each step of an order of all steps, and bytes alive before it (one more: after the last, 0)."""
        left = [len(steps) for steps in self.users()]
        during: list[int] = []
        between = [0]
        for step in order:
            touched = self.touches[step]
            for storage in touched:
                left[storage] -= 1
            dying = [storage for storage in touched if not left[storage]]
            held = between[-1] + sum(self.sizes[storage] for storage in touched if self.maker[storage] == step)
            during.append(held + self.workspaces[step] - taken_over(self.takes[step], dying, self.sizes))
            between.append(held - sum(self.sizes[storage] for storage in dying))
        return during, between

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes alive at one step of an order of all steps."""
        return max(self.profile(order)[0], default=0)


def order_model(
    graph: Graph,
    ops: Mapping[str, OpDef],
    storages: Storages,
    calls: Mapping[str, NodeCall],
    *,
    alignment: int,
    in_place: bool,
) -> OrderModel:
    """The model of a graph all of whose nodes run on one device; `calls` by node name, for every node that is no view."""
    nodes = tuple(node for node in graph.nodes if not ops[node.op].is_view)
    number: dict[str, int] = {}
    maker: list[int] = []
    touches: list[tuple[int, ...]] = []
    takes: list[tuple[tuple[int, int], ...]] = []
    for step, node in enumerate(nodes):
        names = [*(name for name in node.operands if name), *(value.name for value in node.results)]
        touched: dict[int, None] = {}
        for name in names:
            storage = storages.places[name].storage
            if storages.is_planned(storage):
                if storage not in number:
                    number[storage] = len(maker)
                    maker.append(step)
                touched[number[storage]] = None
        touches.append(tuple(touched))
        pairs = (
            in_place_pairs(graph, node, ops[node.op], calls[node.name].row, storages, storages.device)
            if in_place
            else ()
        )
        takes.append(tuple((number[result], number[operand]) for result, operand in pairs))
    return OrderModel(
        _dependences(nodes, ops, storages),
        tuple(touches),
        tuple(align_up(calls[node.name].workspace, alignment) for node in nodes),
        tuple(takes),
        tuple(align_up(storages.sizes[storage], alignment) for storage in number),
        tuple(maker),
    )


def _dependences(nodes: Sequence[Node], ops: Mapping[str, OpDef], storages: Storages) -> tuple[tuple[int, ...], ...]:
    made: dict[str, int] = {}  # value with content of its own -> its step
    updated = {
        storages.places[node.results[result].name].storage
        for node in nodes
        for result, _ in ops[node.op].aliased(node.operands)
    }
    accesses = {storage: _Accesses() for storage in updated}
    last_ordered = -1
    before: list[tuple[int, ...]] = []
    for step, node in enumerate(nodes):
        opdef = ops[node.op]
        operands = [name for name in node.operands if name]
        results = [value.name for value in node.results]
        needed = {made[content] for name in operands if (content := storages.content[name]) in made}
        for names, writes in ((operands, False), (results, True)):
            for name in names:
                place = storages.places[name]
                if place.storage in accesses and place.size:
                    needed |= accesses[place.storage].add(step, place, writes=writes)
        if opdef.effect is Effect.ORDERED or (opdef.effect is Effect.STATE and not opdef.must_alias):
            needed.add(last_ordered)
            last_ordered = step
        made.update(dict.fromkeys(results, step))
        before.append(tuple(sorted(needed - {step, -1})))
    return tuple(before)


class _Accesses:
    """Reads and writes of a storage that steps overwrite, in program order; those that a later write covers are forgotten, since it comes after them."""

    def __init__(self) -> None:
        self._reads: list[tuple[int, Place]] = []
        self._writes: list[tuple[int, Place]] = []

    def add(self, step: int, place: Place, *, writes: bool) -> set[int]:
        """Enters an access; returns the steps that must be done before it."""
        found = _meeting(self._writes, place)
        if not writes:
            self._reads.append((step, place))
            return found
        found |= _meeting(self._reads, place)
        self._reads = [item for item in self._reads if not _covers(place, item[1])]
        self._writes = [item for item in self._writes if not _covers(place, item[1])]
        self._writes.append((step, place))
        return found


def _meeting(accesses: Iterable[tuple[int, Place]], place: Place) -> set[int]:
    end = place.offset + place.size
    return {step for step, other in accesses if other.offset < end and place.offset < other.offset + other.size}


def _covers(place: Place, other: Place) -> bool:
    return place.offset <= other.offset and other.offset + other.size <= place.offset + place.size
