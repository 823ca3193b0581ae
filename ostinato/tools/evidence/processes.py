"""Trials in fresh processes, one at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from pydantic import ValidationError

from ostinato.tools.evidence.trial import Request, Result

__all__ = ["Runner", "fresh"]

Runner = Callable[[Request], Result]
_MODULE = "ostinato.tools.evidence.trial"
_SHOWN = 3


def fresh(request: Request) -> Result:
    """The result of a process of its own, which ends with this call whatever happens. One that dies is a result with its last words."""
    with subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            answer, told = process.communicate(request.model_dump_json())
        except BaseException:  # an interrupt is the parent's to answer
            process.kill()
            raise
    try:
        return Result.model_validate_json(answer)
    except ValidationError:
        last = " / ".join(told.strip().splitlines()[-_SHOWN:])
        return Result(error=f"its process ended with {process.returncode}: {last or 'it said nothing'}")
