"""Lines of Python code as they are told: files of the package relative to it, so that graphs do not depend on where it lies, others relative to the working
folder where they are in it."""

from __future__ import annotations

import functools
from pathlib import Path

from ostinato.ir.graph import Location

__all__ = ["is_ours", "location"]

_PACKAGE = Path(__file__).resolve().parents[1]


def location(file: str, line: int) -> Location:
    """A line of a file by its path as the interpreter names it."""
    return Location(_short(file), line)


@functools.cache
def is_ours(file: str) -> bool:
    """Whether a file is the package's."""
    return Path(file).is_relative_to(_PACKAGE)


@functools.cache
def _short(file: str) -> str:
    path = Path(file)
    if is_ours(file):
        return path.relative_to(_PACKAGE.parent).as_posix()
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.as_posix()
