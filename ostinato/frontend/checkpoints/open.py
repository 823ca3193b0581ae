"""One way in: a directory, a `.gguf` file or the name of an installed model package.

What is no whole checkpoint is refused by what it is: a shard, an adapter, a format that is not read, several models side by side.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ostinato.frontend.checkpoints.base import Checkpoint
from ostinato.frontend.checkpoints.files import refuse_formats, require_file, system_errors
from ostinato.frontend.checkpoints.gguf_checkpoint import GgufCheckpoint
from ostinato.frontend.checkpoints.gguf_parts import first_part
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
    Raises `WeightsError` (missing, damaged or inconsistent files), `ConfigError` (unusable configuration) or `DTypeError` (unsupported element type).
    """
    given: Any = path_or_name  # callers are not type-checked
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes):
        raise ConfigError(
            f"a checkpoint is opened by path or name, found {path_or_name!r} of type {type(path_or_name).__name__}",
            hint="give a directory, a .gguf file or the name of a model package",
        )
    check_families(families)
    path = Path(path_or_name)
    with system_errors(path):
        if path.is_dir():
            return _open_directory(path, families, cache_directory)
        if path.exists():
            return _open_file(path, families, cache_directory)
    found = find_model_package(str(path_or_name))
    if found is not None:
        return open_checkpoint(found, families, cache_directory=cache_directory)
    raise WeightsError(
        f"no checkpoint at {str(path_or_name)!r}: neither a file, nor a directory, nor the name of a model package",
        hint=f"give a directory with config.json, a .gguf file or a model package: {', '.join(MODEL_PACKAGES)}",
    )


def _open_file(path: Path, families: Sequence[FamilyFiles], cache_directory: Path | None) -> Checkpoint:
    if path.suffix == ".gguf":
        return GgufCheckpoint(path, families, cache_directory)
    if path.suffix == ".safetensors" or path.name == "config.json":
        raise WeightsError(f"{path} is one file of a checkpoint", hint=f"open its directory: {path.parent}")
    if path.suffix == ".ost":
        raise WeightsError(
            f"{path} is a saved executable, not a checkpoint",
            hint="ostinato.load_executable, LLM.load and Embedder.load open one",
        )
    if path.suffix == ".toml" and path.exists():
        raise WeightsError(
            f"{path} is the configuration of a training run, not a checkpoint",
            hint="the commands train, view, diff, profile and breakeven take one; `ostinato train FILE --dry-run` says what its memory holds",
        )
    if path.suffix == ".json" and path.exists():
        raise WeightsError(
            f"{path} is no checkpoint",
            hint="a saved plan is what `ostinato plan MODEL --check FILE` and `ostinato diff` take",
        )
    refuse_formats([path])
    require_file(path, "checkpoint")
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":  # model stores name files by their digest
            return GgufCheckpoint(path, families, cache_directory)
    raise WeightsError(
        f"{path} is neither a .gguf file nor a directory with config.json",
        hint="download it again, or convert the model to one of these",
    )


def _open_directory(path: Path, families: Sequence[FamilyFiles], cache_directory: Path | None) -> Checkpoint:
    if (path / "config.json").exists() or (path / "modules.json").exists():
        return HuggingFaceCheckpoint(path, families)
    files = sorted(path.glob("*.gguf"))
    first = files[0] if len(files) == 1 else first_part(files)
    if first is not None:
        return GgufCheckpoint(first, families, cache_directory)
    if files:
        raise WeightsError(
            f"{path} has {len(files)} GGUF files: {', '.join(file.name for file in files)}", hint="name one of them"
        )
    if (path / "adapter_config.json").exists():
        raise WeightsError(
            f"{path} holds an adapter, not a model",
            hint="merge it once with peft: PeftModel.from_pretrained(MODEL, DIR).merge_and_unload().save_pretrained(OUT)",
        )
    refuse_formats(path.iterdir())
    raise WeightsError(f"{path} has no config.json and no .gguf file", hint="name the directory that holds config.json")
