"""Fused projections become separate ones again where these are served by rows of a higher level: a vendor's library multiplies many rows faster than a
kernel of our own that fuses.

The weight stays the one input that fusion made, which entries of fewer rows read whole: the products read rows of it through views, so nothing is stored twice.
What fusion saved comes back, a result of each product in memory; leave the pass out for the smallest arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Attributes, Graph, Node, Value
from ostinato.ir.opdef import Attr
from ostinato.ir.target import Level, Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.choice import Candidates, RowChoice
from ostinato.passes.rewrite import Names, infer, rebuilt, result_dtype, site_alone

__all__ = ["UnfuseProducts"]


_FUSED = ("linear_split", "linear_swiglu")


@dataclass(frozen=True, slots=True)
class UnfuseProducts:
    """`linear_split` and `linear_swiglu` are linears over views of their weight where every one of these gets a row of a higher level."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "unfuse_products"
    requires: ClassVar[tuple[str, ...]] = ("bound", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        highest = max((row.level for row in target.rows_for("linear")), default=Level.REFERENCE)
        if all(row.level >= highest for op in _FUSED for row in target.rows_for(op)):
            return graph  # nothing to gain on such a target
        candidates = Candidates(target, self.choice)
        names = Names(graph)
        nodes: list[Node] = []
        for node in graph.nodes:
            parts = _Parts(graph, node, names) if node.op in _FUSED else None
            nodes += [node] if parts is None or not _gain(parts, candidates) else parts.nodes
        return rebuilt(graph, nodes)


class _Parts:
    """What a fused projection is made of; `nodes` is empty where its weight has no views or a part has no rows."""

    def __init__(self, graph: Graph, node: Node, names: Names) -> None:
        self.whole, self.graph, self.nodes = node, graph, list[Node]()
        self.types: dict[str, TensorType] = dict(graph.types)
        self._names = names
        if node.op == "linear_split":
            self._split()
        else:
            self._swiglu()

    def _split(self) -> None:
        sizes = [value.type.static_shape[-1] for value in self.whole.results]
        if self._sliceable(min(sizes)):
            for index, value in enumerate(self.whole.results):
                self._linear(sum(sizes[:index]), sizes[index], value, result_dtype(self._x, value.type))

    def _swiglu(self) -> None:
        (value,) = self.whole.results
        half = value.type.static_shape[-1]
        if not self._sliceable(half):
            return
        wide = value.type.with_dtype(DType.F32)
        halves = [Value(self._names.unique(f"{value.name}.{half_name}"), wide) for half_name in ("gate", "up")]
        for index, product in enumerate(halves):
            self._linear(index * half, half, product, result_dtype(self._x, wide))
        attrs = Attributes({"dtype": result_dtype(wide, value.type)})
        self._add("swiglu", tuple(product.name for product in halves), (value,), attrs)

    @property
    def _x(self) -> TensorType:
        return self.types[self.whole.operands[0] or ""]

    def _sliceable(self, least: int) -> bool:
        weight = self.types[self.whole.operands[1] or ""]
        return least > 0 and not weight.dtype.is_block and not weight.is_packed

    def _linear(self, start: int, rows: int, value: Value, dtype: str) -> None:
        """The product by some rows of the weight (and of the bias)."""
        operands = [self.whole.operands[0]]
        for name in self.whole.operands[1:]:
            assert name is not None
            attrs: Mapping[str, Attr] = {"axis": 0, "start": start, "stop": start + rows, "step": 1}
            (tensor,) = infer("slice", (name,), attrs, self.types)
            view = Value(self._names.unique(f"{name}.{value.name.rpartition('.')[2]}"), tensor)
            self._add("slice", (name,), (view,), Attributes(attrs))
            operands.append(view.name)
        self._add("linear", tuple(operands), (value,), Attributes({"dtype": dtype, "axis": value.type.axes[-1]}))

    def _add(self, op: str, operands: tuple[str | None, ...], results: tuple[Value, ...], attrs: Attributes) -> None:
        self.types.update((value.name, value.type) for value in results)
        self.nodes.append(Node(op, operands, results, attrs, location=self.whole.location))


def _gain(parts: _Parts, candidates: Candidates) -> bool:
    """Whether every product gets a row of a higher level than the whole does."""
    linears = [node for node in parts.nodes if node.op == "linear"]
    if not linears:
        return False
    fused = _level(parts.whole, parts, candidates)
    levels = [_level(node, parts, candidates) for node in linears]
    return fused is not None and all(level is not None and level > fused for level in levels)


def _level(node: Node, parts: _Parts, candidates: Candidates) -> Level | None:
    """The level of the row that would serve a node, None where none would."""
    site = site_alone(node, parts.types, parts.graph.extents)
    allowed = candidates.allowed(node)
    return next((row.level for row in candidates.of(node.op) if row in allowed and row.accepts(site) is None), None)
