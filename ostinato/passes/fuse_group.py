"""Projections of the same input by weights that cannot be joined become one step: `linear_group`.

`fuse_qkv` joins weights that are nobody else's. A weight that other nodes read too (one that two layers share, or the embedding) stays as it is, and so do the
products beside it; here two or three of one x become one launch over the weights where they lie. Only where no level is lost, so that products which a vendor
serves stay alone. Results keep their names; the node stands where the first one stood.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.opdef import Attr
from ostinato.ir.ops.linear_group import MOST_MEMBERS
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import new_node, own_weight, replace_nodes, result_dtype

__all__ = ["FuseGroup"]


@dataclass(frozen=True, slots=True)
class FuseGroup:
    """Linears of one x, of which some weight is used elsewhere, are one `linear_group` where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_group"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        if not target.rows_for("linear_group"):
            return graph
        levels = Levels(graph, target, self.choice)
        replaced: dict[str, Node | None] = {}
        for group in _groups(graph):
            for start in range(0, len(group), MOST_MEMBERS):
                members = group[start : start + MOST_MEMBERS]
                if len(members) < 2 or all(own_weight(graph, node.operands[1], node) for node in members):
                    continue
                fused = _fused(graph, members)
                if levels.allow(fused, members):
                    replaced.update((node.name, None) for node in members)
                    replaced[members[0].name] = fused
        return replace_nodes(graph, replaced, {})


def _groups(graph: Graph) -> list[list[Node]]:
    """Plain linears by weights of the model that may become one, in program order."""
    found: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        if node.op != "linear" or len(node.operands) > 3:
            continue
        if any(_is_computed(graph, name) for name in node.operands[1:]):
            continue
        weight = graph.types[node.operands[1] or ""]
        key = (node.operands[0], weight.dtype, weight.shape[1:], weight.axes[1:], node.results[0].type.dtype)
        found.setdefault(key, []).append(node)
    return list(found.values())


def _is_computed(graph: Graph, name: str | None) -> bool:
    item = graph.inputs_by_name.get(name or "")
    return name is not None and (item is None or item.role is not Role.WEIGHT)


def _fused(graph: Graph, members: list[Node]) -> Node:
    missing = [None] * (MOST_MEMBERS - len(members))
    weights = [node.operands[1] for node in members]
    biases = [node.operands[2] if len(node.operands) > 2 else None for node in members]
    results = tuple(node.results[0] for node in members)
    letters = "".join(value.type.axes[-1] or "_" for value in results)
    attrs: Mapping[str, Attr] = {
        "dtype": result_dtype(graph.types[members[0].operands[0] or ""], results[0].type),
        "axes": letters,
    }
    operands = (members[0].operands[0], *weights, *missing, *biases, *missing)
    return new_node("linear_group", operands, results, attrs, members[0].location)
