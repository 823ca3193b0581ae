"""The same sides in fresh processes, each of which compiles them again: what they give must not depend on the process.

A process is asked by what can be written: the path of the model, the texts of the sides and the settings. It compares its own sides with one another on the
same work (`child.py`) and hands its report back, of which the digests are compared with those of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ostinato.ir.errors import BackendError, ConfigError
from ostinato.tools.compare.report import CompareReport, ProcessDigest
from ostinato.tools.compare.sides import Side, parse_side
from ostinato.tools.fresh_process import ask

__all__ = ["Again", "require_told", "run_processes"]

_MODULE = "ostinato.tools.compare.child"


class Again(BaseModel):
    """A comparison for another process: the model's path, the texts of its sides, and the other arguments of `compare`."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    target: str
    modes: tuple[str, ...]
    settings: Mapping[str, Any]


def require_told(again: Again, sides: Sequence[Side], base: Side) -> None:
    """Raises `ConfigError` for sides and settings that no text stands for."""
    for side in sides:
        if side.executable is not None or callable(side.function) or not _is_told(side, base):
            raise ConfigError("another process cannot be told of this side", node=side.name, hint="write it as a text")
    for name, value in again.settings.items():
        if not isinstance(value, str | int | float | bool | dict | None):
            raise ConfigError(f"another process cannot have {name} {value!r}", hint="give its name")


def run_processes(
    again: Again, known: Mapping[str, str], count: int, said: Callable[[str], None]
) -> tuple[ProcessDigest, ...]:
    """Runs `count` processes, one after the other, and compares their digests with those that are `known` by side.

    Raises `BackendError` with the last words of a process that fails.
    """
    found: list[ProcessDigest] = []
    for number in range(1, count + 1):
        said(f"process {number} of {count}")
        for side in _fresh(again).sides:
            equal = side.digest == known[side.name]
            found.append(ProcessDigest(side=side.name, process=number, digest=side.digest, equal=equal))
    return tuple(found)


def _is_told(side: Side, base: Side) -> bool:
    try:
        return parse_side(side.name, base) == side
    except ConfigError:
        return False


def _fresh(again: Again) -> CompareReport:
    """The report of a process of its own."""
    answer = ask(_MODULE, again.model_dump_json())
    try:
        return CompareReport.model_validate_json(answer.text)
    except ValidationError:
        raise BackendError(
            f"a process that compares {answer.end}",
            hint="what runs here must be importable there too: functions, families and rows of one's own are not",
        ) from None
