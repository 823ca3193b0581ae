"""References against independent calculations in plain numpy, written as loops over the definition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from ostinato.ir.blocks import dequantize
from ostinato.ir.errors import BoundsError, DTypeError, ShapeError
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.rounding import round_to
from ostinato.ir.types import Array, DType, TensorType


def call(name: str, *arrays: Array | None, **attrs: Attr) -> tuple[Array, ...]:
    """The reference of an operator on arrays of plain dtypes."""
    types = [None if array is None else TensorType(array.shape, DType.of(array.dtype)) for array in arrays]
    return OP[name].reference(arrays, attrs, OP[name].infer(types, attrs))


def f32(*shape: int, rng: np.random.Generator) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def i32(values: Sequence[int] | Sequence[Sequence[int]]) -> Array:
    return np.array(values, dtype=np.int32)


# blocks


def test_blocks_by_hand() -> None:
    d, m = np.array([0.5], dtype=np.float16), np.array([-2.0], dtype=np.float16)
    q8 = np.concatenate([d.view(np.uint8), np.arange(-16, 16, dtype=np.int8).view(np.uint8)])
    np.testing.assert_array_equal(dequantize(q8, DType.Q8_0), np.arange(-16, 16) * 0.5)
    nibbles = np.array([i | (15 - i) << 4 for i in range(16)], dtype=np.uint8)
    expected = np.concatenate([np.arange(16), 15 - np.arange(16)])
    q4_0 = np.concatenate([d.view(np.uint8), nibbles])
    np.testing.assert_array_equal(dequantize(q4_0, DType.Q4_0), (expected - 8) * 0.5)
    q4_1 = np.concatenate([d.view(np.uint8), m.view(np.uint8), nibbles])
    np.testing.assert_array_equal(dequantize(q4_1, DType.Q4_1), expected * 0.5 - 2.0)


def test_blocks_keep_rows_and_refuse_other_bytes(rng: np.random.Generator) -> None:
    raw = rng.integers(0, 100, (3, 2, 2 * 34), dtype=np.uint8)
    whole = dequantize(raw, DType.Q8_0)
    assert whole.shape == (3, 2, 64)
    np.testing.assert_array_equal(whole[1, 1], dequantize(raw[1, 1], DType.Q8_0))
    assert dequantize(raw[:, :, :0], DType.Q8_0).shape == (3, 2, 0)
    with pytest.raises(ShapeError, match="34"):
        dequantize(raw[..., 1:], DType.Q8_0)
    with pytest.raises(DTypeError):
        dequantize(raw, DType.F16)
    with pytest.raises(DTypeError):
        dequantize(raw.view(np.int8), DType.Q8_0)


# arithmetic


def test_linear_is_a_sum_of_products(rng: np.random.Generator) -> None:
    x, weight, bias = f32(3, 7, rng=rng), f32(5, 7, rng=rng), f32(5, rng=rng)
    (y,) = call("linear", x, weight, bias)
    for row in range(3):
        for column in range(5):
            products = [float(a) * float(b) for a, b in zip(x[row], weight[column], strict=True)]
            assert y[row, column] == np.float32(math.fsum(products) + float(bias[column]))
    parts = call("linear_split", x, weight, bias, sizes=(3, 2))
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), y)
    both = np.concatenate([weight, weight[::-1]])
    (gated,) = call("linear_swiglu", x, both)
    gate, up = call("linear", x, weight)[0], call("linear", x, weight[::-1])[0]
    np.testing.assert_allclose(gated, gate / (1 + np.exp(-gate)) * up, rtol=1e-5)


def test_a_large_head_is_projected_in_parts(rng: np.random.Generator) -> None:
    x, weight = f32(2, 3, rng=rng), f32(9001, 3, rng=rng)
    (y,) = call("linear", x, weight)
    np.testing.assert_array_equal(y, (x.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32))


def test_norm_of_a_row(rng: np.random.Generator) -> None:
    x, gain = f32(4, 9, rng=rng), f32(9, rng=rng)
    (y,) = call("rms_norm", x, gain, eps=0.1)
    for row in range(4):
        root = math.sqrt(math.fsum(float(v) ** 2 for v in x[row]) / 9 + 0.1)
        np.testing.assert_allclose(y[row], x[row] / root * gain, rtol=1e-6)
    total, normed = call("add_rms_norm", x, x[::-1].copy(), gain, eps=0.1)
    np.testing.assert_array_equal(total, x + x[::-1])
    np.testing.assert_array_equal(normed, call("rms_norm", total, gain, eps=0.1)[0])


def test_norm_takes_the_sum_as_it_is_stored() -> None:
    """In bf16 the norm sees the rounded sum, so that fusing the two operators changes nothing."""
    kind, gain = TensorType((1, 2), DType.BF16), TensorType((2,), DType.F32)
    a = np.array([[1.0, 256.0]], dtype=np.float32)
    b = np.array([[2.0**-9, 1.0]], dtype=np.float32)
    types = OP["add_rms_norm"].infer([kind, kind, gain], {"eps": 1e-6, "dtype": "f32"})
    ones = np.ones(2, dtype=np.float32)
    total, y = OP["add_rms_norm"].reference([a, b, ones], {"eps": 1e-6, "dtype": "f32"}, types)
    np.testing.assert_array_equal(total, [[1.0, 256.0]])
    np.testing.assert_array_equal(y, call("rms_norm", np.array([[1.0, 256.0]], dtype=np.float32), ones, eps=1e-6)[0])


def test_softmax_of_hidden_rows() -> None:
    x = np.array([[-np.inf, -np.inf], [-np.inf, 3.0], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]], dtype=np.float32)
    (y,) = call("softmax", x)
    np.testing.assert_array_equal(y[:3], [[0, 0], [0, 1], [0.5, 0.5]])
    assert np.isnan(y[3:]).any(axis=1).all()


def test_rounding_of_doubles_is_single() -> None:
    """A double close to a tie of bf16 must not be rounded to float32 and then, from there, the wrong way."""
    tie = 1.0 + 2.0**-8
    above, below = tie + 2.0**-50, tie - 2.0**-50
    assert np.float32(above).astype(ml_dtypes.bfloat16) == 1.0, "two roundings go wrong here"
    assert round_to(np.array([above]), DType.BF16)[0] == 1.0 + 2.0**-7
    assert round_to(np.array([below]), DType.BF16)[0] == 1.0
    assert round_to(np.array([-above]), DType.BF16)[0] == -(1.0 + 2.0**-7)
    assert round_to(np.array([-below]), DType.BF16)[0] == -1.0
    assert round_to(np.array([tie]), DType.BF16)[0] == 1.0
    with np.errstate(over="ignore"):
        edges = round_to(np.array([np.inf, -np.inf, 1e39, 0.0, -0.0, 1e-60]), DType.BF16).astype(np.float64)
    np.testing.assert_array_equal(edges, [np.inf, -np.inf, np.inf, 0, 0, 0])
    assert np.isnan(round_to(np.array([np.nan]), DType.BF16).astype(np.float32)[0])


def test_rounding_of_doubles_against_exact_neighbours(rng: np.random.Generator) -> None:
    x = rng.standard_normal(2000) * 2.0 ** rng.uniform(-20, 20, 2000)
    y = round_to(x, DType.BF16)
    bits = y.view(np.uint16)
    for step in (-1, 1):
        neighbour = (bits.astype(np.int32) + step).astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
        assert (np.abs(y.astype(np.float64) - x) <= np.abs(neighbour - x)).all()


# positions


def test_rotary_angles_are_float32_products() -> None:
    position, frequency = i32([131071]), np.array([0.7], dtype=np.float32)
    cos, sin = call("rotary_table", position, frequency)
    angle = float(np.float32(131071) * np.float32(0.7))
    assert angle != 131071 * float(np.float32(0.7))
    assert cos[0, 0] == np.float32(math.cos(angle))
    assert sin[0, 0] == np.float32(math.sin(angle))


def test_rope_turns_pairs_half_a_head_apart(rng: np.random.Generator) -> None:
    x = f32(2, 3, 8, rng=rng)
    angle = rng.uniform(-3, 3, (2, 4)).astype(np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    (y,) = call("rope_split_half", x, cos, sin)
    for n in range(2):
        for h in range(3):
            for i in range(4):
                turned = complex(x[n, h, i], x[n, h, i + 4]) * complex(cos[n, i], sin[n, i])
                assert y[n, h, i] == pytest.approx(turned.real, abs=1e-6)
                assert y[n, h, i + 4] == pytest.approx(turned.imag, abs=1e-6)


# cache and attention


def naive_attention(q: Array, keys: Sequence[Array], values: Sequence[Array], scale: float) -> Array:
    """One query head over a list of keys."""
    if not keys:
        return np.zeros(q.shape)
    scores = [scale * float(np.dot(q.astype(np.float64), k.astype(np.float64))) for k in keys]
    largest = max(scores)
    power = [math.exp(score - largest) for score in scores]
    total: Array = np.sum([w * v.astype(np.float64) for w, v in zip(power, values, strict=True)], axis=0)
    return total / math.fsum(power)


def test_store_then_attend_equals_dense_attention(rng: np.random.Generator) -> None:
    """A prompt of 9 tokens written through a shuffled block table, in two chunks, attends as the dense operator does."""
    tokens, heads, groups, width, block_size = 9, 6, 2, 16, 4
    q, k, v = (
        f32(tokens, heads, width, rng=rng),
        f32(tokens, groups, width, rng=rng),
        f32(tokens, groups, width, rng=rng),
    )
    (dense,) = call("attention_causal", q[None], k[None], v[None], scale=0.25)
    # everything that was not stored is poison
    k_cache = np.full((5, groups, block_size, width), np.nan, dtype=np.float32)
    v_cache, table = k_cache.copy(), i32([[4, 0, 2]])
    packed = []
    for first, last in ((0, 5), (5, 9)):
        position = np.arange(first, last, dtype=np.int32)
        row = np.zeros(last - first, dtype=np.int32)
        k_cache, v_cache = call("kv_store", k[first:last], v[first:last], row, position, table, k_cache, v_cache)
        attended = call(
            "attention_packed", q[first:last], k_cache, v_cache, row, position, table, i32([last]), scale=0.25
        )
        packed.append(attended[0])
    np.testing.assert_allclose(np.concatenate(packed), dense[0], atol=1e-6)
    for n in range(tokens):
        for h in range(heads):
            expected = naive_attention(q[n, h], list(k[: n + 1, h // 3]), list(v[: n + 1, h // 3]), 0.25)
            np.testing.assert_allclose(dense[0, n, h], expected, atol=1e-6)


def test_attention_sees_neither_past_its_position_nor_past_the_length(rng: np.random.Generator) -> None:
    cache = f32(2, 1, 8, 4, rng=rng)
    q = np.repeat(f32(1, 1, 4, rng=rng), 5, axis=0)
    table, length = i32([[1], [0]]), i32([6, 0])
    row, position = i32([0, 0, 0, 1, -1]), i32([2, 5, 7, 3, 3])
    (y,) = call("attention_packed", q, cache, cache, row, position, table, length, scale=1.0)
    for n, keys in ((0, 3), (1, 6), (2, 6)):
        rows = list(cache[1, 0, :keys])
        np.testing.assert_allclose(y[n, 0], naive_attention(q[n, 0], rows, rows, 1.0), atol=1e-6)
    np.testing.assert_array_equal(y[3:], 0)


def test_store_touches_only_its_slots(rng: np.random.Generator) -> None:
    cache = f32(3, 2, 4, 5, rng=rng)
    k, v = f32(2, 2, 5, rng=rng), f32(2, 2, 5, rng=rng)
    new_k, new_v = call("kv_store", k, v, i32([1, -1]), i32([6, 0]), i32([[0, 0], [0, 2]]), cache, cache)
    changed = np.zeros(cache.shape, dtype=np.bool_)
    changed[2, :, 2] = True
    np.testing.assert_array_equal(new_k != cache, changed)
    np.testing.assert_array_equal(new_k[2, :, 2], k[0])
    np.testing.assert_array_equal(new_v[2, :, 2], v[0])


# rows


def test_gather_and_its_empty_rows(rng: np.random.Generator) -> None:
    x = f32(2, 3, 4, rng=rng)
    (y,) = call("gather_rows", x, i32([5, -1, 0]))
    np.testing.assert_array_equal(y, [x[1, 2], np.zeros(4), x[0, 0]])
    with pytest.raises(BoundsError, match="found 6"):
        call("gather_rows", x, i32([0, 6]))


def test_errors_name_the_place() -> None:
    weight = np.zeros((4, 2), dtype=np.float32)
    with pytest.raises(BoundsError, match=r"token id in \[0, 4\), found 9 at \[1, 0\]"):
        call("embedding", i32([[0, 1], [9, 2]]), weight)


def test_loss_skips_ignored_rows(rng: np.random.Generator) -> None:
    logits = f32(4, 5, rng=rng)
    (loss,) = call("cross_entropy", logits, i32([1, -100, 4, -100]))
    terms = [
        math.log(math.fsum(math.exp(float(v)) for v in logits[r])) - float(logits[r, t]) for r, t in ((0, 1), (2, 4))
    ]
    assert float(loss) == pytest.approx(sum(terms) / 2, rel=1e-6)
