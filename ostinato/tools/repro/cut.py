"""A few nodes of a graph by themselves: the values that they read become inputs, so that they run without the model.

Views between them and what they read come along, so that strides are what they were. Inputs of the graph keep their role; a value that another node made is an
input, or state where one of the nodes updates it in place. Implementations and layouts are taken off: they are chosen again, with the rows that are named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ostinato.ir.errors import ConfigError, OstinatoError, PlanError
from ostinato.ir.graph import Graph, GraphInput, Node, Role, Value
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.verify import verify
from ostinato.ir.views import extent_input
from ostinato.ir.weights import WeightPart
from ostinato.passes.assign_layout import AssignLayout
from ostinato.passes.choice import RowChoice
from ostinato.passes.select_impl import SelectImpl
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.moved import moved
from ostinato.planner.program import build_program
from ostinato.planner.settings import DEFAULT_SETTINGS
from ostinato.runtime.device import Device, WeightSource
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.runtime.program import Program
from ostinato.runtime.weights import logical_weight

__all__ = ["ENTRY", "Cut", "Tensors", "cut_graph", "fewer_rows", "plain_graph", "weight_rows"]

ENTRY = "repro"
"""What the only entry of such a program is called."""


@dataclass(frozen=True, slots=True)
class Tensors(WeightSource):
    """Values by name as a source of weights: what a checkpoint is elsewhere. Blocks are rows of bytes."""

    values: Mapping[str, Array]
    types: Mapping[str, TensorType]

    def dtype(self, tensor: str) -> DType:
        return self.types[tensor].dtype

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.types[tensor].static_shape

    def map(self, tensor: str) -> Array:
        return np.ascontiguousarray(self.values[tensor]).reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Cut:
    """Nodes by themselves, with a value for every input, and the row of each node (nodes without one get what the device chooses).

    `places`: first bytes of storages in the arena, where they are part of the fault; such a plan is not proven.
    """

    graph: Graph
    values: Mapping[str, Array]
    rows: Mapping[str, str]
    places: Mapping[str, int]

    def lowered(self, device: Device) -> tuple[Graph, Program]:
        """Raises `ConfigError` for rows that the device lacks, `BackendError` for nodes that no row takes, `PlanError` for a plan that is not proven."""
        target = replace(device.target, evidence=None)  # the rows are the question here, not the answer
        choice = RowChoice().and_forced(dict(self.rows))
        graph = AssignLayout(choice).apply(self.graph, target)
        graph, decisions = SelectImpl(choice).decide(graph, target)
        settings = replace(DEFAULT_SETTINGS, order="program")
        entry = plan_entry(graph, target, name=ENTRY, settings=settings)
        if self.places:
            entry = moved(entry, graph, self.places)
        plan = build_program({ENTRY: (graph, entry)})
        if not self.places:
            check_program(plan, {ENTRY: graph}, target)
        types = {item.value.name: item.value.type.with_layout(None) for item in self.graph.inputs}
        source = Tensors(self.values, types)
        return graph, Program(plan, {ENTRY: graph}, target, source, decisions={ENTRY: decisions})

    def load(self, device: Device, mode: str) -> Executable:
        """Raises what `lowered` raises, and `ConfigError` for a mode that the device lacks."""
        return load_program(self.lowered(device)[1], Route(device, mode), kind=Executable)

    def run(self, executable: Executable) -> dict[str, Array]:
        """Valid rows of the outputs, from the state as it is stored."""
        executable.reset_state()
        state = {i.value.name: self.values[i.value.name] for i in self.graph.with_role(Role.STATE)}
        if state:
            executable.write_states(state)
        given = {i.value.name: self.values[i.value.name] for i in self.graph.with_role(Role.INPUT)}
        return self.valid(executable.run(ENTRY, given))

    def valid(self, found: Mapping[str, Array]) -> dict[str, Array]:
        """The rows that mean something."""
        counts = self.counts
        return {
            name: array[: counts[axes[0]]] if (axes := self.graph.types[name].axes[:1]) and axes[0] in counts else array
            for name, array in found.items()
        }

    @property
    def counts(self) -> Mapping[str, int]:
        """Valid rows of each counted axis."""
        return self.graph.counts(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(array.nbytes for array in self.values.values())


def plain_graph(graph: Graph) -> Graph:
    """The graph without implementations and layouts."""

    def plain(value: Value) -> Value:
        return replace(value, type=value.type.with_layout(None))

    inputs = tuple(replace(item, value=plain(item.value)) for item in graph.inputs)
    nodes = tuple(replace(node, impl=None, results=tuple(map(plain, node.results))) for node in graph.nodes)
    return Graph(graph.name, inputs, nodes, graph.outputs, graph.extents)


def cut_graph(graph: Graph, names: Collection[str], outputs: Collection[str] | None = None) -> Graph:
    """The nodes of these names by themselves. What none of them reads of what they make is put out, or the `outputs` that are named.

    Raises `ConfigError` for names that are no nodes, and `PlanError` where the nodes cannot be taken out.
    """
    whole = plain_graph(graph)
    nodes = {node.name: node for node in whole.nodes}
    if unknown := sorted(set(names) - set(nodes)):
        raise ConfigError(f"{unknown} are no nodes of @{graph.name}", hint="name nodes as the graph does")
    kept = _with_views(whole, names)
    inside = [node for node in whole.nodes if node.name in kept]
    made = {value.name for node in inside for value in node.results}
    read = dict.fromkeys(name for node in inside for name in node.operands if name is not None and name not in made)
    extents = _extents(whole, inside, [*read, *made])
    counts = [name for _, name in extents]
    updated = {node.operands[operand] for node in inside for _, operand in OP[node.op].aliased(node.operands)}
    inputs = tuple(_input(whole, name, name in updated) for name in dict.fromkeys([*read, *counts]))
    ends = tuple(_outputs(whole, inside, set(names))) if outputs is None else tuple(outputs)
    cut = Graph(ENTRY, inputs, tuple(inside), ends, tuple(extents))
    try:
        verify(cut)
    except OstinatoError as error:
        raise PlanError(
            f"{sorted(names)} cannot be taken out of @{graph.name}: {error.message}",
            hint=error.hint or "take more nodes",
        ) from error
    return cut


def fewer_rows(cut: Cut, axis: str, rows: int) -> Cut | None:
    """The cut with so many rows along a counted axis, the first ones; None where that makes no graph."""

    def shorter(tensor: TensorType) -> TensorType:
        if axis not in tensor.axes:
            return tensor
        at = tensor.axes.index(axis)
        return replace(tensor, shape=(*tensor.shape[:at], rows, *tensor.shape[at + 1 :]))

    def short(value: Value) -> Value:
        return replace(value, type=shorter(value.type))

    graph = cut.graph
    inputs = tuple(replace(item, value=short(item.value)) for item in graph.inputs)
    nodes = tuple(replace(node, results=tuple(map(short, node.results))) for node in graph.nodes)
    found = Graph(graph.name, inputs, nodes, graph.outputs, graph.extents)
    try:
        verify(found)
    except OstinatoError:
        return None
    values = dict(cut.values)
    for item in graph.inputs:
        name, tensor = item.value.name, item.value.type
        if axis in tensor.axes and name in values:
            values[name] = np.ascontiguousarray(values[name].take(range(rows), tensor.axes.index(axis)))
    for counted, name in graph.extents:
        if counted == axis:
            values[name] = np.minimum(values[name], rows).astype(values[name].dtype)
    return replace(cut, graph=found, values=values)


def weight_rows(item: GraphInput, source: WeightSource) -> Array:
    """A weight's values as a bundle keeps them: in the dtype of its type, blocks as rows of bytes.

    Raises `ConfigError` for blocks that are stored in another dtype than the weight's.
    """
    dtype = item.value.type.dtype
    if not dtype.is_block:
        return logical_weight(dtype, item.parts, source)
    pieces: list[Array] = []
    for part in item.parts:
        if source.dtype(part.tensor) is not dtype:
            found = source.dtype(part.tensor).value
            raise ConfigError(
                f"its rows are stored as {found}, not as {dtype.value}",
                node=item.value.name,
                hint="a weight of a bundle has one dtype",
            )
        rows = source.map(part.tensor).reshape(source.shape(part.tensor)[0], -1)
        order = source.row_order(part.tensor)
        picked = rows[part.start : part.stop] if order is None else rows[order[part.start : part.stop]]
        pieces.append(np.array(picked))
        source.release(part.tensor)
    return np.concatenate(pieces)


def _with_views(graph: Graph, names: Collection[str]) -> set[str]:
    """The nodes, and the views through which they read what others made."""
    kept = set(names)
    waiting = [graph.producers[value.name] for node in graph.nodes if node.name in kept for value in node.results]
    while waiting:
        node = waiting.pop()
        for name in node.operands:
            maker = None if name is None else graph.producers.get(name)
            if maker is not None and OP[maker.op].is_view and maker.name not in kept:
                kept.add(maker.name)
                waiting.append(maker)
    return kept


def _extents(graph: Graph, nodes: Iterable[Node], names: Iterable[str]) -> list[tuple[str, str]]:
    """The counted axes that the nodes have."""
    counted = {extent_input(graph, node) for node in nodes}
    axes = {graph.types[name].axes[0] for name in names if graph.types[name].axes[:1]}
    return [(axis, name) for axis, name in graph.extents if axis in axes or name in counted]


def _input(graph: Graph, name: str, updated: bool) -> GraphInput:
    item = graph.inputs_by_name.get(name)
    if item is None:
        return GraphInput(Value(name, graph.types[name]), Role.STATE if updated else Role.INPUT)
    rows = item.value.type.static_shape[0] if item.value.type.rank else 1
    if item.role is Role.CONSTANT:
        return item
    if item.role in (Role.WEIGHT, Role.PARAMETER) and not updated:
        return GraphInput(item.value, Role.WEIGHT, (WeightPart(name, 0, rows),))
    if item.role is Role.PARAMETER:
        return GraphInput(item.value, Role.STATE)
    return replace(item, role=Role.STATE if updated else item.role, carried=False)


def _outputs(graph: Graph, nodes: Iterable[Node], names: set[str]) -> Iterable[str]:
    """What the nodes that were asked for make and no other of them reads, views apart: an update of state counts as read."""
    inside = {node.name for node in nodes}
    for node in graph.nodes:
        if node.name not in names:
            continue
        for value in node.results:
            readers = [reader for reader in graph.users.get(value.name, ()) if reader.name in inside]
            if not any(reader.name in names for reader in readers):
                yield value.name
