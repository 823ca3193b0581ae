"""Hugging Face directories: `config.json`, one or many `*.safetensors`, `tokenizer.json`.

Which files count is decided by the index where there is one; everything else that looks like weights is reported as ignored and never merged. All headers
are checked before the checkpoint exists, so that a missing or cut shard is found at once. PyTorch `.bin` files are refused: they are pickles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ostinato.frontend.checkpoints.base import EMBEDDING, HEAD, Checkpoint, CheckpointFacts, TensorSource
from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.embedding import EmbeddingRecipe, recipe_from_directory, transformer_directory
from ostinato.frontend.checkpoints.files import MappedFile, leaves_directory, optional_json, read_json, refuse_formats
from ostinato.frontend.checkpoints.generation import generation_from_huggingface
from ostinato.frontend.checkpoints.huggingface_config import config_from_huggingface, spelling_of
from ostinato.frontend.checkpoints.huggingface_tokenizer import HuggingFaceTokenizerFiles
from ostinato.frontend.checkpoints.reader import ConfigReader
from ostinato.frontend.checkpoints.safetensors_file import read_safetensors_header
from ostinato.frontend.checkpoints.spelling import FamilyFiles, HuggingFaceSpelling
from ostinato.frontend.tokenizer import Tokenizer
from ostinato.ir.errors import WeightsError

__all__ = ["HuggingFaceCheckpoint"]

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_COMPARE_BYTES = 1 << 22


class HuggingFaceCheckpoint(Checkpoint):
    """A directory in the Hugging Face layout, of one of `families`.

    Raises `WeightsError`, `ConfigError` or `DTypeError` when it cannot be used as it is.
    """

    format: ClassVar[str] = "safetensors"

    def __init__(self, path: Path, families: Sequence[FamilyFiles]) -> None:
        self._directory = directory = transformer_directory(path)
        self._tokenizer_files = HuggingFaceTokenizerFiles(directory)
        generation_path = directory / "generation_config.json"
        generation = optional_json(generation_path, "generation configuration")
        config_path = directory / _CONFIG
        raw = read_json(config_path, "model configuration")
        config = config_from_huggingface(raw, config_path, families, generation)
        shards = _find_shards(directory)
        tensors, ignored = _read_shards(shards, spelling_of(raw, config_path, families))
        _resolve_head(config, tensors, ignored)
        super().__init__(
            CheckpointFacts(
                path=path,
                config=config,
                tensors=tensors,
                special_tokens=self._tokenizer_files.special_tokens,
                chat_template=self._tokenizer_files.chat_template,
                ignored_files=shards.ignored,
                ignored_tensors=tuple(ignored),
                generation=generation_from_huggingface(ConfigReader(generation, str(generation_path))),
            )
        )

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer_files.present

    def embedding_recipe(self) -> EmbeddingRecipe:
        return recipe_from_directory(self.path, self.config.hidden_size)

    def _build_tokenizer(self) -> Tokenizer:
        return self._tokenizer_files.build()


@dataclass(frozen=True, slots=True)
class _Shards:
    """The weight files that count, and by file the tensors that the index expects in it (None without an index)."""

    files: tuple[Path, ...]
    expected: Mapping[Path, frozenset[str]] | None
    ignored: tuple[Path, ...]


def _find_shards(directory: Path) -> _Shards:
    present = sorted(directory.glob("*.safetensors"))
    index = directory / _INDEX
    if index.exists():
        expected = _read_index(index)
        used = set(expected)
        return _Shards(tuple(sorted(used)), expected, tuple(path for path in present if path not in used))
    if directory / _SINGLE in present:
        single = directory / _SINGLE
        return _Shards((single,), None, tuple(path for path in present if path != single))
    if len(present) == 1:
        return _Shards((present[0],), None, ())
    if present:
        names = ", ".join(path.name for path in present)
        raise WeightsError(
            f"{directory} has several weight files ({names}) and no {_INDEX} that says which belong together",
            hint=f"download {_INDEX} too, or keep one file",
        )
    refuse_formats(directory.iterdir())
    raise WeightsError(f"{directory} has no weight files", hint=f"expected {_SINGLE}, or {_INDEX} and its shards")


def _read_index(index: Path) -> dict[Path, frozenset[str]]:
    """The tensors that each shard must hold. Raises `WeightsError` for an empty or malformed map, unsafe paths and absent files (all listed)."""
    weight_map = read_json(index, "index", WeightsError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        found = "empty" if weight_map == {} else "missing or not an object"
        raise WeightsError(f"{index}: weight_map is {found}", hint="download it again")
    by_file: dict[Path, set[str]] = {}
    for name, shard in weight_map.items():
        if not name or not isinstance(shard, str) or not shard:
            raise WeightsError(
                f"{index}: the entry {name!r}: {shard!r} does not name a tensor and a file", hint="download it again"
            )
        if leaves_directory(shard):
            raise WeightsError(
                f"{index}: the shard path {shard!r} leaves the directory",
                hint="shard paths are relative and have no '..'",
            )
        by_file.setdefault(index.parent / shard, set()).add(name)
    absent = sorted(str(path.relative_to(index.parent)) for path in by_file if not path.exists())
    if absent:
        raise WeightsError(
            f"{index} names {len(absent)} of {len(by_file)} weight files that are not there: {', '.join(absent)}",
            hint="download the missing files",
        )
    return {path: frozenset(names) for path, names in by_file.items()}


def _read_shards(shards: _Shards, spelling: HuggingFaceSpelling) -> tuple[dict[str, TensorSource], list[str]]:
    """All tensors by the family's name, and the names of ignored ones. Raises `WeightsError` for duplicates and for any difference to the index."""
    tensors: dict[str, TensorSource] = {}
    ignored: list[str] = []
    for file in shards.files:
        names = set()
        for entry in read_safetensors_header(file, lambda stored: spelling.tensor_name(stored) is None):
            names.add(entry.name)
            name = spelling.tensor_name(entry.name)
            if name is None:
                ignored.append(entry.name)
                continue
            if (first := tensors.get(name)) is not None:
                raise WeightsError(
                    f"tensor {name} is stored twice: as {first.source_name} in {first.file.name} and as {entry.name} in {file.name}",
                    hint="keep one of them",
                )
            shift = sum(number for end, number in spelling.shifts.items() if name.endswith(end))
            tensors[name] = TensorSource(
                name, entry.name, entry.shape, entry.dtype, file, entry.offset, entry.nbytes, shift=shift
            )
        if shards.expected is not None:
            _compare_with_index(file, names, shards.expected[file])
    return tensors, ignored


def _compare_with_index(file: Path, found: set[str], expected: frozenset[str]) -> None:
    absent, extra = sorted(expected - found), sorted(found - expected)
    problems = []
    if absent:
        problems.append(f"{len(absent)} tensors that the index places there are absent: {', '.join(absent[:5])}")
    if extra:
        problems.append(
            f"{len(extra)} tensors are stored there that the index does not place there: {', '.join(extra[:5])}"
        )
    if problems:
        raise WeightsError(
            f"{file} and {_INDEX} disagree: {'; '.join(problems)}",
            hint="the files are from different downloads: get them all again",
        )


def _resolve_head(config: ModelConfig, tensors: dict[str, TensorSource], ignored: list[str]) -> None:
    """A tied head is stored once: an explicit copy must be bit-equal and is then dropped; an untied head must exist."""
    head, embedding = tensors.get(HEAD), tensors.get(EMBEDDING)
    if not config.tie_word_embeddings:
        if head is None and embedding is not None:
            raise WeightsError(
                f"the checkpoint has no {HEAD} and its configuration does not tie the head to the embedding",
                hint='download the missing weights, or set "tie_word_embeddings": true if the model is tied',
            )
        return
    if head is None or embedding is None:
        return
    if head.shape != embedding.shape or head.dtype is not embedding.dtype or not _same_bytes(head, embedding):
        raise WeightsError(
            f"the configuration ties the head to the embedding, but {HEAD} ({head.dtype.value}{list(head.shape)}) differs from "
            f"{EMBEDDING} ({embedding.dtype.value}{list(embedding.shape)})",
            hint='set "tie_word_embeddings": false to use both, or remove the head from the weights',
        )
    del tensors[HEAD]
    ignored.append(HEAD)


def _same_bytes(left: TensorSource, right: TensorSource) -> bool:
    """Compares two tensors of equal size bit by bit, a few MiB resident at a time."""
    files = {path: MappedFile(path) for path in (left.file, right.file)}
    try:
        for start in range(0, left.nbytes, _COMPARE_BYTES):
            count = min(_COMPARE_BYTES, left.nbytes - start)
            one, other = (files[tensor.file].view(tensor.offset + start, count) for tensor in (left, right))
            equal = np.array_equal(one, other)
            for tensor in (left, right):
                files[tensor.file].release(tensor.offset + start, count)
            if not equal:
                return False
        return True
    finally:
        for file in files.values():
            file.close()
