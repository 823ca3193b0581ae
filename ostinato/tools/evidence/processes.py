"""Trials in fresh processes, one at a time."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from ostinato.tools.evidence.trial import Request, Result
from ostinato.tools.fresh_process import ask

__all__ = ["Runner", "fresh"]

Runner = Callable[[Request], Result]
_MODULE = "ostinato.tools.evidence.trial"


def fresh(request: Request) -> Result:
    """The result of a process of its own. One that dies is a result with its last words."""
    answer = ask(_MODULE, request.model_dump_json())
    try:
        return Result.model_validate_json(answer.text)
    except ValidationError:
        return Result(error=f"its process {answer.end}")
