"""Removes what nobody needs: pure nodes without readers, and weights and constants that no node reads.

Nodes with an effect on state or an order stay, and so do declared inputs and states: they are the caller's contract. The runner applies this after every pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ostinato.ir.graph import Graph, Role
from ostinato.ir.opdef import Effect
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.passes.rewrite import rebuilt

__all__ = ["DeadCode"]

_KEPT = (Effect.STATE, Effect.ORDERED)
_OWNED = (Role.WEIGHT, Role.CONSTANT)


@dataclass(frozen=True, slots=True)
class DeadCode:
    """No pure node and no weight or constant is left without a reader."""

    name: ClassVar[str] = "dead_code"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        needed = {*graph.outputs, *(name for _, name in graph.extents)}
        kept = []
        for node in reversed(graph.nodes):
            if OP[node.op].effect in _KEPT or any(value.name in needed for value in node.results):
                kept.append(node)
                needed.update(name for name in node.operands if name is not None)
        inputs = [item for item in graph.inputs if item.role not in _OWNED or item.value.name in needed]
        return rebuilt(graph, kept[::-1], inputs)
