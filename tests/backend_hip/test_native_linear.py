"""linear_<W> and linear_swiglu_<W> in every ISA unit against float64, with the bit-equality they promise: a row's result does not depend on
the number of threads, on the batch it is in or on its place there."""

from __future__ import annotations

from dataclasses import dataclass

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
    assert_near,
    bits,
    counter,
    each_unit,
    is_poison,
    launch,
    poison,
    wide,
)
from tests.backend_hip.panels import FORMATS, Rows, random_rows, to_panels, whole_columns

each_format = pytest.mark.parametrize("format", FORMATS)
ROWS = [1, 2, 3, 4, 5, 8, 9, 11, 12, 13, 33]
EPSILON = 2.0**-24


@dataclass(frozen=True, slots=True)
class Case:
    """One product: x [M, K], weight [N, K], optional bias, outputs split by columns."""

    x: Array
    weight: Rows
    bias: Array | None = None
    columns: tuple[int, int, int] = (0, 0, 0)
    dtype: np.dtype[np.generic] = F32
    count: int | None = None
    status: int = 0
    threads: tuple[int, ...] = (1, 2, 3)


def run_linear(unit: str, case: Case) -> Array:
    """The outputs side by side, [M, N]."""
    m, k = case.x.shape
    columns = case.columns if sum(case.columns) else (len(case.weight.values), 0, 0)
    outputs = [poison((m, n), case.dtype) if n or not index else None for index, n in enumerate(columns)]
    operands = [case.x, to_panels(case.weight), case.bias, None, None, counter(case.count), *outputs, None]
    present = [6 + index for index, output in enumerate(outputs) if output is not None]
    params = [m, k, NUMBER[case.x.dtype], NUMBER[case.dtype], *columns, 0.0]
    name = f"linear_{case.weight.format}"
    results = launch(unit, name, operands, params, writes=present, status=case.status, threads=case.threads)
    return np.concatenate(results, axis=1)


def sum_error(x: Array, w: Array) -> Array:
    """What rounding may do to float32 sums x w^T: a random walk over K additions of at most half a last place each, eight times over."""
    bound: Array = (np.abs(x) @ np.abs(w).T) * (8 + x.shape[1] ** 0.5) * EPSILON
    return bound


def check(case: Case, result: Array) -> None:
    """Within the rounding of a float32 sum of K products, in whatever order, plus the result's own rounding; nothing written past the count."""
    valid = len(case.x) if case.count is None else case.count
    x, w = wide(case.x[:valid]), case.weight.values
    expected = x @ w.T
    bound = sum_error(x, w)
    if case.bias is not None:
        expected = expected + wide(case.bias)
    slack = {F32: 2.0**-24, F16: 2.0**-11, BF16: 2.0**-8}[case.dtype]
    error = np.abs(wide(result[:valid]) - expected)
    worst = bound + slack * (np.abs(expected) + bound) + 2.0**-24
    assert (error <= worst).all(), (
        f"{case.weight.format}: error {error.max():.3g}, {(error / worst).max():.2f} times the bound"
    )
    assert is_poison(result[valid:])


def activations(rng: np.random.Generator, rows: int, columns: int, dtype: np.dtype[np.generic]) -> Array:
    return rng.standard_normal((rows, columns), np.float32).astype(dtype)


@each_unit
@each_format
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_linear(unit: str, format: str, dtype: np.dtype[np.generic], rng: np.random.Generator) -> None:
    for m in ROWS:
        n, k = int(rng.integers(1, 150)), whole_columns(format, int(rng.integers(1, 90)))
        bias = rng.standard_normal(n, np.float32) if rng.integers(2) else None
        case = Case(
            activations(rng, m, k, dtype), random_rows(rng, format, n, k), bias, dtype=FLOATS[int(rng.integers(3))]
        )
        check(case, run_linear(unit, case))


@each_unit
@each_format
@pytest.mark.parametrize("k", [511, 512, 513, 1100, 1536])
def test_linear_over_several_chunks_of_k(unit: str, format: str, k: int, rng: np.random.Generator) -> None:
    k = whole_columns(format, k)
    for m, dtype in [(1, F32), (2, BF16), (3, F16), (4, F32), (6, BF16), (17, F32), (18, BF16), (14, F16)]:
        case = Case(activations(rng, m, k, dtype), random_rows(rng, format, 75, k))
        check(case, run_linear(unit, case))


@each_unit
@each_format
def test_linear_of_many_rows(unit: str, format: str, rng: np.random.Generator) -> None:
    k = whole_columns(format, 545)
    for m, dtype in [(129, F32), (300, BF16)]:
        case = Case(activations(rng, m, k, dtype), random_rows(rng, format, 70, k), dtype=dtype)
        check(case, run_linear(unit, case))


@each_unit
@each_format
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_row_has_the_same_bits_in_any_batch(
    unit: str, format: str, dtype: np.dtype[np.generic], rng: np.random.Generator
) -> None:
    k = whole_columns(format, 1070)
    weight = random_rows(rng, format, 170, k)
    x = activations(rng, 30, k, dtype)
    whole = run_linear(unit, Case(x, weight, threads=(2,)))
    for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 25):
        first = int(rng.integers(0, 30 - m + 1))
        part = run_linear(unit, Case(x[first : first + m], weight, threads=(1,)))
        assert np.array_equal(bits(part), bits(whole[first : first + m])), f"{m} rows from {first}"


@each_unit
@each_format
@pytest.mark.parametrize(
    "columns", [(1, 2, 3), (40, 8, 8), (31, 33, 1), (64, 32, 32), (5, 0, 90), (33, 70, 0), (0, 20, 20)]
)
def test_outputs_split_anywhere(
    unit: str, format: str, columns: tuple[int, int, int], rng: np.random.Generator
) -> None:
    n, k = sum(columns), whole_columns(format, 40)
    weight, bias = random_rows(rng, format, n, k), rng.standard_normal(n, np.float32)
    for m in (1, 7, 20):
        x = activations(rng, m, k, F32)
        for dtype in FLOATS:
            case = Case(x, weight, bias, columns, dtype)
            result = run_linear(unit, case)
            check(case, result)
            one = run_linear(unit, Case(x, weight, bias, dtype=dtype))
            assert np.array_equal(bits(result), bits(one))


@each_unit
@each_format
def test_rows_past_the_count_are_left_alone(unit: str, format: str, rng: np.random.Generator) -> None:
    k = whole_columns(format, 70)
    weight = random_rows(rng, format, 50, k)
    for m, count in [(3, 0), (3, 1), (33, 2), (33, 13), (33, 33), (20, 19)]:
        x = activations(rng, m, k, F32)
        x[count:] = np.nan
        case = Case(x, weight, count=count)
        result = run_linear(unit, case)
        check(case, result)
        assert not np.isnan(result[:count]).any()
    x = activations(rng, 5, k, F32)
    assert is_poison(run_linear(unit, Case(x, weight, count=-4)))
    assert np.array_equal(bits(run_linear(unit, Case(x, weight, count=9))), bits(run_linear(unit, Case(x, weight))))


@each_unit
@each_format
def test_zero_sizes(unit: str, format: str, rng: np.random.Generator) -> None:
    k = whole_columns(format, 32)
    assert run_linear(unit, Case(activations(rng, 0, k, F32), random_rows(rng, format, 5, k))).shape == (0, 5)
    assert run_linear(unit, Case(activations(rng, 4, k, F32), random_rows(rng, format, 0, k))).shape == (4, 0)
    bias = rng.standard_normal(40, np.float32)
    for m in (2, 20):
        none = activations(rng, m, 0, F32)
        empty = random_rows(rng, format, 40, 0)
        assert np.array_equal(run_linear(unit, Case(none, empty, bias)), np.broadcast_to(bias, (m, 40)))
        assert not run_linear(unit, Case(none, empty)).any()


@each_unit
def test_non_finite_values_stay_in_their_row(unit: str, rng: np.random.Generator) -> None:
    for format in FORMATS:
        k = whole_columns(format, 64)
        weight = random_rows(rng, format, 40, k)
        x = activations(rng, 14, k, F32)
        x[3, 5] = np.nan
        result = run_linear(unit, Case(x, weight))
        assert np.isnan(result[3]).all()
        assert np.isfinite(np.delete(result, 3, 0)).all()


@each_unit
def test_refuses_what_does_not_fit(unit: str, rng: np.random.Generator) -> None:
    x, w, y = activations(rng, 2, 32, F32), to_panels(random_rows(rng, "f32", 8, 32)), poison((2, 8), F32)
    good = [2, 32, 0, 0, 8, 0, 0, 0.0]
    for position, value in [(0, 3), (0, -1), (1, 33), (1, -1), (2, 5), (3, 16), (4, 33), (4, -1), (5, 4), (6, -1)]:
        params = list(good)
        params[position] = value
        result = launch(unit, "linear_f32", [x, w, *[None] * 4, y, *[None] * 3], params, writes=[6], status=INVALID)
        assert is_poison(result[0])
    short = np.zeros(7, np.float32)
    assert is_poison(
        launch(unit, "linear_f32", [x, w, short, *[None] * 3, y, *[None] * 3], good, writes=[6], status=INVALID)[0]
    )
    blocks = to_panels(random_rows(rng, "q8_0", 8, 32))
    launch(
        unit, "linear_q8_0", [x, blocks, *[None] * 4, y, *[None] * 3], [2, 31, *good[2:]], writes=[6], status=INVALID
    )


def run_swiglu(unit: str, x: Array, weight: Rows, dtype: np.dtype[np.generic], count: int | None = None) -> Array:
    (m, k), inner = x.shape, len(weight.values) // 2
    operands = [x, to_panels(weight, pair=True), None, counter(count), poison((m, inner), dtype), None]
    params = [m, k, inner, NUMBER[x.dtype], NUMBER[dtype], 0.0]
    return launch(unit, f"linear_swiglu_{weight.format}", operands, params, writes=[4])[0]


@each_unit
@each_format
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_linear_swiglu(unit: str, format: str, dtype: np.dtype[np.generic], rng: np.random.Generator) -> None:
    for m, count in [(1, None), (2, None), (4, 3), (8, None), (13, None), (33, 12), (129, None), (0, None)]:
        inner, k = int(rng.integers(1, 90)), whole_columns(format, int(rng.integers(1, 90)))
        weight = random_rows(rng, format, 2 * inner, k)
        x = activations(rng, m, k, dtype)
        valid = m if count is None else count
        gate, up = (wide(x[:valid]) @ half.T for half in np.split(weight.values, 2))
        gate_error, up_error = (sum_error(wide(x[:valid]), half) for half in np.split(weight.values, 2))
        silu = gate / (1 + np.exp(-gate))
        bound = (
            1.1 * gate_error * (np.abs(up) + up_error) + np.abs(silu) * up_error + 1e-6 * np.abs(silu * up) + 2.0**-24
        )
        for y_dtype in (F32, dtype):
            result = run_swiglu(unit, x, weight, y_dtype, count)
            assert_near(result[:valid], silu * up, bound, 1e-6)
            assert is_poison(result[valid:])


@each_unit
@each_format
def test_linear_swiglu_rows_in_any_batch(unit: str, format: str, rng: np.random.Generator) -> None:
    k = whole_columns(format, 544)
    weight = random_rows(rng, format, 70, k)
    x = activations(rng, 20, k, F32)
    whole = run_swiglu(unit, x, weight, F32)
    for m in (1, 3, 6):
        assert np.array_equal(bits(run_swiglu(unit, x[4 : 4 + m], weight, F32)), bits(whole[4 : 4 + m]))
