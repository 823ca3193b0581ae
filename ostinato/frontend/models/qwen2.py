"""The Qwen2 family (Yang et al. 2024): Qwen2, Qwen2.5 and DeepSeek-R1-Distill-Qwen.

A Llama decoder, so the function is Llama's. What differs is in the files: Q, K and V always have biases and no other projection has one, whatever the
configuration says; windows have a switch of their own (`use_sliding_window`, `max_window_layers`) and are refused where it is on; GGUF files store Q and K
in the original order of rows. Multi-axis rotary (the vision models) is refused by the shared reader.
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
    window_is_switched_on,
)
from ostinato.frontend.models.llama import llama

__all__ = ["QWEN2"]


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The common keys; the biases are no key."""
    common = decoder_from_huggingface(read, positions=32768, windowed=window_is_switched_on(read))
    return replace(common, attention_bias=True)


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
