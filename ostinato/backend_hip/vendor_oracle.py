"""A product of the vendor's by the oracle: fresh random operands on a device, what float64 makes of them, and the verdict on a complete result.

A value may be as far from the oracle as twice the largest error of a plain composition in the same precision, four units in the last place of the largest
value of its own row, or what the order of the sums may do (2^-20 of the product of the norms of its operands, which TF32 exceeds), whichever is more; the same
holds of the root mean square. Results are looked at between guards and over poison, twice, and where c may be d once more with it there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.trials import PLAIN_ERRORS, UNITS, ulp
from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.backend_hip.vendor_scratch import Operands, block, extent, gemm_dtype
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["Oracle", "oracle"]

_ORDER = 2.0**-20
_GUARD = 256
"""Bytes behind the result and the workspace."""
_GUARD_BYTE, _POISON = 0xA5, 0xFF
_PIECE = 1 << 24
"""Elements of a result that are worked out together."""
_CACHE_TIMES = 2
_MOST_COPIES, _MOST_BYTES = 32, 1 << 28
"""Of the first operand, which is the weight: as many as do not fit the cache of the card, since no step finds its weights there."""

Run = Callable[[Operands], None]


class Oracle:
    """A product with its operands on a device. What runs it does so on the device's default stream."""

    def __init__(
        self,
        device: _native.GpuDevice,
        params: GemmParams,
        arrays: dict[str, Array],
        at: dict[str, int],
        workspace: int,
    ) -> None:
        self._device, self._params, self._arrays, self._at, self._workspace = device, params, arrays, at, workspace
        self._bytes = arrays["d"].nbytes
        self._dtype = gemm_dtype(params.d_type)
        size = arrays["a"].nbytes
        weights = [at["a"] + copy * _aligned(size) for copy in range(copies_of(device, size))]
        self.turns = tuple(self._operands(weight, at["c"]) for weight in weights)
        """The operands again and again, each time with the weight elsewhere."""

    def refusal(self, run: Run) -> str | None:
        """Why what runs the product cannot be used, None where it can."""
        apart = [self._run(run, self._operands(self._at["a"], self._at["c"])) for _ in range(2)]
        results = {"": apart}
        if self._params.beta:
            results[" in place"] = [self._run(run, self._operands(self._at["a"], self._at["d"])) for _ in range(2)]
        for how, (first, second) in results.items():
            if not np.array_equal(first, second):
                return f"two runs{how} differ"
            reason = self._judged(first[: self._bytes]) or self._beyond(first)
            if reason:
                return reason + how
        return None

    def _operands(self, a: int, c: int) -> Operands:
        at, absent = self._at, (0, 0)
        bias = absent if self._params.bias_type == NO_BIAS else (at["bias"], 0)
        return ((a, 0), (at["b"], 0), bias, (c, 0) if self._params.beta else absent, (at["d"], 0), (at["work"], 0))

    def _run(self, run: Run, operands: Operands) -> Array:
        """The bytes of the result and the guards behind it and the workspace."""
        device, at = self._device, self._at
        _native.fill_async(at["d"], device, _POISON, self._bytes)
        for start in self._guards():
            _native.fill_async(start, device, _GUARD_BYTE, _GUARD)
        if operands[3][0] == at["d"]:
            _native.copy_async(at["d"], device, at["c"], device, self._bytes)
        run(operands)
        found = np.empty(self._bytes + _GUARD * len(self._guards()), np.uint8)
        _native.copy_async(found.ctypes.data, None, at["d"], device, self._bytes)
        for number, start in enumerate(self._guards()):
            to = found.ctypes.data + self._bytes + number * _GUARD
            _native.copy_async(to, None, start, device, _GUARD)
        device.synchronize()
        return found

    def _guards(self) -> tuple[int, ...]:
        behind = (self._at["d"] + self._bytes, self._at["work"] + self._workspace)
        return behind if self._workspace else behind[:1]

    def _beyond(self, found: Array) -> str:
        intact = (found[self._bytes :] == _GUARD_BYTE).all()
        return "" if intact else "writes behind its result or its workspace"

    def _judged(self, found: Array) -> str:
        p = self._params
        mine = _matrices(found.view(self._dtype.numpy), p.m, p.n, p.d_leading, p.d_stride, p.batches)
        square = plain_square = 0.0
        largest_floor = 0.0
        for batch, first, stop in self._pieces():
            part = mine[batch, :, first:stop].astype(np.float64)
            exact, size = self._exact(batch, first, stop, np.float64)
            plain = np.abs(self._exact(batch, first, stop, np.float32)[0].astype(self._dtype.numpy) - exact)
            floor = UNITS * ulp(np.abs(exact).max(axis=0, keepdims=True), TensorType((1,), self._dtype))
            floor = np.maximum(floor, _ORDER * size)
            off = np.abs(part - exact)
            over = ~(off <= np.maximum(PLAIN_ERRORS * plain.max(), floor))  # what is not a number is over
            if over.any():
                row, column = (int(i) for i in np.argwhere(over)[0])
                place = f"d[{row},{first + column}]" + (f" of batch {batch}" if p.batches > 1 else "")
                return f"{place} is {part[row, column]:.6g}, the oracle's is {exact[row, column]:.6g}"
            square += float((off * off).sum())
            plain_square += float((plain * plain).sum())
            largest_floor = max(largest_floor, float(floor.max()))
        count = p.m * p.n * p.batches
        rms, plain_rms = math.sqrt(square / count), math.sqrt(plain_square / count)
        if rms > max(PLAIN_ERRORS * plain_rms, largest_floor):
            return f"the error is {rms:.3g} in the root mean square, plainly composed {plain_rms:.3g}"
        return ""

    def _pieces(self) -> Iterator[tuple[int, int, int]]:
        """Batch, and columns [first, stop) of the result."""
        p = self._params
        step = max(1, _PIECE // p.m)
        for batch in range(p.batches):
            yield from ((batch, first, min(p.n, first + step)) for first in range(0, p.n, step))

    def _exact(self, batch: int, first: int, stop: int, kind: type[np.floating]) -> tuple[Array, Array]:
        """Columns of the result in that precision, not rounded; and the product of the norms of what each value is made from."""
        p, given = self._params, self._arrays
        left = _operand(given["a"], p.m, p.k, p.a_leading, p.a_stride, p.batches, p.transpose_a)[batch].astype(kind)
        right = _operand(given["b"], p.k, p.n, p.b_leading, p.b_stride, p.batches, p.transpose_b)[batch]
        right = right[:, first:stop].astype(kind)
        made = kind(p.alpha) * (left @ right)
        size = abs(p.alpha) * np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=0)[None, :]
        if p.beta:
            added = _matrices(given["c"], p.m, p.n, p.c_leading, p.c_stride, p.batches)[batch, :, first:stop]
            made = made + kind(p.beta) * added.astype(kind)
        if p.bias_type != NO_BIAS:
            made = made + given["bias"][: p.m].astype(kind)[:, None]
        return made, size


def copies_of(device: _native.GpuDevice, nbytes: int) -> int:
    """How many copies of a weight are timed in turn."""
    wanted = -(-_CACHE_TIMES * max(device.l2_bytes, 1) // _aligned(nbytes))
    return max(1, min(wanted, _MOST_COPIES, _MOST_BYTES // _aligned(nbytes)))


@contextmanager
def oracle(device: _native.GpuDevice, params: GemmParams, workspace: int, seed: int) -> Iterator[Oracle]:
    """Operands of a product, drawn by the seed, on a device. Raises `CapacityError` where there is no room."""
    p, rng = params, np.random.default_rng(seed)
    a = (p.k, p.m) if p.transpose_a else (p.m, p.k)
    b = (p.n, p.k) if p.transpose_b else (p.k, p.n)
    sizes = {
        "a": (p.a_type, extent(p.a_type, *a, p.a_leading, p.a_stride, p.batches)),
        "b": (p.b_type, extent(p.b_type, *b, p.b_leading, p.b_stride, p.batches)),
        "c": (p.c_type, extent(p.c_type, p.m, p.n, p.c_leading, p.c_stride, p.batches)),
        "d": (p.d_type, extent(p.d_type, p.m, p.n, p.d_leading, p.d_stride, p.batches)),
    }
    if p.bias_type != NO_BIAS:
        sizes["bias"] = (p.bias_type, gemm_dtype(p.bias_type).nbytes(p.m))
    arrays = {name: _drawn(rng, gemm_dtype(number), nbytes) for name, (number, nbytes) in sizes.items()}
    count = copies_of(device, arrays["a"].nbytes)
    room = {name: _aligned(array.nbytes) for name, array in arrays.items()} | {"work": _aligned(workspace) + _GUARD}
    room |= {"a": room["a"] * count, "d": room["d"] + _GUARD}
    with block(device, sum(room.values())) as start:
        at: dict[str, int] = {}
        for name, nbytes in room.items():
            at[name], start = start, start + nbytes
        for name, array in arrays.items():
            for copy in range(count if name == "a" else 1):
                to = at[name] + copy * _aligned(array.nbytes)
                _native.copy_async(to, device, array.ctypes.data, None, array.nbytes)
        device.synchronize()
        yield Oracle(device, p, arrays, at, workspace)
        device.synchronize()  # what still runs reads and writes it


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def _drawn(rng: np.random.Generator, dtype: DType, nbytes: int) -> Array:
    return rng.uniform(-1, 1, nbytes // dtype.nbytes(1)).astype(dtype.numpy)


def _matrices(values: Array, rows: int, columns: int, leading: int, stride: int, batches: int) -> Array:
    """Column-major matrices over values, as [batch, row, column]."""
    steps = [step * values.itemsize for step in (stride, 1, leading)]
    return np.lib.stride_tricks.as_strided(values, (batches, rows, columns), steps)


def _operand(values: Array, rows: int, columns: int, leading: int, stride: int, batches: int, transposed: int) -> Array:
    """An operand after it is transposed, where it is: so many rows and columns."""
    if not transposed:
        return _matrices(values, rows, columns, leading, stride, batches)
    return _matrices(values, columns, rows, leading, stride, batches).swapaxes(1, 2)
