"""References of attention and rotary operators against loops over their definitions: windows, caps, encoder rows, pairings, tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.ir.errors import BoundsError
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType, TensorType


def call(name: str, *arrays: Array, **attrs: Attr) -> tuple[Array, ...]:
    """The reference of an operator on arrays of plain dtypes."""
    types = [TensorType(array.shape, DType.of(array.dtype)) for array in arrays]
    return OP[name].reference(arrays, attrs, OP[name].infer(types, attrs))


def cost(name: str, *shapes: tuple[int, ...], ints: int, **attrs: Attr) -> int:
    """Floating-point operations; the last `ints` operands are int32."""
    first = len(shapes) - ints
    types = [TensorType(shape, DType.F32 if i < first else DType.I32) for i, shape in enumerate(shapes)]
    return OP[name].cost(types, OP[name].infer(types, attrs), OP[name].attributes(attrs)).flops


def f32(*shape: int, rng: np.random.Generator) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def i32(*values: int) -> Array:
    return np.array(values, dtype=np.int32)


def one_head(q: Array, keys: Array, values: Array, scale: float, cap: float = 0.0) -> Array:
    """softmax(cap(scale q k)) v of one query head, key by key."""
    scores = [scale * math.fsum(float(a) * float(b) for a, b in zip(q, k, strict=True)) for k in keys]
    if cap:
        scores = [cap * math.tanh(score / cap) for score in scores]
    power = [math.exp(score - max(scores)) for score in scores]
    total: Array = np.sum([w * v.astype(np.float64) for w, v in zip(power, values, strict=True)], axis=0)
    return total / math.fsum(power)


def dense_and_packed(q: Array, k: Array, v: Array, **attrs: Attr) -> tuple[Array, Array]:
    """One sequence [T,H,D] through both causal operators; blocks of 4 slots in an order of their own, what is not stored is poison."""
    tokens, groups, width = k.shape
    (dense,) = call("attention_causal", q[None], k[None], v[None], **attrs)
    order = np.arange(-(-tokens // 4))[::-1].astype(np.int32)[None].copy()
    caches = [np.full((order.size + 1, groups, 4, width), np.nan, dtype=np.float32) for _ in range(2)]
    position, row = np.arange(tokens, dtype=np.int32), np.zeros(tokens, dtype=np.int32)
    stored = call("kv_store", k, v, row, position, order, *caches)
    (packed,) = call("attention_packed", q, *stored, row, position, order, i32(tokens), **attrs)
    return dense[0], packed


def test_sliding_window_off_by_one(rng: np.random.Generator) -> None:
    """W=4, T=6: token i sees the keys i-3 to i."""
    q, k, v = (f32(6, 1, 8, rng=rng) for _ in range(3))
    for y in dense_and_packed(q, k, v, scale=0.3, window=4):
        for i in range(6):
            seen = slice(max(0, i - 3), i + 1)
            np.testing.assert_allclose(y[i, 0], one_head(q[i, 0], k[seen, 0], v[seen, 0], 0.3), atol=1e-6)


@pytest.mark.parametrize("window", [1, 2, 5, 8, 9, 10, 1000, 2**62])
@pytest.mark.parametrize("cap", [0.0, 0.7])
def test_windows_and_caps(window: int, cap: float, rng: np.random.Generator) -> None:
    q, k, v = f32(9, 4, 6, rng=rng), f32(9, 2, 6, rng=rng), f32(9, 2, 6, rng=rng)
    dense, packed = dense_and_packed(q, k, v, scale=0.9, window=window, soft_cap=cap)
    np.testing.assert_allclose(packed, dense, atol=1e-6)
    for i in range(9):
        seen = slice(max(0, i - window + 1), i + 1)
        for head in range(4):
            expected = one_head(q[i, head], k[seen, head // 2], v[seen, head // 2], 0.9, cap)
            np.testing.assert_allclose(dense[i, head], expected, atol=1e-6)
    if window >= 9 and not cap:
        np.testing.assert_array_equal(dense, dense_and_packed(q, k, v, scale=0.9)[0])


def test_what_a_token_does_not_see_never_enters_its_result(rng: np.random.Generator) -> None:
    """Keys and values behind the window and past the position may hold NaN and infinity."""
    q, k, v = (f32(1, 9, 1, 4, rng=rng) for _ in range(3))
    (clean,) = call("attention_causal", q, k, v, scale=0.5, window=3)
    k[0, 4], v[0, 4] = np.nan, np.inf
    (dirty,) = call("attention_causal", q, k, v, scale=0.5, window=3)
    others = [0, 1, 2, 3, 7, 8]
    np.testing.assert_array_equal(dirty[0, others], clean[0, others])
    assert np.isnan(dirty[0, 4:7]).all()


def test_blocks_behind_the_window_need_not_exist(rng: np.random.Generator) -> None:
    cache, q = f32(3, 1, 4, 5, rng=rng), f32(2, 1, 5, rng=rng)
    operands = (q, cache, cache, i32(0, 0), i32(10, 11))
    attrs: dict[str, Attr] = {"scale": 1.0, "window": 4}
    (whole,) = call("attention_packed", *operands, np.array([[1, 0, 2]], np.int32), i32(12), **attrs)
    (without,) = call("attention_packed", *operands, np.array([[-1, 0, 2]], np.int32), i32(12), **attrs)
    np.testing.assert_array_equal(without, whole)
    with pytest.raises(BoundsError, match="block"):
        call("attention_packed", *operands, np.array([[1, 7, 2]], np.int32), i32(12), **attrs)


def test_a_window_past_the_length_sees_nothing(rng: np.random.Generator) -> None:
    cache, q = f32(1, 1, 8, 5, rng=rng), f32(3, 1, 5, rng=rng)
    table = np.zeros((1, 1), np.int32)
    (y,) = call("attention_packed", q, cache, cache, i32(0, 0, 0), i32(4, 5, 6), table, i32(4), scale=1.0, window=2)
    assert y[0].any()
    np.testing.assert_array_equal(y[1:], 0)


def test_windows_cost_less() -> None:
    dense = ((2, 100, 4, 8), (2, 100, 2, 8), (2, 100, 2, 8))
    assert cost("attention_causal", *dense, ints=0, scale=1.0) == 4 * 2 * 4 * 8 * (100 * 101 // 2)
    seen = sum(min(i + 1, 7) for i in range(100))
    assert cost("attention_causal", *dense, ints=0, scale=1.0, window=7) == 4 * 2 * 4 * 8 * seen
    packed = ((5, 4, 8), (9, 2, 16, 8), (9, 2, 16, 8), (5,), (5,), (3, 3), (3,))
    assert cost("attention_packed", *packed, ints=4, scale=1.0) == 4 * 5 * 4 * 8 * 48
    assert cost("attention_packed", *packed, ints=4, scale=1.0, window=7) == 4 * 5 * 4 * 8 * 7
    assert cost("attention_packed", *packed, ints=4, scale=1.0, window=99) == 4 * 5 * 4 * 8 * 48
    encoder = ((12, 4, 8), (12, 4, 8), (12, 4, 8), (12,), (3,), (3,))
    assert cost("attention_bidirectional", *encoder, ints=3, scale=1.0) == 4 * 12 * 4 * 8 * 4


# encoder rows


def test_every_token_of_a_row_sees_the_row(rng: np.random.Generator) -> None:
    q, k, v = f32(9, 4, 6, rng=rng), f32(9, 2, 6, rng=rng), f32(9, 2, 6, rng=rng)
    owner, start, length = i32(0, 0, 0, -1, 1, 1, 1, 1, 2), i32(0, 4, 8), i32(3, 4, 1)
    (y,) = call("attention_bidirectional", q, k, v, owner, start, length, scale=0.4)
    for n, row in enumerate(owner):
        if row < 0:
            np.testing.assert_array_equal(y[n], 0)
            continue
        seen = slice(start[row], start[row] + length[row])
        for head in range(4):
            expected = one_head(q[n, head], k[seen, head // 2], v[seen, head // 2], 0.4)
            np.testing.assert_allclose(y[n, head], expected, atol=1e-6)


def test_fully_masked_row_gives_zeros_and_leaves_other_rows_intact(rng: np.random.Generator) -> None:
    q, k, v = (f32(6, 2, 4, rng=rng) for _ in range(3))
    owner, start = i32(0, 0, 0, 1, 1, 1), i32(0, 3)
    (both,) = call("attention_bidirectional", q, k, v, owner, start, i32(3, 3), scale=0.4)
    for x in (q, k, v):
        x[:3] = np.nan
    (masked,) = call("attention_bidirectional", q, k, v, owner, start, i32(0, 3), scale=0.4)
    np.testing.assert_array_equal(masked[:3], 0)
    np.testing.assert_array_equal(masked[3:], both[3:])


def test_zero_size_launch() -> None:
    """No sequences, and sequences of no tokens: empty results, no error."""
    for batch, tokens in ((0, 5), (2, 0)):
        q = np.zeros((batch, tokens, 2, 8), dtype=np.float32)
        assert call("attention_causal", q, q, q, scale=1.0, window=3)[0].shape == q.shape
    none = np.zeros((0, 2, 8), dtype=np.float32)
    assert call("attention_bidirectional", none, none, none, i32(), i32(), i32(), scale=1.0)[0].shape == (0, 2, 8)
    cos = np.zeros((0, 4), dtype=np.float32)
    assert call("rope_interleaved", none, cos, cos)[0].shape == (0, 2, 8)


# rotary


@pytest.mark.parametrize("half", [0, 1, 3, 4])
@pytest.mark.parametrize("name", ["rope_split_half", "rope_interleaved"])
def test_rope_turns_pairs_and_passes_the_rest(name: str, half: int, rng: np.random.Generator) -> None:
    x, angle = f32(2, 3, 8, rng=rng), rng.uniform(-3, 3, (2, half)).astype(np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    (y,) = call(name, x, cos, sin)
    for n in range(2):
        for i in range(half):
            a, b = (i, i + half) if name == "rope_split_half" else (2 * i, 2 * i + 1)
            for h in range(3):
                turned = complex(x[n, h, a], x[n, h, b]) * complex(cos[n, i], sin[n, i])
                assert y[n, h, a] == pytest.approx(turned.real, abs=1e-6)
                assert y[n, h, b] == pytest.approx(turned.imag, abs=1e-6)
    np.testing.assert_array_equal(y[..., 2 * half :], x[..., 2 * half :])


def test_dynamic_table_is_the_plain_table_of_a_base_that_grows() -> None:
    width, original, factor = 16, 32, 4.0
    position, length = i32(7, 7, 31, 90, 90), i32(8, 32, 32, 91, 200)
    attrs: dict[str, Attr] = {"theta": 1e4, "width": width, "factor": factor, "original_positions": original}
    cos, sin = call("rotary_table_dynamic", position, length, **attrs, scale=1.5)
    for n in range(5):
        base = 1e4 * (factor * max(int(length[n]), original) / original - (factor - 1)) ** (width / (width - 2))
        inverse = np.array([base ** (-2 * i / width) for i in range(width // 2)], dtype=np.float32)
        plain = call("rotary_table", position[n : n + 1], inverse, scale=1.5)
        np.testing.assert_array_equal(cos[n], plain[0][0])
        np.testing.assert_array_equal(sin[n], plain[1][0])
    np.testing.assert_array_equal(cos[0], cos[1])
    assert (cos[3] != cos[4]).any()


def test_longrope_table_chooses_by_length() -> None:
    short, long = np.array([1.0, 0.1], np.float32), np.array([0.5, 0.01], np.float32)
    position, length = i32(31, 31, 90), i32(32, 33, 91)
    cos, sin = call("rotary_table_longrope", position, length, short, long, original_positions=32, scale=1.2)
    for n, inverse in enumerate((short, long, long)):
        plain = call("rotary_table", position[n : n + 1], inverse, scale=1.2)
        np.testing.assert_array_equal(cos[n], plain[0][0])
        np.testing.assert_array_equal(sin[n], plain[1][0])
