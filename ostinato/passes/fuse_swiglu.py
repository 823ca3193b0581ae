"""Gate and up projections and their SwiGLU become one node over one weight, gate rows first.

The two weights become one input whose parts are theirs, so the load program concatenates them and the step never sees two. All entries of a program join them,
as in `fuse_qkv`. Gate and up that are rounded below f32 are not rounded any more; they are not put together for a vendor's product, which would be f32 when
`unfuse_products` makes it: `fuse_qkv` joins them as they are. Left alone: projections with a bias, intermediate results that something else reads, and weights
that are used elsewhere too (they would be stored twice).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Graph, GraphInput, Node
from ostinato.ir.target import Target
from ostinato.ir.types import DType
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import (
    Names,
    fused_input,
    joint_product,
    new_node,
    overwritten_values,
    own_weight,
    replace_nodes,
    result_dtype,
)

__all__ = ["FuseSwiglu"]


@dataclass(frozen=True, slots=True)
class FuseSwiglu:
    """`swiglu(linear(x, gate), linear(x, up))` is `linear_swiglu(x, gate rows then up rows)`, or a product by this weight, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_swiglu"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        names = Names(graph)
        types = dict(graph.types)
        levels = Levels(graph, target, self.choice)
        replaced: dict[str, Node | None] = {}
        inputs: dict[str, GraphInput] = {}
        overwritten = overwritten_values(graph)
        for node in graph.nodes:
            weights = _weights(graph, node) if node.op == "swiglu" else None
            if weights is None:
                continue
            gate, up = (graph.producers[name or ""] for name in node.operands)
            x, result = gate.operands[0], node.results[0].type
            if x is None or x in overwritten:
                continue
            weight = fused_input(weights, names)
            types[weight.value.name] = weight.value.type
            attrs = {"dtype": result_dtype(types[x], result), "axis": result.axes[-1]}
            fused = new_node("linear_swiglu", (x, weight.value.name), node.results, attrs, node.location)
            forms = [fused]
            if gate.results[0].type.dtype is DType.F32:
                forms.append(joint_product(fused, names.unique(fused.name), types))
            if any(levels.allow(form, (gate, up), types, (node,)) for form in forms):
                replaced.update({gate.name: None, up.name: None, node.name: fused})
                inputs.update({old.value.name: weight for old in weights})
        return replace_nodes(graph, replaced, inputs)


def _weights(graph: Graph, swiglu: Node) -> tuple[GraphInput, GraphInput] | None:
    """The gate and up weights when the node and its two producers may be fused."""
    gate, up = (graph.producers.get(name or "") for name in swiglu.operands)
    if gate is None or up is None or gate is up or gate.operands[0] != up.operands[0]:
        return None
    for linear in (gate, up):
        if (
            linear.op != "linear"
            or len(linear.operands) != 2
            or graph.users[linear.name] != (swiglu,)
            or linear.name in graph.outputs
        ):
            return None
    first, second = own_weight(graph, gate.operands[1], gate), own_weight(graph, up.operands[1], up)
    if first is None or second is None or first.value.type.shape != second.value.type.shape:
        return None
    return (first, second) if first.value.type.dtype is second.value.type.dtype else None
