"""One JSON line a step: what a run measured, for people and for the picture of the loss.

Lines are written after their step and flushed; a checkpoint is newer than none of the lines before it, so that a run that goes on drops the lines behind its
checkpoint and has, in the end, one line for every step.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import TextIO

from pydantic import BaseModel, ConfigDict, ValidationError

from ostinato.ir.errors import ConfigError
from ostinato.tools.train.curve import Point

__all__ = ["Line", "Metrics", "finite"]


class Line(BaseModel):
    """A step: its loss (null where it is not finite, and the step was skipped), learning rate, norm of the gradients, and seconds since the run began or
    went on."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: int
    loss: float | None
    learning_rate: float
    gradient_norm: float | None
    epoch: int
    tokens: int
    seconds: float


class Metrics:
    """The lines of a run in `path`; those behind step `done` are dropped. Raises `ConfigError` for a file that cannot be read or written."""

    def __init__(self, path: Path, done: int) -> None:
        self.path = path
        try:
            self.lines = [line for line in _read(path) if line.step <= done]
            whole = "".join(_text(line) for line in self.lines)
            aside = path.with_name(f".writing-{path.name}")
            aside.write_text(whole, encoding="utf-8")
            os.replace(aside, path)
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="name a writable folder") from None

    def add(self, line: Line) -> None:
        """Notes a step. Raises `ConfigError` where the file takes no more: a run that goes on drops the lines behind its checkpoint."""
        self.lines.append(line)
        try:
            self._file.write(_text(line))
            self._file.flush()
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror}", hint="make room, and go on from the last checkpoint"
            ) from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def points(self) -> list[Point]:
        """The steps whose loss is a number."""
        return [Point(line.step, line.loss, line.learning_rate) for line in self.lines if line.loss is not None]


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(line: Line) -> str:
    return json.dumps(line.model_dump()) + "\n"


def _read(path: Path) -> list[Line]:
    """The whole lines of a file; a last one that a crash cut is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValidationError):
            lines.append(Line.model_validate_json(text))
    return lines
