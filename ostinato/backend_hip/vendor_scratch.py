"""Memory to try a product by the vendor's GEMM in: random operands, a result, a workspace, given back when it is left.

One block serves every operand that is read, since reading shares; what is in it repeats a tile of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ostinato.backend_hip import _native
from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array, DType

__all__ = ["Operands", "Scratch", "block", "extent", "gemm_dtype", "scratch"]

_TILE_BYTES = 1 << 20
_PIECE = 1 << 24
"""Elements of a result that are looked at together."""
_DTYPES = {dtype.number: dtype for dtype in (DType.F32, DType.F16, DType.BF16)}

Operands = Sequence[tuple[int, int]]
"""Address and bytes of each of `GEMM_OPERANDS`, (0, 0) where absent."""


def gemm_dtype(number: int) -> DType:
    """The dtype of a number in the parameters. Raises `ConfigError` for one that no operand of a product has."""
    found = _DTYPES.get(number)
    if found is None:
        raise ConfigError(f"a product by the vendor has no operands of dtype number {number}")
    return found


class Scratch:
    """Operands of a product that nobody needs."""

    def __init__(self, device: _native.GpuDevice, params: GemmParams, source: int, result: int, workspace: int) -> None:
        self._device, self._result = device, result
        self._bytes = extent(params.d_type, params.m, params.n, params.d_leading, params.d_stride, params.batches)
        self._dtype = gemm_dtype(params.d_type).numpy
        read, absent = (source, 0), (0, 0)
        bias = absent if params.bias_type == NO_BIAS else read
        self.operands: Operands = (read, read, bias, read if params.beta else absent, (result, 0), (workspace, 0))

    def refusal(self, run: Callable[[Operands], None]) -> str | None:
        """Why what runs the product cannot be used, None where it can: two runs over poison, looked at whole."""
        first, second = self._over_poison(run), self._over_poison(run)
        if not np.array_equal(first, second):
            return "two runs differ"
        values = first.view(self._dtype)
        pieces = range(0, values.size, _PIECE)
        return None if all(np.isfinite(values[i : i + _PIECE]).all() for i in pieces) else "the result is not finite"

    def _over_poison(self, run: Callable[[Operands], None]) -> Array:
        _native.fill_async(self._result, self._device, 0xFF, self._bytes)
        run(self.operands)
        found = np.empty(self._bytes, np.uint8)
        _native.copy_async(found.ctypes.data, None, self._result, self._device, self._bytes)
        self._device.synchronize()
        return found


@contextmanager
def scratch(device: _native.GpuDevice, params: GemmParams, workspace: int) -> Iterator[Scratch]:
    """Scratch memory for a product. Raises `CapacityError` where there is none."""
    p = params
    a = (p.k, p.m) if p.transpose_a else (p.m, p.k)
    b = (p.n, p.k) if p.transpose_b else (p.k, p.n)
    read = max(
        extent(p.a_type, *a, p.a_leading, p.a_stride, p.batches),
        extent(p.b_type, *b, p.b_leading, p.b_stride, p.batches),
        extent(p.c_type, p.m, p.n, p.c_leading, p.c_stride, p.batches) if p.beta else 0,
        0 if p.bias_type == NO_BIAS else gemm_dtype(p.bias_type).nbytes(p.m),
    )
    written = extent(p.d_type, p.m, p.n, p.d_leading, p.d_stride, p.batches)
    with block(device, read) as source, block(device, written) as result, block(device, workspace) as work:
        _fill_with_values(device, source, read, gemm_dtype(p.a_type))
        yield Scratch(device, p, source, result, work)
        device.synchronize()  # what still runs reads and writes it


@contextmanager
def block(device: _native.GpuDevice, nbytes: int) -> Iterator[int]:
    """Memory of a device; no bytes are none."""
    address = device.allocate(nbytes) if nbytes else 0
    try:
        yield address
    finally:
        if address:
            device.free(address)


def extent(type_number: int, rows: int, columns: int, leading: int, stride: int, batches: int) -> int:
    """Bytes from the first to the last element of column-major matrices."""
    return gemm_dtype(type_number).nbytes((batches - 1) * stride + (columns - 1) * leading + rows)


def _fill_with_values(device: _native.GpuDevice, address: int, nbytes: int, dtype: DType) -> None:
    """Random values in [-1, 1), those of a tile again and again."""
    count = min(nbytes, _TILE_BYTES) // dtype.nbytes(1) + 1
    tile = np.random.default_rng(0).uniform(-1, 1, count).astype(dtype.numpy)
    done = min(nbytes, tile.nbytes)
    _native.copy_async(address, device, tile.ctypes.data, None, done)
    device.synchronize()
    while done < nbytes:
        more = min(done, nbytes - done)
        _native.copy_async(address + done, device, address, device, more)
        done += more
    device.synchronize()
