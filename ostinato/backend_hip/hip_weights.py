"""Weights on their way between a checkpoint and a GPU: rows are converted by the host's kernels in a pinned buffer of bounded size and copied from there.

The buffer has two halves, so that the host packs one while the device takes the other. It is made when a weight first comes and kept.
"""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import dataclass, replace

import numpy as np

from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.hip_memory import PinnedBytes
from ostinato.backend_hip.packing import Source
from ostinato.ir.errors import BoundsError, LayoutError
from ostinato.ir.forks import renew_after_fork
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["WeightCarrier"]

_HALF = 8 << 20
"""Bytes of each half; a longer row has one of its own length."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Part of a source: the same bytes, other rows."""

    data: Array
    dtype: DType
    row_index: Array


class WeightCarrier:
    """Packs and unpacks weights of one device, one at a time."""

    def __init__(self, device: _native.GpuDevice, host: HostDevice | None) -> None:
        self._device = device
        self._given = host
        self.after_fork()
        renew_after_fork(self)
        self._halves: list[PinnedBytes] = []

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    @functools.cached_property
    def host(self) -> HostDevice:
        """The host's kernels: those given, or all cores."""
        return HostDevice() if self._given is None else self._given

    def pack(self, tensor: TensorType, address: int, source: Source, first_row: int) -> None:
        """`HipDevice.pack`, which says what is raised."""
        rows, row_bytes = _rows_of(tensor)
        count = len(source.row_index)
        if not 0 <= first_row <= first_row + count <= rows:
            raise BoundsError(f"rows [{first_row}, {first_row + count}) are outside of {tensor}")
        with self._lock:
            halves, step = self._staging(row_bytes)
            done = [_native.Event(self._device, timing=False) for _ in halves]
            try:
                for number, start in enumerate(range(0, count, step)):
                    half, event = halves[number % 2], done[number % 2]
                    if number >= len(halves):
                        event.synchronize()
                    index = source.row_index[start : start + step]
                    part = _part(tensor, len(index))
                    self.host.pack(part, half.address, _Rows(source.data, source.dtype, index), 0)
                    to = address + (first_row + start) * row_bytes
                    _native.copy_async(to, self._device, half.address, None, len(index) * row_bytes)
                    event.record()
            finally:
                self._device.synchronize()

    def unpack(self, tensor: TensorType, address: int) -> Array:
        """`HipDevice.unpack`: float32 in the weight's shape."""
        rows, row_bytes = _rows_of(tensor)
        values = np.empty(tensor.static_shape, np.float32)
        flat = values.reshape(rows, -1)
        with self._lock:
            (half, *_), step = self._staging(row_bytes)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                _native.copy_async(half.address, None, address + start * row_bytes, self._device, count * row_bytes)
                self._device.synchronize()
                flat[start : start + count] = self.host.unpack(_part(tensor, count), half.address).reshape(count, -1)
        return values

    def _staging(self, row_bytes: int) -> tuple[list[PinnedBytes], int]:
        """The two halves, and how many rows fit one of them."""
        wanted = max(_HALF, row_bytes)
        if not self._halves or self._halves[0].nbytes < wanted:
            self._halves = []
            self._halves = [PinnedBytes(self._device, wanted) for _ in range(2)]
        return self._halves, max(1, self._halves[0].nbytes // max(row_bytes, 1))


def _rows_of(tensor: TensorType) -> tuple[int, int]:
    """Rows of a weight and the bytes of each. A vector has rows of one element. Raises `LayoutError` for a layout that is not the natural one."""
    if not tensor.is_natural or not tensor.rank:
        raise LayoutError(f"weights of a GPU have their natural layout and a dimension at least, found {tensor}")
    shape = tensor.static_shape
    return shape[0], tensor.dtype.nbytes(math.prod(shape[1:]))


def _part(tensor: TensorType, rows: int) -> TensorType:
    """The type of so many rows of a weight."""
    return replace(tensor, shape=(rows, *tensor.static_shape[1:]))
