"""The Qwen3 family (Qwen Team 2025, arXiv:2505.09388), dense models.

A Llama decoder whose queries and keys are normalised over each head before they are turned. The width of a head is a number of its own (128 unless the file
says otherwise). `attention_bias` adds biases to all four projections of attention; windows are Qwen2's.
"""

from __future__ import annotations

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
from ostinato.frontend.models.qwen2 import qwen_windows

__all__ = ["QWEN3"]


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The common keys, Qwen2's windows and biases by one key."""
    common = decoder_from_huggingface(read, positions=32768, windows=qwen_windows(read), head_dim=128)
    biased = read.flag("attention_bias")
    return replace(common, qk_norm=True, attention_bias=biased, attention_output_bias=biased)


def from_gguf(read: MetadataReader) -> ModelConfig:
    """The common keys."""
    return replace(decoder_from_gguf(read), qk_norm=True)


QWEN3 = Family(
    name="qwen3",
    function=llama,
    huggingface=(HuggingFaceSpelling(model_type="qwen3", classes=("Qwen3ForCausalLM",), config=from_huggingface),),
    gguf=(GgufSpelling(architecture="qwen3", config=from_gguf),),
)
