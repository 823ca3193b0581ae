"""Rotary tables and the split-half rotation, for every unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend_hip.kernel_harness import (
    BF16,
    F32,
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


def frequencies(half: int, base: float = 1e6) -> Array:
    result: Array = (1.0 / base ** (np.arange(half) / half)).astype(F32)
    return result


def table(
    unit: str, position: Array, inverse: Array, scale: float = 1.0, count: int | None = None
) -> tuple[Array, Array]:
    shape = (len(position), len(inverse))
    operands = [position, inverse, counter(count), poison(shape, F32), poison(shape, F32)]
    cosine, sine = launch(unit, "rotary_table", operands, [*shape, scale], writes=[3, 4])
    return cosine, sine


@each_unit
@pytest.mark.parametrize("half", [1, 5, 32, 64])
@pytest.mark.parametrize("scale", [1.0, 1.1386])
def test_table_is_double_of_the_float_angle_rounded_once(
    unit: str, half: int, scale: float, rng: np.random.Generator
) -> None:
    position = rng.integers(0, 131072, 90).astype(np.int32)
    position[:3] = (0, 1, 131071)
    inverse = frequencies(half)
    angle = wide(position.astype(F32)[:, None] * inverse)
    cosine, sine = table(unit, position, inverse, scale)
    # one unit in the last place, because numpy's own double functions may differ in theirs
    assert_near(cosine, np.cos(angle).astype(F32) * F32.type(scale), atol=0, rtol=1.2e-7)
    assert_near(sine, np.sin(angle).astype(F32) * F32.type(scale), atol=0, rtol=1.2e-7)
    assert cosine[0, 0] == F32.type(scale)
    assert sine[0, 0] == 0


@each_unit
def test_table_count_and_nothing_to_do(unit: str) -> None:
    position, inverse = np.arange(7, dtype=np.int32), frequencies(9)
    cosine, sine = table(unit, position, inverse, count=5)
    assert is_poison(cosine[5:])
    assert is_poison(sine[5:])
    assert np.isfinite(cosine[:5]).all()
    assert np.isfinite(sine[:5]).all()
    assert table(unit, position[:0], inverse)[0].size == 0
    assert table(unit, position, inverse[:0])[0].size == 0


@each_unit
def test_table_of_many_rows_has_the_bits_of_each_row(unit: str) -> None:
    position, inverse = np.arange(500, dtype=np.int32), frequencies(32)
    together = table(unit, position, inverse)
    for row in (0, 17, 499):
        alone = table(unit, position[row : row + 1].copy(), inverse)
        assert np.array_equal(bits(alone[0][0]), bits(together[0][row]))
        assert np.array_equal(bits(alone[1][0]), bits(together[1][row]))


def rotate_reference(x: Array, cosine: Array, sine: Array) -> Array:
    half = x.shape[2] // 2
    a, b = wide(x[:, :, :half]), wide(x[:, :, half:])
    c, s = wide(cosine)[:, None], wide(sine)[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], 2)


def natural(x: Array) -> list[int | float]:
    rows, heads, width = x.shape
    return [rows, heads, width, NUMBER[x.dtype], heads * width, width, max(rows, 1), rows * heads * width]


def make(
    rng: np.random.Generator, shape: tuple[int, int, int], dtype: np.dtype[Any] = F32
) -> tuple[Array, Array, Array]:
    angle = rng.uniform(-4, 4, (shape[0], shape[2] // 2))
    return rng.standard_normal(shape).astype(dtype), np.cos(angle).astype(F32), np.sin(angle).astype(F32)


@each_unit
@pytest.mark.parametrize(
    "shape", [(1, 1, 2), (3, 2, 10), (5, 14, 64), (2, 3, 80), (1, 12, 128), (400, 14, 64), (4, 2, 98)], ids=str
)
@each_float
def test_rotation(unit: str, shape: tuple[int, int, int], dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    x, cosine, sine = make(rng, shape, dtype)
    y = launch(unit, "rope_split_half", [x, cosine, sine, None, poison(shape, dtype)], natural(x), writes=[4])[0]
    assert_near(y, rotate_reference(x, cosine, sine), atol=1e-6, rtol=1e-5)
    over = launch(unit, "rope_split_half", [x, cosine, sine, None, x], natural(x), writes=[4])[0]
    assert np.array_equal(bits(over), bits(y))


@each_unit
def test_rotation_into_head_major(unit: str, rng: np.random.Generator) -> None:
    """Rows m = b T + t of [B,T,H,D] land at [B,H,T,D], inside a wider buffer whose other elements stay."""
    batches, tokens, heads, width = 3, 4, 5, 18
    x, cosine, sine = make(rng, (batches * tokens, heads, width), BF16)
    y = poison((batches, heads + 1, tokens, width), BF16)
    params = [len(x), heads, width, NUMBER[BF16], width, tokens * width, tokens, (heads + 1) * tokens * width]
    result = launch(unit, "rope_split_half", [x, cosine, sine, None, y], params, writes=[4])[0]
    expected = rotate_reference(x, cosine, sine).reshape(batches, tokens, heads, width).transpose(0, 2, 1, 3)
    assert_near(result[:, :heads], expected, atol=1e-6, rtol=1e-5)
    assert is_poison(result[:, heads:])


@each_unit
def test_rotation_count_refusals_and_nothing_to_do(unit: str, rng: np.random.Generator) -> None:
    x, cosine, sine = make(rng, (6, 2, 12))
    y = launch(unit, "rope_split_half", [x, cosine, sine, counter(4), poison(x.shape, F32)], natural(x), writes=[4])[0]
    assert is_poison(y[4:])
    assert_near(y[:4], rotate_reference(x, cosine, sine)[:4], atol=1e-6, rtol=1e-5)
    for shape in ((0, 2, 4), (3, 0, 4), (3, 2, 0)):
        empty, c, s = make(rng, shape)
        launch(unit, "rope_split_half", [empty, c, s, None, poison(shape, F32)], natural(empty), writes=[4])
    odd, c, s = make(rng, (2, 1, 7))
    launch(unit, "rope_split_half", [odd, c, s, None, poison(odd.shape, F32)], natural(odd), writes=[4], status=INVALID)
    params = natural(x)
    params[5] = 13  # heads further apart than y has room for
    launch(unit, "rope_split_half", [x, cosine, sine, None, poison(x.shape, F32)], params, writes=[4], status=INVALID)
