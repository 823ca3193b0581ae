"""Text files that are read and written as the user named them: one that cannot be used is a usage error that says which and why.

Folders are made where a file is to be written, and nothing is read that is not UTF-8.
"""

from __future__ import annotations

import os
from pathlib import Path

from ostinato.ir.errors import ConfigError

__all__ = ["need_writable", "not_text", "read_text", "write_bytes", "write_text"]


def read_text(path: Path) -> str:
    """The text of a file. Raises `ConfigError` for one that cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise not_text(str(path), error) from None
    except (OSError, ValueError) as error:  # a name that no system can hold is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {reason}", hint="check the path") from None


def not_text(name: str, error: UnicodeDecodeError) -> ConfigError:
    """The error for bytes that are no text."""
    return ConfigError(f"{name} is not UTF-8 text: {error}", hint="save it as UTF-8")


def write_text(path: Path, text: str) -> str:
    """Writes a file, its folder made if need be, and returns its path as text. Raises `ConfigError` for a place that cannot be written."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> str:
    """`write_text` for what is no text."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except (OSError, ValueError) as error:
        raise _not_writable(path, error) from None
    return str(path)


def need_writable(path: Path) -> None:
    """Raises what `write_text` would, before the work whose result is to be written. A file that is there keeps its content."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        there = os.path.lexists(path)
        if there and not path.is_file() and not path.is_dir():
            return  # a pipe or a device: to open it would be to use it
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
    except (OSError, ValueError) as error:
        raise _not_writable(path, error) from None


def _not_writable(path: Path, error: OSError | ValueError) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"{path} cannot be written: {reason}", hint="name a writable place")
