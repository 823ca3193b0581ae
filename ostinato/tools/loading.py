"""Functions loaded by name when they are asked for: where the native module is missing, what does not need it works, `doctor` above all."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ostinato.ir.errors import BackendError

__all__ = ["load_function"]


def load_function(module: str, name: str) -> Callable[..., Any]:
    """The function of that name, its module imported. Raises `BackendError` where the native module is missing."""
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    except ImportError as error:
        if "_native" not in f"{error.name} {error}":
            raise
        raise BackendError(
            f"the native module cannot be loaded: {error}", hint="`ostinato doctor` says what is missing"
        ) from error
    return found
