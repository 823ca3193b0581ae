"""Gelu in both forms and tanh: accuracy in units in the last place over their whole range, edges, dtypes, results in place."""

from __future__ import annotations

import math
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
    bits,
    counter,
    each_float,
    each_unit,
    is_poison,
    launch,
    poison,
    wide,
)

FORMS = {"exact": 0, "tanh": 1}


def gelu(
    unit: str, x: Array, form: int, y_dtype: np.dtype[Any] | None = None, count: int | None = None, status: int = 0
) -> Array:
    target = y_dtype or x.dtype
    params = [*x.shape, NUMBER[x.dtype], NUMBER[target], form]
    operands = [x, counter(count), poison(x.shape, target)]
    return launch(unit, "gelu", operands, params, writes=[2], status=status)[0]


def tanh(unit: str, x: Array) -> Array:
    return launch(unit, "tanh", [x, None, poison(x.shape, x.dtype)], [*x.shape, NUMBER[x.dtype]], writes=[2])[0]


def exact_gelu(x: Array) -> npt.NDArray[np.float64]:
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in wide(x).ravel()]).reshape(x.shape)


def tanh_gelu(x: Array) -> npt.NDArray[np.float64]:
    v = wide(x)
    result: npt.NDArray[np.float64] = v / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    return result


def units_off(actual: Array, expected: npt.NDArray[np.float64]) -> float:
    """The largest error in units in the last place of float32."""
    return float((np.abs(wide(actual) - expected) / np.spacing(np.abs(expected.astype(F32))).astype(np.float64)).max())


@each_unit
def test_exact_gelu_is_accurate_to_float32(unit: str) -> None:
    """Around zero and above to a few units in the last place, and the tail below keeps its digits, which 1 + erf would lose."""
    x = np.linspace(-3, 13, 40_001, dtype=np.float64).astype(F32)[None]
    assert units_off(gelu(unit, x, 0), exact_gelu(x)) < 8
    tail = np.linspace(-13, -3, 20_001, dtype=np.float64).astype(F32)[None]
    np.testing.assert_allclose(wide(gelu(unit, tail, 0)), exact_gelu(tail), rtol=8e-6, atol=0)


@each_unit
def test_tanh_gelu_is_accurate_to_float32(unit: str) -> None:
    x = np.linspace(-9, 13, 40_001, dtype=np.float64).astype(F32)[None]
    np.testing.assert_allclose(wide(gelu(unit, x, 1)), tanh_gelu(x), rtol=2e-5, atol=0)
    assert units_off(gelu(unit, x[x > -1][None], 1), tanh_gelu(x[x > -1][None])) < 8


@each_unit
def test_tanh_is_accurate_to_float32(unit: str, rng: np.random.Generator) -> None:
    x = np.concatenate([np.linspace(-11, 11, 30_001), rng.standard_normal(999) * 10.0 ** rng.uniform(-30, 0, 999)])
    single = x.astype(F32)[None]
    assert units_off(tanh(unit, single), np.tanh(wide(single))) < 4


@each_unit
@pytest.mark.parametrize("form", FORMS)
def test_gelu_edges(unit: str, form: str) -> None:
    x = np.array([[0.0, -0.0, np.inf, np.nan, 1e-30, -1e-30, 500, -500, 3e38, -3e38]], F32)
    y = gelu(unit, x, FORMS[form])[0]
    assert y[0] == 0
    assert y[1] == 0
    assert y[2] == np.inf
    assert np.isnan(y[3])
    np.testing.assert_allclose(y[4:6], [5e-31, -5e-31], rtol=1e-6)
    assert y[6] == 500
    assert y[7] == 0
    assert y[8] == F32.type(3e38)
    assert y[9] == 0


@each_unit
def test_tanh_edges(unit: str) -> None:
    y = tanh(unit, np.array([[0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -3e38]], F32))[0]
    assert np.array_equal(bits(y[:2]), bits(np.array([0.0, -0.0], F32)))
    assert np.array_equal(y[2:4], [1, -1])
    assert np.isnan(y[4])
    np.testing.assert_allclose(y[5], 1e-42, rtol=1e-2)
    assert y[6] == -1


@each_unit
@each_float
@pytest.mark.parametrize("form", FORMS)
def test_gelu_of_every_dtype_is_the_float32_result_rounded_once(
    unit: str, dtype: np.dtype[Any], form: str, rng: np.random.Generator
) -> None:
    x = (rng.standard_normal((5, 333)) * 3).astype(dtype)
    single = gelu(unit, x, FORMS[form], F32)
    for y_dtype in FLOATS:
        assert np.array_equal(bits(gelu(unit, x, FORMS[form], y_dtype)), bits(single.astype(y_dtype)))
    number = NUMBER[dtype]
    over = launch(unit, "gelu", [x, None, x], [*x.shape, number, number, FORMS[form]], writes=[2])[0]
    assert np.array_equal(bits(over), bits(single.astype(dtype)))


@each_unit
def test_elements_have_the_same_bits_anywhere(unit: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 40_001)).astype(F32)
    whole = [gelu(unit, x, 0), gelu(unit, x, 1), tanh(unit, x)]
    for first, end in ((0, 1), (39_990, 40_001), (1023, 1026)):
        part = x[:, first:end].copy()
        for y, alone in zip(whole, (gelu(unit, part, 0), gelu(unit, part, 1), tanh(unit, part)), strict=True):
            assert np.array_equal(bits(alone), bits(y[:, first:end]))


@each_unit
def test_counts_and_refusals(unit: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 21)).astype(F32)
    y = gelu(unit, x, 0, count=3)
    assert np.isfinite(y[:3]).all()
    assert is_poison(y[3:])
    assert is_poison(gelu(unit, x, 2, status=INVALID))
    assert gelu(unit, np.zeros((0, 4), F32), 0).size == 0
