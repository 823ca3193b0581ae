"""Casts, strided copies and rows by index, for every unit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.backend_hip.kernel_harness import (
    BF16,
    F16,
    F32,
    FLOATS,
    INVALID,
    NUMBER,
    OUT_OF_RANGE,
    Array,
    bits,
    counter,
    each_unit,
    is_poison,
    launch,
    poison,
    wide,
)
from tests.backend_hip.test_native_elementwise import SHAPES, same_or_nan, values

F64: np.dtype[Any] = np.dtype(np.float64)
I64: np.dtype[Any] = np.dtype(np.int64)
I32: np.dtype[Any] = np.dtype(np.int32)


def cast(unit: str, x: Array, dtype: np.dtype[Any], count: int | None = None, status: int = 0) -> Array:
    params = [*x.shape, NUMBER[x.dtype], NUMBER[dtype]]
    return launch(unit, "cast", [x, counter(count), poison(x.shape, dtype)], params, writes=[2], status=status)[0]


def round_once(x: Array, dtype: np.dtype[Any]) -> Array:
    """double to a 16-bit float with one rounding to nearest even, by choosing among the neighbours."""
    with np.errstate(over="ignore"):
        guess = x.astype(F32).astype(dtype)
    best = guess.copy()
    for index, exact in np.ndenumerate(x):
        if not np.isfinite(exact):
            continue
        around = int(guess[index].view(np.uint16))
        top = np.array([0x7BFF if dtype == F16 else 0x7F7F], np.uint16).view(dtype)[0]
        if abs(exact) >= float(top) * (1 + 2.0 ** -(12 if dtype == F16 else 9)):
            continue  # overflows whatever the rounding, or sits on the edge: numpy's float32 detour is right there
        near = [np.array([max(0, around + step) & 0xFFFF], np.uint16).view(dtype)[0] for step in (-1, 0, 1)]
        near = [value for value in near if np.isfinite(float(value)) and np.signbit(float(value)) == np.signbit(exact)]
        best[index] = min(near, key=lambda value: (abs(float(value) - exact), int(value.view(np.uint16)) & 1))
    return best


@each_unit
@pytest.mark.parametrize(("source", "target"), list(itertools.product([*FLOATS, F64], repeat=2)), ids=str)
def test_float_casts(unit: str, source: np.dtype[Any], target: np.dtype[Any], rng: np.random.Generator) -> None:
    for shape in SHAPES[:5]:
        x = values(rng, shape, source)
        with np.errstate(over="ignore"):
            wanted = round_once(x, target) if source == F64 and target.itemsize == 2 else x.astype(target)
        assert same_or_nan(cast(unit, x, target), wanted)


@each_unit
@pytest.mark.parametrize("target", [F16, BF16], ids=str)
def test_double_is_rounded_once(unit: str, target: np.dtype[Any], rng: np.random.Generator) -> None:
    """Just above a tie: through float32 it would become the tie and go to even."""
    digits = 10 if target == F16 else 7
    step = 2.0**-digits
    x = np.array([[1 + step / 2 + 2.0**-40, 1 + step / 2, 1 + 1.5 * step - 2.0**-45, -1 - step / 2 - 2.0**-50]])
    assert wide(cast(unit, x, target))[0].tolist() == [1 + step, 1, 1 + step, -1 - step]
    x = rng.standard_normal((3, 200)) * 10.0 ** rng.integers(-9, 5, (3, 200))
    assert np.array_equal(bits(cast(unit, x, target)), bits(round_once(x, target)))
    tiny = np.array([[1e-300, -1e-300, 5e-324, 1e300, -1e300, np.inf, -np.inf]])
    found = wide(cast(unit, tiny, target))[0]
    assert found.tolist() == [0, 0, 0, np.inf, -np.inf, np.inf, -np.inf]
    assert np.signbit(found[1])


@each_unit
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_every_16_bit_value_survives(unit: str, dtype: np.dtype[Any]) -> None:
    every = np.arange(65536, dtype=np.uint16).view(dtype).reshape(256, 256)
    exact = cast(unit, every, F32)
    assert same_or_nan(exact, every.astype(F32))
    assert same_or_nan(cast(unit, exact, dtype), every)
    with np.errstate(invalid="ignore", over="ignore"):
        between = np.nextafter(exact, np.float32(np.inf))
        wanted = between.astype(dtype)
    assert same_or_nan(cast(unit, between, dtype), wanted)


@each_unit
def test_integer_casts(unit: str, rng: np.random.Generator) -> None:
    narrow = rng.integers(-(2**31), 2**31, (5, 901)).astype(np.int32)
    assert np.array_equal(cast(unit, narrow, I64), narrow.astype(np.int64))
    assert np.array_equal(cast(unit, narrow.astype(np.int64), I32), narrow)
    large = np.array([[2**31, -(2**31) - 1, 7, 2**62, -(2**62), 2**31 - 1, -(2**31)]], np.int64)
    found = cast(unit, large, I32, status=OUT_OF_RANGE)
    assert found.tolist() == [[2**31 - 1, -(2**31), 7, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31)]]


@each_unit
def test_cast_count(unit: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 19))
    assert is_poison(cast(unit, x, BF16, count=2)[2:])
    assert is_poison(cast(unit, x, BF16, count=0))


@each_unit
def test_cast_nothing_to_do_and_refusals(unit: str) -> None:
    for shape in ((0, 4), (4, 0)):
        assert cast(unit, np.zeros(shape, F32), F16).size == 0
    x = np.zeros((2, 4), F32)
    for source, target in ((0, 5), (5, 0), (0, 4), (4, 3), (8, 0), (0, 16), (-1, 0)):
        operands = [x, None, poison(x.shape, F32)]
        assert is_poison(launch(unit, "cast", operands, [2, 4, source, target], writes=[2], status=INVALID)[0])


@each_unit
def test_arrays_that_are_shared_out(unit: str, rng: np.random.Generator) -> None:
    """Large enough for several chunks; the harness compares threads."""
    x = rng.standard_normal((500, 1111)).astype(F32)
    assert same_or_nan(cast(unit, x, BF16), x.astype(BF16))
    assert same_or_nan(cast(unit, x.astype(np.float64), F16), x.astype(F16))
    some = rng.integers(-(2**31), 2**31, x.shape)
    assert np.array_equal(cast(unit, some, I32), some.astype(np.int32))
    index = rng.integers(0, 500, 2000).astype(np.int32)
    assert np.array_equal(gather(unit, x, index), x[index])


# ---- movement ------------------------------------------------------------------------------------------------------


def copy(unit: str, source: Array, view: Array) -> Array:
    """`view` is a strided view that starts at the first element of `source`."""
    dims = [*view.shape, *[1] * (6 - view.ndim)]
    strides = [stride // view.itemsize for stride in view.strides] + [0] * (6 - view.ndim)
    y = poison(view.shape, view.dtype)
    return launch(unit, "copy", [source, y], [view.itemsize, view.ndim, *dims, *strides], writes=[1])[0]


@each_unit
@pytest.mark.parametrize("dtype", [np.dtype(np.uint8), F16, F32, F64], ids=str)
def test_copy_of_permuted_tensors(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    for shape in [
        (5,),
        (3, 70),
        (70, 65),
        (2, 3, 4),
        (2, 40, 3, 33),
        (1, 7, 1, 5),
        (2, 3, 2, 3, 2, 3),
        (3, 1, 2, 1, 4, 1),
    ]:
        source = rng.integers(0, 100, shape).astype(dtype)
        for axes in list(itertools.permutations(range(len(shape))))[:24]:
            view = source.transpose(axes)
            assert np.array_equal(copy(unit, source, view), view)


@each_unit
def test_copy_of_slices_repeats_and_scalars(unit: str, rng: np.random.Generator) -> None:
    source = rng.standard_normal((6, 10, 8)).astype(F32)
    for view in (source[::2, :, ::3], source[:1], source[:, :7], source[:, ::4, :5].transpose(2, 0, 1)):
        assert np.array_equal(copy(unit, source, view), view)
    repeated = np.broadcast_to(source[:1], (4, 10, 8))
    assert np.array_equal(copy(unit, source, repeated), repeated)
    scalar = np.array(3.5, F32)
    assert copy(unit, scalar, scalar) == 3.5
    for shape in ((0, 3), (3, 0)):
        assert copy(unit, source, np.zeros(shape, F32)).size == 0
    large = rng.standard_normal((601, 700)).astype(F32)
    assert np.array_equal(copy(unit, large, large.T), large.T)
    assert np.array_equal(copy(unit, large, large), large)


@each_unit
def test_copy_refusals(unit: str) -> None:
    x = np.zeros((4, 4), F32)

    def refuse(size: int, rank: int, dims: list[int], strides: list[int]) -> None:
        params = [size, rank, *dims, *[1] * (6 - len(dims)), *strides, *[0] * (6 - len(strides))]
        assert is_poison(launch(unit, "copy", [x, poison((4, 4), F32)], params, writes=[1], status=INVALID)[0])

    refuse(4, 7, [4, 4], [4, 1])
    refuse(4, -1, [4, 4], [4, 1])
    refuse(3, 2, [4, 4], [4, 1])
    refuse(4, 2, [4, 4], [-4, 1])
    refuse(4, 2, [4, -4], [4, 1])
    refuse(4, 2, [4, 4], [4, 2])  # one element past the end
    refuse(4, 2, [5, 4], [1, 1])  # more than y holds
    refuse(8, 2, [4, 4], [4, 1])


def gather(unit: str, x: Array, index: Array, count: int | None = None, status: int = 0) -> Array:
    params = [len(index), *x.shape, NUMBER[x.dtype]]
    return launch(
        unit,
        "gather_rows",
        [x, index, counter(count), poison((len(index), x.shape[1]), x.dtype)],
        params,
        writes=[3],
        status=status,
    )[0]


@each_unit
@pytest.mark.parametrize("dtype", [*FLOATS, F64, I32, I64, np.dtype(np.uint8)], ids=str)
def test_gather_rows(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    x = rng.integers(0, 100, (9, 37)).astype(dtype)
    index = rng.integers(0, 9, 13).astype(np.int32)
    assert np.array_equal(gather(unit, x, index), x[index])
    index[[2, 5]] = -1  # a row that is not there: zeros, no status
    y = gather(unit, x, index)
    assert not y[[2, 5]].any()
    index[4], index[7], index[8] = 9, -2, 2**31 - 1
    y = gather(unit, x, index, status=OUT_OF_RANGE)
    wanted = x[np.clip(index, 0, 8)]
    wanted[[2, 4, 5, 7, 8]] = 0
    assert np.array_equal(y, wanted)


@each_unit
def test_gather_count_and_nothing_to_do(unit: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 5)).astype(F32)
    index = np.array([2, 0, 77, 1], np.int32)
    y = gather(unit, x, index, count=2)
    assert np.array_equal(y[:2], x[[2, 0]])
    assert is_poison(y[2:])
    assert gather(unit, x, index[:0]).size == 0
    assert gather(unit, x[:, :0], index).size == 0
    assert not gather(unit, x[:0], index[:1], status=OUT_OF_RANGE).any()
    bad = [x, index, None, poison((4, 5), F32)]
    assert is_poison(launch(unit, "gather_rows", bad, [4, 3, 5, 16], writes=[3], status=INVALID)[0])
