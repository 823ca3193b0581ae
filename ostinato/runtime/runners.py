"""The modes of execution, one runner an entry.

`PlannedRunner` replays the step table over the planned arena; `EagerRunner` runs the same decisions node by node, clones included, every result in storage of
its own; `ReferenceRunner` interprets the graph without clones in numpy. They share one shape: fill `inputs`, `run`, read what came of it. Eager and planned
are bit-equal by contract.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ostinato.ir.calls import NodeCall, node_call
from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, GraphInput, Node, Role
from ostinato.ir.interp import Observer, interpret
from ostinato.ir.ops import OP
from ostinato.ir.step import WORKSPACE, KernelCall, Step
from ostinato.ir.target import Target
from ostinato.ir.types import Array, TensorType
from ostinato.ir.views import StorageView, ViewTable
from ostinato.runtime.device import Buffer, Device, Launch, Window
from ostinato.runtime.loaded import LoadedSteps
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions, SharedRegions
from ostinato.runtime.replays import LazyReplays, QueuedReplays, Replays
from ostinato.runtime.weights import logical_weight

__all__ = ["EagerRunner", "PlannedRunner", "Readable", "ReferenceRunner", "ReferenceWeights", "Runner"]


class Readable(Protocol):
    """Memory as the eager runner needs it."""

    @property
    def address(self) -> int: ...
    def read(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A copy of the values at `offset`, after what the device does to them now is done."""
        ...


class Runner(abc.ABC):
    """One entry in one mode: fill `inputs`, which are writable arrays of the host, and run."""

    inputs: Mapping[str, Array]

    def run(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        """Runs once on `inputs` as they are filled; the named outputs, or more, are valid until the next run."""
        return self.again(outputs)

    @abc.abstractmethod
    def again(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        """Runs once on the inputs as the last run left them; `inputs` need not show those."""
        ...

    def replays(self, outputs: Sequence[str], depth: int) -> Replays:
        """Runs like `again`, of which up to `depth` may be submitted before the first is taken, where the device works by itself."""
        del depth
        return LazyReplays(self.again, outputs)


class PlannedRunner(Runner):
    """The native step table over stable addresses: one native call a run, or one a step where an observer is to see every result.

    Only the outputs that are asked for come back from a device.
    """

    def __init__(
        self, program: Program, name: str, device: Device, regions: Regions, observer: Observer | None = None
    ) -> None:
        self.graph = program.graphs[name]
        self.loaded = LoadedSteps(program.plan.entries[name], device, regions)
        self.inputs = self.loaded.exchange.inputs
        self._observer = observer
        self._memory = {"arena": regions.arena, "io": regions.io}

    def run(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        self.loaded.exchange.give()
        return self.again(outputs)

    def again(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        if self._observer is None:
            self.enqueue()
        else:
            for position, step in enumerate(self.loaded.plan.steps):
                self.loaded.table.run(position, 1)
                self.observe(step)
        found = self.loaded.exchange.take(outputs)
        self.loaded.table.finish()
        return found

    def enqueue(self) -> None:
        """Submits all steps."""
        self.loaded.table.enqueue()

    def replays(self, outputs: Sequence[str], depth: int) -> Replays:
        if self._observer is not None:
            return super().replays(outputs, depth)
        bindings = {binding.name: binding for binding in self.loaded.plan.outputs}
        wanted = [bindings[name] for name in outputs]
        return QueuedReplays(self.enqueue, self.loaded.table, self.loaded.exchange.window, wanted, depth)

    def observe(self, step: Step) -> None:
        """Shows the observer what a step has made, before a later one may take the bytes."""
        if self._observer is None:
            return
        for operand in step.operands:
            if operand is None or not operand.writes or operand.value not in self.graph.producers:
                continue
            buffer, tensor = self._memory.get(operand.range.region.kind), self.graph.types[operand.value]
            if buffer is not None and not tensor.dtype.is_block:
                flat = buffer.read(tensor.dtype.numpy, (tensor.elements,), operand.range.offset)
                strides = tuple(stride * flat.dtype.itemsize for stride in tensor.strides)
                shown = np.lib.stride_tricks.as_strided(flat, tensor.static_shape, strides, writeable=False)
                self._observer(operand.value, shown)


class EagerRunner(Runner):
    """Node by node, no arena: each storage is allocated when it is made and freed after its last reader."""

    def __init__(
        self, program: Program, name: str, device: Device, regions: Regions, observer: Observer | None = None
    ) -> None:
        self._graph = program.graphs[name]
        self._device = device
        self._observer = observer
        self._views = ViewTable(self._graph)
        calls = _calls(self._graph, program.target, self._views)
        device.prepare([_kernel_call(node, call) for _, node, call in calls])
        self._calls: list[tuple[int, Node, NodeCall, Launch]] = [
            (index, node, call, device.make_launch(_kernel_call(node, call))) for index, node, call in calls
        ]
        self._last_use = _last_uses(self._graph, self._views)
        self._fixed = _fixed_places(self._graph, program, regions)
        self._given: list[tuple[Buffer, Window]] = []
        self.inputs = {}
        for item in self._graph.with_role(Role.INPUT):
            name, tensor = item.value.name, item.value.type
            buffer = device.allocate(tensor.nbytes)
            window = buffer.window()
            self._given.append((buffer, window))
            self._fixed[name] = (buffer, 0)
            self.inputs[name] = window.view(tensor.dtype.numpy, tensor.static_shape)

    def run(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        for buffer, window in self._given:
            window.upload(0, buffer.nbytes)
        return self.again(outputs)

    def again(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        live: dict[str, Buffer] = {}
        for index, node, call, launch in self._calls:
            aliased = {node.results[result].name for result, _ in OP[node.op].aliased(node.operands)}
            own = [value for value in node.results if value.name not in aliased]
            made = [value for value in own if value.name not in self._fixed]
            live.update((value.name, self._device.allocate(value.type.nbytes, zeroed=False)) for value in made)
            self._run_call(call, launch, live)
            if self._observer is not None:
                for value in own:  # an updated cache is state, not a result of its own
                    self._observer(value.name, self._read(value.name, live))
            for base in self._last_use.get(index, ()):
                if base in live:
                    live.pop(base).free()
        self._device.finish()
        found = {name: self._read(name, live) for name in outputs}
        for buffer in live.values():
            buffer.free()
        return found

    def _run_call(self, call: NodeCall, launch: Launch, live: Mapping[str, Buffer]) -> None:
        # a kernel that takes a workspace wants an address also where its inputs are empty and it needs no bytes
        workspace = self._device.allocate(call.workspace, zeroed=False) if WORKSPACE in call.operands else None
        scratch = (0, 0) if workspace is None else (workspace.address, call.workspace)
        operands = tuple(
            (0, 0) if name is None else scratch if name == WORKSPACE else self._address(name, live)
            for name in call.operands
        )
        launch.run(operands)
        if workspace is not None:
            workspace.free()

    def _storage(self, base: str, live: Mapping[str, Buffer]) -> tuple[Readable, int] | None:
        """The buffer that holds a storage, and the byte where it starts; None for one that is not made yet."""
        if base in live:
            return live[base], 0
        return self._fixed.get(base)

    def _address(self, name: str, live: Mapping[str, Buffer]) -> tuple[int, int]:
        view, tensor = self._views[name], self._graph.types[name]
        found = self._storage(view.base, live)
        if found is None:
            return (0, 0)
        buffer, offset = found
        return buffer.address + offset + tensor.dtype.nbytes(view.offset), _span(tensor, view)

    def _read(self, name: str, live: Mapping[str, Buffer]) -> Array:
        """The values of a name as an array over a copy of its bytes, strides applied."""
        view, tensor = self._views[name], self._graph.types[name]
        found = self._storage(view.base, live)
        if found is None or view.strides is None:
            raise PlanError("a packed value is not read in eager mode", node=name)
        buffer, offset = found
        base, kind = self._graph.types[view.base], tensor.dtype.numpy
        flat = buffer.read(kind, (base.elements,), offset)
        strides = tuple(stride * kind.itemsize for stride in view.strides)
        return np.lib.stride_tricks.as_strided(flat[view.offset :], tensor.static_shape, strides, writeable=False)


class ReferenceWeights:
    """Logical weights for the interpreter, read from the checkpoint when first needed, or from the device where they were replaced. Shared by clones."""

    def __init__(self, program: Program, device: Device, shared: SharedRegions) -> None:
        self._program = program
        self._device = device
        self._shared = shared
        self._values: dict[str, Array] = {}
        self._slots = {slot.name: slot for slot in program.plan.weights}
        self.widened: dict[str, Array] = {}

    def of(self, graph: Graph) -> dict[str, Array]:
        """The weights of a graph by value name."""
        return {item.value.name: self._value(item) for item in graph.with_role(Role.WEIGHT)}

    def renew(self) -> None:
        """Forgets what was replaced since, so that it is read anew."""
        for name in self._shared.replaced:
            self._values.pop(name, None)
            self.widened.pop(name, None)

    def _value(self, item: GraphInput) -> Array:
        name, dtype = item.value.name, item.value.type.dtype
        if name not in self._values:
            if name in self._shared.replaced:
                slot = self._slots[name]
                read = self._device.unpack(slot.type, self._shared.weights.address + slot.range.offset)
                self._values[name] = read if dtype.is_block else read.astype(dtype.numpy, copy=False)
            else:
                self._values[name] = logical_weight(dtype, item.parts, self._program.source)
        return self._values[name]


class ReferenceRunner(Runner):
    """The interpreter: slow, in numpy, the oracle of the others. `state` has parameters and state by value name, of all entries, and is updated."""

    def __init__(
        self,
        program: Program,
        name: str,
        state: dict[str, Array],
        weights: ReferenceWeights,
        observer: Observer | None = None,
    ) -> None:
        self._graph = program.original(name)
        self._observer = observer
        self._state = state
        self._weights = weights
        self.inputs = {
            item.value.name: np.zeros(item.value.type.static_shape, item.value.type.dtype.numpy)
            for item in self._graph.with_role(Role.INPUT)
        }

    def again(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        kept = {name: array for name, array in self._state.items() if name in self._graph.inputs_by_name}
        result = interpret(
            self._graph,
            {**self.inputs, **self._weights.of(self._graph), **kept},
            observe=self._observer,
            widened=self._weights.widened,
        )
        self._state.update(result.state)
        for name, array in result.carried.items():
            self.inputs[name][...] = array
        return {name: result.outputs[name] for name in outputs}


def _calls(graph: Graph, target: Target, views: Mapping[str, StorageView]) -> tuple[tuple[int, Node, NodeCall], ...]:
    """What runs, in program order: each node that is no view, its index in the graph, and the call its row makes."""
    found: list[tuple[int, Node, NodeCall]] = []
    for index, node in enumerate(graph.nodes):
        if OP[node.op].is_view:
            continue
        row = target.row(node.op, node.impl or "")
        if row is None:
            raise PlanError(f"no row {node.op}@{node.impl} on {target.name}", node=node.name)
        found.append((index, node, node_call(graph, node, row, views)))
    return tuple(found)


def _kernel_call(node: Node, call: NodeCall) -> KernelCall:
    return KernelCall(node.name, call.kernel, call.params, len(call.operands), call.kind, call.launch)


def _span(tensor: TensorType, view: StorageView) -> int:
    """Bytes from the first element of a value to its last: those of the value itself unless it is a view with gaps."""
    if view.strides is None or view.contiguous or not tensor.elements:
        return tensor.nbytes
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.static_shape, view.strides, strict=True))
    return tensor.dtype.nbytes(last + 1)


def _fixed_places(graph: Graph, program: Program, regions: Regions) -> dict[str, tuple[Readable, int]]:
    """Where weights, constants, parameters and state lie: buffer and offset by value name. Entries share constants by content."""
    found: dict[str, tuple[Readable, int]] = {}
    found.update({slot.name: (regions.shared.weights, slot.range.offset) for slot in program.plan.weights})
    found.update({slot.name: (regions.state, slot.range.offset) for slot in program.plan.parameters})
    found.update({slot.name: (regions.state, slot.range.offset) for slot in program.plan.state})
    for item in graph.with_role(Role.CONSTANT):
        slot = program.plan.constant(item.value.type, b"" if item.data is None else item.data.tobytes())
        if slot is None:
            raise PlanError("the program does not hold this constant", node=item.value.name)
        found[item.value.name] = (regions.shared.constants, slot.range.offset)
    return found


def _last_uses(graph: Graph, views: Mapping[str, StorageView]) -> dict[int, list[str]]:
    """Node index -> storages whose last reader that node is; outputs never die."""
    last: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        for name in (*node.operands, *(value.name for value in node.results)):
            if name is not None:
                last[views[name].base] = index
    kept = {views[name].base for name in graph.outputs}
    found: dict[int, list[str]] = {}
    for base, index in last.items():
        if base not in kept:
            found.setdefault(index, []).append(base)
    return found
