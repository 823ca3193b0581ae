"""Small synthetic checkpoints for tests, in both formats, written with the public writers (never with the code under test).

`small_config` gives a Hugging Face configuration, `random_model` its tensors, `write_hf_checkpoint` and `write_gguf` put them on disk.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import numpy.typing as npt
import safetensors

from ostinato.ir.ops.samplers import random_blocks
from ostinato.ir.types import DType

Tensors = dict[str, npt.NDArray[Any]]

_SAFETENSORS_DTYPES = {
    np.dtype(np.float32): "float32",
    np.dtype(np.float16): "float16",
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
    np.dtype(np.float64): "float64",
    np.dtype(np.int64): "int64",
}
_RANDOM = {DType.IQ4_NL: (0,), DType.Q4_K: (0, 2), DType.Q5_K: (0, 2), DType.Q6_K: (208,)}
"""The types that the `gguf` package reads and cannot quantise to, with the bytes of a block where its half-precision scales lie."""
_GGUF_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}


def small_config(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """A `config.json` of a tiny model of the family; `changes` replace or add keys, a value of `...` removes one."""
    config: dict[str, Any] = {
        "model_type": architecture,
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh" if architecture.startswith("gemma") else "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


def random_model(config: Mapping[str, Any], seed: int, std: float = 0.2) -> Tensors:
    """float32 tensors of a decoder under Hugging Face names; gains lie around 1 (Gemma's are stored less 1). A tied head is left out."""
    random = np.random.default_rng(seed)
    family = config["model_type"]
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    width = config.get("head_dim") or hidden // heads
    gemma = family.startswith("gemma")
    biased = config.get("attention_bias", False)
    qkv_bias = family == "qwen2" or biased
    output_bias = family != "qwen2" and biased
    mlp_bias = family == "llama" and config.get("mlp_bias", False)
    tensors: Tensors = {}

    def matrix(name: str, rows: int, columns: int, bias: bool = False) -> None:
        tensors[name + ".weight"] = random.normal(0, std, (rows, columns)).astype(np.float32)
        if bias:
            tensors[name + ".bias"] = random.normal(0, std, rows).astype(np.float32)

    def gain(name: str, size: int = hidden) -> None:
        tensors[name + ".weight"] = ((0 if gemma else 1) + random.normal(0, std, size)).astype(np.float32)

    matrix("model.embed_tokens", vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        gain(f"{block}.input_layernorm")
        if family == "phi3":
            matrix(f"{block}.self_attn.qkv_proj", (heads + 2 * kv_heads) * width, hidden)
        else:
            matrix(f"{block}.self_attn.q_proj", heads * width, hidden, qkv_bias)
            matrix(f"{block}.self_attn.k_proj", kv_heads * width, hidden, qkv_bias)
            matrix(f"{block}.self_attn.v_proj", kv_heads * width, hidden, qkv_bias)
        matrix(f"{block}.self_attn.o_proj", hidden, heads * width, output_bias)
        if family in ("qwen3", "gemma3_text"):
            gain(f"{block}.self_attn.q_norm", width)
            gain(f"{block}.self_attn.k_norm", width)
        gain(f"{block}.post_attention_layernorm")
        if family in ("gemma2", "gemma3_text"):
            gain(f"{block}.pre_feedforward_layernorm")
            gain(f"{block}.post_feedforward_layernorm")
        if family == "phi3":
            matrix(f"{block}.mlp.gate_up_proj", 2 * inner, hidden)
        else:
            matrix(f"{block}.mlp.gate_proj", inner, hidden, mlp_bias)
            matrix(f"{block}.mlp.up_proj", inner, hidden, mlp_bias)
        matrix(f"{block}.mlp.down_proj", hidden, inner, mlp_bias)
    gain("model.norm")
    if not config.get("tie_word_embeddings", gemma):
        matrix("lm_head", vocab, hidden)
    return tensors


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """One `.safetensors` file, in the order of the mapping where the library keeps it."""
    kept = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    specs = {
        name: safetensors.TensorSpec(
            dtype=_SAFETENSORS_DTYPES[array.dtype],
            shape=list(array.shape),
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in kept.items()
    }
    safetensors.serialize_file(specs, str(path), {"format": "pt"})


def write_hf_checkpoint(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[Any]],
    shards: int = 1,
    index: bool = True,
) -> Path:
    """`config.json` and the weights: one file, or `shards` files with an index (without it if `index` is false). Returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors)
        return directory
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(directory / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    if index:
        total = sum(array.nbytes for array in tensors.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
        (directory / "model.safetensors.index.json").write_text(text)
    return directory


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[Any]],
    types: DType | Mapping[str, DType] = DType.F32,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """A GGUF file of the model, as the public converter writes it: Q and K rows of the llama family interleaved, Gemma's gains whole.

    `types` is the type of all matrices, or of those named (others float32); vectors stay float32. `metadata` adds keys (str, bool, int, float or
    lists), with `tokenizer.ggml.*` among them where a vocabulary is wanted. Returns the path.
    """
    family = config["model_type"]
    known = _GGUF_ARCHITECTURES.get(family)
    writer = gguf.GGUFWriter(path, family if known is None else gguf.MODEL_ARCH_NAMES[known])
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(config["rope_theta"])
    _add_rotary(writer, config, width)
    _add_gemma(writer, config)
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("head_dim"):
        writer.add_key_length(width)
        writer.add_value_length(width)
    if not any(key.startswith("tokenizer.") for key in metadata or {}):
        writer.add_bos_token_id(config["bos_token_id"])
        writer.add_eos_token_id(config["eos_token_id"])
    for key, value in (metadata or {}).items():
        _add(writer, key, value)
    for name, array in tensors.items():
        if known is gguf.MODEL_ARCH.LLAMA and ".q_proj." in name:
            array = interleave(array, heads)
        elif known is gguf.MODEL_ARCH.LLAMA and ".k_proj." in name:
            array = interleave(array, kv_heads)
        elif family.startswith("gemma") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        wanted = types if isinstance(types, DType) else types.get(name, DType.F32)
        dtype = wanted if array.ndim == 2 else DType.F32
        kind = gguf.GGMLQuantizationType[dtype.value.upper()]
        writer.add_tensor(
            gguf_name(name, family), stored_as(np.ascontiguousarray(array, np.float32), dtype), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored_as(array: npt.NDArray[np.float32], dtype: DType) -> npt.NDArray[Any]:
    """The matrix in that type by the package's quantiser; where it has none, random blocks of about the matrix's spread, the same ones for the same matrix."""
    if dtype not in _RANDOM:
        return gguf.quantize(array, gguf.GGMLQuantizationType[dtype.value.upper()])
    blocks = random_blocks(array.shape, dtype, np.random.default_rng(zlib.crc32(array.tobytes())))
    halves = blocks.reshape(-1, dtype.block_bytes)
    for at in _RANDOM[dtype]:
        scaled = halves[:, at : at + 2].copy().view(np.float16) * np.float16(array.std())
        halves[:, at : at + 2] = scaled.view(np.uint8)
    return blocks


def interleave(array: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of each head reordered as the converter of the llama family does: (half, i) to (i, half)."""
    rows, rest = array.shape[0], array.shape[1:]
    return array.reshape(heads, 2, rows // heads // 2, *rest).swapaxes(1, 2).reshape(array.shape)


def gguf_name(name: str, family: str = "llama") -> str:
    """The GGUF name of a Hugging Face tensor of that family, by the package's own table."""
    found = _name_table(family).get_name(name, try_suffixes=(".weight", ".bias"))
    return name if found is None else found


@functools.cache
def _name_table(family: str) -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(_GGUF_ARCHITECTURES.get(family, gguf.MODEL_ARCH.LLAMA), 128)


def _add_rotary(writer: gguf.GGUFWriter, config: Mapping[str, Any], width: int) -> None:
    """The metadata and tensors of rotary scaling, and the width of a partial embedding."""
    width = int(width * config.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(width)
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    trained = config.get("original_max_position_embeddings", scaling.get("original_max_position_embeddings"))
    if trained is not None:
        writer.add_rope_scaling_orig_ctx_len(trained)
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    elif kind == "longrope":
        growth = config["max_position_embeddings"] / trained
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(growth) / math.log(trained)))
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(scaling[f"{name}_factor"], np.float32))
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(scaling, config["rope_theta"], width))


def _llama3_divisors(scaling: Mapping[str, Any], theta: float, width: int) -> npt.NDArray[np.float32]:
    """One divisor a pair, as the converter computes them."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    trained = scaling["original_max_position_embeddings"]
    found = []
    for pair in range(width // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / width)
        smooth = min(max((trained / wavelength - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


def _add_gemma(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))
