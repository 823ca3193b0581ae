"""The Qwen2 family (Yang et al. 2024): Qwen2, Qwen2.5 and DeepSeek-R1-Distill-Qwen.

A Llama decoder, so the function is Llama's. What differs is in the files: Q, K and V always have biases and no other projection has one, whatever the
configuration says; windows have a switch (`use_sliding_window`) and, without `layer_types`, belong to the layers from `max_window_layers` on; GGUF files
store Q and K in the original order of rows. Multi-axis rotary (the vision models) is refused by the shared reader.
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
    windows_from_huggingface,
)
from ostinato.frontend.models.llama import llama

__all__ = ["QWEN2", "qwen_windows"]


def qwen_windows(read: ConfigReader) -> tuple[int, ...]:
    """The windows of the Qwen families: off unless switched on, and then from layer `max_window_layers` on."""
    first = read.integer("max_window_layers", default=28)
    return windows_from_huggingface(read, size=4096, switched_on=False, applies=lambda layer: layer >= first)


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The common keys; the biases are no key."""
    return replace(decoder_from_huggingface(read, positions=32768, windows=qwen_windows(read)), attention_bias=True)


def from_gguf(read: MetadataReader) -> ModelConfig:
    """The common keys; a file without the biases is not a Qwen2, which the strict load says."""
    return replace(decoder_from_gguf(read), attention_bias=True)


QWEN2 = Family(
    name="qwen2",
    function=llama,
    huggingface=(HuggingFaceSpelling(model_type="qwen2", classes=("Qwen2ForCausalLM",), config=from_huggingface),),
    gguf=(GgufSpelling(architecture="qwen2", config=from_gguf),),
    also=("Qwen2.5", "DeepSeek-R1-Distill-Qwen"),
)
