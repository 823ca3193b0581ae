"""One spelling per meaning, before any pattern is matched.

Attributes come complete and in schema order; a result dtype that is the default anyway is spelled as the default; reshapes name copied extents as 0; chains
of reshapes, transposes and lossless casts become one; what changes nothing (a reshape to the same type, a cast to the same dtype, a scale by one) goes.
An output keeps its name and therefore its node. Nothing here changes a bit of any result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ostinato.ir.errors import OstinatoError
from ostinato.ir.graph import Attributes, Graph, Node, trimmed
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.rewrite import infer, overwritten_values, rebuilt

__all__ = ["Canonicalize"]

# (from, to): every value of the first is a value of the second
_LOSSLESS = frozenset(
    {
        (DType.F16, DType.F32),
        (DType.BF16, DType.F32),
        (DType.F16, DType.F64),
        (DType.BF16, DType.F64),
        (DType.F32, DType.F64),
        (DType.I32, DType.I64),
    }
)


@dataclass(frozen=True, slots=True)
class Canonicalize:
    """Attributes are in normal form and no view, cast or scale is without effect."""

    name: ClassVar[str] = "canonicalize"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ("canonical",)
    optional: ClassVar[bool] = False

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        outputs = set(graph.outputs)
        scope = _Scope(graph.types, {}, overwritten_values(graph))
        renamed: dict[str, str | None] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            node = _normal_form(node, renamed, scope.types)
            rule = _RULES.get(node.op)
            if rule is not None:
                node = rule.respelled(node, scope)
                if node.name not in outputs and _is_identity(rule, node, scope):
                    renamed[node.name] = node.operands[0]
                    continue
            nodes.append(node)
            scope.made.update((value.name, node) for value in node.results)
        return rebuilt(graph, nodes)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Types of all values, the rewritten producers so far, and the values that are overwritten at some point."""

    types: Mapping[str, TensorType]
    made: dict[str, Node]
    overwritten: frozenset[str]

    def earlier(self, node: Node) -> Node | None:
        """The rewritten node of the same operator that makes the first operand, where its own operand may be read later instead."""
        found = self.made.get(node.operands[0] or "")
        if found is None or found.op != node.op or found.operands[0] in self.overwritten:
            return None
        return found


def _normal_form(node: Node, renamed: Mapping[str, str | None], types: Mapping[str, TensorType]) -> Node:
    operands = trimmed(name if name is None else renamed.get(name, name) for name in node.operands)
    opdef = OP[node.op]
    attrs = opdef.attributes(node.attrs)
    for spec in opdef.attrs:
        if spec.name == "dtype" and spec.default is not None and attrs["dtype"] != spec.default:
            plain = {**attrs, "dtype": spec.default}
            if _infers(node, plain, types):
                attrs = plain
    if operands == node.operands and tuple(attrs.items()) == tuple(node.attrs.items()):
        return node
    return replace(node, operands=operands, attrs=Attributes(attrs))


def _infers(node: Node, attrs: Mapping[str, Attr], types: Mapping[str, TensorType]) -> bool:
    """Whether the node has its result types with these attributes too."""
    try:
        found = infer(node.op, node.operands, attrs, types)
    except OstinatoError:
        return False
    return all(_bare(a) == _bare(value.type) for a, value in zip(found, node.results, strict=True))


def _bare(tensor: TensorType) -> TensorType:
    return tensor.with_layout(None)


def _reshape(node: Node, scope: _Scope) -> Node:
    """A reshape of a reshape is one; extents that are copied are 0, a symbolic one that moved is -1."""
    earlier = scope.earlier(node)
    if earlier is not None:
        merged = _spelled_reshape(replace(node, operands=earlier.operands), scope)
        if merged is not None:
            return merged
    return _spelled_reshape(node, scope) or node


def _spelled_reshape(node: Node, scope: _Scope) -> Node | None:
    assert node.operands[0] is not None
    source, result = scope.types[node.operands[0]], node.results[0].type
    shape = [_spelled_extent(source, result, index) for index in range(result.rank)]
    attrs = {**node.attrs, "shape": tuple(shape), "axes": "".join(axis or "_" for axis in result.axes)}
    if tuple(attrs.items()) == tuple(node.attrs.items()):
        return node
    if shape.count(-1) > 1 or not _infers(node, attrs, scope.types):
        return None
    return replace(node, attrs=Attributes(attrs))


def _spelled_extent(source: TensorType, result: TensorType, index: int) -> int:
    extent, axis = result.shape[index], result.axes[index]
    # copying an extent copies its name
    if index < source.rank and source.shape[index] == extent and source.axes[index] in ("", axis):
        return 0
    return extent if isinstance(extent, int) and extent > 0 else -1


def _transpose(node: Node, scope: _Scope) -> Node:
    earlier = scope.earlier(node)
    if earlier is None:
        return node
    inner, outer = earlier.attrs["order"], node.attrs["order"]
    assert isinstance(inner, tuple)
    assert isinstance(outer, tuple)
    return replace(
        node, operands=earlier.operands, attrs=Attributes({**node.attrs, "order": tuple(inner[i] for i in outer)})
    )


def _cast(node: Node, scope: _Scope) -> Node:
    earlier = scope.earlier(node)
    if earlier is None or earlier.operands[0] is None:
        return node
    if (scope.types[earlier.operands[0]].dtype, earlier.results[0].type.dtype) in _LOSSLESS:
        return replace(node, operands=earlier.operands)
    return node


def _unchanged(node: Node, scope: _Scope) -> Node:
    del scope
    return node


def _always(node: Node, scope: _Scope) -> bool:
    del node, scope
    return True


def _keeps_order(node: Node, scope: _Scope) -> bool:
    del scope
    order = node.attrs["order"]
    return isinstance(order, tuple) and order == tuple(range(len(order)))


def _is_dense_already(node: Node, scope: _Scope) -> bool:
    producer = scope.made.get(node.operands[0] or "")
    while producer is not None and producer.op == "reshape":  # as dense as what it is a view of
        producer = scope.made.get(producer.operands[0] or "")
    return producer is None or not OP[producer.op].is_view


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a node of one operator is respelled, and when one whose result has its operand's type changes nothing."""

    respelled: Callable[[Node, _Scope], Node]
    is_identity: Callable[[Node, _Scope], bool]


_RULES: Mapping[str, _Rule] = {
    "reshape": _Rule(_reshape, _always),
    "transpose": _Rule(_transpose, _keeps_order),
    "slice": _Rule(_unchanged, lambda node, scope: node.attrs["step"] == 1),
    "cast": _Rule(_cast, _always),
    "scale": _Rule(_unchanged, lambda node, scope: node.attrs["factor"] == 1.0),
    "contiguous": _Rule(_unchanged, _is_dense_already),
}


def _is_identity(rule: _Rule, node: Node, scope: _Scope) -> bool:
    """Whether the result is its first operand, element for element and in the same order, and stays so."""
    assert node.operands[0] is not None
    if node.operands[0] in scope.overwritten or _bare(scope.types[node.operands[0]]) != _bare(node.results[0].type):
        return False
    return rule.is_identity(node, scope)
