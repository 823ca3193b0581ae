"""Decides in which dtype activations are produced. A policy, not an optimisation: it changes numbers.

`f32`: every activation is f32, whatever the dtype of the weights that are read. `bf16`: what enters a projection with a bf16 weight is bf16, everything else
(the residual stream, scores, logits) stays f32. The producer writes bf16 itself where it can (it has a `dtype` attribute and all its readers are such
projections); where it cannot, an explicit cast stands before the projection. Weights and caches keep the dtypes that the frontend gave them, casts that the
model itself makes are left alone, and nothing is ever converted without a node or an attribute that says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.ir.graph import Attributes, Graph, Node, Value
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.rewrite import Names, infer, rebuilt, with_attr, with_types

__all__ = ["POLICIES", "Precision"]

POLICIES = ("f32", "bf16")


@dataclass(frozen=True, slots=True)
class Precision:
    """Activations have the dtypes of the policy `dtype`."""

    dtype: str = "f32"

    name: ClassVar[str] = "precision"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ("precision",)
    optional: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.dtype not in POLICIES:
            raise ConfigError(f"unknown precision {self.dtype!r}", hint=f"known: {', '.join(POLICIES)}")

    def apply(self, graph: Graph, target: Target) -> Graph:
        """Raises `DTypeError` when a node cannot take the operands that the policy gives it."""
        del target
        return _narrow_inputs(graph) if self.dtype == "bf16" else _widen_results(graph)


def _widen_results(graph: Graph) -> Graph:
    """Every result whose dtype the node may choose becomes f32; casts are the model's own."""
    types = dict(graph.types)
    nodes = []
    for node in graph.nodes:
        narrow = any(value.type.dtype in (DType.F16, DType.BF16) for value in node.results)
        if narrow and _chooses_dtype(node):
            node = with_attr(node, "dtype", "f32")
        nodes.append(_retyped(node, graph, types))
    return rebuilt(graph, nodes)


def _narrow_inputs(graph: Graph) -> Graph:
    direct = _read_by_projections_only(graph)
    types = dict(graph.types)
    names = Names(graph)
    casts: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        source = node.operands[0] if _is_projection(node, types) else None
        if source is not None and types[source].dtype is DType.F32:
            if source not in casts:
                nodes.append(_cast(source, names.unique(f"{source}.bf16"), node, types))
                casts[source] = nodes[-1].name
            node = replace(node, operands=(casts[source], *node.operands[1:]))
        node = _pinned(node, graph, types)
        nodes.append(_retyped(_narrowed(node, direct, types), graph, types))
    return rebuilt(graph, nodes)


def _chooses_dtype(node: Node) -> bool:
    """Whether the result dtype is left to whoever compiles: the attribute has a default. A cast's has none; it is the model's own."""
    return any(spec.name == "dtype" and spec.default is not None for spec in OP[node.op].attrs)


def _is_projection(node: Node, types: dict[str, TensorType]) -> bool:
    """Whether the node multiplies its first operand by a bf16 weight."""
    specs = OP[node.op].operands
    if len(specs) < 2 or (specs[0].name, specs[1].name) != ("x", "weight") or node.operands[1] is None:
        return False
    return types[node.operands[1]].dtype is DType.BF16


def _read_by_projections_only(graph: Graph) -> frozenset[str]:
    """Values that, directly or through views, only enter projections with a bf16 weight."""
    types = dict(graph.types)
    users = graph.users
    found: set[str] = set()
    for node in reversed(graph.nodes):
        for value in node.results:
            readers = users.get(value.name, ())
            if (
                readers
                and value.name not in graph.outputs
                and all(_takes_bf16(reader, value.name, types, found) for reader in readers)
            ):
                found.add(value.name)
    return frozenset(found)


def _takes_bf16(reader: Node, name: str, types: dict[str, TensorType], found: set[str]) -> bool:
    if reader.operands.count(name) != 1 or reader.operands[0] != name:
        return False
    return _is_projection(reader, types) or (OP[reader.op].is_view and reader.name in found)


def _pinned(node: Node, graph: Graph, types: dict[str, TensorType]) -> Node:
    """A projection whose input became bf16 keeps its result dtype, which the empty attribute would change."""
    if node.operands[0] is None or "dtype" not in node.attrs or node.attrs["dtype"]:
        return node
    before = node.results[0].type.dtype
    changed = any(
        name is not None and name in graph.types and types[name].dtype is not graph.types[name].dtype
        for name in node.operands
    )
    added = any(name is not None and name not in graph.types for name in node.operands)
    return with_attr(node, "dtype", before.value) if changed or added else node


def _narrowed(node: Node, direct: frozenset[str], types: dict[str, TensorType]) -> Node:
    """The node writing bf16 itself, if it can and if that changes no value with other readers."""
    if not _chooses_dtype(node) or not any(value.name in direct for value in node.results):
        return node
    if any(value.type.dtype is not DType.F32 for value in node.results if value.name in direct):
        return node
    candidate = with_attr(node, "dtype", "bf16")
    try:
        found = infer(candidate.op, candidate.operands, candidate.attrs, types)
    except OstinatoError:
        return node
    fits = all(
        new.dtype is value.type.dtype or value.name in direct for new, value in zip(found, node.results, strict=True)
    )
    return candidate if fits else node


def _cast(source: str, name: str, reader: Node, types: dict[str, TensorType]) -> Node:
    result = types[source].with_dtype(DType.BF16)
    types[name] = result
    return Node("cast", (source,), (Value(name, result),), Attributes({"dtype": "bf16"}), location=reader.location)


def _retyped(node: Node, graph: Graph, types: dict[str, TensorType]) -> Node:
    """The node with the result types that its operands' types give now; layouts stay."""
    before = graph.producers[node.name]
    if node is before and all(name is None or types[name] is graph.types[name] for name in node.operands):
        return node
    try:
        found = infer(node.op, node.operands, node.attrs, types)
    except OstinatoError as error:
        raise type(error)(
            error.message, node=node.name, hint=error.hint or "choose another precision, or cast in the model"
        ) from None
    kept = [_with_layout_of(new, value.type) for new, value in zip(found, node.results, strict=True)]
    types.update((value.name, new) for value, new in zip(node.results, kept, strict=True))
    return with_types(node, kept)


def _with_layout_of(new: TensorType, old: TensorType) -> TensorType:
    """`new` in the layout of `old`; `old` itself when they are equal, so that readers can see that nothing changed."""
    kept = new.with_layout(old.layout)
    return old if kept == old else kept
