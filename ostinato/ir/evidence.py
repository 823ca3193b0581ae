"""What is known about an implementation row: how exact its results are, and what records say of it.

Records live in a backend's ledger. Passes see them through `Evidence`, which a `Target` carries, so that selection never imports a backend.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Exactness", "Finding", "Validations", "Verdict", "sum_of"]


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


@dataclass(frozen=True, slots=True)
class Validations:
    """What was validated on first use: classes of types, those that failed ("row on class"), and the seconds that it took, apart from compilation."""

    classes: int = 0
    failed: tuple[str, ...] = ()
    seconds: float = 0.0

    def and_more(self, classes: int, failed: tuple[str, ...], seconds: float) -> Validations:
        """With more of them."""
        return Validations(self.classes + classes, (*self.failed, *failed), self.seconds + seconds)


def sum_of(several: Iterable[Validations]) -> Validations:
    """All of them together."""
    found = Validations()
    for one in several:
        found = found.and_more(one.classes, one.failed, one.seconds)
    return found
