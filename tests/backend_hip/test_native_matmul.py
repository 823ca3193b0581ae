"""Batched products of matrices that lie as they are, and projections by unpacked weights: sizes around blocks, dtypes, counts, a row in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def matmul(
    unit: str,
    a: Array,
    b: Array,
    *,
    turned: tuple[bool, bool] = (False, False),
    scale: float = 1.0,
    y_dtype: np.dtype[Any] | None = None,
    count: int | None = None,
    status: int = 0,
    c: Array | None = None,
) -> Array:
    """a [E, J, M, K] and b [E, J, K, N], each stored the other way round where it is `turned`; or two matrices, whose count is of rows. Added to c, in its
    bytes, where there is one."""
    entries, each = a.shape[:2] if a.ndim == 4 else (1, 1)
    shared = each // b.shape[1] if b.ndim == 4 else 1
    m, k = a.shape[:-3:-1] if turned[0] else a.shape[-2:]
    n = b.shape[-2 if turned[1] else -1]
    target = y_dtype or a.dtype
    y = poison((*a.shape[:-2], m, n), target) if c is None else c
    params = [entries, each, m, k, n, *map(int, turned), scale, NUMBER[a.dtype], NUMBER[target], int(a.ndim == 2)]
    params += [max(shared, 1), *steps(a), *steps(b), *steps(y)]
    operands = [a, b, counter(count), y]
    if c is not None:
        return launch(unit, "matmul_add", [c, *operands], params, writes=[4], status=status)[0]
    return launch(unit, "matmul", operands, params, writes=[3], status=status)[0]


def steps(x: Array) -> list[int]:
    """Elements between entries of the first batch axis, matrices and lines."""
    lead = (x.shape[1] * x.shape[2] * x.shape[3], x.shape[2] * x.shape[3]) if x.ndim == 4 else (0, 0)
    return [*lead, x.shape[-1]]


def draw(rng: np.random.Generator, *shape: int, dtype: np.dtype[Any] = F32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def turn(x: Array) -> Array:
    return np.ascontiguousarray(x.swapaxes(-1, -2))


@each_unit
@pytest.mark.parametrize(
    "size", [(1, 1, 1), (97, 127, 65), (96, 384, 64), (95, 385, 63), (5, 800, 3), (193, 3, 300)], ids=str
)
def test_sizes_around_blocks(unit: str, size: tuple[int, int, int], rng: np.random.Generator) -> None:
    m, k, n = size
    a, b = draw(rng, m, k), draw(rng, k, n)
    expected = wide(a) @ wide(b)
    y = matmul(unit, a, b)
    assert_near(y, expected, atol=2e-6 * k**0.5, rtol=2e-6)
    for turned in ((True, False), (False, True), (True, True)):  # other copies of the same numbers: the same bits
        other = matmul(unit, turn(a) if turned[0] else a, turn(b) if turned[1] else b, turned=turned)
        assert np.array_equal(bits(other), bits(y))


@each_unit
@each_float
def test_dtypes_and_scale(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    a, b = draw(rng, 2, 3, 17, 70, dtype=dtype), draw(rng, 2, 3, 70, 33, dtype=dtype)
    y = matmul(unit, a, b, scale=-0.3, y_dtype=F32)
    assert_near(y, -0.3 * (wide(a) @ wide(b)), atol=2e-5, rtol=2e-5)
    for y_dtype in FLOATS:
        assert np.array_equal(bits(matmul(unit, a, b, scale=-0.3, y_dtype=y_dtype)), bits(y.astype(y_dtype)))


@each_unit
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_row_has_the_same_bits_in_any_company(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    """Alone, at any place of a matrix, in any batch, for wide and narrow results."""
    a, b = draw(rng, 3, 1, 200, 300, dtype=dtype), draw(rng, 3, 1, 300, 700, dtype=dtype)
    y = matmul(unit, a, b)
    for entry, row in ((0, 0), (1, 95), (1, 96), (2, 199)):
        alone = matmul(unit, a[entry, 0, row : row + 1].copy(), b[entry, 0])
        assert np.array_equal(bits(alone[0]), bits(y[entry, 0, row]))
        narrow = matmul(unit, a[entry, 0, row : row + 5].copy(), b[entry, 0, :, 650:].copy())
        assert np.array_equal(bits(narrow[0]), bits(y[entry, 0, row, 650:]))


@each_unit
def test_counts_of_rows_and_of_batches(unit: str, rng: np.random.Generator) -> None:
    a, b = draw(rng, 7, 20), draw(rng, 20, 9)
    whole = matmul(unit, a, b)
    a[4:] = np.nan
    y = matmul(unit, a, b, count=4)
    assert np.array_equal(bits(y[:4]), bits(whole[:4]))
    assert is_poison(y[4:])
    left, right = draw(rng, 3, 2, 4, 5), draw(rng, 3, 2, 5, 6)
    whole = matmul(unit, left, right)
    y = matmul(unit, left, right, count=2)
    assert np.array_equal(bits(y[:2]), bits(whole[:2]))
    assert is_poison(y[2:])
    assert is_poison(matmul(unit, left, right, count=0))


@each_unit
def test_empty_sizes(unit: str) -> None:
    assert not matmul(unit, np.zeros((3, 0), F32), np.zeros((0, 70), F32)).any()
    assert matmul(unit, np.zeros((0, 3), F32), np.zeros((3, 4), F32)).size == 0
    assert matmul(unit, np.zeros((4, 3), F32), np.zeros((3, 0), F32)).size == 0
    assert matmul(unit, np.zeros((0, 2, 4, 3), F32), np.zeros((0, 2, 3, 5), F32)).size == 0


@each_unit
def test_what_is_not_finite_stays_in_its_row_and_column(unit: str, rng: np.random.Generator) -> None:
    a, b = draw(rng, 20, 40), draw(rng, 40, 70)
    a[3, 5], b[7, 66] = np.nan, np.inf
    y = matmul(unit, a, b)
    assert np.isnan(y[3]).all()
    finite = np.isfinite(np.delete(y, 3, 0))
    assert finite[:, :66].all()
    assert not finite[:, 66].any()
    assert finite[:, 67:].all()


@each_unit
def test_refusals(unit: str) -> None:
    a, b = np.zeros((4, 5), F32), np.zeros((5, 6), F32)
    natural = [1, 0, 0, 5, 0, 0, 6, 0, 0, 6]
    for dtype in (3, 5, 16, -1):
        params = [1, 1, 4, 5, 6, 0, 0, 1.0, dtype, 0, 1, *natural]
        operands = [a, b, None, poison((4, 6), F32)]
        assert is_poison(launch(unit, "matmul", operands, params, writes=[3], status=INVALID)[0])
    short = [a, b[:4].copy(), None, poison((4, 6), F32)]
    params = [1, 1, 4, 5, 6, 0, 0, 1.0, 0, 0, 1]
    assert is_poison(launch(unit, "matmul", short, [*params, *natural], writes=[3], status=INVALID)[0])
    for wrong in (
        [0, *natural[1:]],  # shared by none
        [2, *natural[1:]],  # by two of one
        [1, 0, 0, 6, *natural[4:]],  # lines of a past its end
        [1, 0, 0, 5, 0, 0, 7, 0, 0, 6],  # of b
        [*natural[:9], 7],  # of y
        [1, 0, 0, -5, *natural[4:]],
    ):
        whole = [a, b, None, poison((4, 6), F32)]
        assert is_poison(launch(unit, "matmul", whole, [*params, *wrong], writes=[3], status=INVALID)[0])


@each_unit
@each_float
def test_heads_are_read_and_written_where_they_lie(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    """Token-major values of two heads that three query heads each share, and a token-major context: the bits of the copies that it saves."""
    batch, heads, groups, queries, keys, width = 2, 6, 2, 9, 70, 24
    p, v = draw(rng, batch, heads, queries, keys, dtype=dtype), draw(rng, batch, keys, groups, width, dtype=dtype)
    y = poison((batch, queries, heads, width), dtype)
    params: list[int | float] = [batch, heads, queries, keys, width, 0, 0, 1.0, NUMBER[dtype], NUMBER[dtype], 0, 3]
    params += [*steps(p), keys * groups * width, width, groups * width, queries * heads * width, width, heads * width]
    found = launch(unit, "matmul", [p, v, None, y], params, writes=[3])[0]
    repeated = np.ascontiguousarray(np.repeat(v.transpose(0, 2, 1, 3), 3, axis=1))
    assert np.array_equal(bits(found), bits(matmul(unit, p, repeated).transpose(0, 2, 1, 3)))
    assert np.array_equal(
        bits(matmul(unit, p, np.ascontiguousarray(v.transpose(0, 2, 1, 3)))), bits(matmul(unit, p, repeated))
    )


@each_unit
@each_float
def test_sums_of_several_pieces_are_rounded_once(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    a, b = draw(rng, 100, 900, dtype=dtype), draw(rng, 900, 70, dtype=dtype)
    y = matmul(unit, a, b, y_dtype=F32)
    assert_near(y, wide(a) @ wide(b), atol=1e-4, rtol=1e-5)
    assert np.array_equal(bits(matmul(unit, a, b)), bits(y.astype(dtype)))


@each_unit
@each_float
def test_added_to_what_is_there(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    """Each way round, over one piece and several, in a batch, nothing at all, and no row past the count."""
    for m, k, n in ((97, 50, 65), (9, 800, 70)):
        a, b, c = draw(rng, m, k, dtype=dtype), draw(rng, k, n, dtype=dtype), draw(rng, m, n)
        expected = wide(c) - 0.5 * (wide(a) @ wide(b))
        y = matmul(unit, a, b, scale=-0.5, y_dtype=F32, c=c.copy())
        assert_near(y, expected, atol=2e-6 * k**0.5, rtol=2e-6)
        for turned in ((True, False), (False, True)):
            left, right = turn(a) if turned[0] else a, turn(b) if turned[1] else b
            other = matmul(unit, left, right, turned=turned, scale=-0.5, y_dtype=F32, c=c.copy())
            assert np.array_equal(bits(other), bits(y))
        some = matmul(unit, a, b, scale=-0.5, y_dtype=F32, count=4, c=c.copy())
        assert np.array_equal(bits(some), bits(np.concatenate([y[:4], c[4:]])))
    a, b, c = draw(rng, 2, 3, 9, 20, dtype=dtype), draw(rng, 2, 3, 20, 33, dtype=dtype), draw(rng, 2, 3, 9, 33)
    assert_near(matmul(unit, a, b, y_dtype=F32, c=c.copy()), wide(c) + wide(a) @ wide(b), atol=2e-5, rtol=2e-6)
    none = matmul(unit, a[..., :0].copy(), b[:, :, :0].copy(), y_dtype=F32, c=c.copy())
    assert np.array_equal(bits(none), bits(c))


def linear(
    unit: str,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    in_place: bool = False,
    count: int | None = None,
) -> Array:
    """x [rows, K] by a weight [N, K]; results of x's dtype."""
    rows, n = len(x), len(weight)
    y = residual.copy() if residual is not None and in_place else poison((rows, n), x.dtype)
    params = [rows, x.shape[1], n, NUMBER[x.dtype], NUMBER[weight.dtype], NUMBER[x.dtype]]
    operands = [x, weight, bias, y if in_place else residual, counter(count), y]
    return launch(unit, "linear_natural", operands, params, writes=[5])[0]


@each_unit
@each_float
def test_projections_by_weights_that_are_not_packed(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    for weight_dtype in FLOATS:
        x, weight = draw(rng, 101, 500, dtype=dtype), draw(rng, 90, 500, dtype=weight_dtype)
        bias, residual = draw(rng, 90), draw(rng, 101, 90, dtype=dtype)
        product = wide(x) @ wide(weight).T
        near = {"atol": 1e-4, "rtol": 1e-5 if dtype == F32 else 1e-2}
        assert_near(linear(unit, x, weight), product, **near)
        assert_near(linear(unit, x, weight, bias), product + bias, **near)
        y = linear(unit, x, weight, bias, residual)
        assert_near(y, product + bias + wide(residual), **near)
        assert np.array_equal(bits(linear(unit, x, weight, bias, residual, in_place=True)), bits(y))
        some = linear(unit, x, weight, bias, residual, count=7)
        assert np.array_equal(bits(some[:7]), bits(y[:7]))
        assert is_poison(some[7:])
        alone = linear(unit, x[99:100].copy(), weight, bias, residual[99:100].copy())
        assert np.array_equal(bits(alone[0]), bits(y[99]))
    empty = linear(unit, np.zeros((3, 0), dtype), np.zeros((70, 0), dtype), np.ones(70, F32))
    assert np.array_equal(wide(empty), np.ones((3, 70)))
