"""What a checkpoint says of itself: one JSON file beside the tensors, with a digest of every file and of itself.

Reading is strict: JSON that was cut or changed, another format, a version that is not known and a field that is missing or unknown are refused before a byte
of a tensor is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ostinato.ir.errors import OstinatoError, StaleArtifact, WeightsError
from ostinato.ir.safetensors import TensorSpec
from ostinato.ir.types import DType

__all__ = [
    "FORMAT",
    "RECORD",
    "VERSION",
    "FileRecord",
    "Record",
    "TensorRecord",
    "damaged",
    "differences",
    "json_hash",
    "plain",
    "read_record",
]

RECORD = "checkpoint.json"
FORMAT = "ostinato training checkpoint"
VERSION = 1
_MOST_BYTES = 1 << 28


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileRecord(_Strict):
    """A file of the checkpoint: bytes, and their xxh3_128."""

    size: int = Field(ge=0)
    digest: str


class TensorRecord(_Strict):
    """A tensor: the name of its dtype, and its shape."""

    dtype: str
    shape: list[int]

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(DType.parse(self.dtype), tuple(self.shape))


class Record(_Strict):
    """All of `checkpoint.json`. `digest` is the hash of everything else in it; `package` the version of the library that wrote it."""

    format: Literal["ostinato training checkpoint"]
    version: Literal[1]
    package: str
    step: int = Field(ge=0)
    seed: int
    model: str
    parameters: dict[str, TensorRecord]
    state: dict[str, TensorRecord]
    optimizer: dict[str, Any]
    data: dict[str, Any] | None
    configs: dict[str, Any]
    computed_by: dict[str, str]
    files: dict[str, FileRecord]
    digest: str

    def to_json(self) -> bytes:
        return (json.dumps(self.model_dump(), indent=1, sort_keys=True) + "\n").encode("ascii")


def plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples as lists, keys as text. Raises `TypeError` or `ValueError` for what JSON cannot hold."""
    return json.loads(json.dumps(value, allow_nan=False))


def json_hash(value: Any) -> str:
    """The xxh3_128 of a value's JSON with sorted keys and no blanks."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii"))


def read_record(path: Path) -> Record:
    """The record in a file. Raises `WeightsError` for one that is missing, damaged or no record, `StaleArtifact` for one of another version."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
        raw = json.loads(text.decode("utf-8"))
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be read: {error.strerror or error}", hint="name a checkpoint, or the folder of checkpoints"
        ) from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not valid JSON: {error}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else f"a JSON {type(raw).__name__}"
        raise WeightsError(
            f"{path} is no training checkpoint: expected format {FORMAT!r}, found {found!r}",
            hint="a model is opened with ostinato.load",
        )
    if raw.get("version") != VERSION:
        raise StaleArtifact(
            f"{path} has another format version",
            differences=(f"version: expected {VERSION}, found {raw.get('version')!r}",),
            hint=f"use the version of ostinato that wrote it ({raw.get('package')})",
        )
    found = json_hash({key: value for key, value in raw.items() if key != "digest"})
    if raw.get("digest") != found:
        raise damaged(path, f"expected the digest {raw.get('digest')!r} that it states, found {found!r}")
    try:
        record = Record.model_validate(raw)
        for tensor in (*record.parameters.values(), *record.state.values()):
            _ = tensor.spec
    except (ValidationError, OstinatoError) as error:
        raise damaged(path, str(error)) from None
    return record


def damaged(path: Path, why: str) -> WeightsError:
    """The error for a file of a checkpoint that is not as it was written."""
    return WeightsError(f"{path} is damaged: {why}", hint="resume from an earlier checkpoint")


def differences(expected: Mapping[str, Any], found: Mapping[str, Any], what: str = "") -> list[str]:
    """The leaves in which two JSON objects differ, one line each: name, expected, found."""
    lines: list[str] = []
    stack: list[tuple[str, Any, Any]] = [(what, expected, found)]
    while stack:
        name, left, right = stack.pop()
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            keys = sorted({*left, *right}, reverse=True)
            stack += [(f"{name}.{key}" if name else str(key), left.get(key), right.get(key)) for key in keys]
        elif left != right:
            lines.append(f"{name}: expected {left!r}, found {right!r}")
    return lines
