"""The base of what `--json` prints: `schemas.py` and `conformance/report.py` have the models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Report"]


class Report(BaseModel):
    """Base of everything printed: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
