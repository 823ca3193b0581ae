"""References against torch and transformers, where they are installed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType, TensorType

pytestmark = pytest.mark.parity
torch: Any = pytest.importorskip("torch")
functional: Any = torch.nn.functional


def call(name: str, *arrays: Array | None, **attrs: Attr) -> tuple[Array, ...]:
    types = [None if array is None else TensorType(array.shape, DType.of(array.dtype)) for array in arrays]
    return OP[name].reference(arrays, attrs, OP[name].infer(types, attrs))


def close(name: str, actual: Array, expected: Any) -> None:
    tolerance = OP[name].tolerance
    np.testing.assert_allclose(actual, expected.numpy(), rtol=tolerance.relative, atol=tolerance.absolute)


def t(array: Array) -> Any:
    return torch.from_numpy(array.copy())


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def test_linear_and_embedding(rng: np.random.Generator) -> None:
    x, weight, bias = normal(rng, 5, 96), normal(rng, 33, 96), normal(rng, 33)
    close("linear", call("linear", x, weight, bias)[0], functional.linear(t(x), t(weight), t(bias)))
    gate, up = (functional.linear(t(x), t(half)) for half in np.split(weight[:32], 2))
    close("linear_swiglu", call("linear_swiglu", x, weight[:32])[0], functional.silu(gate) * up)
    ids = rng.integers(0, 33, (2, 7)).astype(np.int32)
    np.testing.assert_array_equal(call("embedding", ids, weight)[0], functional.embedding(t(ids), t(weight)).numpy())


def test_norms(rng: np.random.Generator) -> None:
    x, residual, gain = normal(rng, 4, 100), normal(rng, 4, 100), normal(rng, 100)
    close("rms_norm", call("rms_norm", x, gain, eps=1e-5)[0], functional.rms_norm(t(x), (100,), t(gain), 1e-5))
    total, y = call("add_rms_norm", x, residual, gain, eps=1e-5)
    close("add_rms_norm", total, t(x) + t(residual))
    close("add_rms_norm", y, functional.rms_norm(t(x) + t(residual), (100,), t(gain), 1e-5))


def test_elementwise(rng: np.random.Generator) -> None:
    x, y = normal(rng, 4, 100) * 5, normal(rng, 4, 100)
    close("silu", call("silu", x)[0], functional.silu(t(x)))
    close("swiglu", call("swiglu", x, y)[0], functional.silu(t(x)) * t(y))
    close("softmax", call("softmax", x)[0], torch.softmax(t(x), -1))
    np.testing.assert_array_equal(call("add", x, y)[0], (t(x) + t(y)).numpy())
    np.testing.assert_array_equal(call("mul", x, y)[0], (t(x) * t(y)).numpy())
    np.testing.assert_array_equal(call("scale", x, factor=0.1)[0], (t(x) * 0.1).numpy())
    bf16 = call("cast", x, dtype="bf16")[0]
    assert bf16.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(bf16.astype(np.float32), t(x).to(torch.bfloat16).float().numpy())
    np.testing.assert_array_equal(call("cast", x, dtype="f16")[0], t(x).to(torch.float16).numpy())


@pytest.mark.parametrize("width", [32, 64, 80, 128])
def test_rope_is_rotate_half(width: int, rng: np.random.Generator) -> None:
    llama: Any = pytest.importorskip("transformers.models.llama.modeling_llama")
    x = normal(rng, 2, 9, 3, width)
    position = np.tile(np.arange(9, dtype=np.int32), (2, 1))
    frequency = (10000.0 ** (-np.arange(0, width, 2) / width)).astype(np.float32)
    cos, sin = call("rotary_table", position, frequency)
    angle = t(position).float()[..., None] * t(frequency)
    angle = torch.cat([angle, angle], -1)
    close("rotary_table", np.concatenate([cos, cos], -1), angle.double().cos().float())
    close("rotary_table", np.concatenate([sin, sin], -1), angle.double().sin().float())
    expected, _ = llama.apply_rotary_pos_emb(t(x), t(x), angle.cos(), angle.sin(), unsqueeze_dim=2)
    close("rope_split_half", call("rope_split_half", x, cos, sin)[0], expected)


@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 4, 32), (6, 2, 64), (7, 1, 80), (14, 2, 128)])
def test_causal_attention(heads: int, groups: int, width: int, rng: np.random.Generator) -> None:
    q, k, v = normal(rng, 2, 17, heads, width), normal(rng, 2, 17, groups, width), normal(rng, 2, 17, groups, width)
    expected = functional.scaled_dot_product_attention(
        *(t(x).transpose(1, 2) for x in (q, k, v)), is_causal=True, scale=0.125, enable_gqa=True
    ).transpose(1, 2)
    close("attention_causal", call("attention_causal", q, k, v, scale=0.125)[0], expected)


def test_packed_attention_over_a_paged_cache(rng: np.random.Generator) -> None:
    """Rows of 13, 7 and 1 cached keys; the queries are the last 5, 1 and 1 tokens of each."""
    lengths, asked, heads, groups, width, block_size = (13, 7, 1), (5, 1, 1), 6, 2, 32, 4
    table = rng.permutation(12).reshape(3, 4).astype(np.int32)
    k_cache = np.full((12, groups, block_size, width), np.nan, dtype=np.float32)
    v_cache = k_cache.copy()
    rows, positions, queries, expected = [], [], [], []
    for row, (length, count) in enumerate(zip(lengths, asked, strict=True)):
        k, v, q = (
            normal(rng, length, groups, width),
            normal(rng, length, groups, width),
            normal(rng, length, heads, width),
        )
        place = np.arange(length, dtype=np.int32)
        owner = np.full(length, row, dtype=np.int32)
        k_cache, v_cache = call("kv_store", k, v, owner, place, table, k_cache, v_cache)
        whole = functional.scaled_dot_product_attention(
            *(t(x).transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, enable_gqa=True
        )
        expected.append(whole[0].transpose(0, 1)[-count:])
        queries.append(q[-count:])
        rows.append(owner[-count:])
        positions.append(place[-count:])
    (y,) = call(
        "attention_packed",
        np.concatenate(queries),
        k_cache,
        v_cache,
        np.concatenate(rows),
        np.concatenate(positions),
        table,
        np.array(lengths, dtype=np.int32),
        scale=width**-0.5,
    )
    close("attention_packed", y, torch.cat(expected))


def test_loss_and_argmax(rng: np.random.Generator) -> None:
    logits = normal(rng, 9, 50) * 3
    target = rng.integers(0, 50, 9).astype(np.int32)
    target[[2, 5]] = -100
    expected = functional.cross_entropy(t(logits), t(target).long())
    close("cross_entropy", call("cross_entropy", logits, target)[0], expected)
    np.testing.assert_array_equal(call("argmax", logits)[0], t(logits).argmax(-1).numpy())
