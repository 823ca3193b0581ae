"""The version of the library, the same as in `pyproject.toml` (a test compares them). Plans carry it."""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0"
