"""In which order the nodes run, on which lane and which device: a schedule.

Here is the program's order, on one lane; `order_search` finds one that needs fewer bytes, and several lanes are a schedule from elsewhere. Views run nothing
and are left out. `actions_of` adds the copies that outputs need, and those to other devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import OpDef
from ostinato.planner.storage import Output, Storages

__all__ = ["Action", "Scheduled", "actions_of", "program_order"]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A node's turn: it starts after the steps before it on its lane and after the signals of all `waits`, and gives `signals` when it is done.

    It runs on `device` (None: the target's), in whose arena its results lie.
    """

    node: Node
    lane: int = 0
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """What becomes one step on a device: a node's launch, or (node None) the copy of a value to output number `output`, or (-1) to its replica there."""

    node: Node | None
    source: str
    output: int = -1
    lane: int = 0
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    device: str = ""

    def __str__(self) -> str:
        if self.node is not None:
            return f"%{self.source}"
        return f"copy of %{self.source} to {self.device if self.output < 0 else f'output {self.output}'}"


def program_order(graph: Graph, ops: Mapping[str, OpDef]) -> tuple[Scheduled, ...]:
    """All nodes that run, in the order of the graph, on lane 0."""
    return tuple(Scheduled(node) for node in graph.nodes if not ops[node.op].is_view)


def actions_of(graph: Graph, schedule: Iterable[Scheduled], storages: Storages) -> tuple[Action, ...]:
    """The schedule with its copies. To outputs: right behind the node that makes the bytes, so that these die early; copies of inputs come first, before
    anything can update them. To replicas: right before the first reader, which hands its waits on; readers on other lanes wait for the copy."""
    pending: dict[str, list[Output]] = {}
    for output in storages.outputs:
        if output.copied and storages.places[output.name].size:
            pending.setdefault(storages.content[output.name], []).append(output)
    made_by_nodes = {value.name for node in graph.nodes for value in node.results}
    turns = tuple(schedule)
    first_lane = turns[0].lane if turns else 0
    events = count(1 + max((event for turn in turns for event in turn.signals), default=0))
    copied: dict[str, int] = {}  # replica -> position of its copy
    home = storages.device
    early = [copy for name, copies in pending.items() if name not in made_by_nodes for copy in copies]
    actions = [Action(None, copy.name, copy.index, first_lane, device=home) for copy in early]
    for turn in turns:
        device, waits, late = turn.device or home, turn.waits, []
        for name in storages.imports.get(turn.node.name, ()):
            replica = storages.replicas[name, device]
            if replica not in copied and storages.sizes[replica]:
                copied[replica] = len(actions)
                actions.append(Action(None, name, -1, turn.lane, waits, device=device))
                waits = ()
            elif replica in copied and (copy := actions[copied[replica]]).lane != turn.lane:
                signals = copy.signals or (next(events),)
                actions[copied[replica]] = replace(copy, signals=signals)
                late.append(signals[0])
        actions.append(
            Action(turn.node, turn.node.name, -1, turn.lane, (*waits, *dict.fromkeys(late)), turn.signals, device)
        )
        for value in turn.node.results:
            actions += [
                Action(None, copy.name, copy.index, turn.lane, device=home) for copy in pending.get(value.name, ())
            ]
    return tuple(actions)
