"""Text files that are read and written as the user named them: one that cannot be used is a usage error that says which and why.

Folders are made where a file is to be written, and nothing is read that is not UTF-8. A file is written aside and renamed: it is there as a whole, or what was
there before is. Links, pipes and devices, and a file in a folder that takes no other one, are written through.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError

__all__ = ["named_path", "need_writable", "not_text", "read_text", "replacing", "write_bytes", "write_text"]


def named_path(given: object) -> Path:
    """What a caller gave as the path of a file or folder. Raises `ConfigError` for what is none, an empty text too."""
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes) or not os.fspath(given):
        raise ConfigError(f"the path is {shown(given)}", hint="name a file, or a folder, as text or pathlib.Path")
    return Path(given)


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
        plain = not os.path.lexists(path) or (path.is_file() and not path.is_symlink())
        if plain and (not path.exists() or os.access(path.parent, os.W_OK)):
            with replacing(path) as file:
                file.write(data)
        else:
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
        with path.open("ab") as file:
            made = os.fstat(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            if not there and os.path.samestat(made, path.stat()):  # not what another process put there by now
                path.unlink()
    except (OSError, ValueError) as error:
        raise _not_writable(path, error) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that is put in place of a plain one, or of nothing, when the block ends; where that raises, what was there stays.

    A file that may not be written is left alone, and the mode of one that may is kept. Raises `OSError`, for a path that is no plain file too: to put a file in
    place of a link or a device would take that away.
    """
    mode = None
    if os.path.lexists(path):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise OSError(f"{path} is a link, a pipe or a device")
        with path.open("ab") as there:
            mode = stat.S_IMODE(os.fstat(there.fileno()).st_mode)
    aside = path.with_name(f".{path.name[:32]}.{secrets.token_hex(6)}.part")
    try:
        with aside.open("xb") as file:
            if mode is not None:
                aside.chmod(mode)
            yield file
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _not_writable(path: Path, error: OSError | ValueError) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"{path} cannot be written: {reason}", hint="name a writable place")
