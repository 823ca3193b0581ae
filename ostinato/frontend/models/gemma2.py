"""The Gemma 2 family (Gemma Team 2024, arXiv:2408.00118).

A Gemma whose layers normalise what comes out of attention and of the feed-forward part too, before it is added. Every other layer, from the first on, sees a
window; scores and logits are bounded by soft caps; scores are scaled by a number of their own (`query_pre_attn_scalar`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ostinato.frontend.decoder import Rotation, attention, decoder, feed_forward, project, rms_norm
from ostinato.frontend.family import (
    ConfigReader,
    Family,
    GgufSpelling,
    HuggingFaceSpelling,
    MetadataReader,
    ModelConfig,
    decoder_from_gguf,
    windows_from_huggingface,
)
from ostinato.frontend.layers import ModelInputs
from ostinato.frontend.models.gemma import GAINS_LESS_ONE, gemma_from_gguf, gemma_from_huggingface
from ostinato.frontend.trace import Tensor

__all__ = ["GEMMA2", "GGUF_NORMS", "gemma2", "score_scale", "score_scale_from_gguf"]

GGUF_NORMS: Mapping[str, str] = {
    "blk.*.post_attention_norm": "model.layers.*.post_attention_layernorm",
    "blk.*.ffn_norm": "model.layers.*.pre_feedforward_layernorm",
    "blk.*.post_ffw_norm": "model.layers.*.post_feedforward_layernorm",
}
"""The four norms of a layer as GGUF files name them, as far as they differ from the common table."""


def gemma2(m: ModelInputs) -> Tensor:
    """Logits [..., V] of the tokens that `m.select` keeps."""
    return decoder(m, layer)


def layer(m: ModelInputs, number: int, x: Tensor, rotation: Rotation) -> Tensor:
    """A layer that normalises before and after attention, and before and after the feed-forward part."""
    prefix = f"model.layers.{number}"
    y = rms_norm(m, f"{prefix}.input_layernorm", x, name="attn_norm")
    y = attention(m, number, y, rotation, project)
    x = x + m.dropout(rms_norm(m, f"{prefix}.post_attention_layernorm", y, name="attn_out_norm"))
    y = rms_norm(m, f"{prefix}.pre_feedforward_layernorm", x, name="ffn_norm")
    y = feed_forward(m, number, y, project)
    return x + m.dropout(rms_norm(m, f"{prefix}.post_feedforward_layernorm", y, name="ffn_out_norm"))


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The keys of all Gemmas, windows on even layers, soft caps (null is none) and the scale of scores."""
    windows = windows_from_huggingface(read, size=4096, applies=lambda layer: layer % 2 == 0)
    return replace(
        gemma_from_huggingface(read, windows=windows),
        attention_scale=score_scale(read),
        attention_soft_cap=_soft_cap(read, "attn_logit_softcapping", 50.0),
        logit_soft_cap=_soft_cap(read, "final_logit_softcapping", 30.0),
    )


def from_gguf(read: MetadataReader) -> ModelConfig:
    """The common keys, with the published window and soft caps where the file leaves them out."""
    common = decoder_from_gguf(read, activation="gelu_tanh", window=4096, windowed=lambda layer: layer % 2 == 0)
    return replace(
        gemma_from_gguf(common),
        attention_scale=score_scale_from_gguf(read, common, largest=46),
        attention_soft_cap=read.number("attn_logit_softcapping", default=50.0),
        logit_soft_cap=read.number("final_logit_softcapping", default=30.0),
    )


def score_scale(read: ConfigReader) -> float:
    """The scale of scores: 1 / sqrt(query_pre_attn_scalar)."""
    scalar = read.number("query_pre_attn_scalar", 256.0)
    if scalar <= 0:
        raise read.refuse(f"query_pre_attn_scalar is {scalar}, expected a positive number")
    return float(scalar**-0.5)


def score_scale_from_gguf(read: MetadataReader, config: ModelConfig, *, largest: int) -> float:
    """The scale of scores, which most files do not state.

    It is 1 / sqrt(head_dim) but in the largest model of each generation (27B, `largest` layers): there it is 1 / sqrt(hidden_size / heads).
    """
    width = config.hidden_size / config.num_heads if config.num_layers == largest else config.head_dim
    return read.number("attention.scale", default=float(width**-0.5))


def _soft_cap(read: ConfigReader, key: str, default: float) -> float:
    return 0.0 if key in read.raw and read.raw[key] is None else read.number(key, default)


GEMMA2 = Family(
    name="gemma2",
    function=gemma2,
    huggingface=(
        HuggingFaceSpelling(
            model_type="gemma2", classes=("Gemma2ForCausalLM",), config=from_huggingface, shifts=GAINS_LESS_ONE
        ),
    ),
    gguf=(GgufSpelling(architecture="gemma2", config=from_gguf, names=GGUF_NORMS),),
)
