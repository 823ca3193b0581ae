"""Multiplication by a number becomes part of the product beside it, which has a factor anyway.

Behind a product it is taken before the result is rounded. In front of one it is only by a power of two, which rounds nothing, so that the product of the scaled
operand is the scaled product to the bit; the scores of attention are such a product of q and k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
        folded: dict[str, Node] = {}
        replaced: dict[str, Node | None] = {}

        def fold(whole: Node, product: Node, gone: str) -> None:
            if infers(whole, graph.types) and levels.allow(whole, (product,), also=(graph.producers[gone],)):
                replaced.update({gone: None, whole.name: whole})
                folded[whole.name] = whole

        for node in graph.nodes:
            name = node.operands[0] or ""
            product = (folded.get(name) or graph.producers.get(name)) if node.op == "scale" else None
            if product is not None and product.op == "matmul" and sole_reader(graph, name, node):
                fold(replace(_scaled(product, node), results=node.results), product, name)
            elif "scale" in node.attrs:
                for place in _exact_scales(graph, node):
                    scale = graph.producers[node.operands[place] or ""]
                    if scale.name not in replaced and scale.operands[0] not in overwritten:
                        now = folded.get(node.name, node)
                        operands = (*now.operands[:place], scale.operands[0], *now.operands[place + 1 :])
                        fold(replace(_scaled(now, scale), operands=operands), node, scale.name)
        return replace_nodes(graph, replaced, {})


def _scaled(product: Node, scale: Node) -> Node:
    """The product with the factor of a scale in its own."""
    own, factor = product.attrs["scale"], scale.attrs["factor"]
    assert isinstance(own, float)
    assert isinstance(factor, float)
    return with_attr(product, "scale", own * factor)


def _exact_scales(graph: Graph, node: Node) -> Iterator[int]:
    """Which factors of a product are scales by a power of two that nothing else reads."""
    for place, (spec, name) in enumerate(zip(OP[node.op].operands, node.operands, strict=False)):
        scale = graph.producers.get(name or "") if spec.name in _FACTORS else None
        if scale is None or scale.op != "scale" or not sole_reader(graph, scale.name, node):
            continue
        factor = scale.attrs["factor"]
        if isinstance(factor, float) and factor > 0 and math.frexp(factor)[0] == 0.5:
            yield place
