"""What is known about an implementation row: how exact its results are, and whether a record says that it is right.

Records live in a backend's ledger. Passes see them through `Evidence`, which a `Target` carries, so that selection never imports a backend.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ostinato.ir.types import TensorType, is_contiguous

if TYPE_CHECKING:
    from ostinato.ir.selection_policy import Gated
    from ostinato.ir.target import CallSite, Impl

__all__ = ["Evidence", "Exactness", "Finding", "Validations", "Verdict", "signature_class", "sum_of"]


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


class Evidence(Protocol):
    """The records that hold on one device, as selection asks for them. A pure function of the row and the site: asked twice, it says the same."""

    def verdict(self, row: Impl, site: CallSite) -> Verdict: ...

    def gate(self, policy: Gated) -> Verdict:
        """What the whole-model runs say of a selection policy, as it is defined now, or of leaving a pass out: `VALIDATED` where it passed and may be a
        default."""
        ...


def signature_class(site: CallSite) -> str:
    """The type-signature class of a call: dtypes and layouts of operands and results, which operands are absent, strided or counted; no extents.

    Printed like "f32,bf16@CF,_,f32~->f32;counted": "@" is followed by a layout that is not the natural one, "_" is an absent operand, "~" marks a strided one.
    Absent operands at the end are left out.
    """
    seen = [
        "_" if tensor is None else _seen(tensor, strides)
        for tensor, strides in zip(site.operands, site.strides, strict=True)
    ]
    while seen and seen[-1] == "_":
        seen.pop()
    results = ",".join(_seen(tensor, None) for tensor in site.results)
    return f"{','.join(seen)}->{results}{';counted' if site.counted else ''}"


def _seen(tensor: TensorType, strides: tuple[int, ...] | None) -> str:
    natural = tensor.layout is None or (tensor.is_natural and not tensor.is_packed)
    layout = "" if natural else f"@{tensor.layout}"
    strided = strides is not None and tensor.is_static and not is_contiguous(tensor, strides)
    return f"{tensor.dtype.value}{layout}{'~' if strided else ''}"
