"""References against torch and transformers, where they are installed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ostinato.ir.opdef import Attr
from tests.ir.torch_calls import call, close, normal, t, torch

pytestmark = pytest.mark.parity
functional: Any = torch.nn.functional


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


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_layer_norm(eps: float, rng: np.random.Generator) -> None:
    x, gain, bias = normal(rng, 4, 100) * 3 + 1, normal(rng, 100), normal(rng, 100)
    close(
        "layer_norm",
        call("layer_norm", x, gain, bias, eps=eps)[0],
        functional.layer_norm(t(x), (100,), t(gain), t(bias), eps),
    )
    close(
        "layer_norm", call("layer_norm", x, gain, eps=eps)[0], functional.layer_norm(t(x), (100,), t(gain), None, eps)
    )


def test_l2_normalize(rng: np.random.Generator) -> None:
    x = normal(rng, 4, 100)
    x[1] = 0.0
    x[2] *= 1e-14
    for eps in (1e-12, 3.0):
        close("l2_normalize", call("l2_normalize", x, eps=eps)[0], functional.normalize(t(x), dim=-1, eps=eps))


def test_elementwise(rng: np.random.Generator) -> None:
    x, y = normal(rng, 4, 100) * 5, normal(rng, 4, 100)
    close("silu", call("silu", x)[0], functional.silu(t(x)))
    close("swiglu", call("swiglu", x, y)[0], functional.silu(t(x)) * t(y))
    close("softmax", call("softmax", x)[0], torch.softmax(t(x), -1))
    close("tanh", call("tanh", x)[0], torch.tanh(t(x)))
    for form in ("none", "tanh"):
        close("gelu", call("gelu", x, approximate=form)[0], functional.gelu(t(x).double(), approximate=form).float())
        near = functional.gelu(t(x), approximate=form).numpy()  # float32 loses what is left of 1 + erf far below zero
        np.testing.assert_allclose(call("gelu", x, approximate=form)[0], near, rtol=1e-5, atol=1.1e-6)
    np.testing.assert_array_equal(call("add_bias", x, y[0])[0], (t(x) + t(y[0])).numpy())
    np.testing.assert_array_equal(call("fill", x, value=0.1)[0], torch.full_like(t(x), 0.1).numpy())
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


def test_causal_softmax(rng: np.random.Generator) -> None:
    scores = normal(rng, 2, 3, 19, 19) * 4
    hidden = torch.ones(19, 19, dtype=torch.bool).triu(1)
    (y,) = call("causal_softmax", scores)
    close("causal_softmax", y, torch.softmax(t(scores).masked_fill(hidden, -torch.inf), -1))
    assert (y[..., np.triu_indices(19, 1)[0], np.triu_indices(19, 1)[1]] == 0).all()
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmul(transpose_a: bool, transpose_b: bool, rng: np.random.Generator) -> None:
    a, b = normal(rng, 2, 3, 7, 33), normal(rng, 2, 3, 33, 5)
    expected = t(a) @ t(b)
    given = (a.swapaxes(-1, -2).copy() if transpose_a else a, b.swapaxes(-1, -2).copy() if transpose_b else b)
    flags: dict[str, Attr] = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    close("matmul", call("matmul", *given, **flags)[0], expected)
    close("matmul", call("matmul", *given, scale=-0.25, **flags)[0], expected * -0.25)


def test_movements(rng: np.random.Generator) -> None:
    x, y, z = normal(rng, 3, 4, 5), normal(rng, 3, 2, 5), normal(rng, 3, 4, 5)
    np.testing.assert_array_equal(call("concat", x, y, z, axis=1)[0], torch.cat([t(x), t(y), t(z)], 1).numpy())
    np.testing.assert_array_equal(call("concat", x, z, axis=0)[0], torch.cat([t(x), t(z)]).numpy())
    for axis in range(3):
        (repeated,) = call("repeat_interleave", x, axis=axis, repeats=3)
        np.testing.assert_array_equal(repeated, torch.repeat_interleave(t(x), 3, axis).numpy())
    (spread,) = call("broadcast_scalar", x[:1, :1, 0], shape=(2, 7))
    np.testing.assert_array_equal(spread, t(x)[0, 0, 0].expand(2, 7).numpy())


def test_reductions(rng: np.random.Generator) -> None:
    x = normal(rng, 30, 40)
    close("reduce_sum", call("reduce_sum", x)[0], t(x).sum())
    start, length = np.array([0, 12, 30, 29], dtype=np.int32), np.array([12, 17, 0, 1], dtype=np.int32)
    (y,) = call("masked_mean", x, start, length)
    for row, (first, count) in enumerate(zip(start, length, strict=True)):
        mean = t(x[first : first + count]).mean(0) if count else torch.zeros(40)
        close("masked_mean", y[row], mean)


def test_masked_mean_is_the_pooling_of_sentence_transformers(rng: np.random.Generator) -> None:
    """Padded hidden states under a mask, summed and divided by the number of tokens."""
    lengths = (7, 3, 5)
    padded, mask = normal(rng, 3, 7, 16), np.zeros((3, 7), dtype=np.float32)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    expected = (t(padded) * t(mask)[..., None]).sum(1) / t(mask).sum(1, keepdim=True)
    packed = np.concatenate([padded[row, :length] for row, length in enumerate(lengths)])
    start = np.cumsum((0, *lengths[:-1])).astype(np.int32)
    close("masked_mean", call("masked_mean", packed, start, np.array(lengths, dtype=np.int32))[0], expected)


@pytest.mark.parametrize("half", [16, 10])
def test_bias_rotation_and_head_major_order_are_their_composition(half: int, rng: np.random.Generator) -> None:
    x, bias = normal(rng, 2, 5, 3, 32), normal(rng, 96)
    angle = rng.uniform(-3, 3, (2, 5, half)).astype(np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    with_bias = t(x) + t(bias).view(3, 32)
    c, s = (t(table)[:, :, None] for table in (cos, sin))
    first, second, rest = with_bias.split([half, half, 32 - 2 * half], -1)
    expected = torch.cat([first * c - second * s, second * c + first * s, rest], -1).transpose(1, 2)
    close("rope_split_half_bias_bthd", call("rope_split_half_bias_bthd", x, bias, cos, sin)[0], expected)


def test_penalties_are_those_of_vllm(rng: np.random.Generator) -> None:
    """Its formulas over masks and counts of whole vocabularies, on the rows in which they apply."""
    rows, vocabulary, width = 4, 30, 50
    logits, tokens = normal(rng, rows, vocabulary), rng.integers(0, vocabulary, (rows, width)).astype(np.int32)
    prompt, length = np.array([10, 0, 20, 7], dtype=np.int32), np.array([50, 31, 20, 7], dtype=np.int32)
    repetition = np.array([1.3, 0.7, 1.1, 1.0], dtype=np.float32)
    presence = np.array([0.4, 0.0, 0.9, 0.0], dtype=np.float32)
    frequency = np.array([0.2, -0.3, 0.1, 0.0], dtype=np.float32)
    (y,) = call("penalize", logits, tokens, prompt, length, repetition, presence, frequency)
    expected = t(logits)
    for row in range(rows):
        ids = t(tokens[row]).long()
        counts = torch.bincount(ids[prompt[row] : length[row]], minlength=vocabulary)
        seen = (torch.bincount(ids[: prompt[row]], minlength=vocabulary) > 0) | (counts > 0)
        factor = torch.where(seen, torch.tensor(repetition[row]), torch.tensor(1.0))
        expected[row] = torch.where(expected[row] > 0, expected[row] / factor, expected[row] * factor)
        expected[row] -= torch.tensor(frequency[row]) * counts
        expected[row] -= torch.tensor(presence[row]) * (counts > 0)
    np.testing.assert_array_equal(y, expected.numpy())


@pytest.mark.parametrize("rotary", [False, True])
def test_the_inputs_of_the_next_step_are_masked_updates(rotary: bool, rng: np.random.Generator) -> None:
    rows, context = 200, 12
    token = rng.integers(-1, 40, rows).astype(np.int32)
    position = rng.integers(-1, context + 1, rows).astype(np.int32)
    seen = np.where(rng.random(rows) < 0.5, 0, rng.integers(1, context + 2, rows)).astype(np.int32)
    vectors = [rng.integers(0, 1000, rows).astype(np.int32) for _ in range(4)]
    history = rng.integers(0, 40, (rows, context)).astype(np.int32)
    given = [vectors[0], position, vectors[1], vectors[2], history, seen, *([vectors[3]] if rotary else [])]
    ids, at, length, index, held, count, *rest = call("advance", token, *given, context=context)
    moves = (t(token) >= 0) & (t(position) >= 0) & (t(position) + 1 < context) & (t(seen) < context)
    one = moves.to(torch.int32)
    np.testing.assert_array_equal(ids, torch.where(moves, t(token), t(vectors[0])).numpy())
    for found, before in (
        (at, position),
        (length, vectors[1]),
        (index, vectors[2]),
        *zip(rest, vectors[3:], strict=False),
    ):
        np.testing.assert_array_equal(found, (t(before) + one).numpy())
    keeps = moves & (t(seen) > 0)
    np.testing.assert_array_equal(count, (t(seen) + keeps.to(torch.int32)).numpy())
    place = keeps[:, None] & (torch.arange(context)[None] == t(seen)[:, None])
    np.testing.assert_array_equal(held, torch.where(place, t(token)[:, None], t(history)).numpy())
    assert len(rest) == rotary
    assert 0 < int(moves.sum()) < rows
