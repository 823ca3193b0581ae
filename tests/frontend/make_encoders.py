"""Small random encoders for tests: BERT configurations, tensors and the files of sentence-transformers, written with the public writers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ostinato.ir.types import DType
from tests.frontend.make_checkpoints import Tensors, write_hf_checkpoint
from tests.frontend.make_tokenizers import wordpiece, wordpiece_metadata

TRANSFORMER = "sentence_transformers.models.Transformer"
POOLING = "sentence_transformers.models.Pooling"
NORMALIZE = "sentence_transformers.models.Normalize"


def encoder_config(**changes: Any) -> dict[str, Any]:
    """A `config.json` of a tiny BERT; `changes` replace or add keys, a value of `...` removes one."""
    config: dict[str, Any] = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


def random_encoder(config: Mapping[str, Any], seed: int, std: float = 0.2) -> Tensors:
    """float32 tensors of a BERT without a pooler, under the names of `BertModel`; gains lie around 1."""
    random = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    tensors: Tensors = {}

    def draw(name: str, *shape: int, around: float = 0.0) -> None:
        tensors[name] = (around + random.normal(0, std, shape)).astype(np.float32)

    def linear(name: str, rows: int, columns: int) -> None:
        draw(f"{name}.weight", rows, columns)
        draw(f"{name}.bias", rows)

    def norm(name: str) -> None:
        draw(f"{name}.weight", hidden, around=1.0)
        draw(f"{name}.bias", hidden)

    draw("embeddings.word_embeddings.weight", config["vocab_size"], hidden)
    draw("embeddings.position_embeddings.weight", config["max_position_embeddings"], hidden)
    draw("embeddings.token_type_embeddings.weight", config["type_vocab_size"], hidden)
    norm("embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        block = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            linear(f"{block}.attention.self.{name}", hidden, hidden)
        linear(f"{block}.attention.output.dense", hidden, hidden)
        norm(f"{block}.attention.output.LayerNorm")
        linear(f"{block}.intermediate.dense", inner, hidden)
        linear(f"{block}.output.dense", hidden, inner)
        norm(f"{block}.output.LayerNorm")
    return tensors


def write_encoder(directory: Path, seed: int = 0, **changes: Any) -> Path:
    """A plain BERT directory with a tokenizer whose vocabulary is the model's. Returns the directory."""
    tokenizer = wordpiece()
    config = encoder_config(vocab_size=tokenizer.get_vocab_size(), **changes)
    write_hf_checkpoint(directory, config, random_encoder(config, seed))
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def write_modules(
    directory: Path,
    pooling: Mapping[str, Any] | None = None,
    kinds: Sequence[str] = (TRANSFORMER, POOLING),
    settings: Mapping[str, Any] | None = None,
    transformer: str = "",
) -> Path:
    """`modules.json` with modules of those kinds, the pooling's configuration, and `sentence_bert_config.json`. Returns the directory."""
    folders = [transformer, *(f"{index}_{kind.rpartition('.')[2]}" for index, kind in enumerate(kinds) if index)]
    listed = [
        {"idx": index, "name": str(index), "path": folder, "type": kind}
        for index, (kind, folder) in enumerate(zip(kinds, folders, strict=True))
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    for kind, folder in zip(kinds[1:], folders[1:], strict=True):
        (directory / folder).mkdir(exist_ok=True)
        if kind.endswith("Pooling"):
            found = {"pooling_mode_mean_tokens": True} if pooling is None else pooling
            (directory / folder / "config.json").write_text(json.dumps(found))
    if settings is not None:
        (directory / transformer / "sentence_bert_config.json").write_text(json.dumps(settings))
    return directory


def write_encoder_gguf(
    path: Path, config: Mapping[str, Any], tensors: Tensors, kind: DType = DType.F32, **metadata: Any
) -> Path:
    """A GGUF file as the public converter writes a BERT, matrices of `kind`; `metadata` are further keys of the architecture. Returns the path."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    for key, value in metadata.items():
        writer.add_uint32(f"bert.{key}", value)
    for key, value in wordpiece_metadata(wordpiece()).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    quantised = {DType.F32: gguf.GGMLQuantizationType.F32, DType.Q8_0: gguf.GGMLQuantizationType.Q8_0}[kind]
    for name, array in tensors.items():
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        wanted = quantised if array.ndim == 2 and "embeddings" not in name else gguf.GGMLQuantizationType.F32
        writer.add_tensor(found, gguf.quantize(array, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
