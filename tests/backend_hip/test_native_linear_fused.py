"""linear_<W> and linear_swiglu_<W> with a norm before the product and a residual behind it: the bits of the kernels apart, in any batch, in place."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend_hip.kernel_harness import (
    BF16,
    F16,
    F32,
    FLOATS,
    INVALID,
    NUMBER,
    Array,
    bits,
    counter,
    each_unit,
    is_poison,
    launch,
    poison,
)
from tests.backend_hip.panels import FORMATS, Rows, random_rows, to_panels, whole_columns

each_format = pytest.mark.parametrize("format", FORMATS)
EPSILON = 1e-5


def workspace(x: Array) -> Array:
    return poison(min(len(x), 8) * x.shape[1], F32)


def linear(
    unit: str,
    x: Array,
    weight: Rows,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    gain: Array | None = None,
    dtype: np.dtype[np.generic] = F32,
    count: int | None = None,
    in_place: bool = False,
) -> Array:
    m, n = len(x), len(weight.values)
    y = residual if in_place else poison((m, n), dtype)
    operands = [x, to_panels(weight), bias, residual, gain, counter(count), y, None, None, workspace(x)]
    params = [m, x.shape[1], NUMBER[x.dtype], NUMBER[dtype], n, 0, 0, EPSILON]
    return launch(unit, f"linear_{weight.format}", operands, params, writes=[6, 9])[0]


def swiglu(unit: str, x: Array, weight: Rows, gain: Array | None) -> Array:
    m, inner = len(x), len(weight.values) // 2
    operands = [x, to_panels(weight, pair=True), gain, None, poison((m, inner), F32), workspace(x)]
    params = [m, x.shape[1], inner, NUMBER[x.dtype], NUMBER[F32], EPSILON]
    return launch(unit, f"linear_swiglu_{weight.format}", operands, params, writes=[4, 5])[0]


def normed(unit: str, x: Array, gain: Array) -> Array:
    """By the kernel of rms_norm, in float32."""
    params = [*x.shape, EPSILON, NUMBER[x.dtype], NUMBER[F32]]
    return launch(unit, "rms_norm", [x, gain, None, poison(x.shape, F32)], params, writes=[3])[0]


def activations(rng: np.random.Generator, rows: int, columns: int, dtype: np.dtype[np.generic]) -> Array:
    return (rng.standard_normal((rows, columns), np.float32) * 3).astype(dtype)


@each_unit
@each_format
def test_a_norm_inside_has_the_bits_of_one_before(unit: str, format: str, rng: np.random.Generator) -> None:
    k = whole_columns(format, 530)
    gain = rng.standard_normal(k, np.float32)
    for m, dtype in ((1, F32), (2, BF16), (5, F16), (8, F32), (9, BF16), (40, F32), (140, F16)):
        x, weight = activations(rng, m, k, dtype), random_rows(rng, format, 2 * int(rng.integers(10, 40)), k)
        before = normed(unit, x, gain)
        assert np.array_equal(bits(linear(unit, x, weight, gain=gain)), bits(linear(unit, before, weight)))
        assert np.array_equal(bits(swiglu(unit, x, weight, gain)), bits(swiglu(unit, before, weight, None)))


@each_unit
@each_format
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_row_that_is_normalised_inside_has_the_same_bits_in_any_batch(
    unit: str, format: str, dtype: np.dtype[np.generic], rng: np.random.Generator
) -> None:
    k = whole_columns(format, 600)
    gain, weight = rng.standard_normal(k, np.float32), random_rows(rng, format, 70, k)
    x = activations(rng, 20, k, dtype)
    whole = linear(unit, x, weight, gain=gain)
    for m in (1, 3, 5, 8, 9):
        first = int(rng.integers(0, 20 - m))
        part = linear(unit, x[first : first + m], weight, gain=gain)
        assert np.array_equal(bits(part), bits(whole[first : first + m])), f"{m} rows from {first}"


@each_unit
@each_format
def test_a_residual_is_added_before_the_one_rounding(unit: str, format: str, rng: np.random.Generator) -> None:
    k = whole_columns(format, 64)
    for m, n in ((1, 40), (3, 64), (20, 75), (33, 32)):
        x, weight = activations(rng, m, k, F32), random_rows(rng, format, n, k)
        bias = rng.standard_normal(n, np.float32) if m != 3 else None
        product = linear(unit, x, weight, bias=bias)
        for dtype in FLOATS:
            residual = rng.standard_normal((m, n), np.float32).astype(dtype)
            wanted = (product + residual.astype(F32)).astype(dtype)
            found = linear(unit, x, weight, bias=bias, residual=residual, dtype=dtype)
            assert np.array_equal(bits(found), bits(wanted))
            found = linear(unit, x, weight, bias=bias, residual=residual, dtype=dtype, in_place=True)
            assert np.array_equal(bits(found), bits(wanted))


@each_unit
def test_norm_and_residual_of_the_valid_rows_alone(unit: str, rng: np.random.Generator) -> None:
    weight, gain = random_rows(rng, "f32", 48, 70), rng.standard_normal(70, np.float32)
    for m, count in ((4, 2), (30, 13), (12, 1), (5, 0)):
        x, residual = activations(rng, m, 70, F32), activations(rng, m, 48, F32)
        whole = linear(unit, x, weight, residual=residual, gain=gain)
        x[count:], residual[count:] = np.nan, np.nan
        part = linear(unit, x, weight, residual=residual, gain=gain, count=count)
        assert np.array_equal(bits(part[:count]), bits(whole[:count]))
        assert is_poison(part[count:])


@each_unit
def test_refuses_what_does_not_fit(unit: str, rng: np.random.Generator) -> None:
    x, w, y = activations(rng, 2, 32, F32), to_panels(random_rows(rng, "f32", 8, 32)), poison((2, 8), F32)
    good = [2, 32, 0, 0, 8, 0, 0, EPSILON]
    gain, short, room = np.ones(32, F32), np.ones(15, F32), np.zeros(64, F32)
    for operands in (
        [x, w, None, short, None, None, y, None, None, None],
        [x, w, None, None, short, None, y, None, None, room],
        [x, w, None, None, gain, None, y, None, None, short],
        [x, w, None, None, gain, None, y, None, None, None],
    ):
        assert is_poison(launch(unit, "linear_f32", operands, good, writes=[6], status=INVALID)[0])
    halves = [poison((2, 4), F32) for _ in range(2)]
    split = [x, w, None, activations(rng, 2, 8, F32), None, None, *halves, None, None]
    launch(unit, "linear_f32", split, [2, 32, 0, 0, 4, 4, 0, 0.0], writes=[6, 7], status=INVALID)
