"""The Llama family (Touvron et al. 2023): Llama 1 to 3, SmolLM2, TinyLlama.

Pre-norm decoder: RMSNorm, grouped-query attention with split-half rotary embedding, SwiGLU, no biases unless the configuration asks for them.
GGUF files of the family store the rows of Q and K interleaved; Mistral's are among them, so a window that such a file states is computed. `config.json` has
no windows in this family, and one that switches them on is refused.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ostinato.frontend.decoder import decoder, pre_norm, project
from ostinato.frontend.family import (
    ConfigReader,
    Family,
    GgufSpelling,
    HuggingFaceSpelling,
    ModelConfig,
    decoder_from_gguf,
    decoder_from_huggingface,
    windows_from_huggingface,
)
from ostinato.frontend.layers import ModelInputs
from ostinato.frontend.trace import Tensor

__all__ = ["LLAMA", "llama"]


def llama(m: ModelInputs) -> Tensor:
    """Logits [..., V] of the tokens that `m.select` keeps."""
    return decoder(m, partial(pre_norm, project=project))


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The common keys, and biases by two keys: `attention_bias` for all four projections of attention, `mlp_bias` for all three of the feed-forward."""
    if windows_from_huggingface(read, size=4096, switched_on=False):
        raise read.refuse("sliding windows are not part of this family", hint='set "use_sliding_window": false')
    common = decoder_from_huggingface(read, positions=2048, kv_heads_required=False)
    biased = read.flag("attention_bias")
    return replace(common, attention_bias=biased, attention_output_bias=biased, mlp_bias=read.flag("mlp_bias"))


LLAMA = Family(
    name="llama",
    function=llama,
    huggingface=(HuggingFaceSpelling(model_type="llama", classes=("LlamaForCausalLM",), config=from_huggingface),),
    gguf=(GgufSpelling(architecture="llama", config=decoder_from_gguf, interleaved_rotary=True),),
    also=("SmolLM2", "TinyLlama", "Mistral in GGUF files"),
)
