"""When each storage is needed, over what happens before what, and which results may take an operand's bytes.

Steps are ordered by their lane and by signals and waits; the list order is one of the orders these allow (an event is signalled above its waits). A
storage's lifetime is a half-open interval of list positions: from the first step that may run beside its earliest use to the last that may run beside
its latest. Two storages with disjoint intervals are therefore used one strictly after the other in every interleaving. With one lane it is plain first
use to last use.

In-place reuse joins two storages into one class: only where the row allows the pair, only at the last use of the operand's whole storage (not of one
view of it), only among arena storages of the same bytes in the same element order, and only when no other operand of the step reads those bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.ir.calls import result_names
from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import OpDef
from ostinato.ir.target import Impl
from ostinato.ir.types import TensorType
from ostinato.planner.order import Action
from ostinato.planner.storage import Storages, is_dense

__all__ = ["HappensBefore", "StorageClass", "in_place_pairs", "storage_classes_of", "taken_over"]


class HappensBefore:
    """The order that lanes, signals and waits give. Raises `PlanError` for a wait whose event no step above it signals, and for an event signalled twice."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._lanes: dict[int, list[int]] = {}  # lane -> positions of its steps
        self._place: list[tuple[int, int]] = []  # position -> (lane, steps before it on that lane)
        self._known: list[dict[int, int]] = []  # position -> lane -> steps of that lane which happen before it
        signalled: dict[int, int] = {}
        for position, action in enumerate(actions):
            lane = self._lanes.setdefault(action.lane, [])
            known = dict(self._known[lane[-1]]) if lane else {}
            for event in action.waits:
                if event not in signalled:
                    raise PlanError(
                        f"step {position} ({action}) waits for event {event}, which no step above it signals"
                    )
                other = signalled[event]
                for name, count in (*self._known[other].items(), (self._place[other][0], self._place[other][1] + 1)):
                    known[name] = max(known.get(name, 0), count)
            known[action.lane] = len(lane)
            self._place.append((action.lane, len(lane)))
            self._known.append(known)
            lane.append(position)
            for event in action.signals:
                if event in signalled:
                    raise PlanError(f"event {event} is signalled by steps {signalled[event]} and {position}")
                signalled[event] = position

    def before(self, first: int, second: int) -> bool:
        """Whether step `first` is done before step `second` starts, in every run."""
        lane, index = self._place[first]
        return self._known[second].get(lane, 0) > index

    def all_before(self, steps: Sequence[int], second: int) -> bool:
        """Whether all these steps, each above `second` in the list, are done before it starts."""
        return len(self._lanes) == 1 or all(self.before(step, second) for step in steps)

    def earliest(self, position: int) -> int:
        """The first position that is not over when this step starts (its own, with one lane)."""
        known = self._known[position]
        return min(steps[count] for lane, steps in self._lanes.items() if (count := known.get(lane, 0)) < len(steps))

    def latest(self, position: int) -> int:
        """The last position that may start before this step is over (its own, with one lane)."""
        lane, index = self._place[position]
        if len(self._lanes) == 1:
            return position
        found = position
        for steps in self._lanes.values():
            concurrent = bisect_right(steps, index, key=lambda other: self._known[other].get(lane, 0))
            if concurrent:
                found = max(found, steps[concurrent - 1])
        return found


@dataclass(slots=True)
class StorageClass:
    """Storages that share bytes of one arena; alive in [first, last). `uses` are the positions that touch them, in list order."""

    storages: list[str]
    size: int
    uses: list[int]
    first: int = 0
    last: int = 0
    values: list[str] = field(default_factory=list)


def _touched_storages(action: Action, storages: Storages) -> set[str]:
    """The storages whose bytes a step reads or writes (workspaces apart)."""
    if action.node is None:
        filled = set() if action.output >= 0 else {storages.replicas[action.source, action.device]}
        return {storages.places[action.source].storage} | filled
    names = [*(name for name in action.node.operands if name), *(value.name for value in action.node.results)]
    names += storages.imports.get(action.node.name, ())  # the count of valid rows is no operand
    return {storages.at(name, action.device).storage for name in names}


def storage_classes_of(
    graph: Graph,
    actions: Sequence[Action],
    order: HappensBefore,
    storages: Storages,
    ops: Mapping[str, OpDef],
    rows: Mapping[str, Impl],
    *,
    in_place: bool = True,
) -> tuple[tuple[StorageClass, ...], int]:
    """Classes of the arena storages with their lifetimes, in order of first use, and how many results took an operand's bytes.

    `rows` gives each node's row by node name. Storages without bytes have no class.
    """
    uses: dict[str, list[int]] = {}
    for position, action in enumerate(actions):
        for storage in sorted(_touched_storages(action, storages)):
            uses.setdefault(storage, []).append(position)
    classes = {
        storage: StorageClass([storage], storages.sizes[storage], positions)
        for storage, positions in uses.items()
        if storages.is_planned(storage)
    }
    joined = 0
    if in_place:
        for position, action in enumerate(actions):
            if action.node is not None:
                node = action.node
                pairs = in_place_pairs(graph, node, ops[node.op], rows[node.name], storages, action.device)
                joined += _join(position, pairs, order, classes)
    found = list({id(item): item for item in classes.values()}.values())
    values: dict[str, list[str]] = {}
    for name, place in storages.places.items():
        values.setdefault(place.storage, []).append(name)
    for (name, _), replica in storages.replicas.items():
        values.setdefault(replica, []).append(name)
    for item in found:
        item.first = min(map(order.earliest, item.uses))
        item.last = max(map(order.latest, item.uses)) + 1
        item.values = [name for storage in item.storages for name in values[storage]]
    found.sort(key=lambda item: (item.uses[0], item.storages[0]))
    return tuple(found), joined


def in_place_pairs(
    graph: Graph, node: Node, opdef: OpDef, row: Impl, storages: Storages, device: str
) -> tuple[tuple[str, str], ...]:
    """(result, operand) storages of an arena that may share bytes when this node on `device` is the last to use the operand's, in the order of the row.

    That is what row and bytes allow, whatever the order; whether it is the last use is for the order to say.
    """
    if not row.in_place:
        return ()
    operands = {spec.name: name for spec, name in zip(opdef.operands, node.operands, strict=False) if name is not None}
    results = result_names(node, opdef)
    places = {name: storages.at(name, device) for name in (*operands.values(), *results.values())}
    pairs: list[tuple[str, str]] = []
    for result_name, operand_name in row.in_place:
        result, operand = results.get(result_name), operands.get(operand_name)
        if result is None or operand is None:
            continue
        given = places[operand].storage
        if not (storages.is_planned(result) and storages.is_planned(given)):
            continue  # not in an arena, or not a storage of its own
        size = storages.sizes[given]
        exact = all(
            (result_name, spec) in row.in_place
            and (places[name].offset, places[name].size) == (0, size)
            and _same_order(graph.types[name], graph.types[result], storages, name)
            for spec, name in operands.items()
            if places[name].storage == given
        )
        free = all(places[name].storage != given for name in results.values())
        if exact and free and size == storages.sizes[result]:
            pairs.append((result, given))
    return tuple(pairs)


def taken_over(pairs: Sequence[tuple[int, int]], dying: Container[int], sizes: Sequence[int]) -> int:
    """Bytes that results of a step need not have, since they lie in those of operands that die with it.

    `pairs` are those of `in_place_pairs` by number of storage: a result takes the first operand that dies and that no other result took.
    """
    taken: set[int] = set()
    found = 0
    for result, operand in pairs:
        if operand in dying and taken.isdisjoint((result, operand)):
            taken.update((result, operand))
            found += sizes[operand]
    return found


def _join(
    position: int, pairs: Sequence[tuple[str, str]], order: HappensBefore, classes: dict[str, StorageClass]
) -> int:
    """Joins results of the step at `position` with operands' classes that die there; returns how many."""
    joined: set[str] = set()
    for result, operand in pairs:
        given, taken = classes[operand], classes[result]
        dead = given.uses[-1] == position and order.all_before(given.uses[:-1], position)
        if dead and joined.isdisjoint((result, operand)):
            joined.update((result, operand))
            given.storages += taken.storages
            given.uses += taken.uses[1:]  # both have this step: it is the last of one and the first of the other
            for storage in taken.storages:
                classes[storage] = given
    return len(joined) // 2


def _same_order(operand: TensorType, result: TensorType, storages: Storages, name: str) -> bool:
    """Whether element i of the operand and of the result lie at the same byte of a shared storage."""
    view = storages.views[name]
    if view.contiguous and result.is_natural:
        return operand.elements == result.elements
    return is_dense(operand, view) and operand.shape == result.shape and view.strides == result.strides
