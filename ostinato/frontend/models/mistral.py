"""The Mistral family (Jiang et al. 2023, arXiv:2310.06825).

A Llama decoder without biases whose layers all see the last `sliding_window` keys, i - W + 1 to i for token i; null, 0 and an explicit
`use_sliding_window` of false mean none. GGUF files call it llama, and the Llama family reads them. Layer types that contradict the window are refused: the
common implementation ignores them in this family.
"""

from __future__ import annotations

from ostinato.frontend.family import (
    ConfigReader,
    Family,
    HuggingFaceSpelling,
    ModelConfig,
    decoder_from_huggingface,
    windows_from_huggingface,
)
from ostinato.frontend.models.llama import llama

__all__ = ["MISTRAL"]


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The common keys. Where `sliding_window` is absent, the published default is a window of 4096."""
    windows = windows_from_huggingface(read, size=4096, alike=True)
    return decoder_from_huggingface(read, positions=131072, windows=windows)


MISTRAL = Family(
    name="mistral",
    function=llama,
    huggingface=(HuggingFaceSpelling(model_type="mistral", classes=("MistralForCausalLM",), config=from_huggingface),),
)
