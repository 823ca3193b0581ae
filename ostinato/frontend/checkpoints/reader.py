"""Typed access to a checkpoint's configuration, for families to read theirs through.

Both readers name file and key in every error, and refuse a value of another type instead of converting it, or one that the int32 and float32 of a model's
graph do not hold: what is computed from it before the whole is checked cannot overflow. `architecture` is the name of the family that reads, so that one
family can use another's function and still get a configuration of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ostinato.frontend.checkpoints.gguf_header import GgufEntry
from ostinato.ir.errors import ConfigError, WeightsError
from ostinato.ir.types import DType

__all__ = ["ConfigReader", "MetadataReader", "shortest_decimal"]

_T = TypeVar("_T")
_MOST = 2**31 - 1
_MOST_REAL = float(np.finfo(np.float32).max)


def shortest_decimal(value: float) -> float:
    """GGUF stores float32; the shortest decimal that rounds to it is the number that was written (1e-05, not 9.999999747378752e-06)."""
    # a double in the file that float32 does not hold becomes an infinity, which readers refuse
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


def _is_real(value: object) -> bool:
    """True for a number that float32 holds; not for the NaN and the infinities that JSON readers let pass."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST_REAL


class ConfigReader:
    """The keys of one JSON object: `config.json`, or an object in it. `generation` is the object of `generation_config.json` beside it."""

    def __init__(
        self, raw: Mapping[str, Any], where: str, architecture: str = "", generation: ConfigReader | None = None
    ) -> None:
        self.raw = raw
        self.where = where
        self.architecture = architecture
        self.generation = generation

    def refuse(self, message: str, hint: str | None = None) -> ConfigError:
        """The error that says `message` of this file."""
        return ConfigError(f"{self.where}: {message}", hint=hint)

    def _wrong(self, key: str, expected: str) -> ConfigError:
        found = "missing" if self.raw.get(key) is None else repr(self.raw[key])
        return self.refuse(
            f"{key} is {found}, expected {expected}", hint="correct it there, or download the file again"
        )

    def integer(self, key: str, default: int | None = None, *, most: int = _MOST) -> int:
        """An integer from -most to most. Absent or null: the default, and `ConfigError` where there is none."""
        value = self.raw.get(key)
        if value is None:
            if default is None:
                raise self._wrong(key, "an integer")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer")
        if abs(value) > most:
            raise self._wrong(key, f"at most {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number. Absent or null: the default, and `ConfigError` where there is none."""
        value = self.raw.get(key)
        if value is None:
            if default is None:
                raise self._wrong(key, "a number")
            return default
        if not _is_real(value):
            raise self._wrong(key, "a number that float32 holds")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers; `ConfigError` where it is absent."""
        value = self.raw.get(key)
        if not isinstance(value, list) or not all(map(_is_real, value)):
            raise self._wrong(key, "a list of numbers that float32 holds")
        return tuple(float(item) for item in value)

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value; absent or null: the default."""
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def optional(self, key: str, read: Callable[[str], _T]) -> _T | None:
        """What `read` (a method of this reader) gives for the key, None where it is absent or null."""
        return None if self.raw.get(key) is None else read(key)

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        """An object, None where it is absent or null."""
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object")
        return value

    def token(self, key: str) -> int | None:
        """A token id, or None: some files write -1 for "none"."""
        value = self.raw.get(key)
        return None if value is None or value == -1 else self.integer(key)

    def tokens(self, key: str) -> tuple[int, ...]:
        """Token ids from one or a list of them, each once."""
        value = self.raw.get(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int):
                raise self._wrong(key, "an integer or a list of them")
        return tuple(dict.fromkeys(items))


class MetadataReader:
    """The metadata of a GGUF file: keys are relative to `prefix` (the file's general.architecture).

    `tensors` has the file's tensors by Hugging Face name; one that no name table knows is there under its own.
    """

    def __init__(
        self, raw: Mapping[str, Any], path: Path, prefix: str, architecture: str, tensors: Mapping[str, GgufEntry]
    ) -> None:
        self.raw = raw
        self.path = path
        self.prefix = prefix
        self.architecture = architecture
        self.tensors = tensors

    def refuse(self, message: str, hint: str | None = None) -> ConfigError:
        """The error that says `message` of this file."""
        return ConfigError(f"{self.path}: {message}", hint=hint)

    def _wrong(self, key: str, value: Any, expected: str) -> ConfigError:
        found = "missing" if value is None else repr(value)
        return self.refuse(f"{key} is {found}, expected {expected}", hint="convert the model again")

    def integer(self, key: str, default: int | None = None, *, most: int = _MOST) -> int:
        """An integer from -most to most, or a list of equal ones (one a layer). Absent: the default, and `ConfigError` where there is none."""
        value = self.raw.get(f"{self.prefix}.{key}", default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(f"{self.prefix}.{key}", value, "one integer for all layers")
        if abs(value) > most:
            raise self._wrong(f"{self.prefix}.{key}", value, f"at most {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number. Absent: the default, and `ConfigError` where there is none."""
        value = self.raw.get(f"{self.prefix}.{key}", default)
        if not _is_real(value):
            raise self._wrong(f"{self.prefix}.{key}", value, "a number that float32 holds")
        return float(value)

    def tensor(self, name: str) -> GgufEntry:
        """The tensor of that Hugging Face name; raises `WeightsError` where the file has none."""
        found = self.tensors.get(name)
        if found is None:
            raise WeightsError(f"{self.path} has no {name}", hint="not a complete model: download it again")
        return found

    def values(self, name: str) -> tuple[float, ...]:
        """The numbers of a small float32 vector of the file. Raises `WeightsError` where it is absent and `ConfigError` for something else."""
        entry = self.tensor(name)
        if len(entry.shape) != 1 or entry.dtype is not DType.F32:
            raise self.refuse(
                f"{name} is {entry.type_name} of shape {list(entry.shape)}, expected a float32 vector",
                hint="convert the model again",
            )
        with entry.file.open("rb") as file:
            file.seek(entry.offset)
            return tuple(np.frombuffer(file.read(entry.nbytes), np.float32).tolist())

    def token(self, role: str) -> int | None:
        """The id of a special token (bos, eos, eot, eom, padding), None where the file names none."""
        value = self.raw.get(f"tokenizer.ggml.{role}_token_id")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self._wrong(f"tokenizer.ggml.{role}_token_id", value, "an integer")
        return value
