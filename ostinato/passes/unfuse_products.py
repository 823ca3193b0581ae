"""Fused projections become plain products again where these are served by rows of a higher level: a vendor's library multiplies many rows faster than a kernel
of our own that fuses.

The weight stays the one input that fusion made, which entries of fewer rows read whole, so nothing is stored twice. Two forms, the first where it can be:
- one product by the joint weight, whose readers see their columns of it through views; only where all of them have rows that take strided operands;
- a product for each part, by rows of the weight that it sees through views.
What fusion saved comes back, results of products in memory; leave the pass out for the smallest arena.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.errors import LayoutError
from ostinato.ir.graph import Graph, Node, Value
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.target import Level, Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import (
    Names,
    infer,
    joined_name,
    joint_product,
    new_node,
    range_attrs,
    rebuilt,
    result_dtype,
)

__all__ = ["UnfuseProducts"]


_FUSED = ("linear_split", "linear_swiglu")


@dataclass(frozen=True, slots=True)
class UnfuseProducts:
    """`linear_split` and `linear_swiglu` are linears over their weight, or over views of it, where every one of these gets a row of a higher level."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "unfuse_products"
    requires: ClassVar[tuple[str, ...]] = ("bound", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        highest = max((row.level for row in target.rows_for("linear")), default=Level.REFERENCE)
        rows = [row for op in _FUSED for row in target.rows_for(op) if row.level is not Level.REFERENCE]
        if all(row.level >= highest for row in rows):
            return graph  # nothing to gain on such a target
        levels = Levels(graph, target, self.choice)
        names = Names(graph)
        types = dict(graph.types)
        nodes: list[Node] = []
        for node in graph.nodes:
            plain = node.op in _FUSED and not node.attrs["eps"]
            nodes += (_products(graph, node, levels, names, types) if plain else None) or [node]
        return rebuilt(graph, nodes)


def _products(
    graph: Graph, node: Node, levels: Levels, names: Names, types: dict[str, TensorType]
) -> list[Node] | None:
    """What stands for a fused projection, None where nothing is gained."""
    fused = levels.of(node)
    for form in (_by_columns, _by_rows):
        draft = _Draft(graph, node, names, ChainMap({}, types))
        if fused is not None and form(draft, levels) and draft.level(levels) > fused:
            types.update(draft.types.maps[0])
            return draft.nodes
    return None


@dataclass(slots=True)
class _Draft:
    """Nodes that may stand for the fused projection `whole`; `types` has theirs in front of those of the graph."""

    graph: Graph
    whole: Node
    names: Names
    types: ChainMap[str, TensorType]
    nodes: list[Node] = field(default_factory=list)

    def level(self, levels: Levels) -> Level:
        """The lowest level among the products."""
        return min(levels.of(node, self.types) or Level.REFERENCE for node in self.nodes if node.op == "linear")

    def keep(self, node: Node) -> Node:
        self.types.update((value.name, value.type) for value in node.results)
        self.nodes.append(node)
        return node

    def add(self, op: str, operands: Sequence[str | None], value: Value, attrs: Mapping[str, Attr]) -> Node:
        return self.keep(new_node(op, operands, (value,), attrs, self.whole.location))

    @property
    def parts(self) -> tuple[Value, ...]:
        """The results of the products: those of the node, or new ones for gate and up, in float32."""
        if self.whole.op == "linear_split":
            return self.whole.results
        (value,) = self.whole.results
        wide = value.type.with_dtype(DType.F32)
        return tuple(Value(self.names.unique(f"{value.name}.{half}"), wide) for half in ("gate", "up"))

    def activate(self, halves: Sequence[Value]) -> Node | None:
        """The SwiGLU of gate and up, for a node that has it inside."""
        if self.whole.op == "linear_split":
            return None
        (value,) = self.whole.results
        attrs = {"dtype": result_dtype(halves[0].type, value.type)}
        return self.add("swiglu", [half.name for half in halves], value, attrs)


def _by_columns(draft: _Draft, levels: Levels) -> bool:
    """One product whose columns are the parts; False where one of their readers would not take them so."""
    parts = draft.parts
    if len({value.type.axes[-1] for value in parts}) > 1:
        return False
    stem = joined_name([value.name for value in parts])
    joint = draft.keep(joint_product(draft.whole, draft.names.unique(stem), draft.types))
    start, views = 0, list[Node]()
    for value in parts:
        count = value.type.static_shape[-1]
        views.append(draft.add("slice", (joint.name,), value, range_attrs(value.type.rank - 1, start, count)))
        start += count
    active = draft.activate(parts)
    if active is not None:
        plain = levels.of(active, draft.types)
        strided = levels.of(active, draft.types, views)
        return strided is not None and plain is not None and strided >= plain
    return all(_taken(draft, view, levels) for view in views)


def _taken(draft: _Draft, view: Node, levels: Levels) -> bool:
    """Whether all that reads a value, through views too, has rows of the same level for the strided view of it."""
    graph, chains = draft.graph, [[view]]
    while chains:
        chain = chains.pop()
        name = chain[-1].name
        if name in graph.outputs:
            return False
        for reader in graph.users.get(name, ()):
            if OP[reader.op].is_view:
                chains.append([*chain, reader])
                continue
            plain = levels.of(reader)
            try:
                strided = levels.of(reader, draft.types, chain)
            except LayoutError:  # a reshape of columns that no strides describe
                return False
            if strided is None or plain is None or strided < plain:
                return False
    return True


def _by_rows(draft: _Draft, levels: Levels) -> bool:
    """A product for each part, by a view of rows of the weight; False where the weight has none."""
    del levels
    parts = draft.parts
    weight = draft.types[draft.whole.operands[1] or ""]
    sizes = [value.type.static_shape[-1] for value in parts]
    if min(sizes) == 0 or weight.dtype.is_block or weight.is_packed:
        return False
    x = draft.whole.operands[0]
    start = 0
    for value, count in zip(parts, sizes, strict=True):
        operands = [x]
        for name in draft.whole.operands[1:]:
            assert name is not None
            attrs = range_attrs(0, start, count)
            (tensor,) = infer("slice", (name,), attrs, draft.types)
            seen = Value(draft.names.unique(f"{name}.{value.name.rpartition('.')[2]}"), tensor)
            operands.append(draft.add("slice", (name,), seen, attrs).name)
        dtype = result_dtype(draft.types[x or ""], value.type)
        draft.add("linear", operands, value, {"dtype": dtype, "axis": value.type.axes[-1]})
        start += count
    draft.activate(parts)
    return True
