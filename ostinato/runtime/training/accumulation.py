"""How often a step adds to a gradient, and how often it can do so in the gradient's own bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.ir.graph import Graph
from ostinato.ir.ops import OP
from ostinato.ir.step import StepOperand
from ostinato.planner.plan import EntryPlan

__all__ = ["Accumulation", "accumulations_of"]


@dataclass(frozen=True, slots=True)
class Accumulation:
    """`candidates`: contributions added to one that was there; `executed`: those of them that went into its bytes, so that no other storage was written."""

    candidates: int
    executed: int

    def times(self, steps: int) -> Accumulation:
        """Those of so many steps."""
        return Accumulation(self.candidates * steps, self.executed * steps)


def accumulations_of(graph: Graph, plan: EntryPlan, candidates: int | None = None) -> Accumulation:
    """Those of one step, as the plan has them: an update of bytes that a node of the graph made is executed where its step writes the range that it updates.

    `candidates` are those that whoever differentiated the graph counted, at least the updates there are.
    """
    steps = {step.node: step for step in plan.steps}
    updates = executed = 0
    for node in graph.nodes:
        for result, operand in OP[node.op].aliased(node.operands):
            source = node.operands[operand]
            if source is None or source not in graph.producers or _began_outside(graph, source):
                continue
            updates += 1
            touched = steps[node.name].operands if node.name in steps else ()
            named = {source, node.results[result].name}
            places = {o.range for o in touched if isinstance(o, StepOperand) and o.value in named}
            executed += len(places) == 1
    return Accumulation(max(updates, candidates or 0), executed)


def _began_outside(graph: Graph, value: str) -> bool:
    """Whether the bytes of a value are those of an input, through updates and views."""
    while value in graph.producers:
        node = graph.producers[value]
        opdef = OP[node.op]
        number = next(index for index, made in enumerate(node.results) if made.name == value)
        taken = {result: node.operands[operand] for result, operand in opdef.aliased(node.operands)}
        source = node.operands[0] if opdef.is_view else taken.get(number)
        if source is None:
            return False
        value = source
    return True
