"""The base of what `--json` prints, and the report of a command that fails: apart from `schemas.py`, which has the others, since every command needs these."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

__all__ = ["ErrorReport", "Number", "Report"]

_SPELLED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _spelled(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read(value: object) -> object:
    return _SPELLED.get(value, value) if isinstance(value, str) else value


Number = Annotated[
    float,
    BeforeValidator(_read),
    PlainSerializer(_spelled, return_type=float | str, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(_SPELLED)}]}),
]
"""A number that may be none: JSON has no NaN, which is written as a text."""


class Report(BaseModel):
    """Base of everything printed: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorReport(Report):
    """What `--json` prints instead when a command fails."""

    kind: Literal["error"] = "error"
    code: str
    message: str
    node: str | None
    hint: str | None
