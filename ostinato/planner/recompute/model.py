"""What recomputation sees of a graph: steps in an order, the bytes of the arena they touch, and what it costs to run one again.

A step may run again when its operator is pure and no update overwrites what it makes, as long as none has overwritten what it reads: a parameter is read again
until its optimizer has run. Outputs that lie outside of the arena have one instance: a clone makes them too, but nobody reads those.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from ostinato.ir.graph import Node
from ostinato.ir.opdef import Effect
from ostinato.planner.liveness import in_place_pairs, taken_over
from ostinato.planner.lower import Prepared
from ostinato.planner.problem import align_up

__all__ = ["RecomputeModel", "Script", "Turn", "recompute_model"]

BYTE_COST = 8
"""What a byte read or written costs, in floating-point operations: processors do about so many in the time that memory takes to deliver one."""

NEVER = 2**62
"""A step that no order has."""

Script = tuple[tuple[int, ...], ...]
"""For each step, the steps that run once more right before it, in that order."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A step: storages it `reads` and `makes`, `workspace` bytes for it alone, `spill` bytes more when it runs again (results that nobody reads from a clone).

    `takes`: (made, read) storages, the first in the bytes of the second where that dies here. `work`: in floating-point operations, `BYTE_COST` a byte.
    `until`: the first step below that overwrites what this one reads; right before it, it may still run again.
    """

    node: Node
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    workspace: int
    spill: int
    takes: tuple[tuple[int, int], ...]
    work: int
    repeatable: bool
    until: int = NEVER

    @property
    def cost(self) -> int | None:
        """Of running it once more; None where it must not."""
        return self.work if self.repeatable else None

    def may_run(self, before: int) -> bool:
        """Whether it may run once more right before that step."""
        return self.repeatable and before <= self.until


@dataclass(frozen=True, slots=True)
class RecomputeModel:
    """Steps in their order; of each storage of the arena its name, aligned bytes, the step that makes it, and those that read it, ascending."""

    turns: tuple[Turn, ...]
    storages: tuple[str, ...]
    sizes: tuple[int, ...]
    maker: tuple[int, ...]
    uses: tuple[tuple[int, ...], ...]

    @property
    def nothing(self) -> Script:
        """The script that runs no step twice."""
        return ((),) * len(self.turns)

    @property
    def work(self) -> int:
        """Of all steps, each run once."""
        return sum(turn.work for turn in self.turns)

    def cost(self, script: Script) -> int:
        """What the clones of a script cost."""
        return sum(self.turns[turn].work for again in script for turn in again)

    def taken(self, turn: Turn, dying: Container[int]) -> int:
        """Bytes that the results of a step need not have, since they lie in those of operands that die with it."""
        return taken_over(turn.takes, dying, self.sizes)

    def need(self, turn: Turn) -> int:
        """Bytes that a step takes for itself at least: workspace, operands, and results that cannot lie in those."""
        touched = sum(self.sizes[storage] for storage in (*turn.reads, *turn.makes))
        return touched + turn.workspace - self.taken(turn, turn.reads)

    def floor(self) -> tuple[int, int]:
        """What the hungriest step takes for itself, and which one that is: no plan of any order needs less, whatever runs twice."""
        needs = [self.need(turn) for turn in self.turns]
        most = max(needs, default=0)
        return most, needs.index(most) if needs else 0


def recompute_model(prepared: Prepared, order: Sequence[str], *, in_place: bool, guard: int = 0) -> RecomputeModel:
    """The model of a graph prepared for one lane whose nodes run in `order`: the names of all nodes that are no views. Every size includes `guard` bytes."""
    ops, storages = prepared.ops, prepared.storages
    nodes = {node.name: node for node in prepared.graph.nodes}
    updated: dict[str, list[int]] = {}  # storage -> the steps that write over it
    for index, name in enumerate(order):
        for result, _ in ops[nodes[name].op].aliased(nodes[name].operands):
            updated.setdefault(storages.places[nodes[name].results[result].name].storage, []).append(index)
    number: dict[str, int] = {}
    maker: list[int] = []
    uses: list[list[int]] = []
    turns: list[Turn] = []
    for index, name in enumerate(order):
        node = nodes[name]
        makes = [value.name for value in node.results if storages.places[value.name].storage == value.name]
        for storage in filter(storages.is_planned, makes):
            number[storage] = len(number)
            maker.append(index)
            uses.append([])
        turns.append(_turn(prepared, node, makes, number, in_place=in_place, guard=guard))
        for read in turns[-1].reads:
            uses[read].append(index)
        repeatable = turns[-1].repeatable and not any(storage in updated for storage in makes)
        sources = {storages.places[value].storage for value in node.operands if value}
        later = (step for storage in sources for step in updated.get(storage, ()) if step > index)
        turns[-1] = replace(turns[-1], repeatable=repeatable, until=min(later, default=NEVER))
    sizes = tuple(align_up(storages.sizes[storage] + guard, prepared.target.alignment) for storage in number)
    return RecomputeModel(tuple(turns), tuple(number), sizes, tuple(maker), tuple(map(tuple, uses)))


def _turn(
    prepared: Prepared, node: Node, makes: Sequence[str], number: Mapping[str, int], *, in_place: bool, guard: int
) -> Turn:
    """The step of a node, taken to read nothing that is overwritten."""
    storages, call, opdef = prepared.storages, prepared.calls[node.name], prepared.ops[node.op]
    unit = prepared.target.alignment
    touched = [storages.places[name].storage for name in (*node.operands, *(v.name for v in node.results)) if name]
    reads = dict.fromkeys(number[storage] for storage in touched if storage in number and storage not in makes)
    pairs: tuple[tuple[str, str], ...] = ()
    if in_place:
        pairs = in_place_pairs(prepared.graph, node, opdef, call.row, storages, prepared.target.device)
    cost = call.cost(opdef)
    repeatable = opdef.effect is Effect.PURE and not opdef.must_alias and any(name in number for name in makes)
    return Turn(
        node=node,
        reads=tuple(reads),
        makes=tuple(number[name] for name in makes if name in number),
        workspace=align_up(call.workspace + guard, unit) if call.workspace else 0,
        spill=sum(align_up(storages.sizes[name] + guard, unit) for name in makes if name not in number),
        takes=tuple((number[result], number[operand]) for result, operand in pairs),
        work=cost.flops + BYTE_COST * cost.bytes,
        repeatable=repeatable,
    )
