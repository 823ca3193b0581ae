"""Typed access to a checkpoint's configuration, for families to read theirs through.

Both readers name file and key in every error, and refuse a value of another type instead of converting it. `architecture` is the name of the family that
reads, so that one family can use another's function and still get a configuration of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostinato.frontend.checkpoints.gguf_header import GgufEntry
from ostinato.ir.errors import ConfigError

__all__ = ["ConfigReader", "MetadataReader"]


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

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer. Absent or null: the default, and `ConfigError` where there is none."""
        value = self.raw.get(key)
        if value is None:
            if default is None:
                raise self.refuse(f"{key} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(f"{key} is {value!r}, expected an integer")
        return value

    def number(self, key: str, default: float) -> float:
        """A number; absent or null: the default."""
        value = self.raw.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(f"{key} is {value!r}, expected a number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value; absent or null: the default."""
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(f"{key} is {value!r}, expected true or false")
        return value

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        """An object, None where it is absent or null."""
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(f"{key} is {value!r}, expected an object")
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
                raise self.refuse(f"{key} is {value!r}, expected an integer or a list of them")
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

    def refuse(self, message: str) -> ConfigError:
        """The error that says `message` of this file."""
        return ConfigError(f"{self.path}: {message}")

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer, or a list of equal ones (one a layer). Absent: the default, and `ConfigError` where there is none."""
        value = self.raw.get(f"{self.prefix}.{key}", default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            found = "missing" if value is None else f"{value!r}, expected one integer for all layers"
            raise self.refuse(f"{self.prefix}.{key} is {found}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number. Absent: the default, and `ConfigError` where there is none."""
        value = self.raw.get(f"{self.prefix}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(
                f"{self.prefix}.{key} is {'missing' if value is None else repr(value)}, expected a number"
            )
        return float(value)

    def token(self, role: str) -> int | None:
        """The id of a special token (bos, eos, eot, eom, padding), None where the file names none."""
        value = self.raw.get(f"tokenizer.ggml.{role}_token_id")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.refuse(f"tokenizer.ggml.{role}_token_id is {value!r}, expected an integer")
        return value
