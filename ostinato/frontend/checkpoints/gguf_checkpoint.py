"""GGUF files of the Llama and Qwen2 families, under Hugging Face names.

Files of architecture `llama` store the rows of Q and K so that the two halves of a head's rotary pairs lie next to each other; the model code rotates split
halves, as the original checkpoint does. The order is undone by row while loading (`TensorSource.row_order`): the blocks themselves stay as they are.
A wrong order still gives plausible text, so it is derived from the head counts and checked against the tensor's shape. Quantised tensors stay quantised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ostinato.frontend.checkpoints.base import HEAD, Checkpoint, CheckpointFacts, TensorSource
from ostinato.frontend.checkpoints.config import ARCHITECTURES, ModelConfig, refuse_architecture, refuse_rope_kind
from ostinato.frontend.checkpoints.gguf_cache import CachedHeader, read_gguf_header
from ostinato.frontend.checkpoints.gguf_header import GgufEntry, check_header
from ostinato.frontend.tokenizer import Tokenizer, tokenizer_from_gguf
from ostinato.ir.errors import ConfigError, NotYetAvailable, WeightsError
from ostinato.ir.types import DType

__all__ = ["GGUF_NAMES", "GgufCheckpoint", "huggingface_name", "interleaved_rows"]

GGUF_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
"""Hugging Face module of each GGUF module; those from `attn_norm` on repeat per block."""

_BLOCK_NAME = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_TOP_NAME = re.compile(r"([a-z_]+)\.(weight|bias)")
_TOP_MODULES = ("token_embd", "output_norm", "output")
_ROPE_FACTORS = "rope_freqs.weight"
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


class GgufCheckpoint(Checkpoint):
    """One `.gguf` file. Raises `WeightsError`, `ConfigError` or `DTypeError` when it cannot be used as it is."""

    format: ClassVar[str] = "gguf"

    def __init__(self, path: Path, cache_directory: Path | None = None) -> None:
        self._cached: CachedHeader = read_gguf_header(path, cache_directory)
        header = self._cached.header
        check_header(header, path, path.stat().st_size)
        entries = {entry.name: entry for entry in header.tensors}
        config = _read_config(header.metadata, entries, path)
        tensors = {}
        for entry in header.tensors:
            source = _source(entry, config, path)
            tensors[source.name] = source
        template = header.metadata.get("tokenizer.chat_template")
        super().__init__(
            CheckpointFacts(
                path=path,
                config=config,
                tensors=tensors,
                special_tokens={},
                chat_template=template if isinstance(template, str) else None,
            )
        )
        self._special_tokens: dict[str, str] | None = None

    @property
    def header_state(self) -> str:
        """How the header was read: "cached", "parsed" or "parsed, not cached: reason"."""
        return self._cached.state

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's metadata without arrays of more than 256 entries."""
        return MappingProxyType(dict(self._cached.header.metadata))

    @property
    def special_tokens(self) -> Mapping[str, str]:
        if not self.has_tokenizer:
            return {}
        if self._special_tokens is None:
            tokenizer = self.tokenizer()
            found = {}
            for role, name in _ROLES.items():
                token = self._cached.header.metadata.get(f"tokenizer.ggml.{role}_token_id")
                piece = tokenizer.find_piece(token) if isinstance(token, int) and token >= 0 else None
                if piece is not None:
                    found[name] = piece
            self._special_tokens = found
        return self._special_tokens

    @property
    def has_tokenizer(self) -> bool:
        return "tokenizer.ggml.model" in self._cached.header.metadata

    def _build_tokenizer(self) -> Tokenizer:
        metadata = {**self._cached.header.metadata, **self._cached.long_arrays()}
        return tokenizer_from_gguf(metadata, str(self.path))


def huggingface_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, None when these families have no such tensor."""
    block = _BLOCK_NAME.fullmatch(name)
    if block is not None:
        index, module, kind = block.groups()
        known = module in GGUF_NAMES and module not in _TOP_MODULES
        return f"model.layers.{int(index)}.{GGUF_NAMES[module]}.{kind}" if known else None
    top = _TOP_NAME.fullmatch(name)
    if top is not None and top.group(1) in _TOP_MODULES:
        return f"{GGUF_NAMES[top.group(1)]}.{top.group(2)}"
    return None


def interleaved_rows(heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """int64 [heads * head_dim]: the file row of each logical row, for a matrix whose halves were interleaved within every head.

    The file holds logical row (head, half, i) at (head, i, half).
    """
    stored = np.arange(heads * head_dim, dtype=np.int64).reshape(heads, head_dim // 2, 2)
    order = np.ascontiguousarray(stored.swapaxes(1, 2)).reshape(-1)
    order.flags.writeable = False
    return order


def _source(entry: GgufEntry, config: ModelConfig, path: Path) -> TensorSource:
    name = huggingface_name(entry.name) or entry.name  # an unknown tensor keeps its name, for the strict load to refuse
    row_order = None
    heads = (
        {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}.get(entry.name.split(".")[2])
        if entry.name.count(".") == 3
        else None
    )
    if config.architecture == "llama" and heads is not None:
        if entry.shape[0] != heads * config.head_dim:
            raise WeightsError(
                f"{path}: tensor {entry.name} has {entry.shape[0]} rows, {heads} heads of width {config.head_dim} need {heads * config.head_dim}"
            )
        row_order = interleaved_rows(heads, config.head_dim)
    return TensorSource(name, entry.name, entry.shape, entry.dtype, path, entry.offset, entry.nbytes, row_order)


def _read_config(metadata: Mapping[str, Any], entries: Mapping[str, GgufEntry], path: Path) -> ModelConfig:
    """`ModelConfig` from the metadata of one file. Raises `ConfigError` for missing, malformed or unsupported values."""
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise refuse_architecture(str(architecture), f"{path}: ")
    read = _Metadata(metadata, str(architecture), path)
    heads, hidden = read.integer("attention.head_count"), read.integer("embedding_length")
    head_dim = _head_dim(read, hidden, heads)
    _refuse_unsupported(read, head_dim, entries)
    embedding = entries.get("token_embd.weight")
    if embedding is None:
        raise WeightsError(f"{path} has no tensor token_embd.weight", hint="not a complete model: download it again")
    vocab_size = embedding.shape[0]
    declared = read.integer("vocab_size", default=vocab_size)
    if declared != vocab_size:
        raise read.refuse(f"vocab_size is {declared}, token_embd.weight has {vocab_size} rows")
    layers = read.integer("block_count")
    return ModelConfig(
        architecture=str(architecture),
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=read.integer("feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=read.integer("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        rms_norm_eps=_shortest(read.number("attention.layer_norm_rms_epsilon")),
        rope_theta=_shortest(read.number("rope.freq_base", default=10000.0)),
        max_position_embeddings=read.integer("context_length"),
        tie_word_embeddings=_gguf_name_absent(HEAD, entries),
        attention_bias="blk.0.attn_q.bias" in entries,
        attention_output_bias="blk.0.attn_output.bias" in entries,
        mlp_bias="blk.0.ffn_down.bias" in entries,
        bos_token_id=read.token("bos"),
        eos_token_ids=tuple(
            dict.fromkeys(token for role in ("eos", "eot", "eom") if (token := read.token(role)) is not None)
        ),
        pad_token_id=read.token("padding"),
        dtype=embedding.dtype if embedding.dtype in (DType.F32, DType.F16, DType.BF16) else None,
    )


def _gguf_name_absent(name: str, entries: Mapping[str, GgufEntry]) -> bool:
    """A GGUF file says that the head is tied by leaving it out."""
    return all(huggingface_name(entry) != name for entry in entries)


def _shortest(value: float) -> float:
    """The file stores float32; the shortest decimal that rounds to it is the number that was written (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def _head_dim(read: _Metadata, hidden: int, heads: int) -> int:
    if heads <= 0:
        raise read.refuse(f"attention.head_count is {heads}")
    width = read.integer("attention.key_length", default=hidden // heads if hidden % heads == 0 else 0)
    if width <= 0:
        raise read.refuse(
            f"embedding_length {hidden} is not a multiple of {heads} heads and attention.key_length is not given"
        )
    if read.integer("attention.value_length", default=width) != width:
        raise read.refuse("key and value heads of different widths are not supported")
    return width


def _refuse_unsupported(read: _Metadata, head_dim: int, entries: Mapping[str, GgufEntry]) -> None:
    if read.integer("rope.dimension_count", default=head_dim) != head_dim:
        raise read.refuse(
            f"partial rotary embeddings (rope.dimension_count differs from head width {head_dim}) are not supported"
        )
    kind = read.raw.get(f"{read.architecture}.rope.scaling.type", "none")
    if kind != "none":
        raise refuse_rope_kind(str(kind), f"{read.path}: ")
    if read.number("rope.scale_linear", default=1.0) not in (0.0, 1.0):
        raise refuse_rope_kind("linear", f"{read.path}: ")
    if _ROPE_FACTORS in entries:
        raise refuse_rope_kind("llama3", f"{read.path}: ")
    if read.integer("expert_count", default=0) > 0:
        raise read.refuse("mixture-of-experts models are not supported")
    if read.integer("attention.sliding_window", default=0) > 0:
        raise NotYetAvailable(f"{read.path}: sliding-window attention is not yet available")


class _Metadata:
    """Typed access to `<architecture>.*`; every error names the file and the key."""

    def __init__(self, raw: Mapping[str, Any], architecture: str, path: Path) -> None:
        self.raw = raw
        self.architecture = architecture
        self.path = path

    def refuse(self, message: str) -> ConfigError:
        return ConfigError(f"{self.path}: {message}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.raw.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # one value a layer, all the same
        if isinstance(value, bool) or not isinstance(value, int):
            found = "missing" if value is None else f"{value!r}, expected one integer for all layers"
            raise self.refuse(f"{self.architecture}.{key} is {found}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw.get(f"{self.architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(
                f"{self.architecture}.{key} is {'missing' if value is None else repr(value)}, expected a number"
            )
        return float(value)

    def token(self, role: str) -> int | None:
        value = self.raw.get(f"tokenizer.ggml.{role}_token_id")
        return value if isinstance(value, int) and not isinstance(value, bool) else None
