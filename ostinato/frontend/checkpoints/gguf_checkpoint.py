"""GGUF files under Hugging Face names.

Some architectures (llama) store the rows of Q and K so that the two halves of a head's rotary pairs lie next to each other; the model code rotates split
halves, as the original checkpoint does. The order is undone by row while loading (`TensorSource.row_order`): the blocks themselves stay as they are.
A wrong order still gives plausible text, so it is derived from the head counts and checked against the tensor's shape. Quantised tensors stay quantised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ostinato.frontend.checkpoints.base import Checkpoint, CheckpointFacts, TensorSource
from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.embedding import EmbeddingRecipe, recipe_from_gguf
from ostinato.frontend.checkpoints.generation import generation_from_gguf
from ostinato.frontend.checkpoints.gguf_header import GgufEntry
from ostinato.frontend.checkpoints.gguf_parts import read_parts
from ostinato.frontend.checkpoints.gguf_rotary import ROTARY_TENSORS
from ostinato.frontend.checkpoints.reader import MetadataReader
from ostinato.frontend.checkpoints.spelling import FamilyFiles, GgufSpelling, own_config, refuse_architecture
from ostinato.frontend.tokenizer import Tokenizer, tokenizer_from_gguf, turn_end_ids
from ostinato.ir.errors import WeightsError

__all__ = ["GGUF_NAMES", "GgufCheckpoint", "huggingface_name", "interleaved_rows"]

GGUF_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "blk.*.attn_norm": "model.layers.*.input_layernorm",
        "blk.*.ffn_norm": "model.layers.*.post_attention_layernorm",
        "blk.*.attn_q": "model.layers.*.self_attn.q_proj",
        "blk.*.attn_k": "model.layers.*.self_attn.k_proj",
        "blk.*.attn_v": "model.layers.*.self_attn.v_proj",
        "blk.*.attn_q_norm": "model.layers.*.self_attn.q_norm",
        "blk.*.attn_k_norm": "model.layers.*.self_attn.k_norm",
        "blk.*.attn_output": "model.layers.*.self_attn.o_proj",
        "blk.*.ffn_gate": "model.layers.*.mlp.gate_proj",
        "blk.*.ffn_up": "model.layers.*.mlp.up_proj",
        "blk.*.ffn_down": "model.layers.*.mlp.down_proj",
    }
)
"""Hugging Face module of each GGUF module, `*` for the number of the block; a family's spelling adds to it."""

_BLOCK_NUMBER = re.compile(r"(?<=\.)[0-9]{1,9}(?=\.)")
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


class GgufCheckpoint(Checkpoint):
    """One `.gguf` file of one of `families`, or the first of several. Raises `WeightsError`, `ConfigError` or `DTypeError` when it cannot be used as it is."""

    format: ClassVar[str] = "gguf"

    def __init__(self, path: Path, families: Sequence[FamilyFiles], cache_directory: Path | None = None) -> None:
        self._cached, stored = read_parts(path, cache_directory)
        header = self._cached.header
        family, spelling = _claimed(header.metadata.get("general.architecture"), families, path)
        entries = _by_huggingface_name(stored, spelling, path)
        self._read = MetadataReader(header.metadata, path, spelling.architecture, family.name, entries)
        config = own_config(family, spelling.config(self._read))
        tensors = {
            name: _source(name, entry, config, spelling)
            for name, entry in entries.items()
            if name not in ROTARY_TENSORS
        }
        template = header.metadata.get("tokenizer.chat_template")
        super().__init__(
            CheckpointFacts(
                path=path,
                config=config,
                tensors=tensors,
                special_tokens={},
                chat_template=template if isinstance(template, str) else None,
                generation=generation_from_gguf(header.metadata, path),
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
                piece = tokenizer.find_piece(token) if isinstance(token, int) else None
                if piece is not None:
                    found[name] = piece
            self._special_tokens = found
        return self._special_tokens

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Those that the metadata names, and those that the names in the vocabulary give away."""
        return tuple(dict.fromkeys((*super().end_token_ids, *turn_end_ids(self._vocabulary()))))

    @property
    def has_tokenizer(self) -> bool:
        return "tokenizer.ggml.model" in self._cached.header.metadata

    def embedding_recipe(self) -> EmbeddingRecipe:
        return recipe_from_gguf(self._read)

    def _build_tokenizer(self) -> Tokenizer:
        return tokenizer_from_gguf(self._vocabulary(), str(self.path))

    def _vocabulary(self) -> dict[str, Any]:
        """All metadata, the long arrays among them, read anew."""
        return {**self._cached.header.metadata, **self._cached.long_arrays()}


def huggingface_name(name: str, names: Mapping[str, str] = GGUF_NAMES) -> str | None:
    """The Hugging Face name of a GGUF tensor, None when the table has no such tensor."""
    module, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias") or "*" in module:
        return None
    number = _BLOCK_NUMBER.search(module)
    if number is None:
        found = names.get(module)
    else:
        found = names.get(f"{module[: number.start()]}*{module[number.end() :]}")
        found = None if found is None else found.replace("*", str(int(number.group())))
    return None if found is None else f"{found}.{kind}"


def interleaved_rows(heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """int64 [heads * head_dim]: the file row of each logical row, for a matrix whose halves were interleaved within every head.

    The file holds logical row (head, half, i) at (head, i, half).
    """
    stored = np.arange(heads * head_dim, dtype=np.int64).reshape(heads, head_dim // 2, 2)
    order = np.ascontiguousarray(stored.swapaxes(1, 2)).reshape(-1)
    order.flags.writeable = False
    return order


def _claimed(architecture: Any, families: Sequence[FamilyFiles], path: Path) -> tuple[FamilyFiles, GgufSpelling]:
    for family in families:
        for spelling in family.gguf:
            if spelling.architecture == architecture:
                return family, spelling
    raise refuse_architecture(str(architecture), [family for family in families if family.gguf], f"{path}: ")


def _by_huggingface_name(entries: Iterable[GgufEntry], spelling: GgufSpelling, path: Path) -> dict[str, GgufEntry]:
    """The file's tensors; an unknown one keeps its name, for the strict load to refuse. Raises `WeightsError` where two have the same name."""
    names = {**GGUF_NAMES, **spelling.names}
    found: dict[str, GgufEntry] = {}
    for entry in entries:
        name = huggingface_name(entry.name, names) or entry.name
        if name in found:
            raise WeightsError(
                f"{path}: tensors {found[name].name} and {entry.name} are both {name}", hint="convert the model again"
            )
        found[name] = entry
    return found


def _source(name: str, entry: GgufEntry, config: ModelConfig, spelling: GgufSpelling) -> TensorSource:
    row_order = None
    module = name.rpartition(".")[0].rpartition(".")[2]
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(module)
    if spelling.interleaved_rotary and heads is not None:
        if entry.shape[0] != heads * config.head_dim:
            raise WeightsError(
                f"{entry.file}: tensor {entry.name} has {entry.shape[0]} rows, {heads} heads of width {config.head_dim} need {heads * config.head_dim}",
                hint="convert the model again",
            )
        row_order = interleaved_rows(heads, config.head_dim)
    return TensorSource(name, entry.name, entry.shape, entry.dtype, entry.file, entry.offset, entry.nbytes, row_order)
