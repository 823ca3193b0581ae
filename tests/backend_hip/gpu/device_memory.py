"""What the tests of operators on a GPU share: an emulated device as `ostinato.ops` takes it, with every kernel that samples need, and arrays on it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.hip_memory import HipBuffer
from ostinato.backend_hip.kernel_source import Instance
from ostinato.ir.opdef import OpDef, Sample
from ostinato.ir.ops.samplers import materialise
from ostinato.ir.rounding import round_to, widen
from ostinato.ir.types import Array, DType, TensorType
from ostinato.runtime.opened import OPENED
from tests.backend_hip.gpu.machine import CACHE
from tests.kernels.emulated import instances
from tests.kernels.test_hip_rows import hip_calls

__all__ = [
    "COPIES",
    "ELEMENTWISE",
    "MEMORY",
    "WAITS",
    "Call",
    "OnDevice",
    "counts",
    "floats",
    "gpu",
    "opened",
    "other",
    "valid_samples",
]


SAMPLES = 4
"""Of each operator: the kernels themselves are tested with all of them elsewhere."""
ELEMENTWISE = "elementwise/elementwise"

# calls of the driver that tests count
COPIES = ("hipMemcpyAsync", "hipMemsetAsync")
WAITS = ("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize", "hipStreamQuery")
MEMORY = ("hipMalloc", "hipMallocAsync", "hipHostMalloc", "hipFree", "hipFreeAsync", "hipHostFree")


@functools.cache
def _instances(wave: int) -> frozenset[Instance]:
    """The kernels of all samples: files that are compiled with all of them are compiled once for all tests."""
    return frozenset(instances(call for call in hip_calls(wave) if call.row.launch is not None))


class OnDevice:
    """A device, and arrays on it."""

    def __init__(self, device: HipDevice) -> None:
        self.device = device
        self._before = device.launches

    @property
    def launches(self) -> int:
        """Kernels since this was made."""
        return ops.launches(self.name) - self._before

    @property
    def name(self) -> str:
        return self.device.name

    def load(self, *files: str) -> None:
        """Every kernel of these files, of all files where none is named."""
        wanted = _instances(self.device.native.wave)
        self.device.kernels.load(found for found in wanted if not files or found.name.file in files)

    def bytes(self, nbytes: int, *, skew: int = 0) -> ost.TensorView:
        """Poisoned memory that begins `skew` bytes after a multiple of 256."""
        buffer = self.device.allocate(nbytes + skew)
        buffer.fill(0xFF)
        return ost.TensorView(buffer.address + skew, nbytes, (nbytes,), None, "u8", self.name, buffer)

    def put(self, values: Array, dtype: DType | None = None, *, skew: int = 0) -> ost.TensorView:
        """A dense copy of an array; `dtype` where it differs from that of the stored elements."""
        stored = np.ascontiguousarray(values)
        view = self.bytes(stored.nbytes, skew=skew)
        view.owner.write(stored, skew)
        return view.reinterpret(DType.of(stored.dtype) if dtype is None else dtype, values.shape)

    def empty(self, *shape: int, dtype: str = "f32", skew: int = 0) -> ost.TensorView:
        kind = DType.parse(dtype)
        return self.bytes(kind.nbytes(int(np.prod(shape))), skew=skew).reinterpret(kind, shape)

    @staticmethod
    def get(view: ost.TensorView) -> Array:
        """The values of a dense view, when the device is done."""
        buffer = view.owner
        assert isinstance(buffer, HipBuffer)
        return buffer.read(view.dtype.numpy, view.shape, view.address - buffer.address)


class Call:
    """A sample laid out on a device."""

    def __init__(self, gpu: OnDevice, op: OpDef, sample: Sample, rng: np.random.Generator) -> None:
        self.gpu, self.op = gpu, op
        self.attrs: dict[str, Any] = dict(sample.attrs)
        self.stored: list[Array | None] = []
        self.types: list[TensorType | None] = []
        self.operands: list[ost.TensorView | None] = []
        for operand in sample.operands:
            if operand is None:
                self.stored.append(None)
                self.types.append(None)
                self.operands.append(None)
                continue
            tensor = TensorType(operand.type.static_shape, operand.type.dtype)
            array = np.array(materialise(operand, rng), order="C")
            self.types.append(tensor)
            self.stored.append(array)
            raw = gpu.put(array.reshape(-1).view(np.uint8))
            self.operands.append(raw.reinterpret(tensor.dtype, tensor.static_shape))
        self.results = ops.result_types(op.name, *self.operands, **self.attrs)
        self.aliased = dict(op.aliased(self.operands))
        self.outs = [
            gpu.bytes(tensor.nbytes).reinterpret(tensor.dtype, tensor.static_shape)
            for index, tensor in enumerate(self.results)
            if index not in self.aliased
        ]
        needed = ops.workspace_bytes(op.name, *self.operands, **self.attrs)
        self.workspace = gpu.bytes(needed) if needed else None

    def run(self, **options: Any) -> Any:
        out = None if not self.outs else self.outs[0] if len(self.outs) == 1 else tuple(self.outs)
        return getattr(ops, self.op.name)(*self.operands, **self.attrs, out=out, workspace=self.workspace, **options)

    def expected(self) -> list[Array]:
        seen = [
            None if t is None or a is None else widen(a, t.dtype) for t, a in zip(self.types, self.stored, strict=True)
        ]
        made = self.op.reference(seen, self.attrs, self.results)
        return [round_to(array, tensor.dtype) for array, tensor in zip(made, self.results, strict=True)]

    def found(self) -> list[Array]:
        outs = iter(self.outs)
        views = [
            self.operands[self.aliased[index]] if index in self.aliased else next(outs)
            for index in range(len(self.results))
        ]
        return [self.gpu.get(view) for view in views if view is not None]


def valid_samples(op: OpDef, rng: np.random.Generator) -> list[Sample]:
    usable = (
        sample
        for sample in op.samples(rng)
        if sample.error is None and all(o is None or not o.type.is_packed for o in sample.operands)
    )
    return list(islice(usable, SAMPLES))


@contextmanager
def opened(native: _native.GpuDevice) -> Iterator[OnDevice]:
    """The device as `ostinato.ops` takes it for as long as this lasts."""
    device = HipDevice(native, cache=CodeCache(CACHE / "code"), host=HostDevice(threads=1))
    OPENED.use(device)
    try:
        yield OnDevice(device)
    finally:
        native.synchronize()
        OPENED.forget(device.name)
        ops._operators.forget(device.name)


@pytest.fixture
def gpu(machine: EmulatedGpu) -> Iterator[OnDevice]:
    with opened(machine.gpu.device(0)) as found:
        yield found


@pytest.fixture
def other(machine: EmulatedGpu) -> Iterator[OnDevice]:
    with opened(machine.gpu.device(1)) as found:
        yield found


def counts(machine: EmulatedGpu, *names: str) -> dict[str, int]:
    """How often each of these was called."""
    return {name: machine.count(name) for name in names}


def floats(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8
