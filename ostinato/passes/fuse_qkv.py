"""Projections of the same input become one: query, key and value, or any two or three.

One pass over x serves them all, and the weights (and biases) become one input each whose parts are theirs, in order. All entries of a program join the same
ones, since they share their weights; where a vendor's product is above the joint kernel, `unfuse_products` reads the joint weight by it. Left alone: a set
that mixes weight dtypes, result dtypes or biased with plain ones, and weights that are used elsewhere too. Results keep their names; the node stands where the
first one stood.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Graph, GraphInput, Node
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import (
    Names,
    fused_input,
    joined_projections,
    joint_product,
    own_weight,
    replace_nodes,
)

__all__ = ["FuseQkv"]


@dataclass(frozen=True, slots=True)
class FuseQkv:
    """Up to `most` linears of one x are one `linear_split`, or one product by the joint weight, where no level is lost."""

    most: int = 3
    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_qkv"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        names = Names(graph)
        types = dict(graph.types)
        levels = Levels(graph, target, self.choice)
        replaced: dict[str, Node | None] = {}
        inputs: dict[str, GraphInput] = {}
        for group in _groups(graph):
            for start in range(0, len(group), self.most):
                linears = group[start : start + self.most]
                if len(linears) < 2:
                    continue
                new = [fused_input(old, names) for old in _operand_inputs(graph, linears)]
                types.update((item.value.name, item.value.type) for item in new)
                fused = joined_projections(linears, [item.value.name for item in new], types)
                joint = joint_product(fused, names.unique(fused.name), types)
                if not (levels.allow(fused, linears, types) or levels.allow(joint, linears, types)):
                    continue
                replaced.update((linear.name, None) for linear in linears)
                replaced[linears[0].name] = fused
                for old, item in zip(_operand_inputs(graph, linears), new, strict=True):
                    inputs.update((one.value.name, item) for one in old)
        return replace_nodes(graph, replaced, inputs)


def _groups(graph: Graph) -> list[list[Node]]:
    """Linears that may become one, in program order."""
    found: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        if node.op != "linear" or len(node.operands) > 3:
            continue
        if any(own_weight(graph, name, node) is None for name in node.operands[1:]):
            continue
        weight = graph.types[node.operands[1] or ""]
        dtypes = tuple(graph.types[name or ""].dtype for name in node.operands[1:])
        key = (node.operands[0], dtypes, weight.shape[1:], weight.axes[1:], node.results[0].type.dtype)
        found.setdefault(key, []).append(node)
    return list(found.values())


def _operand_inputs(graph: Graph, linears: Sequence[Node]) -> list[list[GraphInput]]:
    """The weights, and the biases if there are any, of all the linears."""
    count = len(linears[0].operands)
    return [[graph.inputs_by_name[linear.operands[i] or ""] for linear in linears] for i in range(1, count)]
