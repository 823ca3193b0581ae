"""Rotary tables of all kinds and the rotation in both pairings, for every unit."""

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


def dynamic_table(
    unit: str, position: Array, length: Array, half: int, original: int, count: int | None = None
) -> tuple[Array, Array]:
    shape = (len(position), half)
    operands = [position, length, counter(count), poison(shape, F32), poison(shape, F32)]
    params = [*shape, 1e4, 2.5, original, 1.1]
    cosine, sine = launch(unit, "rotary_table_dynamic", operands, params, writes=[3, 4])
    return cosine, sine


@each_unit
@pytest.mark.parametrize("half", [2, 5, 64])
def test_dynamic_table_is_the_plain_table_of_a_base_that_grows(unit: str, half: int, rng: np.random.Generator) -> None:
    original, width = 64, 2 * half
    length = np.array([-3, 0, 1, 63, 64, 65, 128, 4000, 2**31 - 1], np.int32)
    position = rng.integers(0, 4000, len(length)).astype(np.int32)
    cosine, sine = dynamic_table(unit, position, length, half, original)
    for row, tokens in enumerate(length.tolist()):
        growth = 2.5 * max(tokens, original) / original - 1.5
        base = 1e4 * growth ** (width / (width - 2))
        inverse = (base ** (-np.arange(0, width, 2) / width)).astype(F32)
        expected = table(unit, position[row : row + 1].copy(), inverse, 1.1)
        assert_near(cosine[row], expected[0][0], atol=0, rtol=1.2e-7)
        assert_near(sine[row], expected[1][0], atol=0, rtol=1.2e-7)
    # at and below the original length it is the plain table
    assert np.array_equal(bits(cosine[3]), bits(table(unit, position[3:4].copy(), frequencies(half, 1e4), 1.1)[0][0]))


@each_unit
def test_longrope_table_takes_the_long_frequencies_past_the_original_length(unit: str) -> None:
    position = np.array([5, 5, 31, 9, 77], np.int32)
    length = np.array([6, 32, 32, 33, 2**31 - 1], np.int32)
    short, long = frequencies(9), frequencies(9, 3e6)
    shape = (5, 9)
    operands = [position, length, short, long, None, poison(shape, F32), poison(shape, F32)]
    made = launch(unit, "rotary_table_longrope", operands, [*shape, 32, 1.25], writes=[5, 6])
    for which, inverse in ((slice(0, 3), short), (slice(3, 5), long)):
        expected = table(unit, position[which].copy(), inverse, 1.25)
        for found, wanted in zip(made, expected, strict=True):
            assert np.array_equal(bits(found[which]), bits(wanted))


@each_unit
def test_length_dependent_tables_count_refusals_and_nothing_to_do(unit: str) -> None:
    position = np.arange(7, dtype=np.int32)
    cosine, _ = dynamic_table(unit, position, position, 3, 4, count=5)
    assert is_poison(cosine[5:])
    assert np.isfinite(cosine[:5]).all()
    assert dynamic_table(unit, position[:0], position[:0], 3, 4)[0].size == 0
    operands = [position, position, None, poison((7, 3), F32), poison((7, 3), F32)]
    for wrong in ([7, 3, 1e4, 2.0, 0, 1.0], [7, 1, 1e4, 2.0, 4, 1.0], [8, 3, 1e4, 2.0, 4, 1.0]):
        launch(unit, "rotary_table_dynamic", operands, wrong, writes=[3, 4], status=INVALID)
    inverse = frequencies(3)
    long = [position, position, inverse, inverse, counter(2), poison((7, 3), F32), poison((7, 3), F32)]
    cosine = launch(unit, "rotary_table_longrope", long, [7, 3, 4, 1.0], writes=[5, 6])[0]
    assert is_poison(cosine[2:])
    assert np.isfinite(cosine[:2]).all()
    launch(unit, "rotary_table_longrope", long, [7, 4, 4, 1.0], writes=[5, 6], status=INVALID)


ROTATIONS = ("rope_split_half", "rope_interleaved")
each_rotation = pytest.mark.parametrize("kernel", ROTATIONS)


def rotate_reference(kernel: str, x: Array, cosine: Array, sine: Array) -> Array:
    """Pairs as complex numbers times cosine + i sine, elements past the last pair as they are."""
    half = cosine.shape[1]
    y = wide(x)
    pairs = (
        (slice(0, half), slice(half, 2 * half))
        if kernel == "rope_split_half"
        else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    turned = (y[..., pairs[0]] + 1j * y[..., pairs[1]]) * (wide(cosine) + 1j * wide(sine))[:, None]
    y[..., pairs[0]], y[..., pairs[1]] = turned.real, turned.imag
    return y


def natural(x: Array, half: int | None = None) -> list[int | float]:
    rows, heads, width = x.shape
    half = width // 2 if half is None else half
    places = [heads * width, width, max(rows, 1), rows * heads * width]
    return [rows, heads, width, half, NUMBER[x.dtype], *places, heads * width]


def make(
    rng: np.random.Generator, shape: tuple[int, int, int], dtype: np.dtype[Any] = F32, half: int | None = None
) -> tuple[Array, Array, Array]:
    angle = rng.uniform(-4, 4, (shape[0], shape[2] // 2 if half is None else half))
    return rng.standard_normal(shape).astype(dtype), np.cos(angle).astype(F32), np.sin(angle).astype(F32)


@each_unit
@each_rotation
@pytest.mark.parametrize(
    "shape", [(1, 1, 2), (3, 2, 10), (5, 14, 64), (2, 3, 80), (1, 12, 128), (400, 14, 64), (4, 2, 98)], ids=str
)
@each_float
def test_rotation(
    unit: str, kernel: str, shape: tuple[int, int, int], dtype: np.dtype[Any], rng: np.random.Generator
) -> None:
    x, cosine, sine = make(rng, shape, dtype)
    y = launch(unit, kernel, [x, cosine, sine, None, poison(shape, dtype)], natural(x), writes=[4])[0]
    assert_near(y, rotate_reference(kernel, x, cosine, sine), atol=1e-6, rtol=1e-5)
    over = launch(unit, kernel, [x, cosine, sine, None, x], natural(x), writes=[4])[0]
    assert np.array_equal(bits(over), bits(y))


@each_unit
@each_rotation
@pytest.mark.parametrize("half", [0, 1, 5, 16, 36])
@each_float
def test_partial_rotation_passes_the_rest_bit_for_bit(
    unit: str, kernel: str, half: int, dtype: np.dtype[Any], rng: np.random.Generator
) -> None:
    x, cosine, sine = make(rng, (7, 3, 80), dtype, half)
    rest = np.ascontiguousarray(x[..., 2 * half :])
    rest.reshape(-1).view(np.uint8)[:4] = 0xFF  # not a number, with all its bits
    x[..., 2 * half :] = rest
    y = launch(unit, kernel, [x, cosine, sine, None, poison(x.shape, dtype)], natural(x, half), writes=[4])[0]
    assert_near(y, rotate_reference(kernel, x, cosine, sine), atol=1e-6, rtol=1e-5)
    assert np.array_equal(bits(y[..., 2 * half :]), bits(rest))
    over = launch(unit, kernel, [x, cosine, sine, None, x], natural(x, half), writes=[4])[0]
    assert np.array_equal(bits(over), bits(y))


@each_unit
@each_rotation
@pytest.mark.parametrize("half", [9, 4])
def test_rotation_into_head_major(unit: str, kernel: str, half: int, rng: np.random.Generator) -> None:
    """Rows m = b T + t of [B,T,H,D] land at [B,H,T,D], inside a wider buffer whose other elements stay."""
    batches, tokens, heads, width = 3, 4, 5, 18
    x, cosine, sine = make(rng, (batches * tokens, heads, width), BF16, half)
    y = poison((batches, heads + 1, tokens, width), BF16)
    places = [width, tokens * width, tokens, (heads + 1) * tokens * width]
    params = [len(x), heads, width, half, NUMBER[BF16], *places, heads * width]
    result = launch(unit, kernel, [x, cosine, sine, None, y], params, writes=[4])[0]
    expected = rotate_reference(kernel, x, cosine, sine).reshape(batches, tokens, heads, width).transpose(0, 2, 1, 3)
    assert_near(result[:, :heads], expected, atol=1e-6, rtol=1e-5)
    assert is_poison(result[:, heads:])


@each_unit
@each_rotation
def test_rotation_count_refusals_and_nothing_to_do(unit: str, kernel: str, rng: np.random.Generator) -> None:
    x, cosine, sine = make(rng, (6, 2, 12))
    y = launch(unit, kernel, [x, cosine, sine, counter(4), poison(x.shape, F32)], natural(x), writes=[4])[0]
    assert is_poison(y[4:])
    assert_near(y[:4], rotate_reference(kernel, x, cosine, sine)[:4], atol=1e-6, rtol=1e-5)
    for shape in ((0, 2, 4), (3, 0, 4), (3, 2, 0)):
        empty, c, s = make(rng, shape)
        launch(unit, kernel, [empty, c, s, None, poison(shape, F32)], natural(empty), writes=[4])
    odd, c, s = make(rng, (2, 1, 7), half=4)
    launch(unit, kernel, [odd, c, s, None, poison(odd.shape, F32)], natural(odd, 4), writes=[4], status=INVALID)
    params = natural(x)
    params[6] = 13  # heads further apart than y has room for
    launch(unit, kernel, [x, cosine, sine, None, poison(x.shape, F32)], params, writes=[4], status=INVALID)
    more = natural(x)
    more[3] = 5  # fewer angles than the tables have is fine, more is not
    launch(unit, kernel, [x, cosine, sine, None, poison(x.shape, F32)], more, writes=[4])
    more[:4] = [7, 2, 12, 6]
    launch(unit, kernel, [x, cosine, sine, None, poison(x.shape, F32)], more, writes=[4], status=INVALID)
