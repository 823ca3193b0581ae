"""Small synthetic checkpoints for tests, in both formats, written with the public writers (never with the code under test).

`small_config` gives a Hugging Face configuration, `random_model` its tensors, `write_hf_checkpoint` and `write_gguf` put them on disk.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import numpy.typing as npt
import safetensors

from ostinato.ir.types import DType

Tensors = dict[str, npt.NDArray[Any]]

_SAFETENSORS_DTYPES = {
    np.dtype(np.float32): "float32",
    np.dtype(np.float16): "float16",
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
    np.dtype(np.float64): "float64",
    np.dtype(np.int64): "int64",
}
_QUANT_TYPES = {
    DType.F32: gguf.GGMLQuantizationType.F32,
    DType.F16: gguf.GGMLQuantizationType.F16,
    DType.BF16: gguf.GGMLQuantizationType.BF16,
    DType.Q8_0: gguf.GGMLQuantizationType.Q8_0,
    DType.Q4_0: gguf.GGMLQuantizationType.Q4_0,
    DType.Q4_1: gguf.GGMLQuantizationType.Q4_1,
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
        "hidden_act": "silu",
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
    """float32 tensors of a Llama or Qwen2 model under Hugging Face names; gains lie around 1. A tied head is left out."""
    random = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    width = config.get("head_dim") or hidden // heads
    qwen = config["model_type"] == "qwen2"
    qkv_bias = qwen or config.get("attention_bias", False)
    output_bias = not qwen and config.get("attention_bias", False)
    mlp_bias = not qwen and config.get("mlp_bias", False)
    tensors: Tensors = {}

    def matrix(name: str, rows: int, columns: int, bias: bool = False) -> None:
        tensors[name + ".weight"] = random.normal(0, std, (rows, columns)).astype(np.float32)
        if bias:
            tensors[name + ".bias"] = random.normal(0, std, rows).astype(np.float32)

    def gain(name: str) -> None:
        tensors[name + ".weight"] = (1 + random.normal(0, std, hidden)).astype(np.float32)

    matrix("model.embed_tokens", vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        gain(f"{block}.input_layernorm")
        matrix(f"{block}.self_attn.q_proj", heads * width, hidden, qkv_bias)
        matrix(f"{block}.self_attn.k_proj", kv_heads * width, hidden, qkv_bias)
        matrix(f"{block}.self_attn.v_proj", kv_heads * width, hidden, qkv_bias)
        matrix(f"{block}.self_attn.o_proj", hidden, heads * width, output_bias)
        gain(f"{block}.post_attention_layernorm")
        matrix(f"{block}.mlp.gate_proj", inner, hidden, mlp_bias)
        matrix(f"{block}.mlp.up_proj", inner, hidden, mlp_bias)
        matrix(f"{block}.mlp.down_proj", hidden, inner, mlp_bias)
    gain("model.norm")
    if not config.get("tie_word_embeddings", False):
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
    """A GGUF file of the model, as the public converter writes it: Q and K rows of the llama family interleaved.

    `types` is the type of all matrices, or of those named (others float32); vectors stay float32. `metadata` adds keys (str, bool, int, float or
    lists), with `tokenizer.ggml.*` among them where a vocabulary is wanted. Returns the path.
    """
    architecture = config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
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
        if architecture == "llama" and ".q_proj." in name:
            array = interleave(array, heads)
        elif architecture == "llama" and ".k_proj." in name:
            array = interleave(array, kv_heads)
        wanted = types if isinstance(types, DType) else types.get(name, DType.F32)
        kind = _QUANT_TYPES[wanted if array.ndim == 2 else DType.F32]
        writer.add_tensor(
            gguf_name(name), gguf.quantize(np.ascontiguousarray(array, dtype=np.float32), kind), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleave(array: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of each head reordered as the converter of the llama family does: (half, i) to (i, half)."""
    rows, rest = array.shape[0], array.shape[1:]
    return array.reshape(heads, 2, rows // heads // 2, *rest).swapaxes(1, 2).reshape(array.shape)


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor, by the package's own table."""
    found = _name_table().get_name(name, try_suffixes=(".weight", ".bias"))
    return name if found is None else found


@functools.cache
def _name_table() -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 128)


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
