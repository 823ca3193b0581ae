"""Writing keys and values into the block cache, for every unit."""

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
    OUT_OF_RANGE,
    Array,
    bits,
    counter,
    each_unit,
    launch,
    poison,
)


class Store:
    """Operands of one kv_store call."""

    def __init__(
        self,
        rng: np.random.Generator,
        positions: list[list[int]],
        *,
        heads: int = 2,
        width: int = 20,
        block_size: int = 4,
        in_dtype: np.dtype[Any] = F32,
        cache_dtype: np.dtype[Any] = F32,
    ) -> None:
        rows = len(positions)
        table_width = max((max(row, default=0) // block_size + 1 for row in positions), default=1)
        self.blocks = rows * table_width + 2
        self.block_size = block_size
        self.table = rng.permutation(self.blocks)[: rows * table_width].reshape(rows, table_width).astype(np.int32)
        self.row_of_token = np.array([row for row, places in enumerate(positions) for _ in places], np.int32)
        self.position = np.array([place for places in positions for place in places], np.int32)
        shape = (len(self.position), heads, width)
        self.k, self.v = (rng.standard_normal(shape).astype(in_dtype) for _ in range(2))
        self.caches = [poison((self.blocks, heads, block_size, width), cache_dtype) for _ in range(2)]

    def run(self, unit: str, count: int | None = None, status: int = 0) -> list[Array]:
        tokens, heads, width = self.k.shape
        params = [tokens, heads, width, self.blocks, self.block_size, self.table.shape[1], len(self.table)]
        params += [NUMBER[self.k.dtype], NUMBER[self.caches[0].dtype]]
        operands = [self.k, self.v, self.row_of_token, self.position, self.table, counter(count), *self.caches]
        return launch(unit, "kv_store", operands, params, writes=[6, 7], status=status)

    def expected(self, tokens: list[int]) -> list[Array]:
        result = [cache.copy() for cache in self.caches]
        for token in tokens:
            place = int(self.position[token])
            block = self.table[self.row_of_token[token], place // self.block_size]
            for cache, source in zip(result, (self.k, self.v), strict=True):
                cache[block, :, place % self.block_size] = source[token].astype(F32).astype(cache.dtype)
        return result

    def check(self, unit: str, tokens: list[int] | None = None, count: int | None = None, status: int = 0) -> None:
        expected = self.expected(list(range(len(self.k))) if tokens is None else tokens)
        for found, wanted in zip(self.run(unit, count, status), expected, strict=True):
            assert np.array_equal(bits(found), bits(wanted))


@each_unit
@pytest.mark.parametrize("in_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("cache_dtype", FLOATS, ids=str)
def test_every_dtype(unit: str, in_dtype: np.dtype[Any], cache_dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    Store(rng, [[0, 1, 2, 3, 4], [9], [5, 6]], in_dtype=in_dtype, cache_dtype=cache_dtype).check(unit)


@each_unit
@pytest.mark.parametrize("width", [1, 3, 64, 100])
@pytest.mark.parametrize("block_size", [1, 5, 2048])
def test_shapes(unit: str, width: int, block_size: int, rng: np.random.Generator) -> None:
    Store(rng, [[7], [], [0, 1]], heads=3, width=width, block_size=block_size, cache_dtype=BF16).check(unit)


@each_unit
def test_many_tokens(unit: str, rng: np.random.Generator) -> None:
    Store(rng, [list(range(1100))], heads=4, width=64, block_size=16).check(unit)


@each_unit
def test_skipped_rows_and_count(unit: str, rng: np.random.Generator) -> None:
    store = Store(rng, [[0, 1, 2], [3, 4, 5, 6]])
    store.row_of_token[1] = -1
    store.row_of_token[4] = -9
    store.position[1] = -3  # not looked at
    store.check(unit, [0, 2, 3, 5, 6])
    store.check(unit, [0, 2, 3], count=5 - 1)
    store.check(unit, [], count=0)
    store.check(unit, [0, 2, 3, 5, 6], count=100)


@each_unit
def test_bad_indices_are_skipped_and_reported(unit: str, rng: np.random.Generator) -> None:
    def store() -> Store:
        return Store(np.random.default_rng(seed), [[0, 1, 9], [3, 4, 5, 6]])

    seed = int(rng.integers(2**31))
    for row in (2, 2**31 - 1):
        bad = store()
        bad.row_of_token[3] = row
        bad.check(unit, [0, 1, 2, 4, 5, 6], status=OUT_OF_RANGE)
    for position in (-1, 12, 2**31 - 1, -(2**31)):
        bad = store()
        bad.position[0] = position
        bad.check(unit, [1, 2, 3, 4, 5, 6], status=OUT_OF_RANGE)
    for block in (-1, bad.blocks, -(2**31), 2**31 - 1):
        bad = store()
        bad.table[0, 2] = block
        bad.check(unit, [0, 1, 3, 4, 5, 6], status=OUT_OF_RANGE)


@each_unit
def test_nothing_to_store_and_refusals(unit: str, rng: np.random.Generator) -> None:
    Store(rng, [[], []]).check(unit)
    Store(rng, [[0], [1]], heads=0).check(unit)
    Store(rng, [[0], [1]], width=0).check(unit)
    short = Store(rng, [[0], [1]])
    short.blocks += 1
    short.check(unit, [], status=INVALID)
