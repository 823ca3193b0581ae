"""Multiplication by a number becomes part of the product beside it, which has a factor anyway.

Behind a product it is taken before the result is rounded. In front of one it is only by a power of two, which rounds nothing, so that the product of the scaled
operand is the scaled product to the bit; the scores of attention are such a product of q and k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import infers, overwritten_values, replace_nodes, sole_reader, with_attr

__all__ = ["FoldScale"]

_FACTORS = ("a", "b", "q", "k")
"""What operators with a `scale` multiply with each other."""


@dataclass(frozen=True, slots=True)
class FoldScale:
    """No scale stands, alone, before or behind a product that could take its factor to the bit or before rounding, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fold_scale"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        levels = Levels(graph, target, self.choice)
        overwritten = overwritten_values(graph)
        products: dict[str, Node] = {}
        replaced: dict[str, Node | None] = {}
        for node in graph.nodes:
            if node.op == "scale":
                product = graph.producers.get(node.operands[0] or "")
                if product is None or product.op != "matmul" or not sole_reader(graph, product.name, node):
                    continue
                before, removed = products.get(product.name, product), product.name
                fused = replace(_scaled(before, node), results=node.results)
            elif (place := _scaled_operand(graph, node)) is not None:
                scale = graph.producers[node.operands[place] or ""]
                if scale.operands[0] in overwritten or scale.name in replaced:
                    continue
                operands = (*node.operands[:place], scale.operands[0], *node.operands[place + 1 :])
                fused, removed = replace(_scaled(node, scale), operands=operands), scale.name
            else:
                continue
            if infers(fused, graph.types) and levels.allow(fused, (graph.producers[removed], node)):
                replaced.update({removed: None, node.name: fused})
                products[node.name] = fused
        return replace_nodes(graph, replaced, {})


def _scaled(product: Node, scale: Node) -> Node:
    """The product with the factor of a scale in its own."""
    own, factor = product.attrs["scale"], scale.attrs["factor"]
    assert isinstance(own, float)
    assert isinstance(factor, float)
    return with_attr(product, "scale", own * factor)


def _scaled_operand(graph: Graph, node: Node) -> int | None:
    """Which factor of a product is a scale by a power of two and nothing else's, None where there is none."""
    opdef = OP[node.op]
    if "scale" not in node.attrs:
        return None
    for place, (spec, name) in enumerate(zip(opdef.operands, node.operands, strict=False)):
        scale = graph.producers.get(name or "") if spec.name in _FACTORS else None
        if scale is None or scale.op != "scale" or not sole_reader(graph, scale.name, node):
            continue
        factor = scale.attrs["factor"]
        if isinstance(factor, float) and factor > 0 and math.frexp(factor)[0] == 0.5:
            return place
    return None
