"""Memory of the host as the runtime uses it: buffers of the native device, which are their own windows, and rings of what they held.

Whoever hands an address over keeps its buffer alive; arrays over a buffer do so by themselves.
"""

from __future__ import annotations

import weakref
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ostinato.backend_hip import _native
from ostinato.backend_hip.packing import bytes_of
from ostinato.ir.errors import BoundsError, LifecycleError
from ostinato.ir.types import Array

__all__ = ["HostBuffer", "HostRing"]


class _Memory:
    """What numpy sees of a buffer: an array made from it keeps the buffer alive."""

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, buffer: HostBuffer, offset: int, nbytes: int) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (buffer.address + offset, False),
        }


class HostBuffer:
    """Zeroed memory of a device, valid until `free`, or until the last reference to it or to one of its views is gone."""

    def __init__(self, device: _native.Device, nbytes: int, alignment: int) -> None:
        self.address = device.allocate(nbytes, alignment)
        self.nbytes = nbytes
        self._release = weakref.finalize(self, device.free, self.address)
        self._release.atexit = False

    def view(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A writable array over the bytes at `offset`. Raises `BoundsError` outside of the buffer and `LifecycleError` after `free`."""
        if not self._release.alive:
            raise LifecycleError("the buffer was freed", hint="allocate another one")
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise BoundsError(f"bytes [{offset}, {offset + nbytes}) are outside of a buffer of {self.nbytes}")
        return np.asarray(_Memory(self, offset, nbytes)).view(kind).reshape(shape)

    def read(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A copy of the values at `offset`. Raises what `view` raises."""
        return self.view(dtype, shape, offset).copy()

    def write(self, values: Array, offset: int = 0) -> None:
        """Puts the bytes of a contiguous array at `offset`. Raises `LayoutError` for one with gaps, and what `view` raises."""
        data = bytes_of(values)
        self.view(np.uint8, data.shape, offset)[...] = data

    def fill(self, value: int, offset: int = 0, nbytes: int = -1) -> None:
        """Sets bytes [offset, offset + nbytes) (-1: to the end) to one value. Raises what `view` raises."""
        self.view(np.uint8, (self.nbytes - offset if nbytes < 0 else nbytes,), offset)[...] = value

    def window(self, stream: object = None) -> HostBuffer:
        """The buffer itself."""
        del stream
        return self

    def upload(self, first: int, stop: int) -> None:
        """Nothing: the host's window on this memory is the memory."""

    def download(self, first: int, stop: int) -> None:
        """Nothing, as for `upload`."""

    def ring(self, first: int, stop: int, slots: int) -> HostRing:
        """So many copies of bytes [first, stop)."""
        return HostRing(self.view(np.uint8, (stop - first,), first), slots)

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            "device memory cannot be copied or pickled", hint="use exe.clone(), or compile again in the other process"
        )

    @property
    def freed(self) -> bool:
        """Whether `free` was called."""
        return not self._release.alive

    def free(self) -> None:
        """Gives the memory back now; views of it must not be used any more. A second call does nothing."""
        self._release()


class HostRing:
    """Copies of the same bytes at different times, each made when it is asked for."""

    def __init__(self, source: Array, slots: int) -> None:
        self._source = source
        self._slots = [np.empty_like(source) for _ in range(slots)]

    def fetch(self, slot: int) -> None:
        """Copies the bytes to a slot."""
        self._slots[slot][:] = self._source

    def wait(self, slot: int) -> None:
        """Nothing: the copy was done when `fetch` returned."""

    def view(self, slot: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """An array over a slot."""
        return self._slots[slot].view(dtype).reshape(shape)
