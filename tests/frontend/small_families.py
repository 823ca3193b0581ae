"""One tiny configuration of every family, with what is the family's own switched on: windows, caps, partial and long rotary, biases, head sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ostinato as ost
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.make_encoders import encoder_config, random_encoder

__all__ = ["GEMMA", "SMALL_DECODERS", "SMALL_FAMILIES", "small_model"]

_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + pair / 8 for pair in range(8)],
    "long_factor": [2.0 + pair for pair in range(8)],
}
GEMMA: Mapping[str, Any] = {"tie_word_embeddings": True, "head_dim": 32}
SMALL_DECODERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True}),
    "mistral": ("mistral", {"sliding_window": 5}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "gemma": ("gemma", GEMMA),
    "gemma2": ("gemma2", {**GEMMA, "sliding_window": 5, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 2.0}),
    "gemma3": (
        "gemma3_text",
        {**GEMMA, "sliding_window": 5, "query_pre_attn_scalar": 32, "num_hidden_layers": 7, "rope_theta": 1e6},
    ),
    "phi3": (
        "phi3",
        {
            "head_dim": 32,
            "partial_rotary_factor": 0.5,
            "sliding_window": 9,
            "original_max_position_embeddings": 12,
            "rope_scaling": _LONGROPE,
        },
    ),
}
"""Family -> `model_type` and what its `config.json` says beside `small_config`."""
SMALL_FAMILIES = (*SMALL_DECODERS, "bert")
"""All of them, the encoders too."""


def small_model(name: str, directory: Path, seed: int, **changes: Any) -> ost.Model:
    """A model of that family with random weights, written to a directory; `changes` go to its configuration."""
    if name == "bert":
        config = encoder_config(**changes)
        return ost.load(write_hf_checkpoint(directory, config, random_encoder(config, seed)))
    family, own = SMALL_DECODERS[name]
    config = small_config(family, **{**own, **changes})
    return ost.load(write_hf_checkpoint(directory, config, random_model(config, seed)))
