"""Runs a lowered graph on the host device, node by node, each value between guard bytes: what the rows say, without planner and runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.host_memory import HostBuffer
from ostinato.ir.calls import kernel_operands
from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.ops import OP
from ostinato.ir.step import WORKSPACE, StepKind
from ostinato.ir.target import Target
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.views import ViewTable, call_site, extent_input

__all__ = ["Rows", "Step", "execute"]

GUARD = 256
GUARD_BYTE = 0xA5
POISON = 0xFF
"""Bytes of fresh results and workspaces: NaN in every float dtype, -1 in every integer one."""


@dataclass(frozen=True)
class Step:
    """A step with addresses, as `HostDevice.make_table` takes it."""

    node: str
    kernel: str
    operands: tuple[tuple[int, int], ...]
    params: tuple[int | float, ...]
    kind: StepKind = StepKind.LAUNCH
    lane: int = 0
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rows:
    """Source rows for `HostDevice.pack`."""

    data: Array
    dtype: DType
    row_index: Array


class _Guarded:
    """Memory of one value between guards."""

    def __init__(self, device: HostDevice, nbytes: int) -> None:
        self.buffer: HostBuffer = device.allocate(nbytes + 2 * GUARD)
        self.nbytes = nbytes
        self.buffer.view(np.uint8, (nbytes + 2 * GUARD,))[:] = GUARD_BYTE
        self.bytes[:] = POISON

    @property
    def bytes(self) -> Array:
        return self.buffer.view(np.uint8, (self.nbytes,), GUARD)

    @property
    def address(self) -> int:
        return self.buffer.address + GUARD

    def check(self, name: str) -> None:
        whole = self.buffer.view(np.uint8, (self.nbytes + 2 * GUARD,))
        assert (whole[:GUARD] == GUARD_BYTE).all(), f"{name}: bytes in front were overwritten"
        assert (whole[GUARD + self.nbytes :] == GUARD_BYTE).all(), f"{name}: bytes behind were overwritten"


def execute(
    device: HostDevice,
    graph: Graph,
    target: Target,
    values: Mapping[str, Array],
    shared: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """Every value of the graph after a run, by name (views and packed weights left out).

    `values` are in the dtypes of the inputs, blocks as raw rows; `shared` maps a result to the operand whose bytes it takes.
    """
    storage = ViewTable(graph)
    memory: dict[str, _Guarded] = {}
    for item in graph.inputs:
        name, tensor = item.value.name, item.value.type
        memory[name] = _Guarded(device, tensor.nbytes)
        data = item.data if item.role is Role.CONSTANT else values[name]
        assert data is not None
        _fill(device, memory[name], tensor, np.ascontiguousarray(data))
    untouched = {
        item.value.name: memory[item.value.name].bytes.copy() for item in graph.inputs if item not in graph.updated
    }
    for node in graph.nodes:
        opdef = OP[node.op]
        if opdef.is_view:
            continue
        aliased = {node.results[result].name for result, _ in opdef.aliased(node.operands)}
        for value in node.results:
            if value.name in aliased:
                continue
            source = (shared or {}).get(value.name)
            memory[value.name] = _Guarded(device, value.type.nbytes) if source is None else memory[storage[source].base]
        device.make_table([_step(device, graph, node, target, storage, memory)]).run()
    for name, guarded in memory.items():
        guarded.check(name)
    for name, before in untouched.items():
        if name not in {storage[source].base for source in (shared or {}).values()}:
            assert np.array_equal(memory[name].bytes, before), f"{name} was changed"
    found = {}
    for name, tensor in graph.types.items():
        place = storage[name]
        if not tensor.is_packed and not tensor.dtype.is_block and place.strides is not None:
            flat = memory[place.base].bytes.view(tensor.dtype.numpy)
            strides = tuple(stride * tensor.dtype.numpy.itemsize for stride in place.strides)
            seen = (
                np.lib.stride_tricks.as_strided(flat[place.offset :], tensor.static_shape, strides)
                if flat.size
                else flat
            )
            found[name] = np.array(seen).reshape(tensor.static_shape)
    return found


def _fill(device: HostDevice, memory: _Guarded, tensor: TensorType, data: Array) -> None:
    if tensor.is_packed:
        rows = np.arange(tensor.static_shape[0], dtype=np.int64)
        device.pack(tensor, memory.address, Rows(data, tensor.dtype, rows), 0)
    else:
        memory.bytes[:] = data.reshape(-1).view(np.uint8)


def _step(
    device: HostDevice, graph: Graph, node: Node, target: Target, storage: ViewTable, memory: dict[str, _Guarded]
) -> Step:
    row = target.row(node.op, node.impl or "")
    assert row is not None
    site = call_site(graph, node, storage)
    workspace = _Guarded(device, row.workspace(site))
    memory[f"{WORKSPACE} of {node.name}"] = workspace
    operands: list[tuple[int, int]] = []
    for name in kernel_operands(node, OP[node.op], row, extent_input(graph, node)):
        if name is None:
            operands.append((0, 0))
        elif name == WORKSPACE:
            operands.append((workspace.address, workspace.nbytes))
        else:
            base, place, tensor = memory[storage[name].base], storage[name], graph.types[name]
            start = 0 if tensor.dtype.is_block else place.offset * tensor.dtype.block_bytes
            operands.append((base.address + start, base.nbytes - start))
    return Step(node.name, row.kernel(site), tuple(operands), row.params(site))
