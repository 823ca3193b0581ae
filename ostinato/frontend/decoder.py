"""What decoder families are made of: embedding and head around a stack of layers, the attention part and the feed-forward part of a layer.

A family file strings these together; what varies by numbers (biases, norms of queries and keys, windows, soft caps, scales, activation, rotary kind) is read
from the configuration, and what varies in structure (where the norms stand, how projections are stored) is an argument. All families here name their tensors
as the Hugging Face decoders do.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.checkpoints import EMBEDDING, HEAD
from ostinato.frontend.layers import ModelInputs
from ostinato.frontend.trace import Tensor
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import DType

__all__ = ["Layer", "Project", "Rotation", "attention", "decoder", "feed_forward", "pre_norm", "project", "rms_norm"]

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of the tokens' angles, as the layer turns its queries and keys."""

Layer = Callable[[ModelInputs, int, Tensor, Rotation], Tensor]
"""layer(m, number, x [..., C], rotation) -> [..., C]"""

Project = Callable[[ModelInputs, int, str, Tensor], Tensor]
"""project(m, layer, name, x): x through the projection called q, k, v, gate or up of that layer."""

_ROUNDED = {DType.BF16: ml_dtypes.bfloat16, DType.F16: np.float16}


def decoder(m: ModelInputs, layer: Layer) -> Tensor:
    """What `m.head` makes of the logits [..., V] of the tokens that `m.select` keeps: they themselves unless it is told otherwise.

    Raises `ConfigError` for a configuration without a rotary embedding.
    """
    c = m.config
    embed = m.weights.matrix(EMBEDDING, (c.vocab_size, c.hidden_size), ("V", "C"))
    rotation_of = _rotations(m)

    x = F.embedding(m.ids, embed, name="embed")
    if c.embedding_scale != 1.0:
        x = F.scale(x, _rounded(c.embedding_scale, embed.dtype), name="embed_scaled")
    x = m.dropout(x)
    for number in range(c.num_layers):
        with m.builder.scope(f"layers.{number}"):
            x = layer(m, number, x, rotation_of(number))

    x = rms_norm(m, "model.norm", m.select(x), name="norm")
    head = embed if c.tie_word_embeddings else m.weights.matrix(HEAD, (c.vocab_size, c.hidden_size), ("V", "C"))

    def logits(x: Tensor) -> Tensor:
        if not c.logit_soft_cap:
            return F.linear(x, head, axis="V", name="logits")
        bounded = F.tanh(F.scale(F.linear(x, head, axis="V", name="scores"), 1 / c.logit_soft_cap), name="bounded")
        return F.scale(bounded, c.logit_soft_cap, name="logits")

    return m.head(x, logits)


def pre_norm(m: ModelInputs, layer: int, x: Tensor, rotation: Rotation, project: Project) -> Tensor:
    """A layer that normalises what goes into attention and into the feed-forward part, and adds what comes out."""
    prefix = f"model.layers.{layer}"
    normed = rms_norm(m, f"{prefix}.input_layernorm", x, name="attn_norm")
    x = x + m.dropout(attention(m, layer, normed, rotation, project))
    normed = rms_norm(m, f"{prefix}.post_attention_layernorm", x, name="ffn_norm")
    return x + m.dropout(feed_forward(m, layer, normed, project))


def attention(m: ModelInputs, layer: int, x: Tensor, rotation: Rotation, project: Project) -> Tensor:
    """Self-attention of one layer: projections, norms of queries and keys where the model has them, rotary, attention, output projection."""
    c = m.config
    prefix = f"model.layers.{layer}.self_attn"
    lead = [0] * (len(x.shape) - 1)
    axes = "".join(axis or "_" for axis in x.type.axes[:-1])

    def heads(name: str, count: int, axis: str) -> Tensor:
        y = project(m, layer, name, x)
        return F.reshape(y, [*lead, count, c.head_dim], f"{axes}{axis}D", name=f"{name}_heads")

    def rotated(name: str, count: int, axis: str) -> Tensor:
        y = heads(name, count, axis)
        if c.qk_norm:
            y = rms_norm(m, f"{prefix}.{name}_norm", y, name=f"{name}_normed")
        return F.rope_split_half(y, *rotation, name=f"{name}_rotated")

    with m.builder.scope("attn"):
        q, k, v = rotated("q", c.num_heads, "H"), rotated("k", c.num_kv_heads, "G"), heads("v", c.num_kv_heads, "G")
        y = m.attend(layer, q, k, v, window=c.window(layer), soft_cap=c.attention_soft_cap)
        y = F.reshape(y, [*lead, c.query_width], f"{axes}_", name="context")
        weight = m.weights.matrix(f"{prefix}.o_proj.weight", (c.hidden_size, c.query_width), ("C", ""))
        bias = m.weights.vector(f"{prefix}.o_proj.bias", c.hidden_size, "C") if c.attention_output_bias else None
        return F.linear(y, weight, bias, axis="C", name="out")


def feed_forward(m: ModelInputs, layer: int, x: Tensor, project: Project) -> Tensor:
    """down(activation(gate(x)) * up(x)) of one layer."""
    c = m.config
    prefix = f"model.layers.{layer}.mlp"
    with m.builder.scope("ffn"):
        gate, up = project(m, layer, "gate", x), project(m, layer, "up", x)
        if c.activation == "silu":
            y = F.swiglu(gate, up, name="activated")
        else:
            y = F.gelu(gate, approximate="tanh" if c.activation == "gelu_tanh" else "none", name="gelu") * up
        weight = m.weights.matrix(f"{prefix}.down_proj.weight", (c.hidden_size, c.intermediate_size), ("C", "F"))
        bias = m.weights.vector(f"{prefix}.down_proj.bias", c.hidden_size, "C") if c.mlp_bias else None
        return F.linear(y, weight, bias, axis="C", name="down")


def project(m: ModelInputs, layer: int, name: str, x: Tensor) -> Tensor:
    """The projection of that name where each has a tensor of its own."""
    c = m.config
    part, rows, axis, biased = {
        "q": ("self_attn", c.query_width, "", c.attention_bias),
        "k": ("self_attn", c.kv_width, "", c.attention_bias),
        "v": ("self_attn", c.kv_width, "", c.attention_bias),
        "gate": ("mlp", c.intermediate_size, "F", c.mlp_bias),
        "up": ("mlp", c.intermediate_size, "F", c.mlp_bias),
    }[name]
    module = f"model.layers.{layer}.{part}.{name}_proj"
    weight = m.weights.matrix(f"{module}.weight", (rows, c.hidden_size), (axis, "C"))
    bias = m.weights.vector(f"{module}.bias", rows, axis) if biased else None
    return F.linear(x, weight, bias, axis=axis, name=name)


def rms_norm(m: ModelInputs, module: str, x: Tensor, *, name: str) -> Tensor:
    """The RMSNorm of that module over the last axis of x."""
    size = x.shape[-1]
    assert isinstance(size, int), "widths are numbers; only counts of tokens and rows are open"
    gain = m.weights.vector(f"{module}.weight", size, x.type.axes[-1])
    return F.rms_norm(x, gain, eps=m.config.norm_eps, name=name)


def _rotations(m: ModelInputs) -> Callable[[int], Rotation]:
    """Which tables each layer turns by: layers with a window have their own where the configuration has a local embedding."""
    c = m.config
    if c.rotary is None:
        raise ConfigError(f"a decoder of {c.architecture} needs a rotary embedding", hint="its reader gives one")
    tables = m.rotary_tables(c.rotary)
    local = tables if c.local_rotary is None else m.rotary_tables(c.local_rotary, name="local_")
    return lambda layer: local if c.window(layer) else tables


def _rounded(factor: float, dtype: DType) -> float:
    """The factor in the precision of the activations that the weights of `dtype` imply: the common implementation multiplies by a tensor of their dtype."""
    return float(_ROUNDED.get(dtype, np.float32)(factor))
