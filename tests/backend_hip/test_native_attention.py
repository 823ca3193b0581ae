"""Attention over the block cache against a float64 reference, for every unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.backend_hip.kernel_harness import (
    F32,
    FLOATS,
    INVALID,
    NUMBER,
    OUT_OF_RANGE,
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

F64 = npt.NDArray[np.float64]


def attend(
    q: Array, k: Array, v: Array, scale: float, dtype: type[np.floating[Any]] = np.float64, soft_cap: float = 0.0
) -> Array:
    """[D] against the keys it sees, [S,D]: softmax(scale q k) v in `dtype`, scores bounded by the cap."""
    if len(k) == 0:
        return np.zeros(v.shape[1], dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = (k.astype(dtype) @ q.astype(dtype)) * dtype(scale)
        if soft_cap:
            scores = dtype(soft_cap) * np.tanh(scores / dtype(soft_cap))
        top = scores.max()
        weights = np.exp(scores - (top if np.isfinite(top) else dtype(0)))
        total = weights.sum()
        if total == 0:
            return np.zeros(v.shape[1], dtype)
        result: Array = (weights / total) @ v.astype(dtype)
    return result


@dataclass
class Batch:
    """A packed batch over a block cache, with its operands in the order of the kernel."""

    q: Array
    k_cache: Array
    v_cache: Array
    row_of_token: Array
    position: Array
    block_table: Array
    length: Array
    scale: float
    window: int = 0
    soft_cap: float = 0.0

    @property
    def kv_heads(self) -> int:
        return int(self.k_cache.shape[1])

    @property
    def block_size(self) -> int:
        return int(self.k_cache.shape[2])

    def run(
        self,
        unit: str,
        *,
        y_dtype: np.dtype[Any] = F32,
        count: int | None = None,
        status: int = 0,
        threads: tuple[int, ...] = (1, 2, 3),
    ) -> Array:
        tokens, heads, width = self.q.shape
        params: list[int | float] = [
            tokens,
            heads,
            self.kv_heads,
            width,
            len(self.k_cache),
            self.block_size,
            self.block_table.shape[1],
        ]
        params += [len(self.length), self.scale, self.window, self.soft_cap]
        params += [NUMBER[self.q.dtype], NUMBER[self.k_cache.dtype], NUMBER[y_dtype]]
        operands = [self.q, self.k_cache, self.v_cache, self.row_of_token, self.position, self.block_table, self.length]
        y = poison(self.q.shape, y_dtype)
        return launch(
            unit, "attention_packed", [*operands, counter(count), y], params, writes=[8], status=status, threads=threads
        )[0]

    def seen(self, token: int) -> range:
        row, position = int(self.row_of_token[token]), int(self.position[token])
        end = 0 if row < 0 else max(0, min(position + 1, int(self.length[row])))
        return range(max(0, position - self.window + 1) if self.window else 0, end)

    def keys(self, cache: Array, token: int, head: int) -> Array:
        """[keys,D] that a token sees of one KV head."""
        row, seen = int(self.row_of_token[token]), self.seen(token)
        places = [(int(self.block_table[row, j // self.block_size]), j % self.block_size) for j in seen]
        return np.array([cache[block, head, inside] for block, inside in places], cache.dtype).reshape(
            len(seen), cache.shape[3]
        )

    def reference(self, dtype: type[np.floating[Any]] = np.float64) -> Array:
        group = self.q.shape[1] // self.kv_heads
        y = np.zeros(self.q.shape, dtype)
        for token in range(len(self.q)):
            for kv in range(self.kv_heads):
                k, v = self.keys(self.k_cache, token, kv), self.keys(self.v_cache, token, kv)
                for head in range(kv * group, (kv + 1) * group):
                    y[token, head] = attend(self.q[token, head], k, v, self.scale, dtype, self.soft_cap)
        return y


def make_batch(
    rng: np.random.Generator,
    chunks: list[tuple[int, int]],
    *,
    heads: int = 6,
    kv_heads: int = 2,
    width: int = 64,
    block_size: int = 16,
    q_dtype: np.dtype[Any] = F32,
    cache_dtype: np.dtype[Any] = F32,
) -> Batch:
    """One row for each (first position, tokens): those tokens ask for everything up to themselves. Unused cache is NaN."""
    rows = len(chunks)
    table_width = max(1, max((-(-(first + tokens) // block_size) for first, tokens in chunks), default=1))
    blocks = rows * table_width + 1
    table = rng.permutation(blocks)[: rows * table_width].reshape(rows, table_width).astype(np.int32)
    caches = [np.full((blocks, kv_heads, block_size, width), np.nan, cache_dtype) for _ in range(2)]
    for row, (first, tokens) in enumerate(chunks):
        for j in range(first + tokens):
            for cache in caches:
                cache[table[row, j // block_size], :, j % block_size] = rng.standard_normal((kv_heads, width)).astype(
                    cache_dtype
                )
    row_of_token = [row for row, (_, tokens) in enumerate(chunks) for _ in range(tokens)]
    position = [first + i for first, tokens in chunks for i in range(tokens)]
    q = (2 * rng.standard_normal((len(position), heads, width))).astype(q_dtype)
    return Batch(
        q,
        caches[0],
        caches[1],
        np.array(row_of_token, np.int32),
        np.array(position, np.int32),
        table,
        np.array([first + tokens for first, tokens in chunks], np.int32),
        1 / math.sqrt(width),
    )


def assert_accurate(actual: Array, exact: Array, plain: Array) -> None:
    """At most twice the error of a plain float32 composition in the mean of squares, four times at the worst (and never asked to beat a few roundings)."""
    error, allowed = np.abs(wide(actual) - exact), np.abs(wide(plain) - exact)
    assert error.max(initial=0.0) <= 4 * allowed.max(initial=0.0) + 5e-7
    if error.size:
        assert np.sqrt(np.mean(error**2)) <= 2 * np.sqrt(np.mean(allowed**2)) + 1e-7


MIXED = [(0, 5), (70, 1), (3, 1), (0, 1), (20, 30), (130, 2)]


@each_unit
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 1), (6, 2), (14, 2), (5, 5)])
def test_packed_mixed_batch(unit: str, heads: int, kv_heads: int, rng: np.random.Generator) -> None:
    batch = make_batch(rng, MIXED, heads=heads, kv_heads=kv_heads)
    assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))


@each_unit
@pytest.mark.parametrize("width", [1, 2, 7, 16, 48, 80, 100, 128, 192, 256, 300, 600, 1024])
def test_packed_head_widths(unit: str, width: int, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(0, 3), (75, 1), (17, 2)], heads=3, kv_heads=1, width=width)
    assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))


@each_unit
@pytest.mark.parametrize("q_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("cache_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("y_dtype", FLOATS, ids=str)
def test_packed_dtypes(
    unit: str, q_dtype: np.dtype[Any], cache_dtype: np.dtype[Any], y_dtype: np.dtype[Any], rng: np.random.Generator
) -> None:
    batch = make_batch(rng, [(0, 9), (40, 1)], width=72, q_dtype=q_dtype, cache_dtype=cache_dtype)
    assert_near(batch.run(unit, y_dtype=y_dtype), batch.reference(), atol=2e-6, rtol=2e-5)
    if y_dtype != F32:  # one rounding of the float32 result
        exact = batch.run(unit, threads=(1,)).astype(y_dtype)
        assert np.array_equal(bits(batch.run(unit, y_dtype=y_dtype, threads=(1,))), bits(exact))


@each_unit
@pytest.mark.parametrize("block_size", [1, 3, 16, 64, 100, 2048])
def test_packed_block_sizes(unit: str, block_size: int, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(0, 4), (150, 3), (63, 1), (64, 1)], width=32, block_size=block_size)
    assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))


@each_unit
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (2, 2)])
def test_packed_long_contexts(unit: str, heads: int, kv_heads: int, rng: np.random.Generator) -> None:
    """Several segments: shared out over workers where tokens are few, in turn where one thread runs; harness compares the bits."""
    batch = make_batch(rng, [(2600, 1)], heads=heads, kv_heads=kv_heads, block_size=128)
    assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))
    batch = make_batch(rng, [(1500, 1), (511, 1), (512, 1)], heads=heads, kv_heads=kv_heads, block_size=4096)
    assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))


@each_unit
def test_packed_segments_in_several_waves(unit: str, rng: np.random.Generator) -> None:
    """More partial results than the kernel has room for at once."""
    batch = make_batch(rng, [(3000, 1), (2900, 1), (3060, 1)], heads=8, kv_heads=1, width=256, block_size=1024)
    assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))


@each_unit
def test_packed_random_batches(unit: str, rng: np.random.Generator) -> None:
    """Tokens in any order, several runs of one row, positions and lengths that do not ascend."""
    for _ in range(12):
        heads, kv_heads = [(1, 1), (4, 1), (6, 2), (7, 7), (9, 3)][int(rng.integers(5))]
        chunks = [(int(rng.integers(200)), int(rng.integers(1, 40))) for _ in range(int(rng.integers(1, 5)))]
        width, block_size = int(rng.integers(1, 140)), int(rng.integers(1, 300))
        dtypes = [FLOATS[int(rng.integers(3))] for _ in range(2)]
        batch = make_batch(
            rng,
            chunks,
            heads=heads,
            kv_heads=kv_heads,
            width=width,
            block_size=block_size,
            q_dtype=dtypes[0],
            cache_dtype=dtypes[1],
        )
        order = rng.permutation(len(batch.q))
        batch.row_of_token, batch.q = batch.row_of_token[order], batch.q[order]
        batch.position = rng.permutation(batch.position)
        batch.length -= rng.integers(0, 3, len(batch.length)).astype(np.int32)
        assert_near(batch.run(unit), batch.reference(), atol=2e-6, rtol=2e-5)


@each_unit
def test_packed_prompt_over_segments(unit: str, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(500, 90)], heads=3, kv_heads=1, width=16, block_size=600)
    assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))


@each_unit
def test_packed_token_alone_has_the_bits_it_has_in_a_batch(unit: str, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(0, 70), (900, 3)], heads=6, kv_heads=2, width=24, block_size=32)
    together = batch.run(unit)
    for token in (0, 1, 37, 63, 64, 69, 70, 72):
        alone = Batch(
            batch.q[token : token + 1].copy(),
            batch.k_cache,
            batch.v_cache,
            batch.row_of_token[token : token + 1].copy(),
            batch.position[token : token + 1].copy(),
            batch.block_table,
            batch.length,
            batch.scale,
        )
        assert np.array_equal(bits(alone.run(unit)[0]), bits(together[token])), f"token {token}"


@each_unit
def test_packed_keys_past_a_tokens_own_position_do_not_touch_it(unit: str, rng: np.random.Generator) -> None:
    """Later keys of the same row, which its neighbours see, may hold NaN and infinity."""
    batch = make_batch(rng, [(0, 20)], heads=3, kv_heads=1, block_size=32)
    clean = batch.run(unit)
    batch.k_cache[batch.block_table[0, 0], :, 10:] = np.nan
    batch.v_cache[batch.block_table[0, 0], :, 10:] = np.inf
    dirty = batch.run(unit)
    assert np.array_equal(bits(dirty[:10]), bits(clean[:10]))
    assert np.isnan(wide(dirty[10:])).all()


@each_unit
def test_packed_count_length_and_skipped_rows(unit: str, rng: np.random.Generator) -> None:
    batch = make_batch(rng, MIXED)
    batch.row_of_token[2] = -1
    batch.row_of_token[7] = -5
    batch.length[5] = 0
    batch.length[4] = 33  # shorter than some of its positions
    batch.length[0] = -7
    batch.position[5] = -1
    y = batch.run(unit, count=39)
    exact = batch.reference()
    assert_accurate(y[:39], exact[:39], batch.reference(np.float32)[:39])
    for token in (0, 2, 5, 7, 38):
        assert not wide(y[token]).any()
    assert is_poison(y[39:])
    assert is_poison(batch.run(unit, count=0))
    assert is_poison(batch.run(unit, count=-3))
    assert not is_poison(batch.run(unit, count=10**6))


@each_unit
def test_packed_bad_indices_give_zeros_and_a_status(unit: str, rng: np.random.Generator) -> None:
    good = make_batch(rng, [(0, 5), (40, 1), (20, 20), (10, 3)], block_size=16)
    expected = good.run(unit)

    def check(batch: Batch, bad: list[int]) -> None:
        y = batch.run(unit, status=OUT_OF_RANGE)
        fine = [token for token in range(len(y)) if token not in bad]
        assert np.array_equal(bits(y[fine]), bits(expected[fine]))
        assert not wide(y[bad]).any()

    def copy(**changes: Array) -> Batch:
        fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
        return Batch(**(fields | changes))

    rows = good.row_of_token.copy()
    rows[3] = 4
    rows[28] = 2**31 - 1
    check(copy(row_of_token=rows), [3, 28])
    table = good.block_table.copy()
    table[2, 1] = len(good.k_cache)  # positions 16.. of row 2
    check(copy(block_table=table), list(range(6, 26)))
    table = good.block_table.copy()
    table[2, 2] = -1  # positions 32..
    check(copy(block_table=table), list(range(18, 26)))
    length, position = good.length.copy(), good.position.copy()
    length[1] = 10**6
    position[5] = 2**31 - 1
    check(copy(length=length, position=position), [5])


@each_unit
def test_packed_scale_of_either_sign_and_zero(unit: str, rng: np.random.Generator) -> None:
    for scale in (-0.3, 0.0, 1.0):
        batch = make_batch(rng, [(0, 6), (80, 1)], width=20)
        batch.scale = scale
        # the contract's bound: scores of 20 and more carry the rounding of their own dot product, in whatever order it is summed
        assert_near(batch.run(unit), batch.reference(), atol=2e-5, rtol=2e-5)


@each_unit
def test_packed_extreme_scores(unit: str, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(0, 70)], heads=1, kv_heads=1, width=4, block_size=128)
    batch.scale = 1.0
    cache = batch.k_cache[batch.block_table[0, 0], 0]
    cache[:70] = 0
    batch.q[...] = 1
    cache[0] = -np.inf  # token 0 sees scores of -inf only
    cache[65, 0] = 300.0  # far above all others
    y = batch.run(unit)
    assert_near(y, batch.reference(), atol=2e-6, rtol=2e-5)
    assert not y[0].any()
    cache[3, 0] = np.nan
    y = batch.run(unit)
    assert np.isnan(y[3:]).all()
    assert np.isfinite(y[:3]).all()
    cache[3, 0] = np.inf
    assert np.isnan(batch.run(unit)[3:]).all()


@each_unit
def test_packed_many_heads_of_one_group(unit: str, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(0, 3), (66, 1)], heads=71, kv_heads=1, width=16)
    assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))


@each_unit
def test_packed_nothing_to_do(unit: str, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(0, 1)])
    for shape in ((0, 6, 64), (1, 0, 64), (1, 6, 0)):
        empty = Batch(**({n: getattr(batch, n) for n in batch.__dataclass_fields__} | {"q": np.zeros(shape, F32)}))
        empty.k_cache = empty.v_cache = np.zeros((2, 2, 16, shape[2]), F32)
        assert empty.run(unit).shape == shape


@each_unit
def test_packed_refuses_what_it_cannot_do(unit: str, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(0, 2)], heads=4, kv_heads=3)
    assert is_poison(batch.run(unit, status=INVALID))
    batch = make_batch(rng, [(0, 2)], heads=1, kv_heads=1, width=1025)
    assert is_poison(batch.run(unit, status=INVALID))
    batch = make_batch(rng, [(0, 2)])
    batch.k_cache = batch.k_cache[:-1].copy()
    batch.v_cache = np.concatenate([batch.v_cache, batch.v_cache])
    batch.k_cache, batch.v_cache = batch.v_cache, batch.k_cache  # values shorter than keys say
    assert is_poison(batch.run(unit, status=INVALID))
