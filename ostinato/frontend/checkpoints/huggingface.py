"""Hugging Face directories: `config.json`, one or many `*.safetensors`, `tokenizer.json`.

Which files count is decided by the index where there is one; everything else that looks like weights is reported as ignored and never merged. All headers
are checked before the checkpoint exists, so that a missing or cut shard is found at once. PyTorch `.bin` files are refused: they are pickles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar

import numpy as np

from ostinato.frontend.checkpoints.base import EMBEDDING, HEAD, Checkpoint, CheckpointFacts, TensorSource
from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.files import MappedFile, describe_foreign, read_json
from ostinato.frontend.checkpoints.huggingface_config import config_from_huggingface
from ostinato.frontend.checkpoints.safetensors_file import read_safetensors_header
from ostinato.frontend.checkpoints.spelling import FamilyFiles
from ostinato.frontend.tokenizer import Tokenizer
from ostinato.ir.errors import WeightsError

__all__ = ["HuggingFaceCheckpoint"]

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_ROTARY_BUFFER = ".rotary_emb.inv_freq"
_COMPARE_BYTES = 1 << 22
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


class HuggingFaceCheckpoint(Checkpoint):
    """A directory in the Hugging Face layout, of one of `families`.

    Raises `WeightsError`, `ConfigError` or `DTypeError` when it cannot be used as it is.
    """

    format: ClassVar[str] = "safetensors"

    def __init__(self, path: Path, families: Sequence[FamilyFiles]) -> None:
        self._tokenizer_config = _optional_json(path / "tokenizer_config.json", "tokenizer configuration")
        special_tokens = _special_tokens(path, self._tokenizer_config)
        generation = _optional_json(path / "generation_config.json", "generation configuration")
        config_path = path / _CONFIG
        raw = read_json(config_path, "model configuration")
        config = config_from_huggingface(raw, config_path, families, generation)
        shards = _find_shards(path)
        tensors, ignored = _read_shards(shards)
        _resolve_head(config, tensors, ignored)
        super().__init__(
            CheckpointFacts(
                path=path,
                config=config,
                tensors=tensors,
                special_tokens=special_tokens,
                chat_template=_chat_template(path, self._tokenizer_config),
                ignored_files=shards.ignored,
                ignored_tensors=tuple(ignored),
            )
        )

    @property
    def has_tokenizer(self) -> bool:
        return (self.path / _TOKENIZER).exists()

    def _build_tokenizer(self) -> Tokenizer:
        file = self.path / _TOKENIZER
        if not file.exists():
            hint = "copy the model's tokenizer.json into the directory"
            if (self.path / "tokenizer.model").exists():
                hint = "write one from tokenizer.model with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            raise WeightsError(f"{self.path} has no tokenizer.json", hint=hint)
        foreign = describe_foreign(file, "a tokenizer")
        if foreign is not None:
            raise foreign
        add_bos, add_eos = self._tokenizer_config.get("add_bos_token"), self._tokenizer_config.get("add_eos_token")
        return Tokenizer.from_file(
            file,
            bos_token=self.special_tokens.get("bos_token"),
            eos_token=self.special_tokens.get("eos_token"),
            pad_token=self.special_tokens.get("pad_token"),
            add_bos=add_bos if isinstance(add_bos, bool) else None,
            add_eos=add_eos if isinstance(add_eos, bool) else None,
        )


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
    pickles = sorted([*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")])
    if pickles:
        raise WeightsError(
            f"{directory} has only PyTorch pickles ({', '.join(path.name for path in pickles[:4])}), which can run code when opened and are refused",
            hint="convert them once with transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)",
        )
    raise WeightsError(f"{directory} has no weight files", hint=f"expected {_SINGLE}, or {_INDEX} and its shards")


def _read_index(index: Path) -> dict[Path, frozenset[str]]:
    """The tensors that each shard must hold. Raises `WeightsError` for an empty or malformed map, unsafe paths and absent files (all listed)."""
    weight_map = read_json(index, "index", WeightsError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index}: weight_map is {'empty' if weight_map == {} else 'missing or not an object'}")
    by_file: dict[Path, set[str]] = {}
    for name, shard in weight_map.items():
        if not name or not isinstance(shard, str) or not shard:
            raise WeightsError(f"{index}: the entry {name!r}: {shard!r} does not name a tensor and a file")
        _refuse_unsafe(index, shard)
        by_file.setdefault(index.parent / shard, set()).add(name)
    absent = sorted(str(path.relative_to(index.parent)) for path in by_file if not path.exists())
    if absent:
        raise WeightsError(
            f"{index} names {len(absent)} of {len(by_file)} weight files that are not there: {', '.join(absent)}",
            hint="download the missing files",
        )
    return {path: frozenset(names) for path, names in by_file.items()}


def _refuse_unsafe(index: Path, shard: str) -> None:
    windows = PureWindowsPath(shard)
    if PurePosixPath(shard).is_absolute() or windows.drive or windows.root or ".." in windows.parts:
        raise WeightsError(
            f"{index}: the shard path {shard!r} leaves the directory", hint="shard paths are relative and have no '..'"
        )


def _read_shards(shards: _Shards) -> tuple[dict[str, TensorSource], list[str]]:
    """All tensors by name, and the names of ignored buffers. Raises `WeightsError` for duplicates and for any difference to the index."""
    tensors: dict[str, TensorSource] = {}
    ignored: list[str] = []
    for file in shards.files:
        names = set()
        for entry in read_safetensors_header(file):
            names.add(entry.name)
            if entry.name in tensors:
                raise WeightsError(
                    f"tensor {entry.name} is stored twice: in {tensors[entry.name].file.name} and in {file.name}"
                )
            if entry.name.endswith(_ROTARY_BUFFER):
                ignored.append(entry.name)
                continue
            tensors[entry.name] = TensorSource(
                entry.name, entry.name, entry.shape, entry.dtype, file, entry.offset, entry.nbytes
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


def _optional_json(path: Path, what: str) -> dict[str, Any]:
    return read_json(path, what) if path.exists() else {}


def _special_tokens(directory: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    merged = {**_optional_json(directory / "special_tokens_map.json", "special token map"), **tokenizer_config}
    found = {}
    for role in _ROLES:
        value = merged.get(role)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[role] = text
    return found


def _chat_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The default template: its own file wins over the tokenizer configuration, as it does in transformers."""
    own = directory / "chat_template.jinja"
    if own.exists():
        try:
            return own.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise WeightsError(f"{own} is not UTF-8 text: {error}") from error
    for source in (_optional_json(directory / "chat_template.json", "chat template"), tokenizer_config):
        template = source.get("chat_template")
        if isinstance(template, list):  # named templates: the default one is the one for plain chat
            named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
            template = named.get("default")
        if isinstance(template, str):
            return template
    return None
