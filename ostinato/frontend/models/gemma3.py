"""The Gemma 3 family (Gemma Team 2025, arXiv:2503.19786), text models.

A Gemma 2 without a soft cap on scores, with queries and keys normalised over each head. Five layers of six (`sliding_window_pattern`) see a window and turn
by a base of their own (`rope_local_base_freq`, 10000), every sixth sees everything and turns by the global base (1000000), to which rotary scaling applies.
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
    windows_from_huggingface,
)
from ostinato.frontend.models.gemma import GAINS_LESS_ONE, gemma_from_gguf, gemma_from_huggingface
from ostinato.frontend.models.gemma2 import GGUF_NORMS, gemma2, score_scale, score_scale_from_gguf

__all__ = ["GEMMA3"]

_LOCAL_THETA = 10000.0


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The keys of all Gemmas, the pattern of local layers, the two rotary bases and the scale of scores."""
    if read.raw.get("attn_logit_softcapping") is not None:
        raise read.refuse("attn_logit_softcapping is not part of this family")
    if read.raw.get("sliding_window", 4096) in (None, 0):
        raise read.refuse("sliding_window is off, and the local layers of this family need one")
    every = read.integer("sliding_window_pattern", default=6)
    if every < 1:
        raise read.refuse(f"sliding_window_pattern is {every}, expected every how many layers one sees everything")
    windows = windows_from_huggingface(read, size=4096, applies=lambda layer: (layer + 1) % every != 0)
    common = gemma_from_huggingface(
        read,
        windows=windows,
        positions=131072,
        theta=1_000_000.0,
        local_theta=read.number("rope_local_base_freq", _LOCAL_THETA),
    )
    return replace(
        common,
        qk_norm=True,
        attention_scale=score_scale(read),
        logit_soft_cap=read.number("final_logit_softcapping", 0.0),
    )


def from_gguf(read: MetadataReader) -> ModelConfig:
    """The common keys, with the published pattern and local base where the file leaves them out."""
    common = decoder_from_gguf(
        read, activation="gelu_tanh", windowed=lambda layer: (layer + 1) % 6 != 0, local_theta=_LOCAL_THETA
    )
    return replace(
        gemma_from_gguf(common),
        qk_norm=True,
        attention_scale=score_scale_from_gguf(read, common, largest=62),
        logit_soft_cap=read.number("final_logit_softcapping", default=0.0),
    )


GEMMA3 = Family(
    name="gemma3",
    function=gemma2,
    huggingface=(
        HuggingFaceSpelling(
            model_type="gemma3_text", classes=("Gemma3ForCausalLM",), config=from_huggingface, shifts=GAINS_LESS_ONE
        ),
    ),
    gguf=(GgufSpelling(architecture="gemma3", config=from_gguf, names=GGUF_NORMS),),
)
