"""Where the bytes of each value lie: view chains resolved, must-alias results followed, and nodes as implementation rows see them.

A view has no bytes of its own: it lies at an offset and with strides in the storage of another value, possibly through further views. A must-alias result lies
in the bytes of its operand. Everything else owns its storage. All of it is worked out in program order from what the operator table declares, without
recursion. A view that no strides can describe (a reshape of a transposed value) is a `LayoutError`, never a hidden copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ostinato.ir.errors import UserCodeError
from ostinato.ir.graph import Attributes, Graph, Node
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.target import NATURAL, CallSite, Impl
from ostinato.ir.types import TensorType, is_contiguous

__all__ = [
    "StorageView",
    "ViewTable",
    "call_site",
    "extent_input",
    "extent_of",
    "layout_refusal",
    "own_storage",
    "padded_operands",
    "row_refusal",
    "types_refusal",
    "viewed",
]


@dataclass(frozen=True, slots=True)
class StorageView:
    """A value's place in the storage of `base`: first element and strides, both in elements.

    `strides` is None for packed weights and while a dimension is symbolic. `contiguous`: the elements follow each other in the logical order of the axes
    (true of a packed weight, which is always whole; false of a symbolic view, of which nothing is known).
    """

    base: str
    offset: int
    strides: tuple[int, ...] | None
    contiguous: bool


class ViewTable(Mapping[str, StorageView]):
    """The place of every value of a graph, in program order. Raises `LayoutError` for a view that no strides describe."""

    def __init__(self, graph: Graph, *, ops: Mapping[str, OpDef] = OP) -> None:
        self._ops = ops
        self._places: dict[str, StorageView] = {}
        for item in graph.inputs:
            self.add(item.value.name, item.value.type)
        for node in graph.nodes:
            places = self.results(node, graph.types)
            for value in node.results:
                self.add(value.name, value.type, places.get(value.name))

    @classmethod
    def empty(cls, ops: Mapping[str, OpDef]) -> ViewTable:
        """A table of no values, to be filled statement by statement."""
        return cls(Graph("", (), (), ()), ops=ops)

    def __getitem__(self, name: str) -> StorageView:
        return self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def add(self, name: str, tensor: TensorType, place: StorageView | None = None) -> StorageView:
        """Enters a value at `place`, or in storage of its own."""
        found = own_storage(name, tensor) if place is None else place
        self._places[name] = found
        return found

    def results(self, node: Node, types: Mapping[str, TensorType]) -> dict[str, StorageView]:
        """The places of a node's results that lie in other storage. Raises `LayoutError` for a view that no strides describe."""
        opdef = self._ops[node.op]
        if opdef.view is not None:
            value = node.results[0]
            return {value.name: _view(node, opdef, value.type, types, self._places)}
        found: dict[str, StorageView] = {}
        for result, operand in opdef.aliased(node.operands):
            source = node.operands[operand]
            if source is not None and result < len(node.results):
                found[node.results[result].name] = self._places[source]
        return found

    def classes(self) -> dict[str, tuple[str, ...]]:
        """Base value -> all values that lie in its storage, itself first, in program order."""
        found: dict[str, list[str]] = {}
        for name, view in self._places.items():
            found.setdefault(view.base, []).append(name)
        return {base: tuple(names) for base, names in found.items()}


def own_storage(name: str, tensor: TensorType) -> StorageView:
    """The place of a value that owns its bytes."""
    if tensor.is_packed or not tensor.is_static:
        return StorageView(name, 0, None, True)
    strides = tensor.strides
    return StorageView(name, 0, strides, tensor.is_natural or is_contiguous(tensor, strides))


def padded_operands(node: Node, opdef: OpDef, types: Mapping[str, TensorType]) -> tuple[TensorType | None, ...]:
    """Operand types in schema order, None for each absent one, those at the end included."""
    found = [None if name is None else types[name] for name in node.operands]
    return (*found, *([None] * (len(opdef.operands) - len(found))))


def viewed(node: Node) -> str:
    """The value that a view looks into: its first operand."""
    name = node.operands[0]
    assert name is not None, "the first operand of a view is never optional"
    return name


def _view(
    node: Node, opdef: OpDef, tensor: TensorType, types: Mapping[str, TensorType], views: Mapping[str, StorageView]
) -> StorageView:
    assert opdef.view is not None
    operands = padded_operands(node, opdef, types)
    source = views[viewed(node)]
    if not all(found is None or found.is_static for found in (tensor, *operands)):
        return StorageView(source.base, source.offset, None, False)
    try:
        view = opdef.view(operands, opdef.attributes(node.attrs), source.strides)
    except UserCodeError as error:
        error.node = node.name
        raise
    return StorageView(source.base, source.offset + view.offset, view.strides, is_contiguous(tensor, view.strides))


def extent_input(graph: Graph, node: Node, *, ops: Mapping[str, OpDef] = OP) -> str | None:
    """The int32[1] input that counts the valid leading rows of a node's work, None when all of it is valid."""
    found = extent_of(graph, node, ops=ops)
    return None if found is None else found[1]


def extent_of(graph: Graph, node: Node, *, ops: Mapping[str, OpDef] = OP) -> tuple[str, str] | None:
    """The entry of `Graph.extents` (axis, input) that holds for a node's work, None when all of it is valid. A view is no work."""
    opdef = ops[node.op]
    if not graph.extents or opdef.is_view:
        return None
    tensor = opdef.leading(padded_operands(node, opdef, graph.types), [value.type for value in node.results])
    if tensor is None or not tensor.axes or not tensor.axes[0]:
        return None
    return next((entry for entry in graph.extents if entry[0] == tensor.axes[0]), None)


def call_site(
    graph: Graph, node: Node, views: Mapping[str, StorageView] | None = None, *, ops: Mapping[str, OpDef] = OP
) -> CallSite:
    """The node as implementation rows see it: operands padded to the schema, attributes complete, strides through views.

    Pass `ViewTable(graph)` when asking for many nodes; without it the view chains of this node's operands are walked.
    """
    opdef = ops[node.op]
    operands = padded_operands(node, opdef, graph.types)
    strides: list[tuple[int, ...] | None] = [None] * len(operands)
    offsets = [0] * len(operands)
    for index, name in enumerate(node.operands):
        if name is not None:
            place = _place(graph, name, ops) if views is None else views[name]
            strides[index], offsets[index] = place.strides, place.offset
    counted = extent_input(graph, node, ops=ops) is not None
    if len(node.attrs) != len(opdef.attrs):
        node = replace(node, attrs=Attributes(opdef.attributes(node.attrs)))
    return CallSite(
        node, operands, tuple(value.type for value in node.results), tuple(strides), counted, tuple(offsets)
    )


def _place(graph: Graph, name: str, ops: Mapping[str, OpDef]) -> StorageView:
    """One value's place by its own view chain; a must-alias result has the strides of its own type, whoever owns the bytes."""
    chain: list[Node] = []
    base = name
    while (producer := graph.producers.get(base)) is not None and ops[producer.op].is_view:
        chain.append(producer)
        base = viewed(producer)
    table = ViewTable.empty(ops)
    table.add(base, graph.types[base])
    for node in reversed(chain):
        for result, place in table.results(node, graph.types).items():
            table.add(result, graph.types[result], place)
    return table[name]


def layout_refusal(row: Impl, site: CallSite, opdef: OpDef) -> str | None:
    """Why the layouts and strides that a row declares do not fit a call site, None when they do."""
    for spec, tensor, strides in zip(opdef.operands, site.operands, site.strides, strict=True):
        allowed = row.layouts_of(spec.name)
        if tensor is None or (not tensor.is_natural and tensor.layout in allowed):
            continue
        if NATURAL not in allowed:
            return f"{spec.name} must have layout {' or '.join(allowed)}, found {tensor}"
        if tensor.is_packed:
            return f"{spec.name} must not be packed, found {tensor}"
        if spec.name not in row.strided and not (strides is not None and is_contiguous(tensor, strides)):
            return f"{spec.name} must be contiguous, found {tensor} with strides {list(strides or ())}"
    for index, tensor in enumerate(site.results):
        name = opdef.result_name(index)
        allowed = row.layouts_of(name)
        if not (NATURAL in allowed if tensor.is_natural else tensor.layout in allowed):
            wanted = "its natural layout" if allowed == (NATURAL,) else f"layout {' or '.join(allowed)}"
            return f"{name} must have {wanted}, found {tensor}"
    return None


def row_refusal(row: Impl, site: CallSite, opdef: OpDef) -> str | None:
    """Why an implementation row cannot serve a call site, None when it can: its declared layouts and strides first, then its sizes and its own predicate."""
    return layout_refusal(row, site, opdef) or types_refusal(row, site, opdef)


def types_refusal(row: Impl, site: CallSite, opdef: OpDef) -> str | None:
    """The same, whatever the layouts and strides turn out to be: its declared sizes first, then its own predicate."""
    try:
        refusal = row.extents.refusal(opdef.sizes(site.operands)) if row.extents.is_bounded else None
        return refusal or row.accepts(site)
    except UserCodeError as error:
        error.node = site.node.name
        raise
