"""A trained model as an ordinary Hugging Face directory: what other programs, and this one, open.

Weights are new, everything else is copied from the checkpoint that training began with: configuration, tokenizer, chat template, generation defaults. The
directory is written under another name and renamed, so that it is there as a whole or not at all; nothing is ever overwritten.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ostinato.frontend.checkpoints import Checkpoint
from ostinato.frontend.checkpoints.files import read_json
from ostinato.frontend.model import Model
from ostinato.ir.errors import ConfigError, ShapeError, WeightsError
from ostinato.ir.files import write_text
from ostinato.ir.safetensors import BLOCK_BYTES, TensorSpec, header_of
from ostinato.ir.types import Array, DType

__all__ = ["CONFIG", "WEIGHTS", "export_model", "new_directory"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
_DTYPES = {"f32": DType.F32, "bf16": DType.BF16, "f16": DType.F16}
_TORCH = {DType.F32: "float32", DType.BF16: "bfloat16", DType.F16: "float16"}


def export_model(
    model: Model,
    parameters: Mapping[str, Array],
    folder: str | os.PathLike[str],
    *,
    dtype: str = "checkpoint",
) -> Path:
    """Writes `parameters`, by the names of the model's checkpoint, with the checkpoint's other files into `folder`, which must be new or empty. Tensors that
    were not trained, and so are no parameters, are those of the checkpoint.

    `dtype` is "checkpoint" (each tensor as it was stored), "f32", "bf16" or "f16"; float values are rounded to nearest, ties to even.

    Raises `ConfigError` for another dtype, a checkpoint that is no Hugging Face directory and a folder that is not empty or cannot be written,
    `WeightsError` for parameters that the checkpoint does not have, for none at all and for a value that is too large for the dtype, `ShapeError` for one of
    another shape.
    """
    if dtype != "checkpoint" and dtype not in _DTYPES:
        raise ConfigError(f"dtype is {dtype!r}", hint=f"use checkpoint, {', '.join(_DTYPES)}")
    checkpoint = model.checkpoint
    source = checkpoint.path / CONFIG
    if not source.is_file():
        raise ConfigError(
            f"{checkpoint.path} has no {CONFIG}: a model can be exported that began as a Hugging Face directory",
            hint="train from a Hugging Face directory",
        )
    _need_known(checkpoint, parameters)
    raw = read_json(source, "model configuration")
    if dtype != "checkpoint":
        raw["dtype" if "dtype" in raw else "torch_dtype"] = _TORCH[_DTYPES[dtype]]
    path = Path(folder)
    with new_directory(path) as made:
        write_text(made / CONFIG, json.dumps(raw, indent=2) + "\n")
        for name in _COPIED:
            if (checkpoint.path / name).is_file():
                shutil.copyfile(checkpoint.path / name, made / name)
        _write(made / WEIGHTS, checkpoint, parameters, _DTYPES.get(dtype))
    return path


def _need_known(checkpoint: Checkpoint, parameters: Mapping[str, Array]) -> None:
    unknown = sorted(set(parameters) - set(checkpoint.tensors))
    if unknown or not parameters:
        raise WeightsError(
            f"the parameters are not those of {checkpoint.path}: {', '.join(unknown[:5]) or 'there are none'}",
            hint="export the model that was trained",
        )
    for name, values in parameters.items():
        expected = checkpoint.tensors[name].shape
        if tuple(values.shape) != expected:
            raise ShapeError(f"shape {list(values.shape)}, expected {list(expected)}", node=name)


def _write(path: Path, checkpoint: Checkpoint, parameters: Mapping[str, Array], dtype: DType | None) -> None:
    """The weights file, converted piece by piece. What loading adds to a tensor is taken off again."""
    tensors = checkpoint.tensors
    specs = {tensor.source_name: TensorSpec(dtype or tensor.dtype, tensor.shape) for tensor in tensors.values()}
    with path.open("xb") as file:
        file.write(header_of(specs, {"format": "pt"}))
        for name, tensor in tensors.items():
            trained = parameters.get(name)
            stored = checkpoint.map(name).view(tensor.dtype.numpy) if trained is None else trained.reshape(-1)
            shift = np.float32(0.0 if trained is None else tensor.shift)
            kind = specs[tensor.source_name].dtype.numpy
            for start in range(0, stored.size, BLOCK_BYTES):
                block = stored[start : start + BLOCK_BYTES]
                block = block.astype(np.float32) - shift if shift else block
                with np.errstate(over="ignore"):
                    rounded = np.ascontiguousarray(block.astype(kind))
                if trained is not None and (~np.isfinite(rounded) & np.isfinite(block)).any():
                    raise WeightsError(
                        f"a value has no place in {kind}: {np.abs(block).max():.6g}", node=name, hint='export "f32"'
                    )
                file.write(rounded.view(np.uint8).data)
            if trained is None:
                checkpoint.release(name)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A folder to write into that becomes `path` when all is well and is gone otherwise. Raises `ConfigError` where that is not new or empty, or not
    writable."""
    if not path.name:
        raise ConfigError(
            f"{str(path)!r} is no name that a new folder can have", hint="name a folder that is new or empty"
        )
    made = path.with_name(f".writing-{path.name}-{os.getpid()}")
    try:
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise ConfigError(f"{path} is there already", hint="name a folder that is new or empty")
        made.mkdir(parents=True)
        try:
            yield made
            if path.exists():
                path.rmdir()
            made.rename(path)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path} cannot be written: {error.strerror or error}", hint="name a writable place"
        ) from error
