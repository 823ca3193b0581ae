"""How exact an implementation row is, and what records say of it: the words of evidence (`evidence.py`), which rows and targets are made of too."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Exactness", "Finding", "Verdict"]


class Exactness(enum.IntEnum):
    """How exact the results of a row are; each class has what those before it promise."""

    TOLERANCE = 0
    """Within the operator's tolerance of the reference."""
    ROW_INVARIANT = 1
    """A row of the result has the same bits whatever the rows beside it, and however many there are."""
    REFERENCE = 2
    """The bits of the reference."""


class Finding(enum.Enum):
    """What the records say about a row at a call site, or about the gate of a selection policy."""

    VALIDATED = "validated"
    MISSING = "not validated"
    STALE = "stale"
    FAILED = "failed"
    SLOWER = "slower"
    """Of a gate: whole models do not run faster by it."""
    MEMORY = "memory"
    """Of a gate: the peak of memory went up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding, the records it rests on by their ids, and for anything but `VALIDATED` what is wrong and how it is mended."""

    finding: Finding
    evidence: tuple[str, ...] = ()
    reason: str = ""
