"""What passes share: new graphs from old ones, unique names, retyping, and which values are overwritten.

Everything is a loop in program order; nothing recurses, so chains of any length work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ostinato.ir.errors import OstinatoError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Location, Node, Role, Value, trimmed
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.types import DType, TensorType

__all__ = [
    "SUMS",
    "Names",
    "fused_input",
    "infer",
    "infers",
    "joined_name",
    "joined_projections",
    "joint_product",
    "new_node",
    "overwritten_values",
    "own_weight",
    "range_attrs",
    "rebuilt",
    "renamed_operands",
    "replace_nodes",
    "reshape_node",
    "result_dtype",
    "sole_reader",
    "with_attr",
    "with_types",
]

SUMS = ("add", "accumulate")
"""Operators that add two values, elsewhere or in the bytes of the first."""


def rebuilt(graph: Graph, nodes: Sequence[Node], inputs: Sequence[GraphInput] | None = None) -> Graph:
    """`graph` with other nodes (and inputs); the same object when nothing differs, so that the runner can skip its checks."""
    new_inputs = graph.inputs if inputs is None else tuple(inputs)
    new_nodes = tuple(nodes)
    same = len(new_nodes) == len(graph.nodes) and all(a is b for a, b in zip(new_nodes, graph.nodes, strict=True))
    if same and new_inputs == graph.inputs:
        return graph
    return Graph(graph.name, new_inputs, new_nodes, graph.outputs, graph.extents)


def renamed_operands(node: Node, renamed: Mapping[str, str]) -> Node:
    """The node with other values for those that are renamed; the same object where it reads none of them."""
    operands = tuple(name if name is None else renamed.get(name, name) for name in node.operands)
    return node if operands == node.operands else replace(node, operands=operands)


def replace_nodes(graph: Graph, replaced: Mapping[str, Node | None], inputs: Mapping[str, GraphInput]) -> Graph:
    """`graph` with nodes replaced or removed (None), and inputs replaced by others; several old inputs may share one new one, which stands first."""
    if not replaced:
        return graph
    nodes = (replaced.get(node.name, node) for node in graph.nodes)
    new_inputs = {item.value.name: item for item in (inputs.get(old.value.name, old) for old in graph.inputs)}
    return rebuilt(graph, [node for node in nodes if node is not None], tuple(new_inputs.values()))


def own_weight(graph: Graph, name: str | None, reader: Node) -> GraphInput | None:
    """The weight input of that name if its rows come from a checkpoint and nothing but `reader` uses it."""
    item = graph.inputs_by_name.get(name or "")
    if item is None or item.role is not Role.WEIGHT or not item.parts or name in graph.outputs:
        return None
    return item if graph.users[item.value.name] == (reader,) else None


def result_dtype(x: TensorType, result: TensorType) -> str:
    """The canonical `dtype` attribute that makes a projection of `x` write `result`."""
    return "" if x.dtype is result.dtype else result.dtype.value


class Names:
    """Hands out value names that the graph does not have yet."""

    def __init__(self, graph: Graph) -> None:
        self._taken = set(graph.types)

    def unique(self, stem: str) -> str:
        name, number = stem, 2
        while name in self._taken:
            name, number = f"{stem}_{number}", number + 1
        self._taken.add(name)
        return name


def joined_name(names: Sequence[str]) -> str:
    """One name for several dotted names: what they share in front and behind, the rest joined.

    `a.q_proj.weight`, `a.k_proj.weight` give `a.q_proj_k_proj.weight`.
    """
    split = [name.split(".") for name in names]
    front = _shared_start(split)
    rest = [parts[front:] for parts in split]
    back = _shared_start([parts[::-1] for parts in rest])
    middle = [".".join(parts[: len(parts) - back]) for parts in rest]
    joined = "_".join(part for part in middle if part) or "joined"
    return ".".join([*split[0][:front], joined, *rest[0][len(rest[0]) - back :]])


def _shared_start(lists: Sequence[Sequence[str]]) -> int:
    """How many leading items all lists have in common."""
    count = 0
    for items in zip(*lists, strict=False):
        if len(set(items)) > 1:
            break
        count += 1
    return count


def fused_input(items: Sequence[GraphInput], names: Names) -> GraphInput:
    """One weight or vector whose rows are those of `items` one after another; equal dtypes and trailing extents are the caller's duty."""
    first = items[0].value.type
    rows = sum(item.value.type.static_shape[0] for item in items)
    tensor = TensorType((rows, *first.shape[1:]), first.dtype, ("", *first.axes[1:]))
    parts = tuple(part for item in items for part in item.parts)
    return GraphInput(
        Value(names.unique(joined_name([item.value.name for item in items])), tensor), items[0].role, parts=parts
    )


def infer(
    op: str, operands: Sequence[str | None], attrs: Mapping[str, Attr], types: Mapping[str, TensorType]
) -> tuple[TensorType, ...]:
    """Result types by the operator's rule; raises its typed errors."""
    return OP[op].infer(tuple(None if name is None else types[name] for name in operands), attrs)


def new_node(
    op: str,
    operands: Sequence[str | None],
    results: Sequence[Value],
    attrs: Mapping[str, Attr],
    location: Location | None,
) -> Node:
    """A node in normal form: attributes complete and in schema order, no absent operand at the end."""
    return Node(op, trimmed(operands), tuple(results), Attributes(OP[op].attributes(attrs)), location=location)


def reshape_node(source: str, result: Value, location: Location | None) -> Node:
    """The reshape that shows a value in the shape and with the axis names of `result`, whose extents are integers."""
    attrs: dict[str, Attr] = {
        "shape": result.type.static_shape,
        "axes": "".join(axis or "_" for axis in result.type.axes),
    }
    return new_node("reshape", (source,), (result,), attrs, location)


def range_attrs(axis: int, start: int, count: int) -> Mapping[str, Attr]:
    """Attributes of the slice with so many places along an axis."""
    return {"axis": axis, "start": start, "stop": start + count, "step": 1}


def joined_projections(linears: Sequence[Node], weights: Sequence[str], types: Mapping[str, TensorType]) -> Node:
    """The `linear_split` that stands for linears of one x: by `weights`, their joined weight and, where they have one, their joined bias. It has their results
    under their names."""
    x, results = linears[0].operands[0], tuple(linear.results[0] for linear in linears)
    attrs: dict[str, Attr] = {
        "sizes": tuple(value.type.static_shape[-1] for value in results),
        "dtype": result_dtype(types[x or ""], results[0].type),
        "axes": "".join(value.type.axes[-1] or "_" for value in results),
    }
    return new_node("linear_split", (x, *weights), results, attrs, linears[0].location)


def joint_product(node: Node, name: str, types: Mapping[str, TensorType]) -> Node:
    """The `linear` called `name` over the whole weight of a `linear_split`, whose results are its columns, or of a `linear_swiglu`, whose gate and up are.

    Gate and up are float32, as the operator has them inside. The axis of the columns is the one that all results have, or anonymous. For nodes without
    a norm, which is fused later.
    """
    x = types[node.operands[0] or ""]
    wide = node.results[0].type if "sizes" in node.attrs else node.results[0].type.with_dtype(DType.F32)
    axes = {value.type.axes[-1] for value in node.results}
    attrs = {"dtype": result_dtype(x, wide), "axis": axes.pop() if len(axes) == 1 else ""}
    (tensor,) = infer("linear", node.operands, attrs, types)
    return new_node("linear", node.operands, (Value(name, tensor),), attrs, node.location)


def infers(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Whether the operator's rule gives the node's result types, layouts apart, from operands whose types are in `types`."""
    try:
        found = infer(node.op, node.operands, node.attrs, types)
    except OstinatoError:
        return False
    return [tensor.with_layout(None) for tensor in found] == [value.type.with_layout(None) for value in node.results]


def sole_reader(graph: Graph, name: str, reader: Node) -> bool:
    """Whether a value is read by one node alone, through one operand, and is no output."""
    return graph.users.get(name, ()) == (reader,) and reader.operands.count(name) == 1 and name not in graph.outputs


def with_attr(node: Node, name: str, value: Attr) -> Node:
    """The node with one attribute changed; order and the other attributes stay."""
    return replace(node, attrs=Attributes({**node.attrs, name: value}))


def with_types(node: Node, types: Sequence[TensorType]) -> Node:
    """The node with other result types; the same object when none differs."""
    if all(value.type == new for value, new in zip(node.results, types, strict=True)):
        return node
    return replace(node, results=tuple(Value(value.name, new) for value, new in zip(node.results, types, strict=True)))


def overwritten_values(graph: Graph) -> frozenset[str]:
    """Values whose bytes a later node takes over by must-alias, and everything they are views of: a copy of such a value is not the value."""
    viewed: dict[str, str] = {}
    found: set[str] = set()
    for node in graph.nodes:
        opdef = OP[node.op]
        if opdef.is_view and node.operands[0] is not None:
            viewed[node.name] = node.operands[0]
        for _, operand in opdef.aliased(node.operands):
            name = node.operands[operand]
            while name is not None and name not in found:
                found.add(name)
                name = viewed.get(name)
    return frozenset(found)
