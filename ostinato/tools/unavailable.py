"""Commands of the design that this version does not have, as one table: they exist, say so, and end with the exit code of a usage error."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.ir.errors import NotYetAvailable

__all__ = ["UNAVAILABLE", "refusal"]

UNAVAILABLE: Mapping[str, str] = {
    "serve": "serve a model over HTTP",
}
"""Command name -> what it will do."""


def refusal(command: str) -> NotYetAvailable:
    """The error that a command of the table ends with."""
    return NotYetAvailable(
        f"`ostinato {command}` (will {UNAVAILABLE[command]}) is not yet available in this version",
        hint="see CHANGELOG.md for what is",
    )
