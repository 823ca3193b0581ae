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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.ir.calls import result_names
from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import OpDef
from ostinato.ir.target import Impl
from ostinato.ir.types import TensorType
from ostinato.planner.order import Action
from ostinato.planner.storage import Storages, is_dense

__all__ = ["HappensBefore", "StorageClass", "storage_classes_of", "touched_storages"]


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
    """Storages that share bytes; alive in [first, last). `uses` are the positions that touch them, in list order."""

    storages: list[str]
    size: int
    uses: list[int]
    first: int = 0
    last: int = 0
    values: list[str] = field(default_factory=list)


def touched_storages(action: Action, storages: Storages) -> set[str]:
    """The storages whose bytes a step reads or writes (workspaces apart)."""
    if action.node is None:
        return {storages.places[action.source].storage}
    names = [*(name for name in action.node.operands if name), *(value.name for value in action.node.results)]
    return {storages.places[name].storage for name in names}


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
        for storage in sorted(touched_storages(action, storages)):
            uses.setdefault(storage, []).append(position)
    classes = {
        storage: StorageClass([storage], storages.sizes[storage], positions)
        for storage, positions in uses.items()
        if storages.kinds[storage] == "arena" and storages.sizes[storage]
    }
    joined = 0
    if in_place:
        for position, action in enumerate(actions):
            if action.node is not None and rows[action.node.name].in_place:
                joined += _join(graph, position, action.node, order, storages, ops, rows[action.node.name], classes)
    found = list({id(item): item for item in classes.values()}.values())
    values: dict[str, list[str]] = {}
    for name, place in storages.places.items():
        values.setdefault(place.storage, []).append(name)
    for item in found:
        item.first = min(map(order.earliest, item.uses))
        item.last = max(map(order.latest, item.uses)) + 1
        item.values = [name for storage in item.storages for name in values[storage]]
    found.sort(key=lambda item: (item.uses[0], item.storages[0]))
    return tuple(found), joined


def _join(
    graph: Graph,
    position: int,
    node: Node,
    order: HappensBefore,
    storages: Storages,
    ops: Mapping[str, OpDef],
    row: Impl,
    classes: dict[str, StorageClass],
) -> int:
    """Joins results of one node with operands' classes where that is allowed; returns how many."""
    opdef = ops[node.op]
    operands = {spec.name: name for spec, name in zip(opdef.operands, node.operands, strict=False) if name is not None}
    results = result_names(node, opdef)
    joined = 0
    for result_name, operand_name in row.in_place:
        result, operand = results.get(result_name), operands.get(operand_name)
        if result is None or operand is None:
            continue
        taken, given = classes.get(result), classes.get(storages.places[operand].storage)
        if taken is None or given is None or taken is given or taken.uses[0] != position or len(taken.storages) > 1:
            continue  # not an arena storage of its own, or it took other bytes already
        readers = [item for item in operands.items() if classes.get(storages.places[item[1]].storage) is given]
        exact = all(
            (result_name, spec) in row.in_place
            and _fills(name, given, storages)
            and _same_order(graph.types[name], graph.types[result], storages, name)
            for spec, name in readers
        )
        others = [name for name in results.values() if name != result]
        free = all(classes.get(storages.places[name].storage) is not given for name in others)
        dead = given.uses[-1] == position and order.all_before(given.uses[:-1], position)
        if exact and free and dead and given.size == taken.size:
            given.storages += taken.storages
            given.uses += taken.uses[1:]  # both have this step: it is the last of one and the first of the other
            for storage in taken.storages:
                classes[storage] = given
            joined += 1
    return joined


def _fills(name: str, given: StorageClass, storages: Storages) -> bool:
    place = storages.places[name]
    return place.offset == 0 and place.size == given.size


def _same_order(operand: TensorType, result: TensorType, storages: Storages, name: str) -> bool:
    """Whether element i of the operand and of the result lie at the same byte of a shared storage."""
    view = storages.views[name]
    if view.contiguous and result.is_natural:
        return operand.elements == result.elements
    return is_dense(operand, view) and operand.shape == result.shape and view.strides == result.strides
