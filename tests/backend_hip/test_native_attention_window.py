"""Sliding windows and soft caps of the attention kernels: what is seen, what is left out, and the same bits in every company, for every unit."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import fields, replace

import numpy as np
import pytest

from ostinato.backend_hip import _native
from tests.backend_hip.kernel_harness import (
    BF16,
    F32,
    INVALID,
    NUMBER,
    OUT_OF_RANGE,
    THREADS,
    Array,
    assert_near,
    bits,
    device,
    each_unit,
    is_poison,
    wide,
)
from tests.backend_hip.test_native_attention import MIXED, Batch, assert_accurate, make_batch
from tests.backend_hip.test_native_attention_causal import causal_inputs, causal_reference, run_causal


def token_alone(batch: Batch, token: int) -> Batch:
    per_token = ("q", "row_of_token", "position")
    kept = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return Batch(
        **{name: value[token : token + 1].copy() if name in per_token else value for name, value in kept.items()}
    )


@each_unit
def test_sliding_window_off_by_one(unit: str) -> None:
    """W=4, T=6: token i sees the keys i-3 to i, evenly where all scores are equal, and each key's value tells which it was."""
    q, k = np.zeros((1, 6, 1, 6), F32), np.zeros((1, 6, 1, 6), F32)
    v = np.eye(6, dtype=F32).reshape(1, 6, 1, 6)
    expected = [[1.0 / min(i + 1, 4) if i - 3 <= j <= i else 0.0 for j in range(6)] for i in range(6)]
    y = run_causal(unit, q, k, v, 1.0, window=4)
    assert_near(y[0, :, 0], np.array(expected), atol=0, rtol=1.2e-7)
    k_cache, v_cache = (x.transpose(0, 2, 1, 3).copy() for x in (k, v))
    order, table, length = np.arange(6, dtype=np.int32), np.zeros((1, 1), np.int32), np.array([6], np.int32)
    packed = Batch(q[0], k_cache, v_cache, 0 * order, order, table, length, 1.0, window=4)
    assert np.array_equal(bits(packed.run(unit)), bits(y[0]))


@each_unit
@pytest.mark.parametrize("window", [1, 2, 4, 15, 16, 17, 31, 33, 63, 64, 65, 130, 2**40])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (3, 3)])
def test_packed_windows(unit: str, window: int, heads: int, kv_heads: int, rng: np.random.Generator) -> None:
    batch = replace(make_batch(rng, MIXED, heads=heads, kv_heads=kv_heads, width=32), window=window)
    assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))


@each_unit
@pytest.mark.parametrize("window", [1, 5, 16, 64, 100, 129, 130, 1000])
@pytest.mark.parametrize("layouts", ["ttt", "hht"])
def test_causal_windows(unit: str, window: int, layouts: str, rng: np.random.Generator) -> None:
    q, k, v = causal_inputs(rng, (2, 130, 4, 2, 16))
    y = run_causal(unit, q, k, v, 0.25, layouts=layouts, window=window)
    exact = causal_reference(q, k, v, 0.25, window=window)
    assert_accurate(y, exact, causal_reference(q, k, v, 0.25, np.float32, window=window))


@each_unit
def test_a_window_as_long_as_what_there_is_changes_no_bit(unit: str, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(0, 70), (600, 3)], width=24, cache_dtype=BF16)
    open_end = batch.run(unit)
    for window in (603, 604, 2**31, 2**63 - 1):
        assert np.array_equal(bits(replace(batch, window=window).run(unit)), bits(open_end))
    q, k, v = causal_inputs(rng, (1, 90, 2, 1, 16))
    assert np.array_equal(bits(run_causal(unit, q, k, v, 0.3, window=90)), bits(run_causal(unit, q, k, v, 0.3)))


@each_unit
@pytest.mark.parametrize("window", [7, 40, 512, 700])
def test_a_token_has_its_bits_in_every_company(unit: str, window: int, rng: np.random.Generator) -> None:
    """Alone and in a batch, over the cache and dense, across chunks and segments; the harness compares 1, 2 and 3 threads."""
    batch = replace(
        make_batch(rng, [(0, 70), (1490, 60)], heads=4, kv_heads=2, width=16, block_size=2048), window=window
    )
    together = batch.run(unit)
    for token in (0, 6, 7, 8, 39, 40, 69, 70, 93, 94, 115, 129):
        alone = token_alone(batch, token).run(unit)
        assert np.array_equal(bits(alone[0]), bits(together[token])), f"token {token}"
    block = int(batch.block_table[0, 0])
    k, v = (cache[block, :, :70].transpose(1, 0, 2)[None] for cache in (batch.k_cache, batch.v_cache))
    dense = run_causal(unit, batch.q[None, :70], k, v, batch.scale, window=window)
    assert np.array_equal(bits(dense[0]), bits(together[:70]))


@each_unit
def test_windows_over_several_segments(unit: str, rng: np.random.Generator) -> None:
    """Few tokens and many keys: segments are shared out over the workers, from the window's own first segment on."""
    for window in (600, 1024, 1025, 2200):
        batch = make_batch(rng, [(2600, 1), (1023, 1), (30, 1)], heads=3, kv_heads=1, width=16, block_size=128)
        batch = replace(batch, window=window)
        assert_accurate(batch.run(unit), batch.reference(), batch.reference(np.float32))


@each_unit
def test_windows_of_tokens_in_any_order(unit: str, rng: np.random.Generator) -> None:
    for _ in range(8):
        chunks = [(int(rng.integers(700)), int(rng.integers(1, 40))) for _ in range(int(rng.integers(1, 4)))]
        batch = make_batch(rng, chunks, heads=4, kv_heads=2, width=int(rng.integers(1, 70)), block_size=100)
        order = rng.permutation(len(batch.q))
        batch = replace(
            batch,
            row_of_token=batch.row_of_token[order],
            position=rng.permutation(batch.position),
            length=batch.length - rng.integers(0, 9, len(batch.length)).astype(np.int32),
            window=int(rng.integers(1, 200)),
            soft_cap=float(rng.choice([0.0, 3.0])),
        )
        assert_near(batch.run(unit), batch.reference(), atol=4e-6, rtol=2e-5)


@each_unit
def test_keys_before_the_window_do_not_touch_a_token(unit: str, rng: np.random.Generator) -> None:
    """They may hold NaN and infinity, which tokens whose window reaches them do see."""
    batch = replace(make_batch(rng, [(0, 40)], heads=3, kv_heads=1, block_size=64), window=10)
    clean = batch.run(unit)
    batch.k_cache[batch.block_table[0, 0], :, :20] = np.nan
    batch.v_cache[batch.block_table[0, 0], :, :20] = np.inf
    dirty = batch.run(unit)
    assert np.array_equal(bits(dirty[29:]), bits(clean[29:]))
    assert np.isnan(wide(dirty[:29])).all()


@each_unit
def test_a_token_whose_window_lies_past_the_length_gets_zeros(unit: str, rng: np.random.Generator) -> None:
    batch = replace(make_batch(rng, [(0, 12)], heads=2, kv_heads=2, width=16), window=3)
    batch.length[0] = 8
    y = batch.run(unit)
    assert_accurate(y, batch.reference(), batch.reference(np.float32))
    assert not wide(y[10:]).any()
    assert wide(y[9]).any()


@each_unit
def test_blocks_before_the_window_need_not_exist(unit: str, rng: np.random.Generator) -> None:
    batch = replace(make_batch(rng, [(60, 6), (3, 1)], block_size=8), window=20)
    expected = batch.run(unit)
    batch.block_table[0, :4] = (-1, 10**6, -(2**31), 2**31 - 1)
    batch.block_table[0, 4] = -1  # keys 32 to 39; the first token sees 41 and later ones
    assert np.array_equal(bits(batch.run(unit)), bits(expected))
    batch.block_table[0, 5] = -1  # keys 40 to 47: the tokens at 60 to 65 see 41, .., 46 and later ones
    y = batch.run(unit, status=OUT_OF_RANGE)
    assert not wide(y[:6]).any()
    assert np.array_equal(bits(y[6]), bits(expected[6]))


@each_unit
@pytest.mark.parametrize("tokens", [1, 40])
def test_keys_outside_every_window_are_not_read(unit: str, tokens: int, rng: np.random.Generator) -> None:
    """Blocks of one page each; those that hold no key of a window cannot be read, so work that is not left out is a crash here."""
    block_size, width, blocks, window = 64, 16, 32, 100
    page = block_size * width * 4
    assert page % mmap.PAGESIZE == 0
    batch = make_batch(
        rng, [(2048 - tokens, tokens)], heads=2, kv_heads=1, width=width, block_size=block_size, cache_dtype=F32
    )
    order = np.arange(blocks, dtype=np.int32)[None]
    caches = [cache[batch.block_table[0]] for cache in (batch.k_cache, batch.v_cache)]
    batch = replace(batch, k_cache=caches[0], v_cache=caches[1], block_table=order, window=window)
    expected = batch.run(unit)
    first = (2048 - tokens - window + 1) // block_size
    memories = [mmap.mmap(-1, blocks * page) for _ in caches]
    views = [np.frombuffer(memory, F32).reshape(cache.shape) for memory, cache in zip(memories, caches, strict=True)]
    for view, cache in zip(views, caches, strict=True):
        view[...] = cache
        protect(view, first * page)
    y = np.full(batch.q.shape, np.nan, F32)
    inputs = [batch.q, *views, batch.row_of_token, batch.position, batch.block_table, batch.length]
    params: list[int | float] = [tokens, 2, 1, width, blocks, block_size, blocks, 1, batch.scale, window, 0.0]
    params += [NUMBER[F32]] * 3
    for threads in THREADS:
        host = device(unit, threads)
        addresses = [*((a.ctypes.data, a.nbytes) for a in inputs), (0, 0), (y.ctypes.data, y.nbytes)]
        _native.Table(host, [(0, host.kernel("attention_packed"), 0, addresses, params, [], [])]).run()
        assert np.array_equal(bits(y), bits(expected))


def protect(array: Array, count: int) -> None:
    """The first `count` bytes of an array that fills whole pages can no longer be read or written."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(count), 0):
        raise OSError(ctypes.get_errno(), "mprotect")


@each_unit
@pytest.mark.parametrize(
    ("soft_cap", "scale"), [(50.0, 0.125), (30.0, 3.0), (5.0, 1.0), (1.0, 1.0), (0.01, 2.0), (1e6, 0.1)]
)
@pytest.mark.parametrize("window", [0, 40])
def test_soft_caps(unit: str, soft_cap: float, scale: float, window: int, rng: np.random.Generator) -> None:
    """From caps that hardly bend a score to caps at which most saturate, within the contract's tolerance."""
    batch = make_batch(rng, [(0, 9), (150, 2)], heads=4, kv_heads=2, width=48)
    batch = replace(batch, scale=scale, soft_cap=soft_cap, window=window)
    assert_near(batch.run(unit), batch.reference(), atol=2e-5, rtol=2e-5)
    q, k, v = causal_inputs(rng, (1, 70, 4, 2, 16))
    y = run_causal(unit, q, k, v, scale, soft_cap=soft_cap, window=window)
    exact = causal_reference(q, k, v, scale, window=window, soft_cap=soft_cap)
    assert_near(y, exact, atol=2e-5, rtol=2e-5)


@each_unit
@pytest.mark.parametrize("soft_cap", [50.0, 30.0, 5.0, 1.0, 0.01])
def test_a_soft_cap_adds_no_more_error_than_a_plain_float32_one(
    unit: str, soft_cap: float, rng: np.random.Generator
) -> None:
    """Heads of one element, so that scores are exact before the cap: from 0 to where it saturates, and every smaller binade."""
    shape = (1, 40, 60, 1)
    k = (soft_cap * rng.uniform(-2, 2, shape) * 0.5 ** rng.integers(0, 6, shape)).astype(F32)
    q, v = np.ones(shape, F32), rng.standard_normal(shape).astype(F32)
    y = run_causal(unit, q, k, v, 1.0, soft_cap=soft_cap)
    exact = causal_reference(q, k, v, 1.0, soft_cap=soft_cap)
    assert_accurate(y, exact, causal_reference(q, k, v, 1.0, np.float32, soft_cap=soft_cap))


@each_unit
def test_capped_scores_cannot_overflow(unit: str) -> None:
    """Two keys, scores of +inf and -inf: c and -c. A score that is not a number stays one."""
    q, v = np.ones((1, 2, 1, 1), F32), np.array([0.0, 1.0], F32).reshape(1, 2, 1, 1)
    k = np.array([-np.inf, np.inf], F32).reshape(1, 2, 1, 1)
    y = run_causal(unit, q, k, v, 1.0, soft_cap=2.0)
    assert_near(y[0, :, 0, 0], np.array([0.0, 1 / (1 + np.exp(-4.0))]), atol=0, rtol=5e-7)
    k[0, 1] = np.nan
    assert np.isnan(run_causal(unit, q, k, v, 1.0, soft_cap=2.0)[0, 1, 0, 0])


@each_unit
@pytest.mark.parametrize(
    ("window", "soft_cap"), [(-1, 0.0), (-(2**63), 0.0), (0, -1.0), (0, float("inf")), (0, float("nan"))]
)
def test_windows_and_caps_without_meaning_are_refused(
    unit: str, window: int, soft_cap: float, rng: np.random.Generator
) -> None:
    batch = replace(make_batch(rng, [(0, 3)]), window=window, soft_cap=soft_cap)
    assert is_poison(batch.run(unit, status=INVALID))
    q, k, v = causal_inputs(rng, (1, 3, 2, 2, 8))
    assert is_poison(run_causal(unit, q, k, v, 1.0, window=window, soft_cap=soft_cap, status=INVALID))
