"""Sums of whole tensors and means of packed rows: accuracy on long inputs, a row's bits in any batch, rows out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.backend_hip.kernel_harness import (
    F32,
    INVALID,
    NUMBER,
    OUT_OF_RANGE,
    Array,
    assert_near,
    bits,
    counter,
    each_float,
    each_unit,
    is_poison,
    launch,
    poison,
    wide,
)

RUN = 4096
F64: np.dtype[Any] = np.dtype(np.float64)


def reduce_sum(unit: str, x: Array, count: int | None = None) -> np.float32:
    workspace = poison(-(-x.size // RUN), F64)
    (y, _) = launch(unit, "reduce_sum", [x, counter(count), workspace, poison(1, F32)], list(x.shape), writes=[3, 2])
    return np.float32(y[0])


def masked_mean(
    unit: str, x: Array, start: npt.ArrayLike, length: npt.ArrayLike, count: int | None = None, status: int = 0
) -> Array:
    first, lengths = np.array(start, np.int32), np.array(length, np.int32)
    params = [*x.shape, first.size, NUMBER[x.dtype]]
    operands = [x, first, lengths, counter(count), poison((first.size, x.shape[1]), x.dtype)]
    return launch(unit, "masked_mean", operands, params, writes=[4], status=status)[0]


@each_unit
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (1, 4096), (1, 4097), (999, 777)], ids=str)
def test_sums(unit: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    x = (rng.standard_normal(shape) + 0.5).astype(F32)
    assert reduce_sum(unit, x) == pytest.approx(wide(x).sum(), rel=1e-6, abs=1e-6)


@each_unit
def test_sums_that_cancel(unit: str, rng: np.random.Generator) -> None:
    """What is left of large parts is as exact as they are: sums are taken in double."""
    x = rng.standard_normal((288, 1023)).astype(F32)
    assert reduce_sum(unit, x) == np.float32(wide(x).sum())
    large = np.concatenate([np.full((1, 9000), 3e7, F32), np.full((1, 9000), -3e7, F32), x[:1]], axis=1)
    assert reduce_sum(unit, large) == pytest.approx(wide(x[:1]).sum(), rel=1e-6)


@each_unit
def test_sums_of_fewer_rows_and_of_nothing(unit: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((40, 333)).astype(F32)
    part = reduce_sum(unit, x[:23].copy())
    x[23:] = np.nan
    assert reduce_sum(unit, x, count=23) == part
    assert reduce_sum(unit, x, count=0) == 0
    assert reduce_sum(unit, np.zeros((0, 5), F32)) == 0


@each_unit
@each_float
def test_means(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    x = (rng.standard_normal((700, 130)) + 1).astype(dtype)
    start, length = [0, 5, 699, 0, 31], [700, 33, 1, 32, 64]
    y = masked_mean(unit, x, start, length)
    expected = np.stack([wide(x)[s : s + n].mean(0) for s, n in zip(start, length, strict=True)])
    assert_near(y, expected, atol=1e-6, rtol=1e-6)


@each_unit
def test_a_row_has_the_same_bits_in_any_batch(unit: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((90, 100)).astype(F32)
    alone = masked_mean(unit, x, [0], [90])
    moved = np.concatenate([rng.standard_normal((37, 100)).astype(F32), x])
    y = masked_mean(unit, moved, [*range(37), 37], [1] * 37 + [90])
    assert np.array_equal(bits(y[-1]), bits(alone[0]))


@each_unit
def test_rows_without_tokens_and_past_the_count(unit: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 19)).astype(F32)
    y = masked_mean(unit, x, [0, 99, -7], [0, 0, 0])
    assert not y.any()
    y = masked_mean(unit, x, [0, 0, 99], [5, 1, 99], count=2)
    assert np.isfinite(y[:2]).all()
    assert is_poison(y[2:])
    assert not masked_mean(unit, np.zeros((0, 19), F32), [0], [0]).any()


@each_unit
@pytest.mark.parametrize(("start", "length"), [(3, 3), (-1, 2), (0, -1), (2**31 - 1, 2**31 - 1), (6, 1)])
def test_rows_out_of_range_give_zeros_and_a_status(
    unit: str, start: int, length: int, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((5, 19)).astype(F32)
    y = masked_mean(unit, x, [1, start], [2, length], status=OUT_OF_RANGE)
    assert_near(y[0], wide(x)[1:3].mean(0), atol=1e-6, rtol=1e-6)
    assert not y[1].any()


@each_unit
def test_refusals(unit: str) -> None:
    x, row = np.zeros((4, 5), F32), np.zeros(1, np.int32)
    for params in ([4, 5, 1, 3], [4, 5, 2, 0], [5, 5, 1, 0], [-1, 5, 1, 0]):
        operands = [x, row, row.copy(), None, poison((1, 5), F32)]
        assert is_poison(launch(unit, "masked_mean", operands, params, writes=[4], status=INVALID)[0])
    short = [np.zeros((2, RUN), F32), None, poison(1, F64), poison(1, F32)]
    launch(unit, "reduce_sum", short, [2, RUN], writes=[3], status=INVALID)
