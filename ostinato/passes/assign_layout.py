"""Gives every value its layout, and puts the copies that this needs into the graph where they can be seen and counted.

Values lie in their logical order, with these exceptions, each taken only because implementation rows ask for it:
- a copy that the graph makes itself goes where its operand lies in order anyway, and where the rows of all its readers read it as it lies;
- a weight takes the packed layout that all its readers accept (an embedding tied to the head reads the packed head: stored once);
- a result takes the layout its row would like (head-major from the rotation) when every reader has a row for it that comes no later in its list, also where
  it reads through views (a transpose to head-major is in order then), so that no copy is left around attention;
- an operand that is a strided view, and that no row takes as it is, goes through an explicit `contiguous` node, shared by all its readers. So does an output.

A view's layout is its own logical order; where its bytes lie is what its view rule says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ostinato.ir.errors import LayoutError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value
from ostinato.ir.ops import OP
from ostinato.ir.target import NATURAL, CallSite, Impl, Target
from ostinato.ir.types import TensorType, is_contiguous
from ostinato.ir.views import StorageView, ViewTable, call_site, padded_operands, row_refusal, viewed
from ostinato.passes.choice import Candidates, RowChoice
from ostinato.passes.rewrite import Names, overwritten_values, rebuilt, renamed_operands, with_types

__all__ = ["AssignLayout"]

_COPY = "contiguous"


@dataclass(frozen=True, slots=True)
class AssignLayout:
    """Every value has a layout, and every operand lies as some row of its reader takes it."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "assign_layout"
    requires: ClassVar[tuple[str, ...]] = ("bound", "precision")
    ensures: ClassVar[tuple[str, ...]] = ("laid_out",)
    optional: ClassVar[bool] = False

    def apply(self, graph: Graph, target: Target) -> Graph:
        """Raises `LayoutError` when the readers of one weight want different layouts, `ConfigError` for a forced row or level that does not exist."""
        candidates = Candidates(target, self.choice)
        graph = _without_needless_copies(graph, candidates)
        storage = ViewTable(graph)
        whole = _with_own_outputs(graph, storage)
        if whole is not graph:
            graph, storage = whole, ViewTable(whole)
        readers = _Readers(graph, storage, candidates)
        inputs = [_input(item, readers) for item in graph.inputs]
        nodes = [with_types(node, [_result(node, value, readers) for value in node.results]) for node in graph.nodes]
        laid_out = rebuilt(graph, nodes, inputs)
        return laid_out if all(view.contiguous for view in storage.values()) else _with_copies(laid_out, candidates)


def _without_needless_copies(graph: Graph, candidates: Candidates) -> Graph:
    """Copies that the graph makes itself are left out where they change no place of any element, or where all their readers read strided elements."""
    asked = [node for node in graph.nodes if node.op == _COPY]
    if not asked:
        return graph
    storage = ViewTable(graph)
    kept = {*graph.outputs, *overwritten_values(graph)}
    renamed: dict[str, str] = {}
    for node in asked:
        source = node.operands[0]
        assert source is not None
        if node.name in kept or source in kept:
            continue
        if storage[source].contiguous or all(
            _reads_strided(graph, reader, node, storage[source], storage, candidates)
            for reader in graph.users.get(node.name, ())
        ):
            renamed[node.name] = renamed.get(source, source)
    return rebuilt(graph, [renamed_operands(node, renamed) for node in graph.nodes if node.name not in renamed])


def _reads_strided(
    graph: Graph,
    reader: Node,
    copy: Node,
    place: StorageView,
    storage: Mapping[str, StorageView],
    candidates: Candidates,
) -> bool:
    """Whether the row that would serve a reader of a copy reads the elements where they lay before."""
    if OP[reader.op].is_view:
        return False
    site = call_site(graph, reader, storage)
    row = candidates.best(site)
    return row is not None and row_refusal(row, site.reading({copy.name: place.strides}), OP[reader.op]) is None


class _Readers:
    """For each non-view node, the rows that would serve it, in order of preference, whatever its layouts turn out to be."""

    def __init__(self, graph: Graph, storage: Mapping[str, StorageView], candidates: Candidates) -> None:
        self.graph = graph
        self.candidates = candidates
        self.outputs = frozenset(graph.outputs)
        self.sites: dict[str, CallSite] = {}
        self.rows: dict[str, tuple[Impl, ...]] = {}
        for node in graph.nodes:
            if not OP[node.op].is_view:
                site = call_site(graph, node, storage)
                self.sites[node.name] = site
                self.rows[node.name] = candidates.usable(site)

    def of(self, name: str) -> tuple[Node, ...]:
        return self.graph.users.get(name, ())


def _operand_names(reader: Node, value: str) -> list[str]:
    specs = OP[reader.op].operands
    return [spec.name for spec, name in zip(specs, reader.operands, strict=False) if name == value]


# weights


def _input(item: GraphInput, readers: _Readers) -> GraphInput:
    tensor = item.value.type
    if tensor.layout is not None:
        return item
    layout = tensor.natural_layout
    # a parameter lies in its natural layout, as its updates see it
    if item.role is Role.WEIGHT and tensor.rank == 2 and readers.of(item.value.name):
        wanted = _weight_layout(item.value.name, readers)
        layout = layout if wanted == NATURAL else wanted
    return replace(item, value=Value(item.value.name, tensor.with_layout(layout)))


def _weight_layout(name: str, readers: _Readers) -> str:
    """The layout that all readers accept, and the one that the best-placed of their rows take; between those, the best-placed in the lists of these rows."""
    options = {reader.name: _accepted_layouts(reader, name, readers) for reader in readers.of(name)}
    if name in readers.outputs:
        options["return"] = {NATURAL: (0, 0)}
    options = {reader: layouts for reader, layouts in options.items() if layouts}
    if not options:
        return NATURAL  # no row takes any reader: selection reports why
    common = set.intersection(*(set(layouts) for layouts in options.values()))
    if not common:
        wishes = "; ".join(f"%{reader} takes {' or '.join(layouts)}" for reader, layouts in options.items())
        raise LayoutError(
            f"no layout of this weight suits all its readers: {wishes}",
            node=name,
            hint="give the readers weights of their own",
        )
    first = list(next(iter(options.values())))

    def cost(layout: str) -> tuple[int, int, int]:
        rows, places = zip(*(layouts[layout] for layouts in options.values()), strict=True)
        return sum(rows), sum(places), first.index(layout)

    return min(common, key=cost)


def _accepted_layouts(reader: Node, name: str, readers: _Readers) -> dict[str, tuple[int, int]]:
    """Layouts of the weight `name` that rows of `reader` take, the preferred row's first: the number of the first such row, and the layout's place there."""
    if OP[reader.op].is_view:
        return {NATURAL: (0, 0)}
    found: list[dict[str, tuple[int, int]]] = []
    for operand in _operand_names(reader, name):
        layouts: dict[str, tuple[int, int]] = {}
        for number, row in enumerate(readers.rows[reader.name]):
            for place, layout in enumerate(row.layouts_of(operand)):
                layouts.setdefault(layout, (number, place))
        found.append(layouts)
    return {layout: at for layout, at in found[0].items() if all(layout in layouts for layouts in found)}


# results


def _result(node: Node, value: Value, readers: _Readers) -> TensorType:
    tensor = value.type
    natural = tensor.with_layout(tensor.natural_layout)
    if (
        value is not node.results[0]
        or OP[node.op].is_view
        or value.name in readers.outputs
        or not readers.of(value.name)
    ):
        return natural
    site = readers.sites[node.name]
    for row in readers.rows[node.name]:
        wished = row.result_layout(site)
        if wished is not None and all(_takes(reader, value.name, wished, readers) for reader in readers.of(value.name)):
            return tensor.with_layout(wished)
    return natural


def _takes(reader: Node, name: str, layout: str, readers: _Readers) -> bool:
    """Whether `reader` has a row that declares `layout` for every operand that is `name`; where it is a view, whether it and all that read it are served as
    well as they are when the value lies in its logical order."""
    if OP[reader.op].is_view:
        return _takes_through(reader, name, layout, readers)
    operands = _operand_names(reader, name)
    return any(all(layout in row.layouts_of(operand) for operand in operands) for row in readers.rows[reader.name])


def _takes_through(view: Node, name: str, layout: str, readers: _Readers) -> bool:
    """Views of the value one after another, with its strides in that layout: all of them exist, and no reader's first row comes later for them."""
    seen: dict[str, tuple[int, ...]] = {name: readers.graph.types[name].with_layout(layout).strides}
    waiting = [view]
    while waiting:
        node = waiting.pop()
        opdef = OP[node.op]
        if opdef.view is None:
            if not _serves_no_later(node, seen, readers):
                return False
            continue
        source = viewed(node)
        types = padded_operands(node, opdef, readers.graph.types)
        try:
            place = opdef.view(types, opdef.attributes(node.attrs), seen[source])
        except LayoutError:  # a reshape of what is not in order then
            return False
        if node.name in readers.outputs and not is_contiguous(node.results[0].type, place.strides):
            return False
        seen[node.name] = place.strides
        waiting += readers.of(node.name)
    return True


def _serves_no_later(node: Node, seen: Mapping[str, tuple[int, ...]], readers: _Readers) -> bool:
    """Whether the first row that takes a node with these strides comes no later than the first that takes it as it is."""
    site, rows, opdef = readers.sites[node.name], readers.rows[node.name], OP[node.op]
    places = []
    for found in (site.reading(seen), site):
        taken = (place for place, row in enumerate(rows) if row_refusal(row, found, opdef) is None)
        places.append(next(taken, len(rows)))
    return places[0] <= places[1]


# strided views


def _with_own_outputs(graph: Graph, storage: Mapping[str, StorageView]) -> Graph:
    """Outputs that are strided views become copies under their own name; the view is renamed."""
    strided = {
        name
        for name in graph.outputs
        if name in graph.producers and OP[graph.producers[name].op].is_view and not storage[name].contiguous
    }
    if not strided:
        return graph
    names = Names(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in strided:
            view = names.unique(f"{node.name}.view")
            nodes.append(replace(node, results=(Value(view, node.results[0].type),)))
            nodes.append(_contiguous(view, node.results[0], node))
        else:
            nodes.append(node)
    return rebuilt(graph, nodes)


def _contiguous(source: str, result: Value, reader: Node) -> Node:
    return Node(_COPY, (source,), (result,), Attributes(), location=reader.location)


def _with_copies(graph: Graph, candidates: Candidates) -> Graph:
    storage = ViewTable(graph)
    names = Names(graph)
    copies: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if not OP[node.op].is_view:
            for name in _to_copy(graph, node, storage, candidates):
                if name not in copies:
                    copies[name] = names.unique(f"{name}.contiguous")
                    nodes.append(_contiguous(name, Value(copies[name], graph.types[name]), node))
                node = renamed_operands(node, {name: copies[name]})
        nodes.append(node)
    return rebuilt(graph, nodes)


def _to_copy(graph: Graph, node: Node, storage: Mapping[str, StorageView], candidates: Candidates) -> list[str]:
    """Strided views among the operands that must be copied before a row takes the node; none when some row takes it as it is."""
    strided = [
        name
        for name in dict.fromkeys(node.operands)
        if name is not None and not storage[name].contiguous and graph.types[name].is_natural
    ]
    if not strided:
        return []
    opdef, site = OP[node.op], call_site(graph, node, storage)
    rows = candidates.usable(site)
    if any(row_refusal(row, site, opdef) is None for row in rows):
        return []
    for few in ([name for name in strided if not _may_be_strided(node, name, rows)], strided):
        copied = site.reading({name: graph.types[name].strides for name in few})
        if few and any(row_refusal(row, copied, opdef) is None for row in rows):
            return few
    return []  # copying helps nothing: selection reports why


def _may_be_strided(node: Node, name: str, rows: tuple[Impl, ...]) -> bool:
    return any(all(operand in row.strided for operand in _operand_names(node, name)) for row in rows)
