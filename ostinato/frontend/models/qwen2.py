"""The Qwen2 family (Yang et al. 2024): Qwen2, Qwen2.5 and DeepSeek-R1-Distill-Qwen.

A Llama decoder whose Q, K and V projections have biases: the configuration carries that (`attention_bias`), so the function is Llama's. Windowed and
multimodal-rotary variants are refused when the configuration is read.
"""

from __future__ import annotations

from ostinato.frontend.layers import ModelInputs
from ostinato.frontend.models.llama import llama
from ostinato.frontend.trace import Tensor

__all__ = ["qwen2"]


def qwen2(m: ModelInputs) -> Tensor:
    """Logits [..., V] of the tokens that `m.select` keeps."""
    return llama(m)
