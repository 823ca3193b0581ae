"""Random checkpoints of real shapes for the benchmarks, written once into a cache folder, and outlines of them: the shapes without the numbers.

Weights are seeded normal numbers; the shapes are public configurations.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import safetensors.numpy
from ml_dtypes import bfloat16

import ostinato as ost

__all__ = ["CONFIGS", "PACKAGED", "checkpoint", "outline", "weight_bytes"]

PACKAGED = "smollm2"
"""A real model, from its package: 4-bit weights here, dequantised to fp32 for torch."""

CONFIGS: dict[str, dict[str, Any]] = {
    "Q": {  # Qwen2.5-0.5B
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 32768,
        "hidden_act": "silu",
    },
    "D": {  # DeepSeek-R1-Distill-Qwen-1.5B
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "hidden_act": "silu",
    },
    "L": {  # Llama-3.1-8B, its rotary scaling apart
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
    },
    "S": {  # a "stories" size Llama
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 288,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "intermediate_size": 768,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
    },
    "tiny": {  # of nothing: shows that a benchmark runs
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 384,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
    },
}


def weight_bytes(name: str, element: int) -> int:
    """Bytes of all weights that one decode step reads (embedding counted once: tied); of the packaged model as its file stores them."""
    if name == PACKAGED:
        return ost.load(PACKAGED).checkpoint.nbytes
    return sum(int(np.prod(shape)) for shape in _shapes(CONFIGS[name]).values()) * element


def checkpoint(name: str, dtype: str, folder: Path | None = None) -> str:
    """What to load: the folder of a checkpoint with random weights ("f32" or "bf16"), made on first use, or the packaged model's name.

    It is made below `folder`, by default in the user's cache.
    """
    if name == PACKAGED:
        return name
    parent = folder or Path(platformdirs.user_cache_dir("ostinato")) / "benchmarks"
    folder = parent / f"{name}-{dtype}"
    if (folder / "model.safetensors").exists():
        return str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(name, dtype)
    shapes = _shapes(config)

    def values(index: int, tensor: str) -> Any:
        made = np.random.default_rng([0, index]).standard_normal(shapes[tensor], dtype=np.float32)
        made *= np.float32(0.02)
        if tensor.endswith("norm.weight"):
            made += np.float32(1.0)
        return _rounded(made) if dtype == "bf16" else made

    with ThreadPoolExecutor() as pool:
        tensors = dict(zip(shapes, pool.map(values, range(len(shapes)), shapes), strict=True))
    temporary = folder / "model.partial"
    safetensors.numpy.save_file(tensors, temporary, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    temporary.rename(folder / "model.safetensors")
    return str(folder)


def _rounded(values: np.ndarray[Any, np.dtype[np.float32]]) -> Any:
    """To bf16, halves upwards; in place, and without the GIL."""
    bits = values.view(np.uint32)
    bits += np.uint32(0x8000)
    bits >>= np.uint32(16)
    return bits.astype(np.uint16).view(bfloat16)


def outline(name: str, dtype: str, folder: Path) -> str:
    """Writes a checkpoint of the right shapes whose payload is a hole in the file, and returns `folder`: to trace and to plan, never to compute."""
    config, element = _config(name, dtype), {"f32": 4, "bf16": 2}[dtype]
    header: dict[str, Any] = {}
    end = 0
    for tensor, shape in _shapes(config).items():
        begin, end = end, end + int(np.prod(shape)) * element
        header[tensor] = {"dtype": dtype.upper(), "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return str(folder)


def _config(name: str, dtype: str) -> dict[str, Any]:
    return CONFIGS[name] | {
        "torch_dtype": {"f32": "float32", "bf16": "bfloat16"}[dtype],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = hidden // config["num_attention_heads"]
    kv = width * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", hidden), ("k", kv), ("v", kv)):
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (rows, hidden)
            if config["model_type"] == "qwen2":
                shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
    return shapes
