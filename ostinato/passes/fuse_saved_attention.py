"""Attention whose gradients are wanted keeps the sums of exponentials that its backward reads: one node makes both.

Differentiation asks for the sums by a node of their own (`attention_log_sum`), which computes all scores again. The forward kernel has them anyway, so the two
become `attention_causal_saved`, where attention stood, if no level is lost. A backward over a clone of the forward (recomputation) keeps its own node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Graph, Node
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import new_node, overwritten_values, replace_nodes

__all__ = ["FuseSavedAttention"]


@dataclass(frozen=True, slots=True)
class FuseSavedAttention:
    """`attention_causal(q, k, v)` and `attention_log_sum(q, k)` are `attention_causal_saved(q, k, v)`, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_saved_attention"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        levels = Levels(graph, target, self.choice)
        overwritten = overwritten_values(graph)
        attentions: dict[object, Node] = {}
        replaced: dict[str, Node | None] = {}
        for node in graph.nodes:
            key = (node.operands[:2], *(node.attrs.get(name) for name in ("scale", "window", "soft_cap")))
            if node.op == "attention_causal" and not overwritten.intersection(node.operands[:2]):
                attentions.setdefault(key, node)
            elif node.op == "attention_log_sum" and (attention := attentions.pop(key, None)) is not None:
                results = (*attention.results, *node.results)
                fused = new_node(
                    "attention_causal_saved", attention.operands, results, attention.attrs, attention.location
                )
                if levels.allow(fused, (attention,), also=(node,)):
                    replaced.update({attention.name: fused, node.name: None})
        return replace_nodes(graph, replaced, {})
