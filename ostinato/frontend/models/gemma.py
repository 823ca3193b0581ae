"""The first Gemma family (Gemma Team 2024, arXiv:2403.08295).

A Llama decoder with wide heads (256), a feed-forward part gated by a GELU, a tied head, and embeddings multiplied by sqrt(hidden_size). Hugging Face files
store the gains of its norms less 1, GGUF files store them whole. What the file calls its activation is always the tanh form.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ostinato.frontend.family import (
    ConfigReader,
    Family,
    GgufSpelling,
    HuggingFaceSpelling,
    MetadataReader,
    ModelConfig,
    decoder_from_gguf,
    decoder_from_huggingface,
)
from ostinato.frontend.models.llama import llama

__all__ = ["GAINS_LESS_ONE", "GEMMA", "gemma_from_gguf", "gemma_from_huggingface"]

GAINS_LESS_ONE = {"norm.weight": 1.0}
"""What is added to the tensors whose names end so, in Hugging Face files of the Gemma families."""


def gemma_from_huggingface(
    read: ConfigReader,
    *,
    windows: tuple[int, ...] = (),
    positions: int = 8192,
    theta: float = 10000.0,
    local_theta: float | None = None,
) -> ModelConfig:
    """What the Gemma families spell alike: the common keys with their own defaults, and biases of attention by one key."""
    if read.flag("use_bidirectional_attention"):
        raise read.refuse("use_bidirectional_attention is not supported for decoders")
    common = decoder_from_huggingface(
        read,
        positions=positions,
        windows=windows,
        head_dim=256,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        tied=True,
        theta=theta,
        local_theta=local_theta,
    )
    biased = read.flag("attention_bias")
    return replace(
        common,
        embedding_scale=math.sqrt(common.hidden_size),
        attention_bias=biased,
        attention_output_bias=biased,
    )


def gemma_from_gguf(common: ModelConfig) -> ModelConfig:
    """What the files of the Gemma families leave out of their metadata."""
    return replace(common, embedding_scale=math.sqrt(common.hidden_size))


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The keys of all Gemmas; the activation is fixed, since early files name another one than they mean."""
    if read.raw.get("hidden_act", "gelu") not in ("gelu", "gelu_pytorch_tanh"):
        raise read.refuse(
            f"hidden_act {read.raw['hidden_act']!r} is not supported", hint="this family computes gelu_pytorch_tanh"
        )
    return replace(gemma_from_huggingface(read), activation="gelu_tanh")


def from_gguf(read: MetadataReader) -> ModelConfig:
    """The common keys."""
    return gemma_from_gguf(decoder_from_gguf(read, activation="gelu_tanh"))


GEMMA = Family(
    name="gemma",
    function=llama,
    huggingface=(
        HuggingFaceSpelling(
            model_type="gemma", classes=("GemmaForCausalLM",), config=from_huggingface, shifts=GAINS_LESS_ONE
        ),
    ),
    gguf=(GgufSpelling(architecture="gemma", config=from_gguf),),
)
