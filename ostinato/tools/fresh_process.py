"""A question asked of a fresh Python process: text on its standard input, the answer on its standard output, one process a question.

What a process keeps (allocations, kernels that were tuned, a driver's state) cannot leak into another answer, and one that dies takes nothing else with it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

__all__ = ["Answer", "ask"]

_SHOWN = 3
"""Lines of what a process said last."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process wrote, and in `end` how it ended with its last words, for the case that this is no answer."""

    text: str
    end: str


def ask(module: str, question: str) -> Answer:
    """Runs `python -m module`, which ends with this call whatever happens, an interrupt too."""
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            answer, told = process.communicate(question)
        except BaseException:  # an interrupt is the parent's to answer
            process.kill()
            process.wait()  # of an interrupt, `with` does not wait: it would outlive this call
            raise
    last = " / ".join(told.strip().splitlines()[-_SHOWN:])
    return Answer(answer, f"ended with {process.returncode}: {last or 'it said nothing'}")
