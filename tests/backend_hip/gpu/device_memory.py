"""What the tests of operators on a GPU share: an emulated device as `ostinato.ops` takes it, with every kernel that samples need, and arrays on it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.hip_memory import HipBuffer
from ostinato.backend_hip.kernel_source import Instance
from ostinato.ir.types import Array, DType
from ostinato.runtime.opened import OPENED
from tests.backend_hip.gpu.machine import CACHE
from tests.kernels.emulated import instances
from tests.kernels.test_hip_rows import hip_calls

__all__ = ["OnDevice", "opened"]


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
