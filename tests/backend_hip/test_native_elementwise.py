"""Arithmetic and activations, for every unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.backend_hip.kernel_harness import (
    F32,
    FLOATS,
    INVALID,
    NUMBER,
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

F64: np.dtype[Any] = np.dtype(np.float64)
I64: np.dtype[Any] = np.dtype(np.int64)
I32: np.dtype[Any] = np.dtype(np.int32)
SHAPES = [(1, 1), (1, 15), (3, 17), (7, 64), (1, 3001), (90, 500)]
EDGES = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-40,
    3e38,
    -3e38,
    88.0,
    -88.0,
    104.0,
    -110.0,
    65504.0,
    65520.0,
    1e-8,
]


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Random values with the edge values spread among them."""
    x = (4 * rng.standard_normal(shape)).reshape(-1)
    places = rng.integers(0, max(x.size, 1), min(x.size // 4, len(EDGES)))
    x[places] = rng.permutation(EDGES)[: len(places)]
    with np.errstate(over="ignore"):
        result: Array = x.reshape(shape).astype(F32).astype(dtype)
    return result


def silu_reference(x: Array) -> npt.NDArray[np.float64]:
    exact = wide(x)
    with np.errstate(all="ignore"):
        result: npt.NDArray[np.float64] = exact / (1 + np.exp(-exact))
    return result


def unary(unit: str, kernel: str, x: Array, extra: list[int | float], count: int | None = None) -> Array:
    operands = [x, counter(count), poison(x.shape, x.dtype)]
    return launch(unit, kernel, operands, [*x.shape, *extra, NUMBER[x.dtype]], writes=[2])[0]


def binary(
    unit: str, kernel: str, a: Array, b: Array, y_dtype: np.dtype[Any] | None = None, count: int | None = None
) -> Array:
    """swiglu has a dtype of its own for y, and distances between rows."""
    rows, width = a.shape
    params = [rows, 1, *[width] * 3, NUMBER[a.dtype], NUMBER[y_dtype]] if y_dtype else [rows, width, NUMBER[a.dtype]]
    return launch(unit, kernel, [a, b, counter(count), poison(a.shape, y_dtype or a.dtype)], params, writes=[3])[0]


def same_or_nan(found: Array, wanted: Array) -> bool:
    """Equal bits, any NaN for NaN."""
    nan = np.isnan(wide(wanted))
    return bool(np.array_equal(np.isnan(wide(found)), nan)) and np.array_equal(bits(found[~nan]), bits(wanted[~nan]))


@each_unit
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_float
def test_add_mul_and_scale_are_exact(
    unit: str, shape: tuple[int, int], dtype: np.dtype[Any], rng: np.random.Generator
) -> None:
    a, b = values(rng, shape, dtype), values(rng, shape, dtype)
    with np.errstate(all="ignore"):
        assert same_or_nan(binary(unit, "add", a, b), (a.astype(F32) + b.astype(F32)).astype(dtype))
        assert same_or_nan(binary(unit, "mul", a, b), (a.astype(F32) * b.astype(F32)).astype(dtype))
        for factor in (-0.37, 0.0, 1.0, 1e30):
            assert same_or_nan(unary(unit, "scale", a, [factor]), (a.astype(F32) * F32.type(factor)).astype(dtype))


@each_unit
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_float
def test_silu(unit: str, shape: tuple[int, int], dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    x = values(rng, shape, dtype)
    x[np.isneginf(wide(x))] = -1000  # -inf: see the next test
    assert_near(unary(unit, "silu", x, []), silu_reference(x), atol=1e-9, rtol=1e-6)


@each_unit
def test_silu_edges(unit: str) -> None:
    x = np.array([[0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 500, -500, 1e-42]], F32)
    y = unary(unit, "silu", x, [])[0]
    assert y[0] == 0
    assert y[1] == 0
    assert y[2] == np.inf
    assert np.isnan(y[3])  # -inf / inf, as the formula says
    assert np.isnan(y[4])
    assert_near(y[5:7], np.array([5e-31, -5e-31]), atol=0, rtol=1e-6)
    assert y[7] == 500
    assert abs(y[8]) < 1e-30


@each_unit
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_float
def test_swiglu(unit: str, shape: tuple[int, int], dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    gate, up = (rng.standard_normal(shape).astype(dtype) * dtype.type(4) for _ in range(2))
    y = binary(unit, "swiglu", gate, up, F32)
    assert_near(y, silu_reference(gate) * wide(up), atol=2e-6, rtol=2e-5)
    for y_dtype in FLOATS:
        assert np.array_equal(bits(binary(unit, "swiglu", gate, up, y_dtype)), bits(y.astype(y_dtype)))


@each_unit
@each_float
def test_swiglu_of_columns_has_the_bits_of_arrays_apart(
    unit: str, dtype: np.dtype[Any], rng: np.random.Generator
) -> None:
    for rows, inner, width in ((1, 1, 5), (3, 2, 37), (40, 3, 300), (600, 1, 64)):
        joint = rng.standard_normal((rows * inner, 2 * width + 3)).astype(dtype)
        gate, up = joint[:, 1 : 1 + width], joint[:, 3 + width :]
        params = [rows, inner, width, *[2 * width + 3] * 2, NUMBER[dtype], NUMBER[F32]]
        lying = [joint.reshape(-1)[1:], joint.reshape(-1)[3 + width :]]  # from the first element to the end
        for count in (None, rows // 2):
            operands = [*lying, counter(count), poison((rows * inner, width), F32)]
            y = launch(unit, "swiglu", operands, params, writes=[3])[0]
            valid = inner * (rows if count is None else count)
            apart = binary(unit, "swiglu", gate.copy(), up.copy(), F32)
            assert np.array_equal(bits(y[:valid]), bits(apart[:valid]))
            assert is_poison(y[valid:])


@each_unit
@each_float
def test_elements_have_the_same_bits_anywhere(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    """Whole vectors, tails and chunks compute alike."""
    x = rng.standard_normal((1, 70_001)).astype(dtype)
    y = unary(unit, "silu", x, [])
    for first, end in ((0, 1), (69_990, 70_001), (3, 40), (1023, 1026)):
        assert np.array_equal(bits(unary(unit, "silu", x[:, first:end].copy(), [])), bits(y[:, first:end]))


@each_unit
def test_arrays_that_are_shared_out(unit: str, rng: np.random.Generator) -> None:
    """Large enough for several chunks; the harness compares threads."""
    a, b = (rng.standard_normal((500, 1111)).astype(F32) for _ in range(2))
    assert same_or_nan(binary(unit, "add", a, b), a + b)
    assert same_or_nan(binary(unit, "mul", a, b), a * b)
    assert same_or_nan(unary(unit, "scale", a, [3.0]), a * F32.type(3))


@each_unit
@each_float
def test_results_over_inputs(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((3, 333)).astype(dtype) for _ in range(2))
    number = NUMBER[dtype]
    gated = [3, 1, 333, 333, 333, number, number]
    for kernel, params in (("add", [3, 333, number]), ("mul", [3, 333, number]), ("swiglu", gated)):
        apart = binary(unit, kernel, a, b, dtype if kernel == "swiglu" else None)
        for over in (a, b):
            y = launch(unit, kernel, [a, b, None, over], params, writes=[3])[0]
            assert np.array_equal(bits(y), bits(apart))
    itself = launch(unit, "add", [a, a, None, a], [3, 333, number], writes=[3])[0]
    assert np.array_equal(bits(itself), bits((a.astype(F32) * 2).astype(dtype)))
    y = launch(unit, "silu", [a, None, a], [3, 333, number], writes=[2])[0]
    assert np.array_equal(bits(y), bits(unary(unit, "silu", a, [])))


@each_unit
def test_count_leaves_later_rows(unit: str, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((5, 21)).astype(F32) for _ in range(2))
    for found in (
        binary(unit, "add", a, b, count=3),
        binary(unit, "mul", a, b, count=3),
        binary(unit, "swiglu", a, b, F32, count=3),
        unary(unit, "silu", a, [], count=3),
        unary(unit, "scale", a, [2.0], count=3),
    ):
        assert np.isfinite(found[:3]).all()
        assert is_poison(found[3:])
    assert is_poison(binary(unit, "add", a, b, count=0))
    assert is_poison(unary(unit, "silu", a, [], count=-2))


@each_unit
@pytest.mark.parametrize("shape", [(0, 4), (4, 0)], ids=str)
def test_nothing_to_do(unit: str, shape: tuple[int, int]) -> None:
    x = np.zeros(shape, F32)
    assert binary(unit, "add", x, x.copy()).size == 0
    assert unary(unit, "silu", x, []).size == 0


@each_unit
def test_refusals(unit: str) -> None:
    x = np.zeros((2, 4), F32)
    for dtype in (3, 4, 16, 99, -1):
        assert is_poison(
            launch(unit, "add", [x, x, None, poison(x.shape, F32)], [2, 4, dtype], writes=[3], status=INVALID)[0]
        )
    assert is_poison(
        launch(unit, "mul", [x, x[:1].copy(), None, poison(x.shape, F32)], [2, 4, 0], writes=[3], status=INVALID)[0]
    )
