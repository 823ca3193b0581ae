"""Merges nodes that compute the same value, constants with the same data and weights made of the same rows.

The first one stays. Kept apart: nodes with an effect or random numbers, results that are graph outputs (their names are the caller's), and values that a
later node overwrites, which need storage of their own. Two weights made of the same rows are one (a head tied to the embedding is stored once).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from ostinato.ir.graph import Graph, GraphInput, Node, Role
from ostinato.ir.opdef import Effect
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.passes.rewrite import overwritten_values, rebuilt, renamed_operands

__all__ = ["Cse"]


@dataclass(frozen=True, slots=True)
class Cse:
    """No two pure nodes, constants or weights are equal, outputs aside."""

    name: ClassVar[str] = "cse"
    requires: ClassVar[tuple[str, ...]] = ("canonical",)
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        apart = overwritten_values(graph) | set(graph.outputs)
        renamed: dict[str, str] = {}
        inputs = _merged_inputs(graph, apart, renamed)
        first: dict[Hashable, Node] = {}
        kept: list[Node] = []
        for node in graph.nodes:
            node = renamed_operands(node, renamed)
            if OP[node.op].effect is not Effect.PURE or any(value.name in apart for value in node.results):
                kept.append(node)
                continue
            key = (node.op, node.operands, node.attrs, tuple(value.type for value in node.results), node.impl)
            earlier = first.setdefault(key, node)
            if earlier is node:
                kept.append(node)
            else:
                for mine, theirs in zip(node.results, earlier.results, strict=True):
                    renamed[mine.name] = theirs.name
        return rebuilt(graph, kept, inputs)


def _merged_inputs(graph: Graph, apart: frozenset[str] | set[str], renamed: dict[str, str]) -> list[GraphInput]:
    first: dict[Hashable, str] = {}
    kept = []
    for item in graph.inputs:
        key: Hashable = None
        if item.role is Role.WEIGHT and item.parts:
            key = (item.role, item.value.type, item.parts)
        elif item.role is Role.CONSTANT and item.data is not None:
            key = (item.role, item.value.type, item.data.tobytes())
        if key is None or item.value.name in apart:
            kept.append(item)
            continue
        earlier = first.setdefault(key, item.value.name)
        if earlier == item.value.name:
            kept.append(item)
        else:
            renamed[item.value.name] = earlier
    return kept
