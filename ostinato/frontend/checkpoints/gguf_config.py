"""The metadata of a GGUF file to `ModelConfig`: what the decoder families of the format spell alike.

Biases and a tied head are not metadata: the file says them by having the tensors or leaving them out. Everything that changes the mathematics and is not
implemented (rotary scaling, partial rotary, experts, windows) is refused.
"""

from __future__ import annotations

import numpy as np

from ostinato.frontend.checkpoints.base import EMBEDDING, HEAD
from ostinato.frontend.checkpoints.config import ModelConfig, refuse_rope_kind
from ostinato.frontend.checkpoints.reader import MetadataReader
from ostinato.ir.errors import NotYetAvailable, WeightsError
from ostinato.ir.types import DType

__all__ = ["decoder_from_gguf"]

_ROPE_FACTORS = "rope_freqs.weight"
_FIRST_LAYER = "model.layers.0."


def decoder_from_gguf(read: MetadataReader) -> ModelConfig:
    """The configuration of a decoder. A family replaces the fields that it reads otherwise.

    Raises `ConfigError` for missing, malformed or unsupported values, `WeightsError` without an embedding, `NotYetAvailable`.
    """
    heads, hidden = read.integer("attention.head_count"), read.integer("embedding_length")
    head_dim = _head_dim(read, hidden, heads)
    _refuse_unsupported(read, head_dim)
    embedding = read.tensors.get(EMBEDDING)
    if embedding is None:
        raise WeightsError(
            f"{read.path} has no embedding ({EMBEDDING}, token_embd.weight in most files)",
            hint="not a complete model: download it again",
        )
    vocab_size = embedding.shape[0]
    declared = read.integer("vocab_size", default=vocab_size)
    if declared != vocab_size:
        raise read.refuse(f"vocab_size is {declared}, {embedding.name} has {vocab_size} rows")
    return ModelConfig(
        architecture=read.architecture,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=read.integer("feed_forward_length"),
        num_layers=read.integer("block_count"),
        num_heads=heads,
        num_kv_heads=read.integer("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        rms_norm_eps=_shortest(read.number("attention.layer_norm_rms_epsilon")),
        rope_theta=_shortest(read.number("rope.freq_base", default=10000.0)),
        max_position_embeddings=read.integer("context_length"),
        tie_word_embeddings=HEAD not in read.tensors,
        attention_bias=f"{_FIRST_LAYER}self_attn.q_proj.bias" in read.tensors,
        attention_output_bias=f"{_FIRST_LAYER}self_attn.o_proj.bias" in read.tensors,
        mlp_bias=f"{_FIRST_LAYER}mlp.down_proj.bias" in read.tensors,
        bos_token_id=read.token("bos"),
        eos_token_ids=tuple(
            dict.fromkeys(token for role in ("eos", "eot", "eom") if (token := read.token(role)) is not None)
        ),
        pad_token_id=read.token("padding"),
        dtype=embedding.dtype if embedding.dtype in (DType.F32, DType.F16, DType.BF16) else None,
    )


def _shortest(value: float) -> float:
    """The file stores float32; the shortest decimal that rounds to it is the number that was written (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def _head_dim(read: MetadataReader, hidden: int, heads: int) -> int:
    if heads <= 0:
        raise read.refuse(f"attention.head_count is {heads}")
    width = read.integer("attention.key_length", default=hidden // heads if hidden % heads == 0 else 0)
    if width <= 0:
        raise read.refuse(
            f"embedding_length {hidden} is not a multiple of {heads} heads and attention.key_length is not given"
        )
    if read.integer("attention.value_length", default=width) != width:
        raise read.refuse("key and value heads of different widths are not supported")
    return width


def _refuse_unsupported(read: MetadataReader, head_dim: int) -> None:
    if read.integer("rope.dimension_count", default=head_dim) != head_dim:
        raise read.refuse(
            f"partial rotary embeddings (rope.dimension_count differs from head width {head_dim}) are not supported"
        )
    kind = read.raw.get(f"{read.prefix}.rope.scaling.type", "none")
    if kind != "none":
        raise refuse_rope_kind(str(kind), f"{read.path}: ")
    untyped = f"{read.prefix}.rope.scaling.type" not in read.raw  # a factor without a kind means linear
    if untyped and read.number("rope.scaling.factor", default=1.0) not in (0.0, 1.0):
        raise refuse_rope_kind("linear", f"{read.path}: ")
    if read.number("rope.scale_linear", default=1.0) not in (0.0, 1.0):
        raise refuse_rope_kind("linear", f"{read.path}: ")
    if _ROPE_FACTORS in read.tensors:
        raise refuse_rope_kind("llama3", f"{read.path}: ")
    if read.integer("expert_count", default=0) > 0:
        raise read.refuse("mixture-of-experts models are not supported")
    if read.integer("attention.sliding_window", default=0) > 0:
        raise NotYetAvailable(f"{read.path}: sliding-window attention is not yet available")
