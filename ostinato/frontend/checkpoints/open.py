"""One way in: a directory, a `.gguf` file or the name of an installed model package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ostinato.frontend.checkpoints.base import Checkpoint
from ostinato.frontend.checkpoints.files import require_file
from ostinato.frontend.checkpoints.gguf_checkpoint import GgufCheckpoint
from ostinato.frontend.checkpoints.huggingface import HuggingFaceCheckpoint
from ostinato.frontend.checkpoints.packages import MODEL_PACKAGES, find_model_package
from ostinato.frontend.checkpoints.spelling import FamilyFiles, check_families
from ostinato.ir.errors import ConfigError, WeightsError

__all__ = ["open_checkpoint"]


def open_checkpoint(
    path_or_name: str | os.PathLike[str], families: Sequence[FamilyFiles], *, cache_directory: Path | None = None
) -> Checkpoint:
    """Opens a checkpoint of one of `families` and checks everything that can be checked without reading the weights themselves.

    A path that exists wins over a model name. `cache_directory` is where parsed GGUF headers are kept (the user's cache directory by default).
    Raises `WeightsError` (missing, damaged or inconsistent files), `ConfigError` (unusable configuration), `DTypeError` (unsupported element type) or
    `NotYetAvailable`.
    """
    given: Any = path_or_name  # callers are not type-checked
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes):
        raise ConfigError(
            f"a checkpoint is opened by path or name, found {path_or_name!r} of type {type(path_or_name).__name__}"
        )
    check_families(families)
    path = Path(path_or_name)
    if path.is_dir():
        return _open_directory(path, families, cache_directory)
    if path.exists():
        return _open_file(path, families, cache_directory)
    found = find_model_package(str(path_or_name))
    if found is not None:
        return GgufCheckpoint(found, families, cache_directory)
    raise WeightsError(
        f"no checkpoint at {str(path_or_name)!r}: neither a file, nor a directory, nor the name of a model package",
        hint=f"give a directory with config.json, a .gguf file or a model package: {', '.join(MODEL_PACKAGES)}",
    )


def _open_file(path: Path, families: Sequence[FamilyFiles], cache_directory: Path | None) -> Checkpoint:
    if path.suffix == ".gguf":
        return GgufCheckpoint(path, families, cache_directory)
    if path.suffix == ".safetensors" or path.name == "config.json":
        raise WeightsError(f"{path} is one file of a checkpoint", hint=f"open its directory: {path.parent}")
    if path.suffix in (".bin", ".pt", ".pth"):
        raise WeightsError(
            f"{path} is a PyTorch pickle, which can run code when opened and is refused", hint="use safetensors files"
        )
    require_file(path, "checkpoint")
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":  # model stores name files by their digest
            return GgufCheckpoint(path, families, cache_directory)
    raise WeightsError(
        f"{path} is neither a .gguf file nor a directory with config.json",
        hint="download it again, or convert the model to one of these",
    )


def _open_directory(path: Path, families: Sequence[FamilyFiles], cache_directory: Path | None) -> Checkpoint:
    if (path / "config.json").exists():
        return HuggingFaceCheckpoint(path, families)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return GgufCheckpoint(files[0], families, cache_directory)
    if files:
        raise WeightsError(
            f"{path} has {len(files)} GGUF files: {', '.join(file.name for file in files)}", hint="name one of them"
        )
    raise WeightsError(f"{path} has no config.json and no .gguf file", hint="name the directory that holds config.json")
