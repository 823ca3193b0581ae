"""References of windows, soft caps, encoder attention and rotary kinds against torch and transformers, where they are installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ostinato.ir.types import Array
from tests.ir.torch_calls import call, close, normal, t, torch

pytestmark = pytest.mark.parity
functional: Any = torch.nn.functional


def heads_first(x: Array) -> Any:
    return t(x).transpose(1, 2)


@pytest.mark.parametrize("window", [1, 4, 16, 17, 40])
def test_window_is_the_sliding_mask_of_transformers(window: int, rng: np.random.Generator) -> None:
    masking: Any = pytest.importorskip("transformers.masking_utils")
    sees = masking.sliding_window_causal_mask_function(window)
    mask = torch.tensor([[bool(sees(0, 0, torch.tensor(i), torch.tensor(j))) for j in range(17)] for i in range(17)])
    q, k, v = normal(rng, 2, 17, 6, 32), normal(rng, 2, 17, 2, 32), normal(rng, 2, 17, 2, 32)
    expected = functional.scaled_dot_product_attention(
        *(heads_first(x) for x in (q, k, v)), attn_mask=mask, scale=0.2, enable_gqa=True
    ).transpose(1, 2)
    close("attention_causal", call("attention_causal", q, k, v, scale=0.2, window=window)[0], expected)


@pytest.mark.parametrize("cap", [50.0, 2.0, 0.1])
def test_soft_cap_is_that_of_gemma_2(cap: float, rng: np.random.Generator) -> None:
    gemma: Any = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    q, k, v = normal(rng, 2, 9, 4, 32), normal(rng, 2, 9, 2, 32), normal(rng, 2, 9, 2, 32)
    module = SimpleNamespace(num_key_value_groups=2, training=False)
    mask = torch.full((9, 9), float("-inf")).triu(1)
    expected, _ = gemma.eager_attention_forward(
        module, *(heads_first(x) for x in (q, k, v)), mask, scaling=0.7, softcap=cap
    )
    close("attention_causal", call("attention_causal", q, k, v, scale=0.7, soft_cap=cap)[0], expected)


def test_encoder_rows_are_a_padded_batch_with_a_mask(rng: np.random.Generator) -> None:
    lengths, heads, width = (5, 9, 1, 7), 12, 32
    q, k, v = (normal(rng, sum(lengths), heads, width) for _ in range(3))
    length = np.array(lengths, np.int32)
    start = (np.cumsum(length) - length).astype(np.int32)
    owner = np.repeat(np.arange(4), lengths).astype(np.int32)
    (y,) = call("attention_bidirectional", q, k, v, owner, start, length, scale=width**-0.5)
    padded = [np.zeros((4, 9, heads, width), np.float32) for _ in range(3)]
    for row, (first, count) in enumerate(zip(start, length, strict=True)):
        for batch, x in zip(padded, (q, k, v), strict=True):
            batch[row, :count] = x[first : first + count]
    mask = torch.arange(9)[None] < t(length)[:, None]
    expected = functional.scaled_dot_product_attention(
        *(heads_first(x) for x in padded), attn_mask=mask[:, None, None]
    ).transpose(1, 2)
    close("attention_bidirectional", y, torch.cat([expected[row, :count] for row, count in enumerate(lengths)]))


@pytest.mark.parametrize(("width", "turned"), [(64, 64), (64, 16), (80, 32)])
def test_rope_interleaved_is_that_of_gptj(width: int, turned: int, rng: np.random.Generator) -> None:
    gptj: Any = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x = normal(rng, 2, 9, 3, width)
    angle = rng.uniform(-3, 3, (2, 9, turned // 2)).astype(np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    expected = torch.cat([gptj.apply_rotary_pos_emb(t(x)[..., :turned], t(sin), t(cos)), t(x)[..., turned:]], -1)
    close("rope_interleaved", call("rope_interleaved", x, cos, sin)[0], expected)


@pytest.mark.parametrize(("width", "turned"), [(64, 64), (96, 72), (80, 20)])
def test_partial_rope_is_that_of_phi3(width: int, turned: int, rng: np.random.Generator) -> None:
    phi3: Any = pytest.importorskip("transformers.models.phi3.modeling_phi3")
    x = normal(rng, 2, 9, 3, width)
    angle = rng.uniform(-3, 3, (2, 9, turned // 2)).astype(np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    whole = [torch.cat([t(table), t(table)], -1) for table in (cos, sin)]
    expected, _ = phi3.apply_rotary_pos_emb(t(x), t(x), *whole, unsqueeze_dim=2)
    close("rope_split_half", call("rope_split_half", x, cos, sin)[0], expected)


def inverse_frequencies(parameters: dict[str, Any], length: int, **config: Any) -> tuple[Any, float]:
    """What transformers computes for a row of that length, and its factor on cosine and sine."""
    transformers: Any = pytest.importorskip("transformers")
    rope: Any = pytest.importorskip("transformers.modeling_rope_utils")
    made = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, rope_parameters=parameters, **config
    )
    found, factor = rope.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](made, torch.device("cpu"), seq_len=length)
    return found, factor


@pytest.mark.parametrize("length", [1, 128, 129, 500])
def test_dynamic_table_has_the_frequencies_of_transformers(length: int) -> None:
    """At positions so low that an angle is off by less than the tolerance of a frequency computed in float32."""
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    frequency, factor = inverse_frequencies(parameters, length, max_position_embeddings=128)
    position = np.arange(8, dtype=np.int32)
    rows = np.full(8, length, np.int32)
    cos, sin = call("rotary_table_dynamic", position, rows, theta=10000.0, width=32, factor=4.0, original_positions=128)
    angle = t(position).float()[:, None] * frequency
    np.testing.assert_allclose(cos, (angle.cos() * factor).numpy(), atol=4e-6)
    np.testing.assert_allclose(sin, (angle.sin() * factor).numpy(), atol=4e-6)


@pytest.mark.parametrize("length", [1, 128, 129, 500])
def test_longrope_table_has_the_frequencies_of_transformers(length: int, rng: np.random.Generator) -> None:
    short, long = rng.uniform(1, 2, 16), rng.uniform(2, 8, 16)
    parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "short_factor": short.tolist(),
        "long_factor": long.tolist(),
        "original_max_position_embeddings": 128,
    }
    frequency, factor = inverse_frequencies(parameters, length, max_position_embeddings=512)
    base = 10000.0 ** (np.arange(0, 32, 2) / 32)
    position = np.arange(8, dtype=np.int32)
    cos, sin = call(
        "rotary_table_longrope",
        position,
        np.full(8, length, np.int32),
        (1 / (short * base)).astype(np.float32),
        (1 / (long * base)).astype(np.float32),
        original_positions=128,
        scale=factor,
    )
    angle = t(position).float()[:, None] * frequency
    np.testing.assert_allclose(cos, (angle.cos() * factor).numpy(), atol=4e-6)
    np.testing.assert_allclose(sin, (angle.sin() * factor).numpy(), atol=4e-6)
