"""Attention over whole sequences against a float64 reference, and bit for bit against the cached kernel, for every unit."""

from __future__ import annotations

import math
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
    Array,
    assert_near,
    bits,
    each_float,
    each_unit,
    is_poison,
    launch,
    poison,
)
from tests.backend_hip.test_native_attention import assert_accurate, attend, make_batch


def causal_reference(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    dtype: type[np.floating[Any]] = np.float64,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Array:
    """q [B,T,H,D], k and v [B,T,KV,D] -> [B,T,H,D]."""
    group = q.shape[2] // k.shape[2]
    y = np.zeros(q.shape, dtype)
    for b, t, h in np.ndindex(*q.shape[:3]):
        seen = slice(max(0, t - window + 1) if window else 0, t + 1)
        y[b, t, h] = attend(q[b, t, h], k[b, seen, h // group], v[b, seen, h // group], scale, dtype, soft_cap)
    return y


def run_causal(
    unit: str,
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    *,
    y_dtype: np.dtype[Any] = F32,
    layouts: str = "ttt",
    window: int = 0,
    soft_cap: float = 0.0,
    status: int = 0,
) -> Array:
    """Logical [B,T,H,D] in; stored token-major (t) or head-major (h) as `layouts` says for q, k, v."""
    batches, tokens, heads, width = q.shape
    stored: list[Array] = []
    strides: list[int] = []
    for tensor, layout in zip((q, k, v), layouts, strict=True):
        kept = np.ascontiguousarray(tensor if layout == "t" else tensor.transpose(0, 2, 1, 3))
        view = kept if layout == "t" else kept.transpose(0, 2, 1, 3)
        stored.append(kept)
        strides += [view.strides[axis] // view.itemsize if view.size else 0 for axis in range(3)]
    params: list[int | float] = [
        batches,
        tokens,
        heads,
        k.shape[2],
        width,
        scale,
        window,
        soft_cap,
        NUMBER[q.dtype],
        NUMBER[y_dtype],
        *strides,
    ]
    return launch(unit, "attention_causal", [*stored, poison(q.shape, y_dtype)], params, writes=[3], status=status)[0]


def causal_inputs(
    rng: np.random.Generator, shape: tuple[int, int, int, int, int], dtype: np.dtype[Any] = F32
) -> tuple[Array, Array, Array]:
    batches, tokens, heads, kv_heads, width = shape
    q = 2 * rng.standard_normal((batches, tokens, heads, width))
    k, v = (rng.standard_normal((batches, tokens, kv_heads, width)) for _ in range(2))
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


@each_unit
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1, 8),
        (2, 7, 4, 2, 16),
        (1, 65, 3, 1, 64),
        (3, 33, 2, 2, 48),
        (1, 130, 7, 1, 80),
        (2, 5, 4, 4, 130),
        (1, 530, 1, 1, 8),
    ],
    ids=str,
)
@pytest.mark.parametrize("layouts", ["ttt", "hht"])
def test_causal(unit: str, shape: tuple[int, int, int, int, int], layouts: str, rng: np.random.Generator) -> None:
    q, k, v = causal_inputs(rng, shape)
    scale = 1 / math.sqrt(shape[4])
    y = run_causal(unit, q, k, v, scale, layouts=layouts)
    assert_accurate(y, causal_reference(q, k, v, scale), causal_reference(q, k, v, scale, np.float32))


@each_unit
@each_float
def test_causal_dtypes(unit: str, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    q, k, v = causal_inputs(rng, (2, 19, 4, 2, 40), dtype)
    for y_dtype in FLOATS:
        y = run_causal(unit, q, k, v, 0.2, y_dtype=y_dtype)
        assert_near(y, causal_reference(q, k, v, 0.2), atol=2e-6, rtol=2e-5)


@each_unit
def test_causal_equals_packed_bit_for_bit(unit: str, rng: np.random.Generator) -> None:
    batch = make_batch(rng, [(0, 90)], heads=6, kv_heads=2, width=64, block_size=128, cache_dtype=BF16, q_dtype=BF16)
    block = int(batch.block_table[0, 0])
    k, v = (cache[block, :, :90].transpose(1, 0, 2)[None] for cache in (batch.k_cache, batch.v_cache))
    y = run_causal(unit, batch.q[None], k, v, batch.scale)
    assert np.array_equal(bits(y[0]), bits(batch.run(unit)))


@each_unit
def test_causal_nothing_to_do_and_refusals(unit: str, rng: np.random.Generator) -> None:
    for shape in ((0, 3, 2, 2, 8), (2, 0, 2, 2, 8), (2, 3, 0, 2, 8), (2, 3, 2, 2, 0)):
        assert run_causal(unit, *causal_inputs(rng, shape), 1.0).size == 0
    assert is_poison(run_causal(unit, *causal_inputs(rng, (1, 3, 4, 3, 8)), 1.0, status=INVALID))
    q, k, v = causal_inputs(rng, (1, 3, 2, 2, 8), F16)
    operands = [q, k, v, poison(q.shape, F32)]
    strides = [48, 16, 8] * 3
    short = [1, 4, 2, 2, 8, 1.0, 0, 0.0, NUMBER[F16], NUMBER[F32], *strides]  # one token more than there is
    assert is_poison(launch(unit, "attention_causal", operands, short, writes=[3], status=INVALID)[0])
    backwards = [1, 3, 2, 2, 8, 1.0, 0, 0.0, NUMBER[F16], NUMBER[F32], 48, -16, 8, *strides[3:]]
    assert is_poison(launch(unit, "attention_causal", operands, backwards, writes=[3], status=INVALID)[0])
