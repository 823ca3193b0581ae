"""The Llama family (Touvron et al. 2023): Llama, SmolLM2, TinyLlama, Mistral without a window.

Pre-norm decoder: RMSNorm, grouped-query attention with split-half rotary embedding, SwiGLU, no biases unless the configuration asks for them.
GGUF files of the family store the rows of Q and K interleaved. A window that a configuration switches on is refused.
"""

from __future__ import annotations

from dataclasses import replace

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.family import (
    ConfigReader,
    Family,
    GgufSpelling,
    HuggingFaceSpelling,
    ModelConfig,
    decoder_from_gguf,
    decoder_from_huggingface,
    window_is_switched_on,
)
from ostinato.frontend.layers import ModelInputs, inverse_frequency
from ostinato.frontend.trace import Tensor

__all__ = ["LLAMA", "llama"]


def llama(m: ModelInputs) -> Tensor:
    """Logits [..., V] of the tokens that `m.select` keeps."""
    c, w = m.config, m.weights
    embed = w.matrix("model.embed_tokens.weight", (c.vocab_size, c.hidden_size), ("V", "C"))
    cos, sin = F.rotary_table(m.position, inverse_frequency(m.builder, c))

    x = F.embedding(m.ids, embed, name="embed")
    for layer in range(c.num_layers):
        with m.builder.scope(f"layers.{layer}"):
            prefix = f"model.layers.{layer}"
            gain = w.vector(f"{prefix}.input_layernorm.weight", c.hidden_size, "C")
            x = x + attention(m, layer, F.rms_norm(x, gain, eps=c.rms_norm_eps, name="attn_norm"), cos, sin)
            gain = w.vector(f"{prefix}.post_attention_layernorm.weight", c.hidden_size, "C")
            x = x + feed_forward(m, layer, F.rms_norm(x, gain, eps=c.rms_norm_eps, name="ffn_norm"))

    x = m.select(x)
    x = F.rms_norm(x, w.vector("model.norm.weight", c.hidden_size, "C"), eps=c.rms_norm_eps, name="norm")
    head = embed if c.tie_word_embeddings else w.matrix("lm_head.weight", (c.vocab_size, c.hidden_size), ("V", "C"))
    return F.linear(x, head, axis="V", name="logits")


def attention(m: ModelInputs, layer: int, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Self-attention of one layer: projections, rotary, attention, output projection."""
    c = m.config
    prefix = f"model.layers.{layer}.self_attn"
    lead = [0] * (len(x.shape) - 1)
    axes = "".join(axis or "_" for axis in x.type.axes[:-1])

    def project(name: str, heads: int, axis: str) -> Tensor:
        weight = m.weights.matrix(f"{prefix}.{name}_proj.weight", (heads * c.head_dim, c.hidden_size), ("", "C"))
        bias = m.weights.vector(f"{prefix}.{name}_proj.bias", heads * c.head_dim) if c.attention_bias else None
        y = F.linear(x, weight, bias, name=name)
        return F.reshape(y, [*lead, heads, c.head_dim], f"{axes}{axis}D", name=f"{name}_heads")

    with m.builder.scope("attn"):
        q = F.rope_split_half(project("q", c.num_heads, "H"), cos, sin, name="q_rotated")
        k = F.rope_split_half(project("k", c.num_kv_heads, "G"), cos, sin, name="k_rotated")
        v = project("v", c.num_kv_heads, "G")
        y = F.reshape(m.attend(layer, q, k, v), [*lead, c.num_heads * c.head_dim], f"{axes}_", name="context")
        weight = m.weights.matrix(f"{prefix}.o_proj.weight", (c.hidden_size, c.num_heads * c.head_dim), ("C", ""))
        bias = m.weights.vector(f"{prefix}.o_proj.bias", c.hidden_size, "C") if c.attention_output_bias else None
        return F.linear(y, weight, bias, axis="C", name="out")


def feed_forward(m: ModelInputs, layer: int, x: Tensor) -> Tensor:
    """down(silu(gate(x)) * up(x)) of one layer."""
    c = m.config
    prefix = f"model.layers.{layer}.mlp"

    def project(name: str, rows: int, columns: int, axes: tuple[str, str], x: Tensor) -> Tensor:
        weight = m.weights.matrix(f"{prefix}.{name}_proj.weight", (rows, columns), axes)
        bias = m.weights.vector(f"{prefix}.{name}_proj.bias", rows, axes[0]) if c.mlp_bias else None
        return F.linear(x, weight, bias, axis=axes[0], name=name)

    with m.builder.scope("ffn"):
        gate = project("gate", c.intermediate_size, c.hidden_size, ("F", "C"), x)
        up = project("up", c.intermediate_size, c.hidden_size, ("F", "C"), x)
        return project("down", c.hidden_size, c.intermediate_size, ("C", "F"), F.swiglu(gate, up, name="activated"))


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The common keys, and biases by two keys: `attention_bias` for all four projections of attention, `mlp_bias` for all three of the feed-forward."""
    common = decoder_from_huggingface(
        read, positions=2048, windowed=window_is_switched_on(read), kv_heads_required=False
    )
    biased = read.flag("attention_bias")
    return replace(common, attention_bias=biased, attention_output_bias=biased, mlp_bias=read.flag("mlp_bias"))


def from_huggingface_mistral(read: ConfigReader) -> ModelConfig:
    """The common keys and no biases. Where `sliding_window` is absent, the published default is an active window; null and 0 mean none."""
    windowed = read.raw.get("sliding_window", 4096) not in (None, 0)
    return decoder_from_huggingface(read, positions=131072, windowed=windowed)


LLAMA = Family(
    name="llama",
    function=llama,
    huggingface=(
        HuggingFaceSpelling(model_type="llama", classes=("LlamaForCausalLM",), config=from_huggingface),
        HuggingFaceSpelling(model_type="mistral", classes=("MistralForCausalLM",), config=from_huggingface_mistral),
    ),
    gguf=(GgufSpelling(architecture="llama", config=decoder_from_gguf, interleaved_rotary=True),),
    also=("SmolLM2", "Mistral without a sliding window"),
)
