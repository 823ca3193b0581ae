"""Runs one host kernel on numpy arrays and checks what every kernel promises, whatever it computes.

Each operand is copied to the end of its pages, between guard bytes and a page that cannot be touched, so it is aligned to its element only. The
kernel runs with 1, 2 and 3 threads: results must have the same bits, guards and operands that are only read must be untouched. References are numpy
and ml_dtypes; tolerances come from the operator contracts.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from ostinato.backend_hip import _native

Array = npt.NDArray[Any]

UNITS: list[str] = list(_native.isa_available())
THREADS = (1, 2, 3)
OUT_OF_RANGE = 2
INVALID = 1

F32: np.dtype[Any] = np.dtype(np.float32)
F16: np.dtype[Any] = np.dtype(np.float16)
BF16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
FLOATS = (F32, F16, BF16)
NUMBER: dict[np.dtype[Any], int] = {
    dtype: _native.dtype_numbers()[name]
    for name, dtype in {
        "f32": F32,
        "f16": F16,
        "bf16": BF16,
        "f64": np.dtype(np.float64),
        "i64": np.dtype(np.int64),
        "i32": np.dtype(np.int32),
        "u8": np.dtype(np.uint8),
    }.items()
}

each_unit = pytest.mark.parametrize("unit", UNITS)
each_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)

_GUARD = 128
_GUARD_BYTE = 0xA5


@functools.cache
def device(unit: str, threads: int) -> _native.Device:
    """One device for each unit and number of threads, kept for the whole test run."""
    return _native.Device(threads, unit)


_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """A copy of an array that ends where an inaccessible page begins: reading or writing past it is a crash. Guard bytes lie before it."""

    def __init__(self, array: Array) -> None:
        self.nbytes = array.nbytes
        page = mmap.PAGESIZE
        room = -(-(array.nbytes + _GUARD) // page) * page
        self._memory = mmap.mmap(-1, room + page)
        whole = np.frombuffer(self._memory, np.uint8)
        start = room - array.nbytes
        self._before = whole[start - _GUARD : start]
        self._before[...] = _GUARD_BYTE
        self.view: Array = whole[start:room].view(array.dtype).reshape(array.shape)
        self.view[...] = array
        self.address = whole.ctypes.data + start
        if _libc.mprotect(ctypes.c_void_p(whole.ctypes.data + room), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def intact(self) -> bool:
        return bool((self._before == _GUARD_BYTE).all())


def bits(array: Array) -> Array:
    """The bytes of an array, for comparisons that NaN and -0.0 cannot disturb."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def launch(
    unit: str,
    kernel: str,
    operands: Sequence[Array | None],
    params: Sequence[int | float],
    *,
    writes: Sequence[int],
    status: int = 0,
    threads: Sequence[int] = THREADS,
) -> list[Array]:
    """Runs `kernel` and returns the operands listed in `writes` as it left them.

    None is an absent optional operand; the same array object given twice is one buffer. `status` is the one the kernel must report, 0 for none.
    """
    results: list[list[Array]] = []
    for count in threads:
        host = device(unit, count)
        guarded = {id(array): Guarded(array) for array in operands if array is not None}
        addresses = [(0, 0) if a is None else (guarded[id(a)].address, guarded[id(a)].nbytes) for a in operands]
        table = _native.Table(host, [(0, host.kernel(kernel), 0, addresses, list(params), [], [])])
        if status == 0:
            table.run()
        else:
            with pytest.raises(_native.NativeError) as error:
                table.run()
            assert error.value.status == status, f"{kernel} on {unit}: {error.value}"
        written = {id(operands[index]) for index in writes}
        for index, array in enumerate(operands):
            if array is None:
                continue
            copy = guarded[id(array)]
            assert copy.intact(), f"{kernel} on {unit}, {count} threads: wrote outside operand {index}"
            if id(array) not in written:
                assert np.array_equal(bits(copy.view), bits(array)), f"{kernel} on {unit}: changed its input {index}"
        results.append([guarded[id(operands[index])].view.copy() for index in writes])
    for count, result in zip(threads[1:], results[1:], strict=True):
        for index, first, other in zip(writes, results[0], result, strict=True):
            same = np.array_equal(bits(first), bits(other))
            assert same, f"{kernel} on {unit}: operand {index} differs between {threads[0]} and {count} threads"
    return results[0]


def poison(shape: Sequence[int] | int, dtype: np.dtype[Any]) -> Array:
    """An output before the run: NaN, or a large number for integers."""
    if dtype.kind in "iu":
        return np.full(shape, np.iinfo(dtype).max, dtype)
    return np.full(shape, np.nan, dtype)


def is_poison(array: Array) -> bool:
    """Whether nothing was written here."""
    return np.array_equal(bits(array), bits(poison(array.shape, array.dtype)))


def wide(array: Array) -> npt.NDArray[np.float64]:
    """Any float array in double."""
    with np.errstate(invalid="ignore"):  # a signalling NaN of a 16-bit type
        result: npt.NDArray[np.float64] = array.astype(np.float64)
    return result


def counter(value: int | None) -> Array | None:
    """The optional count operand."""
    return None if value is None else np.array([value], np.int32)


def assert_near(actual: Array, expected: Array, atol: float | Array, rtol: float) -> None:
    """|actual - expected| <= atol + rtol |expected| in double, NaN where NaN is expected; for a 16-bit result plus half of its last place."""
    reference = wide(expected)
    slack = {2: {F16: 2.0**-11, BF16: 2.0**-8}}.get(actual.itemsize, {}).get(actual.dtype, 0.0)
    smallest = {F16: 2.0**-25, BF16: 2.0**-134}.get(actual.dtype, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        bound = atol + (rtol + slack) * np.abs(reference) + smallest
        off = np.abs(wide(actual) - reference) > bound
    finite = np.isfinite(reference)
    assert np.array_equal(np.isnan(wide(actual)), np.isnan(reference)), "NaN in different places"
    infinite = ~finite & ~np.isnan(reference)
    assert np.array_equal(wide(actual)[infinite], reference[infinite]), "infinities differ"
    off &= finite
    if off.any():
        where = tuple(int(i) for i in np.argwhere(off)[0])
        raise AssertionError(
            f"{int(off.sum())} of {off.size} values off, first at {where}: {actual[where]} for {reference[where]}"
        )
