"""Attention of packed encoder rows against a float64 reference, for every unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from tests.backend_hip.test_native_attention import assert_accurate, attend


class Rows:
    """Rows of these lengths one after the other; the arrays may be changed before `run`."""

    def __init__(
        self,
        rng: np.random.Generator,
        lengths: Sequence[int],
        heads: tuple[int, int, int] = (12, 12, 32),
        dtype: np.dtype[Any] = F32,
    ) -> None:
        query, shared, width = heads
        tokens = sum(lengths)
        self.q = (2 * rng.standard_normal((tokens, query, width))).astype(dtype)
        self.k, self.v = (rng.standard_normal((tokens, shared, width)).astype(dtype) for _ in range(2))
        self.row_of_token = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
        self.length = np.array(lengths, np.int32)
        self.start = (np.cumsum(self.length) - self.length).astype(np.int32)
        self.scale = 1 / math.sqrt(width)

    def run(
        self, unit: str, *, y_dtype: np.dtype[Any] = F32, count: int | None = None, status: int = 0, fused: bool = False
    ) -> Array:
        """`fused`: q, k and v are columns of one array, as a fused projection leaves them."""
        tokens, heads, width = self.q.shape
        shared = self.k.shape[1]
        stored = [self.q, self.k, self.v]
        strides = [heads * width, width, shared * width, width, shared * width, width]
        if fused:
            whole = np.concatenate([x.reshape(tokens, -1) for x in stored], 1)
            each = [heads * width, shared * width, shared * width]
            stored = [np.ascontiguousarray(whole.reshape(-1)[sum(each[:i]) :]) for i in range(3)]
            strides = [whole.shape[1], width] * 3
        params: list[int | float] = [tokens, heads, shared, width, len(self.length), self.scale]
        params += [NUMBER[self.q.dtype], NUMBER[y_dtype], *strides]
        operands = [*stored, self.row_of_token, self.start, self.length, counter(count), poison(self.q.shape, y_dtype)]
        return launch(unit, "attention_bidirectional", operands, params, writes=[7], status=status)[0]

    def reference(self, dtype: type[np.floating[Any]] = np.float64) -> Array:
        y = np.zeros(self.q.shape, dtype)
        group = self.q.shape[1] // self.k.shape[1]
        for token, row in enumerate(self.row_of_token):
            if row < 0 or self.length[row] <= 0:
                continue
            seen = slice(int(self.start[row]), int(self.start[row] + self.length[row]))
            for head in range(self.q.shape[1]):
                k, v = self.k[seen, head // group], self.v[seen, head // group]
                y[token, head] = attend(self.q[token, head], k, v, self.scale, dtype)
        return y


LENGTHS = [5, 1, 31, 70, 64, 2]


@each_unit
@pytest.mark.parametrize(
    "heads", [(12, 12, 32), (1, 1, 1), (6, 2, 64), (3, 3, 80), (7, 1, 128), (2, 2, 300), (71, 1, 16)], ids=str
)
@pytest.mark.parametrize("fused", [False, True])
def test_rows(unit: str, heads: tuple[int, int, int], fused: bool, rng: np.random.Generator) -> None:
    rows = Rows(rng, LENGTHS if heads[0] * heads[2] < 512 else LENGTHS[:3], heads)
    assert_accurate(rows.run(unit, fused=fused), rows.reference(), rows.reference(np.float32))


@each_unit
@pytest.mark.parametrize("lengths", [[1], [64], [65], [128, 128], [33] * 6, [512], [1025, 3]], ids=str)
def test_lengths_around_tiles_and_segments(unit: str, lengths: list[int], rng: np.random.Generator) -> None:
    rows = Rows(rng, lengths, (2, 2, 8))
    assert_accurate(rows.run(unit), rows.reference(), rows.reference(np.float32))


@each_unit
@each_float
def test_dtypes(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    rows = Rows(rng, [9, 40], (4, 2, 40), dtype)
    for y_dtype in FLOATS:
        assert_near(rows.run(unit, y_dtype=y_dtype), rows.reference(), atol=2e-6, rtol=2e-5)


@each_unit
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_sequence_has_its_bits_in_every_batch(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    rows = Rows(rng, LENGTHS, (3, 3, 32), dtype)
    together = rows.run(unit)
    for row, length in enumerate(LENGTHS):
        alone = Rows(rng, [length], (3, 3, 32), dtype)
        tokens = slice(int(rows.start[row]), int(rows.start[row]) + length)
        alone.q, alone.k, alone.v = (x[tokens].copy() for x in (rows.q, rows.k, rows.v))
        assert np.array_equal(bits(alone.run(unit)), bits(together[tokens])), f"row {row}"


@each_unit
def test_fully_masked_row_gives_zeros_and_leaves_other_rows_intact(unit: str, rng: np.random.Generator) -> None:
    """Padding tokens between and behind the rows, and rows whose length is 0 or less, whatever lies there."""
    rows = Rows(rng, [6, 3, 9, 4, 5], (3, 1, 32))
    clean = rows.run(unit)
    rows.row_of_token[6:9] = (-1, -7, -(2**31))
    rows.length[2], rows.length[4] = 0, -2
    rows.start[4] = 10**6
    for x in (rows.q, rows.k, rows.v):
        x[6:18] = np.nan
    y = rows.run(unit)
    assert not wide(y[6:18]).any()
    assert not wide(y[22:]).any()
    assert np.array_equal(bits(y[:6]), bits(clean[:6]))
    assert np.array_equal(bits(y[18:22]), bits(clean[18:22]))


@each_unit
def test_tokens_in_any_order_and_rows_that_share_tokens(unit: str, rng: np.random.Generator) -> None:
    rows = Rows(rng, [40, 30, 60], (4, 2, 24))
    rows.row_of_token = rng.integers(-1, 3, 130).astype(np.int32)
    rows.start[:], rows.length[:] = (10, 0, 90), (100, 130, 1)
    assert_accurate(rows.run(unit), rows.reference(), rows.reference(np.float32))


@each_unit
def test_infinite_scores(unit: str, rng: np.random.Generator) -> None:
    """A row whose scores are all -inf gives zeros, one with NaN gives NaN, others are as they were."""
    rows = Rows(rng, [5, 5, 5], (1, 1, 4))
    clean = rows.run(unit)
    rows.q[5:10] = 1
    rows.k[5:10] = -np.inf
    rows.k[12] = np.nan
    y = rows.run(unit)
    assert not wide(y[5:10]).any()
    assert np.isnan(y[10:]).all()
    assert np.array_equal(bits(y[:5]), bits(clean[:5]))


@each_unit
def test_count_of_tokens(unit: str, rng: np.random.Generator) -> None:
    rows = Rows(rng, [20, 7, 6], (2, 2, 16))
    whole = rows.run(unit)
    y = rows.run(unit, count=27)
    assert np.array_equal(bits(y[:27]), bits(whole[:27]))
    assert is_poison(y[27:])
    assert is_poison(rows.run(unit, count=0))
    assert is_poison(rows.run(unit, count=-1))
    assert np.array_equal(bits(rows.run(unit, count=10**6)), bits(whole))
    y = rows.run(unit, count=26, status=OUT_OF_RANGE)  # a row that reaches past the valid tokens
    assert np.array_equal(bits(y[:20]), bits(whole[:20]))
    assert not wide(y[20:26]).any()


@each_unit
def test_bad_indices_give_zeros_and_a_status(unit: str, rng: np.random.Generator) -> None:
    good = Rows(rng, [5, 4, 6], (2, 2, 16))
    expected = good.run(unit)
    for name, row, value, bad in [
        ("row_of_token", 3, 3, range(3, 4)),
        ("row_of_token", 14, 2**31 - 1, range(14, 15)),
        ("start", 1, -1, range(5, 9)),
        ("start", 1, 12, range(5, 9)),
        ("start", 1, 2**31 - 1, range(5, 9)),
        ("length", 2, 7, range(9, 15)),
        ("length", 2, 2**31 - 1, range(9, 15)),
    ]:
        array = getattr(good, name)
        before = array[row]
        array[row] = value
        y = good.run(unit, status=OUT_OF_RANGE)
        array[row] = before
        fine = [token for token in range(15) if token not in bad]
        assert np.array_equal(bits(y[fine]), bits(expected[fine])), (name, row, value)
        assert not wide(y[list(bad)]).any()


@each_unit
def test_zero_size_launch(unit: str, rng: np.random.Generator) -> None:
    for lengths, heads in (([], (2, 2, 8)), ([0, 0], (2, 2, 8)), ([3], (0, 1, 8)), ([3], (2, 2, 0))):
        rows = Rows(rng, lengths, (*heads[:2], max(heads[2], 1)))
        if heads[2] == 0:
            rows.q, rows.k, rows.v = rows.q[..., :0], rows.k[..., :0], rows.v[..., :0]
        assert rows.run(unit).size == 0


@each_unit
def test_refusals(unit: str, rng: np.random.Generator) -> None:
    assert is_poison(Rows(rng, [3], (4, 3, 8)).run(unit, status=INVALID))
    assert is_poison(Rows(rng, [3], (1, 1, 1025)).run(unit, status=INVALID))
    short = Rows(rng, [3, 4], (2, 2, 8), F16)
    short.k = short.k[:-1].copy()
    assert is_poison(short.run(unit, status=INVALID))
    few = Rows(rng, [3, 4], (2, 2, 8))
    few.start = few.start[:1].copy()
    assert is_poison(few.run(unit, status=INVALID))
