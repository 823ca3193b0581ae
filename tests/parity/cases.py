"""Small random models of both families, and the token sequences they are compared on.

Weights have standard deviation 0.2, so that a wrong rotary, mask or head order moves the logits. Each case is one sequence: a prompt and 32 further tokens
that are fed one by one; the reference is the logits of every position of the whole sequence.
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


def _config(
    family: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    tied: bool = False,
    bias: bool = False,
    mlp_bias: bool = False,
    theta: float = 10000.0,
) -> dict[str, Any]:
    hidden = 16 * heads  # transformers wants a multiple of the heads; head_dim is its own field
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM" if family == "llama" else "Qwen2ForCausalLM"],
        "model_type": family,
        "vocab_size": 131,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden + 8,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "llama":
        config |= {"attention_bias": bias, "mlp_bias": mlp_bias}
    return config


CASES = (
    Case("llama-mha-32", _config("llama", 3, 3, 32), 1, 1),
    Case("llama-gqa3-64", _config("llama", 3, 1, 64, tied=True), 7, 2),
    Case("llama-gqa7-80", _config("llama", 7, 1, 80), 16, 3),
    Case("llama-gqa3-128", _config("llama", 6, 2, 128, theta=500000.0), 33, 4),
    Case("llama-bias-64", _config("llama", 4, 4, 64, bias=True, mlp_bias=True), 15, 5),
    Case("llama-tied-bias-32", _config("llama", 6, 2, 32, tied=True, bias=True), 40, 6),
    Case("qwen2-gqa7-64", _config("qwen2", 14, 2, 64, tied=True, theta=1e6), 31, 7),
    Case("qwen2-gqa3-128", _config("qwen2", 3, 1, 128, theta=1e6), 17, 8),
    Case("qwen2-mha-80", _config("qwen2", 2, 2, 80), 9, 9),
    Case("qwen2-gqa7-32", _config("qwen2", 7, 1, 32, tied=True), 64, 10),
)
