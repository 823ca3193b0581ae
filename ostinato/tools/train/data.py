"""The tokens that a configuration names, as batches: texts, files of tokens, conversations, or the source of Python's standard library.

The standard library is text that every Python installation has. Its .py and .txt files are taken in the order of their names until there are enough bytes,
without packages that others installed; another version of Python has other text.
"""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ostinato.frontend.conversation import chat_examples
from ostinato.frontend.model import Model
from ostinato.ir.errors import ConfigError, InputError
from ostinato.ir.files import read_text
from ostinato.runtime.training.batches import Batches
from ostinato.runtime.training.dataset import TokenDataset
from ostinato.runtime.training.sft import ExampleDataset
from ostinato.tools.train.config import TrainConfig

__all__ = ["batches_of", "standard_library", "texts_of"]

_SUFFIXES = (".py", ".txt")
_OTHERS = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test")


def texts_of(config: TrainConfig) -> list[str]:
    """The training texts. Raises `ConfigError` for files that are missing or no text, and for a configuration that has no texts."""
    data = config.data
    if data.text is not None:
        return [data.text]
    if data.stdlib is not None:
        return standard_library(data.stdlib_bytes)
    if data.files is not None:
        return [read_text(path) for path in _found(config, data.files, "data.files")]
    raise ConfigError("there are no training texts to learn a tokenizer from", hint='use tokenizer = "bytes"')


def batches_of(config: TrainConfig, model: Model) -> Batches:
    """The batches of a run. Raises what the datasets raise, and `ConfigError` for files that cannot be read."""
    data = config.data
    sizes: dict[str, Any] = {"batch": data.batch, "sequence": data.sequence, "seed": data.seed, "shuffle": data.shuffle}
    vocab = model.config.vocab_size
    if data.tokens is not None:
        files = _found(config, data.tokens, "data.tokens")
        return TokenDataset.from_files(files, dtype=data.tokens_dtype, vocab_size=vocab, **sizes)
    if data.chat is not None:
        talks = [talk for path in _found(config, data.chat, "data.chat") for talk in _conversations(path)]
        examples = chat_examples(model, talks, learn=data.learn)
        return ExampleDataset(examples, vocab_size=vocab, pack=data.pack, truncate=data.truncate, **sizes)
    return TokenDataset.from_texts(texts_of(config), model.checkpoint.tokenizer(), vocab_size=vocab, **sizes)


def standard_library(nbytes: int) -> list[str]:
    """Source files of the standard library, the last one cut so that all together have `nbytes` bytes. Raises `InputError` where there are fewer."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts, left = [], nbytes
    for path in _library_files(root):
        if left <= 0:
            break
        try:
            data = path.read_bytes()
            data.decode("utf-8")
        except (OSError, UnicodeDecodeError):  # a few files of it show other encodings on purpose
            continue
        text = data[:left].decode("utf-8", errors="ignore")
        left -= len(data)
        texts.append(text)
    if left > 0:
        raise InputError(
            f"the standard library in {root} has {nbytes - left} bytes of text, {nbytes} are asked for",
            hint=f"ask for {nbytes - left} or fewer",
        )
    return texts


def _library_files(root: Path) -> Iterator[Path]:
    """Its text files by name, without what others installed and without its tests."""
    found = (path for suffix in _SUFFIXES for path in root.rglob(f"*{suffix}"))
    own = ((path.relative_to(root).as_posix(), path) for path in found)
    yield from (path for _, path in sorted(item for item in own if not set(item[0].split("/")) & set(_OTHERS)))


def _found(config: TrainConfig, patterns: Sequence[str], key: str) -> list[Path]:
    """The files that names and patterns stand for, those of a pattern in the order of their names; each of them must stand for some."""
    files: list[Path] = []
    for pattern in patterns:
        path = config.path(pattern)
        matches = [path] if os.path.isfile(path) else _files_like(path)
        if not matches:
            raise ConfigError(f"{key}: there is no file {path}", hint="paths are relative to the configuration file")
        files += matches
    if not files:
        raise ConfigError(f"{key} is empty", hint="name at least one file")
    return files


def _files_like(path: Path) -> list[Path]:
    """The files whose names are like the pattern at the end of a path; none where its folder cannot be looked into."""
    try:
        beside = [path.parent / name for name in os.listdir(path.parent) if fnmatchcase(name, path.name)]
    except OSError:
        return []
    return sorted(file for file in beside if os.path.isfile(file))


def _conversations(path: Path) -> list[Any]:
    """The lists of messages in a .jsonl file: each line one, or an object with "messages"."""
    found: list[Any] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(
                f"{path}, line {number}: not JSON: {error}", hint='write one object a line, such as {"messages": [...]}'
            ) from None
        found.append(value.get("messages") if isinstance(value, dict) else value)
    return found
