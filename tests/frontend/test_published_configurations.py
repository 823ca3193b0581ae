"""Configurations as their authors published them, cut to the keys that matter, are read as the papers describe the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinato.frontend.checkpoints import ModelConfig
from ostinato.frontend.checkpoints.huggingface_config import config_from_huggingface
from ostinato.frontend.checkpoints.rotary import Rotary
from ostinato.frontend.models import FAMILIES

PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Llama 3.1 8B": (
        {
            "model_type": "llama",
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "eos_token_id": [128001, 128008, 128009],
            "bos_token_id": 128000,
        },
        {
            "head_dim": 128,
            "rotary": Rotary(
                kind="llama3",
                theta=500000.0,
                width=128,
                factor=8.0,
                original_positions=8192,
                low_frequency_factor=1.0,
                high_frequency_factor=4.0,
            ),
            "windows": (),
            "eos_token_ids": (128001, 128008, 128009),
            "context_limit": 131072,
        },
    ),
    "Qwen2.5 7B with yarn": (
        {
            "model_type": "qwen2",
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "max_window_layers": 28,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "sliding_window": 131072,
            "use_sliding_window": False,
            "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
        },
        {"attention_bias": True, "attention_output_bias": False, "windows": (), "context_limit": 131072},
    ),
    "Qwen3 0.6B": (
        {
            "model_type": "qwen3",
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "max_window_layers": 28,
            "rms_norm_eps": 1e-6,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
            "attention_bias": False,
        },
        {"query_width": 2048, "qk_norm": True, "rotary": Rotary(theta=1e6, width=128), "windows": ()},
    ),
    "Mistral 7B v0.1": (
        {
            "model_type": "mistral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
        },
        {"windows": (4096,) * 32, "attention_bias": False},
    ),
    "Gemma 2 2B": (
        {
            "model_type": "gemma2",
            "vocab_size": 256000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
        },
        {
            "windows": (4096, 0) * 13,
            "attention_soft_cap": 50.0,
            "logit_soft_cap": 30.0,
            "score_scale": 0.0625,
            "embedding_scale": 48.0,
            "activation": "gelu_tanh",
            "tie_word_embeddings": True,
        },
    ),
    "Gemma 3 1B": (
        {
            "model_type": "gemma3_text",
            "vocab_size": 262144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "max_position_embeddings": 32768,
            "hidden_activation": "gelu_pytorch_tanh",
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-6,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "eos_token_id": [1, 106],
        },
        {
            "windows": tuple(0 if layer % 6 == 5 else 512 for layer in range(26)),
            "rotary": Rotary(theta=1e6, width=256),
            "local_rotary": Rotary(theta=1e4, width=256),
            "attention_soft_cap": 0.0,
            "logit_soft_cap": 0.0,
            "qk_norm": True,
            "tie_word_embeddings": True,
        },
    ),
    "Phi-4 mini": (
        {
            "model_type": "phi3",
            "vocab_size": 200064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.75,
            "rms_norm_eps": 1e-5,
            "rope_scaling": {"long_factor": [4.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
            "rope_theta": 10000.0,
            "sliding_window": 262144,
            "tie_word_embeddings": True,
        },
        {
            "head_dim": 128,
            "windows": (262144,) * 32,
            "depends_on_length": True,
            "rotary": Rotary(
                kind="longrope",
                width=96,
                factor=32.0,
                original_positions=4096,
                attention_factor=1.1902380714238083,
                short_factor=(1.0,) * 48,
                long_factor=(4.0,) * 48,
            ),
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_read_as_described(name: str) -> None:
    keys, expected = PUBLISHED[name]
    config: ModelConfig = config_from_huggingface(keys, Path("config.json"), FAMILIES)
    assert {field: getattr(config, field) for field in expected} == expected
