"""Decides in which dtype activations are produced (`ir/precision.py` has the policies). It changes numbers: no optimisation, never left out.

Without narrowing every activation is f32, whatever the dtype of the weights that are read. Where a policy narrows, what enters a projection of its scope with
a bf16 weight is bf16: the producer writes bf16 itself where it can (it has a `dtype` attribute and all its readers are such projections); where it cannot, an
explicit cast stands before the projection. Where a policy keeps results, the projection writes bf16, and what reads it and cannot has a cast in front. Weights
and caches keep the dtypes that the frontend gave them, casts that the model itself makes are left alone, and nothing is ever converted without a node or an
attribute that says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ostinato.ir.errors import OstinatoError
from ostinato.ir.graph import Attributes, Graph, Node, Value
from ostinato.ir.ops import OP
from ostinato.ir.precision import PrecisionPolicy, precision_policy, projection_kind
from ostinato.ir.target import Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.rewrite import Names, infer, rebuilt, with_attr, with_types

__all__ = ["Precision"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Activations have the dtypes of the policy, which is given by its text."""

    policy: str = "f32"

    name: ClassVar[str] = "precision"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ("precision",)
    optional: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", str(precision_policy(self.policy)))

    def apply(self, graph: Graph, target: Target) -> Graph:
        """Raises `DTypeError` when a node cannot take the operands that the policy gives it."""
        del target
        policy = precision_policy(self.policy)
        return _widen_results(graph) if policy.matrices is DType.F32 else _Narrowing(graph, policy).apply()


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


class _Narrowing:
    """A graph node by node under a policy that narrows; `types` are those of the values so far."""

    def __init__(self, graph: Graph, policy: PrecisionPolicy) -> None:
        self._graph, self._policy = graph, policy
        self.types = dict(graph.types)
        self._names = Names(graph)
        self._casts: dict[tuple[str, DType], str] = {}
        self._nodes: list[Node] = []

    def apply(self) -> Graph:
        direct = self._read_by_projections_only()
        for node in self._graph.nodes:
            if self._is_projection(node):
                source = node.operands[0]
                if source is not None and self.types[source].dtype is DType.F32:
                    node = replace(node, operands=(self._cast(source, DType.BF16, node), *node.operands[1:]))
            node = _pinned(node, self._graph, self.types)
            if self._keeps(node):
                node = with_attr(node, "dtype", DType.BF16.value)
            self._nodes.append(self._fitted(_narrowed(node, direct, self.types)))
        return rebuilt(self._graph, self._nodes)

    def _is_projection(self, node: Node) -> bool:
        """Whether the node multiplies its first operand by a bf16 weight, in the policy's scope."""
        specs = OP[node.op].operands
        if len(specs) < 2 or (specs[0].name, specs[1].name) != ("x", "weight") or node.operands[1] is None:
            return False
        return self.types[node.operands[1]].dtype is DType.BF16 and self._policy.narrows(projection_kind(node.name))

    def _keeps(self, node: Node) -> bool:
        """Whether the node's result stays bf16. One with a bias does not, as biases are f32."""
        if not self._is_projection(node) or not self._policy.keeps(projection_kind(node.name)):
            return False
        given = zip(OP[node.op].operands, node.operands, strict=False)
        biased = any(spec.name == "bias" and name is not None for spec, name in given)
        return not biased and node.results[0].type.dtype is DType.F32 and node.name not in self._graph.outputs

    def _read_by_projections_only(self) -> frozenset[str]:
        """Values that, directly or through views, only enter projections that read bf16."""
        users = self._graph.users
        found: set[str] = set()
        for node in reversed(self._graph.nodes):
            for value in node.results:
                readers = users.get(value.name, ())
                if (
                    readers
                    and value.name not in self._graph.outputs
                    and all(self._takes_bf16(reader, value.name, found) for reader in readers)
                ):
                    found.add(value.name)
        return frozenset(found)

    def _takes_bf16(self, reader: Node, name: str, found: set[str]) -> bool:
        if reader.operands.count(name) != 1 or reader.operands[0] != name:
            return False
        return self._is_projection(reader) or (OP[reader.op].is_view and reader.name in found)

    def _cast(self, source: str, dtype: DType, reader: Node) -> str:
        """The value in another dtype, by a node in front of the reader that asks first."""
        if (source, dtype) not in self._casts:
            name = self._names.unique(f"{source}.{dtype.value}")
            result = self.types[source].with_dtype(dtype)
            attrs = Attributes({"dtype": dtype.value})
            self._nodes.append(Node("cast", (source,), (Value(name, result),), attrs, location=reader.location))
            self.types[name] = result
            self._casts[source, dtype] = name
        return self._casts[source, dtype]

    def _fitted(self, node: Node) -> Node:
        """The node with its result types; where it takes no mixture of what stayed bf16 and f32, it reads f32."""
        kept = {name for name in node.operands if name is not None and self._stayed_narrow(name)}
        try:
            return _retyped(node, self._graph, self.types)
        except OstinatoError:
            if not kept:
                raise
        wide = tuple(self._cast(name, DType.F32, node) if name in kept else name for name in node.operands)
        return _retyped(replace(node, operands=wide), self._graph, self.types)

    def _stayed_narrow(self, name: str) -> bool:
        before = self._graph.types.get(name)
        return before is not None and before.dtype is DType.F32 and self.types[name].dtype is DType.BF16


def _chooses_dtype(node: Node) -> bool:
    """Whether the result dtype is left to whoever compiles: the attribute has a default. A cast's has none; it is the model's own."""
    return any(spec.name == "dtype" and spec.default is not None for spec in OP[node.op].attrs)


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
