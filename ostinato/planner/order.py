"""In which order the nodes run, and on which lane: a schedule.

Today there is one order, the program's, on one lane; a search for a better one and several lanes are other functions with the same result. Views run
nothing and are left out. `actions_of` adds the copies that outputs need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import OpDef
from ostinato.planner.storage import Output, Storages

__all__ = ["Action", "Scheduled", "actions_of", "program_order"]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A node's turn: it starts after the steps before it on its lane and after the signals of all `waits`, and gives `signals` when it is done."""

    node: Node
    lane: int = 0
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What becomes one step: a node's launch, or (node None) the copy of a value to output number `output`."""

    node: Node | None
    source: str
    output: int = -1
    lane: int = 0
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"%{self.source}" if self.node is not None else f"copy of %{self.source} to output {self.output}"


def program_order(graph: Graph, ops: Mapping[str, OpDef]) -> tuple[Scheduled, ...]:
    """All nodes that run, in the order of the graph, on lane 0."""
    return tuple(Scheduled(node) for node in graph.nodes if not ops[node.op].is_view)


def actions_of(graph: Graph, schedule: Iterable[Scheduled], storages: Storages) -> tuple[Action, ...]:
    """The schedule with output copies: right behind the node that makes the bytes, so that these die early; copies of inputs come first, before
    anything can update them."""
    pending: dict[str, list[Output]] = {}
    for output in storages.outputs:
        if output.copied and storages.places[output.name].size:
            pending.setdefault(storages.content[output.name], []).append(output)
    made_by_nodes = {value.name for node in graph.nodes for value in node.results}
    turns = tuple(schedule)
    first_lane = turns[0].lane if turns else 0
    early = [copy for name, copies in pending.items() if name not in made_by_nodes for copy in copies]
    actions = [Action(None, copy.name, copy.index, first_lane) for copy in early]
    for turn in turns:
        actions.append(Action(turn.node, turn.node.name, -1, turn.lane, turn.waits, turn.signals))
        for value in turn.node.results:
            actions += [Action(None, copy.name, copy.index, turn.lane) for copy in pending.get(value.name, ())]
    return tuple(actions)
