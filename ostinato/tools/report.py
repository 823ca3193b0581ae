"""The base of what `--json` prints, and the report of a command that fails: apart from `schemas.py`, which has the others, since every command needs these."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["ErrorReport", "Report"]


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
