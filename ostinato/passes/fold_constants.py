"""Work that does not depend on a run leaves the step.

Nodes that read constants only are evaluated once with the operators' references and become constants, up to `most_bytes` a result (a table that is cheap to
compute and large to store stays where it is). Work on weights goes to the load program where that can say it: ranges of leading rows, weights one after
another along these, a matrix of floats transposed, or a rounding from f32.
Any other node that reads weights only is refused, since it would repeat the same work in every step, unless it is named in `allow`. Outputs stay computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ostinato.ir.errors import LayoutError
from ostinato.ir.graph import Graph, GraphInput, Node, Role, Value
from ostinato.ir.interp import interpret
from ostinato.ir.opdef import Effect
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.types import DType
from ostinato.ir.weights import WeightPart
from ostinato.passes.rewrite import rebuilt

__all__ = ["FoldConstants"]

MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FoldConstants:
    """No node reads only constants or only weights, but for outputs, large results and the nodes in `allow`."""

    most_bytes: int = MOST_BYTES
    allow: frozenset[str] = frozenset()

    name: ClassVar[str] = "fold_constants"
    requires: ClassVar[tuple[str, ...]] = ("canonical",)
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        """Raises `LayoutError` listing the nodes that compute on weights alone."""
        del target
        constants = {item.value.name: item for item in graph.inputs if item.role is Role.CONSTANT}
        weights = {item.value.name: item for item in graph.inputs if item.role is Role.WEIGHT}
        folded: list[Node] = []
        kept: list[Node] = []
        refused: list[Node] = []
        for node in graph.nodes:
            operands = [name for name in node.operands if name is not None]
            pure = OP[node.op].effect is Effect.PURE and operands
            if pure and all(name in constants for name in operands) and self._foldable(graph, node):
                folded.append(node)
                constants.update((value.name, GraphInput(value, Role.CONSTANT)) for value in node.results)
                continue
            if (
                pure
                and all(name in weights or name in constants for name in operands)
                and any(name in weights for name in operands)
            ):
                loaded = None if node.name in graph.outputs else _loaded(node, weights)
                if loaded is not None:
                    weights[node.name] = loaded
                    continue
                if node.name not in self.allow:
                    refused.append(node)
            kept.append(node)
        if refused:
            raise _refusal(graph, refused)
        new = [
            *_evaluated(graph, folded),
            *(item for name, item in weights.items() if name not in graph.inputs_by_name),
        ]
        return rebuilt(graph, kept, (*graph.inputs, *new)) if new else graph

    def _foldable(self, graph: Graph, node: Node) -> bool:
        return not any(
            value.name in graph.outputs or not value.type.is_static or value.type.nbytes > self.most_bytes
            for value in node.results
        )


def _evaluated(graph: Graph, nodes: Sequence[Node]) -> list[GraphInput]:
    """The results of constant nodes as constants; those without a reader left go with the runner's clean-up."""
    if not nodes:
        return []
    results = [value for node in nodes for value in node.results]
    inputs = tuple(item for item in graph.inputs if item.role is Role.CONSTANT)
    found = interpret(Graph("constants", inputs, tuple(nodes), tuple(value.name for value in results)), {}).outputs
    return [GraphInput(value, Role.CONSTANT, data=found[value.name]) for value in results]


def _loaded(node: Node, weights: dict[str, GraphInput]) -> GraphInput | None:
    """The node's result as a weight that the load program makes; None where it cannot."""
    items = [weights[name] for name in node.operands if name is not None and name in weights]
    if len(items) != len(node.operands) or not all(item.parts for item in items):
        return None
    source, result = items[0].value.type, node.results[0]
    parts: tuple[WeightPart, ...] | None = None
    match node.op:
        case "cast" if source.dtype is DType.F32 and result.type.dtype in (DType.BF16, DType.F16):
            parts = items[0].parts
        case "slice" if node.attrs["axis"] == 0 and node.attrs["step"] == 1 and result.type.shape[0] != 0:
            parts = _rows(items[0].parts, node)
        case "concat" if node.attrs["axis"] == 0:
            parts = tuple(part for item in items for part in item.parts)
        case "transpose" if node.attrs["order"] == (1, 0):
            parts = _transposed(items[0])
    return None if parts is None else GraphInput(Value(node.name, result.type), Role.WEIGHT, parts=parts)


def _transposed(item: GraphInput) -> tuple[WeightPart, ...] | None:
    """The part that is all of a stored matrix the other way round; None for blocks, whose rows are whole, and for matrices of several parts."""
    shape = item.value.type.static_shape
    (first, *more) = item.parts
    if (
        more
        or item.value.type.dtype.is_block
        or first.transform != "none"
        or (first.start, first.stop) != (0, shape[0])
    ):
        return None
    return (WeightPart(first.tensor, 0, shape[1], "transpose"),)


def _rows(parts: Sequence[WeightPart], node: Node) -> tuple[WeightPart, ...]:
    """The parts of rows [start, start + extent) of a weight."""
    start, extent = node.attrs["start"], node.results[0].type.shape[0]
    assert isinstance(start, int)
    assert isinstance(extent, int)
    found = []
    first = 0
    for part in parts:
        rows = part.stop - part.start
        low, high = max(start, first), min(start + extent, first + rows)
        if low < high:
            found.append(replace(part, start=part.start + low - first, stop=part.start + high - first))
        first += rows
    return tuple(found)


def _refusal(graph: Graph, nodes: Sequence[Node]) -> LayoutError:
    lines = [
        f"  %{node.name} = {node.op}" + (f" at {node.location}" if node.location is not None else "") for node in nodes
    ]
    return LayoutError(
        f"{len(nodes)} nodes of @{graph.name} compute on weights alone, the same in every step\n" + "\n".join(lines),
        node=nodes[0].name,
        hint="store the weight in the form the model reads, or name the node in fold_constants' allow option",
    )
