"""Residual addition and the RMSNorm of its sum become one node with two results.

The sum goes through memory once instead of three times. The fused node stands where the sum stood; both results keep
their names. A second norm of the same sum stays as it is. Sums and norms that became part of a projection are none any more: this pass takes what they leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Graph, Node
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import new_node, replace_nodes

__all__ = ["FuseAddNorm"]


@dataclass(frozen=True, slots=True)
class FuseAddNorm:
    """`rms_norm(add(a, b), gain)` is `add_rms_norm(a, b, gain)`, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_add_norm"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        index = {value.name: i for i, node in enumerate(graph.nodes) for value in node.results}
        levels = Levels(graph, target, self.choice)
        norms: dict[str, Node] = {}
        for node in graph.nodes:
            if node.op == "rms_norm" and node.operands[0] is not None:
                norms.setdefault(node.operands[0], node)
        replaced: dict[str, Node | None] = {}
        for i, node in enumerate(graph.nodes):
            norm = norms.get(node.name) if node.op == "add" else None
            # a gain that is computed after the sum would have to move in front of it
            if norm is None or index.get(norm.operands[1] or "", -1) > i:
                continue
            fused = _fused(node, norm)
            if levels.allow(fused, (norm,), also=(node,)):
                replaced[node.name], replaced[norm.name] = fused, None
        return replace_nodes(graph, replaced, {})


def _fused(add: Node, norm: Node) -> Node:
    operands = (*add.operands, norm.operands[1])
    return new_node("add_rms_norm", operands, (*add.results, *norm.results), norm.attrs, norm.location)
