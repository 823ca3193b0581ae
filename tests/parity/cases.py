"""Small random models of every family and rotary kind, and the token sequences they are compared on.

Weights have standard deviation 0.2, so that a wrong rotary, mask or head order moves the logits. Each case is one sequence: a prompt and 32 further tokens
that are fed one by one. Prompts, windows and trained lengths sit on both sides of the edges of buckets (16) and of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ostinato.ir.types import Array

__all__ = ["CASES", "DECODE_STEPS", "SMOLLM2_PROMPTS", "SMOLLM2_TOKENS", "Case"]

DECODE_STEPS = 32
SMOLLM2_TOKENS = 64
SMOLLM2_PROMPTS = (
    "The capital of France is",
    "Write a haiku about the sea.\n",
    "def fibonacci(n):\n    ",
)
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration in `config.json` terms and a prompt length; `seed` fixes weights and tokens."""

    name: str
    config: dict[str, Any]
    prompt: int
    seed: int

    @property
    def tokens(self) -> Array:
        """int32 [prompt + DECODE_STEPS]"""
        rng = np.random.default_rng(self.seed + 1000)
        return rng.integers(0, self.config["vocab_size"], self.prompt + DECODE_STEPS, dtype=np.int32)

    @property
    def lengths(self) -> list[int]:
        """Lengths of the rows that are cut from the sequence for a ragged batch."""
        total = self.prompt + DECODE_STEPS
        return sorted({1, self.prompt, total // 2, total})

    @property
    def depends_on_length(self) -> bool:
        """The rotations follow the sequence's length, so that logits of a part are not those of the whole."""
        return _kind(self.config) in ("dynamic", "longrope", "su")


def _kind(config: dict[str, Any]) -> str:
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return str(scaling.get("rope_type", scaling.get("type", "default")))


def _config(
    family: str, heads: int, kv_heads: int, head_dim: int, *, theta: float = 10000.0, **changes: Any
) -> dict[str, Any]:
    hidden = 16 * heads  # transformers wants a multiple of the heads; head_dim is its own field
    config: dict[str, Any] = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "vocab_size": 37,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden + 8,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


def _gemma(family: str, heads: int, kv_heads: int, head_dim: int, **changes: Any) -> dict[str, Any]:
    return _config(
        family,
        heads,
        kv_heads,
        head_dim,
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh",
        **changes,
    )


def _rotary(kind: str, **numbers: Any) -> dict[str, Any]:
    """A small llama with that rotary kind, in the older spelling."""
    limit = numbers.pop("max_position_embeddings", 512)
    return _config("llama", 3, 1, 32, rope_scaling={"rope_type": kind, **numbers}, max_position_embeddings=limit)


def _phi(heads: int, kv_heads: int, width: int, **changes: Any) -> dict[str, Any]:
    """The width of a head is hidden / heads in this family."""
    return _config("phi3", heads, kv_heads, width, hidden_size=heads * width, **changes)


def _factors(pairs: int, least: float, most: float) -> list[float]:
    return [round(float(value), 4) for value in np.geomspace(least, most, pairs)]


CASES = (
    Case("llama-mha-32", _config("llama", 3, 3, 32), 1, 1),
    Case("llama-gqa3-64", _config("llama", 3, 1, 64, tie_word_embeddings=True), 7, 2),
    Case("llama-gqa7-80", _config("llama", 7, 1, 80), 16, 3),
    Case("llama-gqa3-128", _config("llama", 6, 2, 128, theta=500000.0), 33, 4),
    Case("llama-bias-64", _config("llama", 4, 4, 64, attention_bias=True, mlp_bias=True), 15, 5),
    Case("llama-tied-bias-32", _config("llama", 6, 2, 32, tie_word_embeddings=True, attention_bias=True), 40, 6),
    Case("qwen2-gqa7-64", _config("qwen2", 14, 2, 64, tie_word_embeddings=True, theta=1e6), 31, 7),
    Case("qwen2-gqa3-128", _config("qwen2", 3, 1, 128, theta=1e6), 17, 8),
    Case("qwen2-mha-80", _config("qwen2", 2, 2, 80), 9, 9),
    Case("qwen2-gqa7-32", _config("qwen2", 7, 1, 32, tie_word_embeddings=True), 64, 10),
    Case("llama-gelu", _config("llama", 2, 1, 32, hidden_act="gelu"), 5, 11),
    Case(
        "qwen2-windows-from-layer-1",
        _config("qwen2", 4, 2, 16, use_sliding_window=True, sliding_window=7, max_window_layers=1),
        15,
        12,
    ),
    Case(
        "qwen2-windows-by-layer-type",
        _config(
            "qwen2",
            4,
            2,
            16,
            use_sliding_window=True,
            sliding_window=17,
            layer_types=["sliding_attention", "full_attention"],
        ),
        16,
        13,
    ),
    Case("qwen3-gqa3-48", _config("qwen3", 3, 1, 48, tie_word_embeddings=True, theta=1e6), 17, 14),
    Case("qwen3-bias-32", _config("qwen3", 4, 2, 32, attention_bias=True), 31, 15),
    Case(
        "qwen3-window-128",
        _config("qwen3", 2, 1, 128, use_sliding_window=True, sliding_window=16, max_window_layers=0),
        15,
        16,
    ),
    Case("mistral-window-4", _config("mistral", 4, 2, 16, sliding_window=4), 6, 17),
    Case("mistral-window-1", _config("mistral", 2, 1, 32, sliding_window=1), 3, 18),
    Case("mistral-window-15-prompt-16", _config("mistral", 3, 1, 40, sliding_window=15), 16, 19),
    Case("mistral-window-16-prompt-15", _config("mistral", 4, 4, 16, sliding_window=16), 15, 20),
    Case("mistral-window-33-prompt-17", _config("mistral", 4, 1, 24, sliding_window=33), 17, 21),
    Case("mistral-window-off", _config("mistral", 4, 2, 16, sliding_window=None), 17, 22),
    Case("gemma-48", _gemma("gemma", 3, 1, 48), 16, 23),
    Case("gemma2-window-5", _gemma("gemma2", 4, 2, 32, sliding_window=5, query_pre_attn_scalar=24), 15, 24),
    Case(
        "gemma2-no-caps",
        _gemma("gemma2", 2, 2, 64, **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"))),
        17,
        25,
    ),
    Case(
        "gemma2-tight-caps",
        _gemma("gemma2", 4, 1, 16, sliding_window=16, attn_logit_softcapping=1.5, final_logit_softcapping=2.0),
        16,
        26,
    ),
    Case(
        "gemma3-pattern-3",
        _gemma("gemma3_text", 4, 2, 32, num_hidden_layers=4, sliding_window=6, sliding_window_pattern=3, theta=1e6),
        14,
        27,
    ),
    Case(
        "gemma3-per-layer-type",
        _gemma(
            "gemma3_text",
            2,
            1,
            48,
            rope_theta=...,
            sliding_window=16,
            layer_types=["full_attention", "sliding_attention"],
            final_logit_softcapping=3.0,
            query_pre_attn_scalar=40,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        ),
        33,
        28,
    ),
    Case(
        "gemma3-flat-scaling",
        _gemma(
            "gemma3_text",
            2,
            2,
            32,
            theta=1e6,
            rope_local_base_freq=5000.0,
            rope_scaling={"rope_type": "linear", "factor": 4.0},
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
        ),
        9,
        29,
    ),
    Case("phi3-fused", _phi(3, 1, 32), 16, 30),
    Case("phi3-window-partial", _phi(4, 2, 32, sliding_window=9, partial_rotary_factor=0.75), 17, 31),
    Case(
        "phi3-longrope",
        _phi(
            2,
            2,
            32,
            max_position_embeddings=96,
            original_max_position_embeddings=24,
            rope_scaling={"type": "longrope", "short_factor": _factors(16, 1, 1.5), "long_factor": _factors(16, 1, 6)},
        ),
        15,
        32,
    ),
    Case(
        "phi3-longrope-partial-from-the-start",
        _phi(
            4,
            2,
            32,
            max_position_embeddings=128,
            original_max_position_embeddings=16,
            partial_rotary_factor=0.5,
            tie_word_embeddings=True,
            rope_scaling={
                "type": "su",
                "short_factor": _factors(8, 1, 2),
                "long_factor": _factors(8, 1.5, 9),
                "original_max_position_embeddings": 16,
            },
        ),
        33,
        33,
    ),
    Case("rotary-linear", _rotary("linear", factor=3.0), 15, 34),
    Case("rotary-dynamic", _rotary("dynamic", factor=8.0, max_position_embeddings=24), 16, 35),
    Case("rotary-dynamic-from-the-start", _rotary("dynamic", factor=4.0, max_position_embeddings=32), 33, 36),
    Case(
        "rotary-yarn",
        _rotary("yarn", factor=4.0, original_max_position_embeddings=1024, max_position_embeddings=4096),
        17,
        37,
    ),
    Case(
        "rotary-yarn-options",
        _rotary(
            "yarn",
            factor=8.0,
            original_max_position_embeddings=64,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
            mscale=0.7,
            mscale_all_dim=0.4,
        ),
        16,
        38,
    ),
    Case(
        "rotary-llama3",
        _rotary("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
        31,
        39,
    ),
    Case(
        "rotary-longrope",
        _rotary(
            "longrope",
            factor=4.0,
            original_max_position_embeddings=40,
            short_factor=_factors(16, 1, 1.2),
            long_factor=_factors(16, 1, 8),
            attention_factor=1.3,
        ),
        32,
        40,
    ),
    Case(
        "rotary-parameters-spelling",
        _config(
            "qwen3", 3, 1, 32, rope_theta=..., rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}
        ),
        15,
        41,
    ),
)
