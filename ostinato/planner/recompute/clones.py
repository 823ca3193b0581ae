"""Writes a script into the graph: every step that runs once more becomes a clone, a node of its own named after the original (`x~1`, `x~2`, ...).

A reader takes the latest instance of what it reads. Views lie in the instance they look into, so a view of a value that was computed again is cloned with it.
In the text of the graph a clone stands right before its first reader, or before an update of what it reads where that comes first; the schedule has the order
in which the steps run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ostinato.ir.graph import Graph, Node, Value
from ostinato.ir.opdef import OpDef
from ostinato.ir.views import viewed
from ostinato.planner.order import Scheduled
from ostinato.planner.recompute.model import RecomputeModel, Script
from ostinato.planner.storage import Storages

__all__ = ["Rewritten", "rewritten"]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A graph with clones, the original of each by its name, and the order in which the nodes run."""

    graph: Graph
    clones: Mapping[str, str]
    schedule: tuple[Scheduled, ...]


def rewritten(
    graph: Graph, storages: Storages, model: RecomputeModel, script: Script, ops: Mapping[str, OpDef]
) -> Rewritten:
    """The graph in which a script's steps run once more."""
    writer = _Writer(graph, storages, ops)
    order: list[str] = []
    for turn, again in zip(model.turns, script, strict=True):
        order += [writer.clone(model.turns[i].node, [model.storages[s] for s in model.turns[i].makes]) for i in again]
        order.append(writer.read(turn.node).name)
    nodes = writer.placed()
    by_name = {node.name: node for node in nodes}
    return Rewritten(replace(graph, nodes=nodes), writer.clones, tuple(Scheduled(by_name[name]) for name in order))


class _Writer:
    """Takes steps in the order in which they run."""

    def __init__(self, graph: Graph, storages: Storages, ops: Mapping[str, OpDef]) -> None:
        self._graph, self._storages, self._ops = graph, storages, ops
        self.clones: dict[str, str] = {}
        self._taken = set(graph.types)
        self._numbers: Counter[str] = Counter()
        self._latest: dict[str, str] = {}  # storage -> its latest instance, where that is a clone's
        self._seen: dict[tuple[str, str], str] = {}  # (view, instance it looks into) -> its clone
        self._nodes: dict[str, Node] = {}  # every clone, and each original that reads one, by its name
        self._makers: dict[str, str] = {}  # each value that a clone makes -> the clone

    def read(self, node: Node) -> Node:
        """The node, reading the latest instances."""
        operands = tuple(name if name is None else self._instance(name) for name in node.operands)
        found = node if operands == node.operands else replace(node, operands=operands)
        self._nodes[node.name] = found
        return found

    def clone(self, node: Node, makes: list[str]) -> str:
        """Adds a clone of a node, whose storages `makes` are read from it from now on."""
        made = self._add(node, tuple(name if name is None else self._instance(name) for name in node.operands))
        for old, new in zip(node.results, made.results, strict=True):
            if old.name in makes:
                self._latest[old.name] = new.name
        return made.name

    def placed(self) -> tuple[Node, ...]:
        """All nodes: the originals in the order of the graph, each clone right before its first reader or before an update of what it reads, one without a
        reader behind its original."""
        read = {name for reader in self._nodes.values() for name in reader.operands}
        unread: dict[str, list[str]] = {}
        for clone, original in self.clones.items():
            if not any(value.name in read for value in self._nodes[clone].results):
                unread.setdefault(original, []).append(clone)
        overwritten = self._overwritten()
        placed: dict[str, Node] = {}
        for node in self._graph.nodes:
            for name in (*overwritten.get(node.name, ()), node.name, *unread.get(node.name, ())):
                stack = [self._nodes.get(name, node)]
                while stack:
                    reader = stack[-1]
                    makers = (self._makers.get(operand or "") for operand in reader.operands)
                    missing = next((maker for maker in makers if maker is not None and maker not in placed), None)
                    if missing is None:
                        placed[reader.name] = reader
                        stack.pop()
                    else:
                        stack.append(self._nodes[missing])
        return tuple(placed.values())

    def _overwritten(self) -> dict[str, list[str]]:
        """For each update the clones that read what it overwrites as it was before."""
        storage_of = {name: place.storage for name, place in self._storages.places.items()}
        nodes = {node.name: (number, node) for number, node in enumerate(self._graph.nodes)}
        updates: dict[str, list[tuple[int, str]]] = {}
        for number, node in nodes.values():
            for result, _ in self._ops[node.op].aliased(node.operands):
                updates.setdefault(storage_of[node.results[result].name], []).append((number, node.name))
        found: dict[str, list[str]] = {}
        for clone, original in self.clones.items():
            number, node = nodes[original]
            for name in node.operands:
                later = [item for item in updates.get(storage_of.get(name or "", ""), ()) if item[0] > number]
                if later:
                    found.setdefault(later[0][1], []).append(clone)
        return found

    def _instance(self, name: str) -> str:
        """What a reader of a value reads now: the value, or its counterpart in the latest instance of its storage."""
        storage = self._storages.places[name].storage
        latest = self._latest.get(storage)
        if latest is None:
            return name
        chain: list[Node] = []  # the views from the value down to its storage
        while name != storage and (name, latest) not in self._seen:
            chain.append(self._graph.producers[name])
            name = viewed(chain[-1])
        found = latest if name == storage else self._seen[name, latest]
        for view in reversed(chain):
            found = self._add(view, (found, *view.operands[1:])).name
            self._seen[view.name, latest] = found
        return found

    def _add(self, node: Node, operands: tuple[str | None, ...]) -> Node:
        suffix = self._suffix(node)
        results = tuple(Value(value.name + suffix, value.type) for value in node.results)
        made = replace(node, operands=operands, results=results)
        self.clones[made.name] = node.name
        self._nodes[made.name] = made
        self._makers.update((value.name, made.name) for value in results)
        self._taken.update(value.name for value in results)
        return made

    def _suffix(self, node: Node) -> str:
        """`~` and the first number that gives names which the graph does not have."""
        while True:
            self._numbers[node.name] += 1
            suffix = f"~{self._numbers[node.name]}"
            if not any(value.name + suffix in self._taken for value in node.results):
                return suffix
