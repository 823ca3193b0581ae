"""RMS norm, its fusion with the residual addition, layer norm, and softmax against float64, for every unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.backend_hip.kernel_harness import (
    BF16,
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

SHAPES = [(1, 1), (1, 64), (3, 7), (5, 100), (2, 576), (1, 896), (4, 1537), (40, 900)]
EPSILON = 1e-6


def norm_reference(x: Array, gain: Array) -> npt.NDArray[np.float64]:
    exact = wide(x)
    result: npt.NDArray[np.float64] = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + EPSILON) * wide(gain)
    return result


def rms_norm(
    unit: str, x: Array, gain: Array, y_dtype: np.dtype[Any] = F32, count: int | None = None, status: int = 0
) -> Array:
    params = [*x.shape, EPSILON, NUMBER[x.dtype], NUMBER[y_dtype]]
    return launch(
        unit, "rms_norm", [x, gain, counter(count), poison(x.shape, y_dtype)], params, writes=[3], status=status
    )[0]


def add_rms_norm(
    unit: str, a: Array, b: Array, gain: Array, y_dtype: np.dtype[Any] = F32, count: int | None = None
) -> tuple[Array, Array]:
    params = [*a.shape, EPSILON, NUMBER[a.dtype], NUMBER[y_dtype]]
    operands = [a, b, gain, counter(count), poison(a.shape, a.dtype), poison(a.shape, y_dtype)]
    added, y = launch(unit, "add_rms_norm", operands, params, writes=[4, 5])
    return added, y


def inputs(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype[Any] = F32) -> tuple[Array, Array, Array]:
    a, b = ((3 * rng.standard_normal(shape)).astype(dtype) for _ in range(2))
    return a, b, rng.standard_normal(shape[1]).astype(F32)


@each_unit
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_float
def test_rms_norm(unit: str, shape: tuple[int, int], dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    x, _, gain = inputs(rng, shape, dtype)
    y = rms_norm(unit, x, gain)
    assert_near(y, norm_reference(x, gain), atol=2e-6, rtol=2e-5)
    for y_dtype in FLOATS:  # a 16-bit result is the float32 result rounded once
        assert np.array_equal(bits(rms_norm(unit, x, gain, y_dtype)), bits(y.astype(y_dtype)))


@each_unit
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_float
def test_add_rms_norm_equals_the_two_kernels(
    unit: str, shape: tuple[int, int], dtype: np.dtype[Any], rng: np.random.Generator
) -> None:
    a, b, gain = inputs(rng, shape, dtype)
    added, y = add_rms_norm(unit, a, b, gain)
    plain = launch(unit, "add", [a, b, None, poison(shape, dtype)], [*shape, NUMBER[dtype]], writes=[3])[0]
    assert np.array_equal(bits(added), bits(plain))
    assert np.array_equal(bits(added), bits((a.astype(F32) + b.astype(F32)).astype(dtype)))
    assert np.array_equal(bits(y), bits(rms_norm(unit, added, gain)))
    assert_near(y, norm_reference(added, gain), atol=2e-6, rtol=2e-5)


@each_unit
@pytest.mark.parametrize("place", [0, 1], ids=["over a", "over b"])
def test_add_rms_norm_sum_over_an_input(unit: str, place: int, rng: np.random.Generator) -> None:
    a, b, gain = inputs(rng, (5, 70), BF16)
    added, y = add_rms_norm(unit, a, b, gain, BF16)
    target = (a, b)[place]
    params = [*a.shape, EPSILON, NUMBER[BF16], NUMBER[BF16]]
    over, z = launch(unit, "add_rms_norm", [a, b, gain, None, target, poison(a.shape, BF16)], params, writes=[4, 5])
    assert np.array_equal(bits(over), bits(added))
    assert np.array_equal(bits(z), bits(y))


@each_unit
def test_norms_of_fewer_rows_leave_the_rest(unit: str, rng: np.random.Generator) -> None:
    a, b, gain = inputs(rng, (6, 33))
    a[4:] = np.nan
    y = rms_norm(unit, a, gain, count=4)
    assert_near(y[:4], norm_reference(a[:4], gain), atol=2e-6, rtol=2e-5)
    assert is_poison(y[4:])
    added, y = add_rms_norm(unit, a, b, gain, count=4)
    assert is_poison(added[4:])
    assert is_poison(y[4:])
    assert np.isfinite(y[:4]).all()
    assert is_poison(rms_norm(unit, a, gain, count=0))
    assert is_poison(rms_norm(unit, a, gain, count=-1))


@each_unit
def test_rms_norm_row_has_the_same_bits_anywhere(unit: str, rng: np.random.Generator) -> None:
    x, _, gain = inputs(rng, (1, 777))
    many = rms_norm(unit, np.repeat(x, 300, 0), gain)
    assert (many == rms_norm(unit, x, gain)).all()


@each_unit
def test_add_rms_norm_of_many_rows(unit: str, rng: np.random.Generator) -> None:
    a, b, gain = inputs(rng, (500, 900), BF16)
    added, y = add_rms_norm(unit, a, b, gain, BF16)
    for row in (0, 123, 499):
        one, z = add_rms_norm(unit, a[row : row + 1].copy(), b[row : row + 1].copy(), gain, BF16)
        assert np.array_equal(bits(one[0]), bits(added[row]))
        assert np.array_equal(bits(z[0]), bits(y[row]))


@each_unit
def test_rms_norm_edges(unit: str) -> None:
    gain = np.ones(20, F32)
    x = np.zeros((4, 20), F32)
    x[1, 3] = np.nan
    x[2, 3] = np.inf
    x[3] = 1e-30
    y = rms_norm(unit, x, gain)
    assert not y[0].any()
    assert np.isnan(y[1]).all()
    assert np.isnan(y[2, 3])
    assert np.isfinite(y[3]).all()


@each_unit
@pytest.mark.parametrize("shape", [(0, 5), (5, 0)], ids=str)
def test_nothing_to_norm(unit: str, shape: tuple[int, int]) -> None:
    x, gain = np.zeros(shape, F32), np.zeros(shape[1], F32)
    assert rms_norm(unit, x, gain).shape == shape
    assert add_rms_norm(unit, x, x.copy(), gain)[1].shape == shape


@each_unit
def test_rms_norm_refuses_short_operands_and_unknown_dtypes(unit: str) -> None:
    x, gain = np.zeros((2, 8), F32), np.zeros(7, F32)
    assert is_poison(rms_norm(unit, x, gain, status=INVALID))
    operands = [x, np.zeros(8, F32), None, poison(x.shape, F32)]
    assert is_poison(launch(unit, "rms_norm", operands, [2, 8, EPSILON, 5, 0], writes=[3], status=INVALID)[0])


# ---- layer norm ----------------------------------------------------------------------------------------------------


def layer_norm(
    unit: str, x: Array, gain: Array, bias: Array | None, y_dtype: np.dtype[Any] = F32, epsilon: float = EPSILON
) -> Array:
    params = [*x.shape, epsilon, NUMBER[x.dtype], NUMBER[y_dtype]]
    return launch(unit, "layer_norm", [x, gain, bias, None, poison(x.shape, y_dtype)], params, writes=[4])[0]


def layer_norm_reference(
    x: Array, gain: Array, bias: Array | None, epsilon: float = EPSILON
) -> npt.NDArray[np.float64]:
    exact = wide(x) - wide(x).mean(-1, keepdims=True)
    scaled = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + epsilon) * wide(gain)
    result: npt.NDArray[np.float64] = scaled if bias is None else scaled + wide(bias)
    return result


@each_unit
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_float
def test_layer_norm(unit: str, shape: tuple[int, int], dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    x, _, gain = inputs(rng, shape, dtype)
    bias = rng.standard_normal(shape[1]).astype(F32)
    for given in (bias, None):
        y = layer_norm(unit, x, gain, given)
        assert_near(y, layer_norm_reference(x, gain, given), atol=2e-6, rtol=2e-5)
        for y_dtype in FLOATS:
            assert np.array_equal(bits(layer_norm(unit, x, gain, given, y_dtype)), bits(y.astype(y_dtype)))


@each_unit
def test_layer_norm_far_from_zero(unit: str, rng: np.random.Generator) -> None:
    """Neither a mean a thousand times the spread nor a row without any spread is lost to rounding, at BERT's small epsilon."""
    x = (rng.standard_normal((6, 384)) * 0.5 + 500).astype(F32)
    gain, bias = rng.standard_normal(384).astype(F32), rng.standard_normal(384).astype(F32)
    assert_near(layer_norm(unit, x, gain, bias, epsilon=1e-12), layer_norm_reference(x, gain, bias, 1e-12), 2e-5, 2e-5)
    flat = np.repeat(np.array([[0.1], [-777.7], [1e6], [0.0]], F32), 384, axis=1)
    assert_near(layer_norm(unit, flat, gain, bias, epsilon=1e-12), np.repeat(wide(bias)[None], 4, axis=0), 1e-6, 0)


@each_unit
def test_layer_norm_row_has_the_same_bits_anywhere(unit: str, rng: np.random.Generator) -> None:
    x, _, gain = inputs(rng, (1, 777))
    many = layer_norm(unit, np.repeat(x, 300, 0), gain, gain)
    assert (many == layer_norm(unit, x, gain, gain)).all()


# ---- softmax -------------------------------------------------------------------------------------------------------


def softmax(unit: str, x: Array, y_dtype: np.dtype[Any] = F32, count: int | None = None) -> Array:
    params = [*x.shape, NUMBER[x.dtype], NUMBER[y_dtype]]
    return launch(unit, "softmax", [x, counter(count), poison(x.shape, y_dtype)], params, writes=[2])[0]


def softmax_reference(x: Array) -> npt.NDArray[np.float64]:
    exact = wide(x)
    weights = np.exp(exact - exact.max(-1, keepdims=True))
    result: npt.NDArray[np.float64] = weights / weights.sum(-1, keepdims=True)
    return result


@each_unit
@pytest.mark.parametrize("shape", [*SHAPES, (2, 32003)], ids=str)
@each_float
def test_softmax(unit: str, shape: tuple[int, int], dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    x = (5 * rng.standard_normal(shape)).astype(dtype)
    y = softmax(unit, x)
    assert_near(y, softmax_reference(x), atol=1e-7, rtol=1e-6)
    for y_dtype in FLOATS:
        assert np.array_equal(bits(softmax(unit, x, y_dtype)), bits(y.astype(y_dtype)))


@each_unit
def test_softmax_edges(unit: str) -> None:
    x = np.zeros((6, 19), F32)
    x[0] = -np.inf
    x[1, 18] = np.nan
    x[2, 5] = np.inf
    x[3, 2:] = -np.inf
    x[4] = -1e30
    x[4, 7] = 3e38
    x[5] = 200.0
    y = softmax(unit, x)
    assert not y[0].any()
    assert np.isnan(y[1]).all()
    assert np.isnan(y[2, 5])
    assert np.array_equal(y[3], np.array([0.5, 0.5] + [0.0] * 17, F32))
    assert y[4, 7] == 1
    assert y[4].sum() == 1
    assert_near(y[5], np.full(19, 1 / 19), atol=0, rtol=1e-6)


@each_unit
def test_softmax_in_place_and_with_a_count(unit: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 37)).astype(F32)
    params = [*x.shape, NUMBER[F32], NUMBER[F32]]
    y = softmax(unit, x, count=3)
    assert is_poison(y[3:])
    assert np.array_equal(bits(launch(unit, "softmax", [x, counter(3), x], params, writes=[2])[0][:3]), bits(y[:3]))
    assert softmax(unit, np.zeros((0, 4), F32)).size == 0
    assert softmax(unit, np.zeros((4, 0), F32)).size == 0


@each_unit
@each_float
def test_causal_softmax_sees_no_further_than_its_row(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    """Hidden entries are exactly zero and not read, and a row has the bits of a softmax over what it sees."""
    x = (4 * rng.standard_normal((2 * 37, 37))).astype(dtype)
    x[np.arange(37) > np.arange(2 * 37)[:, None] % 37] = np.nan
    operands = [x, None, poison(x.shape, F32)]
    y = launch(unit, "causal_softmax", operands, [*x.shape, NUMBER[dtype], NUMBER[F32]], writes=[2])[0]
    for row in range(2 * 37):
        visible = row % 37 + 1
        assert np.array_equal(bits(y[row, :visible]), bits(softmax(unit, x[row : row + 1, :visible].copy())[0]))
        assert not y[row, visible:].any()
