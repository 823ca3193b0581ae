"""Memory of a GPU as the runtime uses it: buffers that are read and written by copies, and pinned host memory that stands for one.

A buffer's own reads, writes and fills wait for the whole device first: they are for loading, state and tests. What happens every step goes through a window, in
the order of a stream.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ostinato.backend_hip import _native
from ostinato.backend_hip.packing import bytes_of
from ostinato.ir.errors import BackendError, BoundsError, ConfigError, LifecycleError, OstinatoError
from ostinato.ir.types import Array

__all__ = ["HipBuffer", "HipRing", "HipWindow", "PinnedBytes", "native_stream"]


def native_stream(stream: object, device: _native.GpuDevice) -> _native.Stream | None:
    """A stream of the runtime as the native layer has it, None for the default one. Raises `ConfigError` for a stream that is not this device's."""
    if stream is None:
        return None
    if not isinstance(stream, _native.Stream) or stream.device is not device:
        raise ConfigError(
            f"expected a stream of device {device.index}, found {stream!r}",
            hint="open_stream() of the device gives one",
        )
    return stream


class PinnedBytes:
    """Page-locked host memory: what numpy sees of it keeps it alive."""

    def __init__(self, device: _native.GpuDevice, nbytes: int) -> None:
        self._memory = _native.PinnedMemory(device, max(nbytes, 1))
        self.nbytes = nbytes
        self.address = self._memory.address
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def view(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A writable array over the bytes at `offset`. Raises `BoundsError` outside of them."""
        kind = np.dtype(dtype)
        nbytes = _size(kind, shape)
        _check(offset, nbytes, self.nbytes)
        return np.asarray(self)[offset : offset + nbytes].view(kind).reshape(shape)


class HipBuffer:
    """Memory of a GPU, valid until `free` or until the last reference to it is gone."""

    def __init__(self, device: _native.GpuDevice, nbytes: int, alignment: int, *, zeroed: bool) -> None:
        self._device = device
        self.address = device.allocate(max(nbytes, 1))  # an address also for no bytes: kernels take null for absent
        self.nbytes = nbytes
        self._release = weakref.finalize(self, _give_back, device, self.address)
        self._release.atexit = False
        if self.address % alignment:
            raise BackendError(
                f"device {device.index} gave memory at {self.address:#x}, which is no multiple of {alignment}"
            )
        if zeroed:
            self.fill(0)

    def read(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A copy of the values at `offset`, when the device has done all its work.

        Raises `BoundsError` outside of the buffer, `LifecycleError` after `free`.
        """
        kind = np.dtype(dtype)
        found = np.empty(shape, kind)
        self._check(offset, found.nbytes)
        self._device.synchronize()
        _native.copy_async(found.ctypes.data, None, self.address + offset, self._device, found.nbytes)
        self._device.synchronize()
        return found

    def write(self, values: Array, offset: int = 0) -> None:
        """Puts the bytes of a contiguous array at `offset`, after all the work that the device has now; done on return.

        Raises `LayoutError` for an array with gaps, `BoundsError` outside of the buffer, `LifecycleError` after `free`.
        """
        data = bytes_of(values)
        self._check(offset, data.nbytes)
        self._device.synchronize()
        _native.copy_async(self.address + offset, self._device, data.ctypes.data, None, data.nbytes)
        self._device.synchronize()

    def fill(self, value: int, offset: int = 0, nbytes: int = -1) -> None:
        """Sets bytes [offset, offset + nbytes) (-1: to the end) to one value, after all the work that the device has now; done on return."""
        count = self.nbytes - offset if nbytes < 0 else nbytes
        self._check(offset, count)
        self._device.synchronize()
        _native.fill_async(self.address + offset, self._device, value, count)
        self._device.synchronize()

    def window(self, stream: object = None) -> HipWindow:
        """Pinned host memory of the same size, whose copies go in the order of the stream."""
        self._check(0, 0)
        return HipWindow(self, self._device, native_stream(stream, self._device))

    @property
    def freed(self) -> bool:
        """Whether `free` was called."""
        return not self._release.alive

    def free(self) -> None:
        """Gives the memory back now. A second call does nothing."""
        self._release()

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            "device memory cannot be copied or pickled", hint="use exe.clone(), or compile again in the other process"
        )

    def _check(self, offset: int, nbytes: int) -> None:
        if not self._release.alive:
            raise LifecycleError("the buffer was freed", hint="allocate another one")
        _check(offset, nbytes, self.nbytes)


class HipWindow:
    """Host memory that stands for a buffer; it keeps the buffer alive."""

    def __init__(self, buffer: HipBuffer, device: _native.GpuDevice, stream: _native.Stream | None) -> None:
        self._buffer, self._device, self._stream = buffer, device, stream
        self._memory = PinnedBytes(device, buffer.nbytes)

    def view(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A writable array over the host's bytes at `offset`. Raises `BoundsError` outside of them."""
        return self._memory.view(dtype, shape, offset)

    def upload(self, first: int, stop: int) -> None:
        """Submits the copy of bytes [first, stop) to the device, in the order of the stream."""
        _check(first, stop - first, self._buffer.nbytes)
        to, source = self._buffer.address + first, self._memory.address + first
        _native.copy_async(to, self._device, source, None, stop - first, self._stream)

    def download(self, first: int, stop: int) -> None:
        """Submits the copy back: the bytes are there when the stream has been waited for."""
        _check(first, stop - first, self._buffer.nbytes)
        to, source = self._memory.address + first, self._buffer.address + first
        _native.copy_async(to, None, source, self._device, stop - first, self._stream)

    def ring(self, first: int, stop: int, slots: int) -> HipRing:
        """So many pinned slots for bytes [first, stop). Raises `BoundsError` outside of the buffer."""
        _check(first, stop - first, self._buffer.nbytes)
        return HipRing(self._buffer, self._device, self._stream, (first, stop), slots)


class HipRing:
    """Pinned slots for the same bytes of a buffer, each with the event that says when its copy is done; it keeps the buffer alive."""

    def __init__(
        self,
        buffer: HipBuffer,
        device: _native.GpuDevice,
        stream: _native.Stream | None,
        place: tuple[int, int],
        slots: int,
    ) -> None:
        self._buffer, self._device, self._stream = buffer, device, stream
        self._first, self._size = place[0], place[1] - place[0]
        self._memory = PinnedBytes(device, slots * self._size)
        self._done = [_native.Event(device, timing=False) for _ in range(slots)]

    def fetch(self, slot: int) -> None:
        """Submits the copy of the bytes to a slot, in the order of the stream."""
        to, source = self._memory.address + slot * self._size, self._buffer.address + self._first
        _native.copy_async(to, None, source, self._device, self._size, self._stream)
        self._done[slot].record(self._stream)

    def wait(self, slot: int) -> None:
        """Returns when the slot has what was last fetched to it."""
        self._done[slot].synchronize()

    def view(self, slot: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """An array over a slot. Raises `BoundsError` outside of the ring."""
        return self._memory.view(dtype, shape, slot * self._size)


def _give_back(device: _native.GpuDevice, address: int) -> None:
    """Frees, where that can be done: not of a device that is lost, and not in the child of a fork."""
    with contextlib.suppress(OstinatoError):
        device.free(address)


def _size(kind: np.dtype[np.generic], shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * kind.itemsize


def _check(offset: int, nbytes: int, available: int) -> None:
    if not 0 <= offset <= offset + nbytes <= available:
        raise BoundsError(f"bytes [{offset}, {offset + nbytes}) are outside of a buffer of {available}")
