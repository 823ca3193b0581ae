"""What is known about an implementation row: how exact its results are, and whether a record says that it is right.

Records live in a backend's ledger. Passes see them through `Evidence`, which a `Target` carries, so that selection never imports a backend.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ostinato.ir.finding import Exactness, Finding, Verdict
from ostinato.ir.target import CallSite, Evidence
from ostinato.ir.types import TensorType

__all__ = ["Evidence", "Exactness", "Finding", "Validations", "Verdict", "signature_class", "sum_of"]


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


def signature_class(site: CallSite) -> str:
    """The type-signature class of a call: dtypes and layouts of operands and results, which operands are absent, strided or counted; no extents.

    Printed like "f32,bf16@CF,_,f32~->f32;counted": "@" is followed by a layout that is not the natural one, "_" is an absent operand, "~" marks a strided one.
    Absent operands at the end are left out.
    """
    strided = site.strided
    seen = [
        "_" if tensor is None else _seen(tensor) + ("~" if index in strided else "")
        for index, tensor in enumerate(site.operands)
    ]
    while seen and seen[-1] == "_":
        seen.pop()
    results = ",".join(map(_seen, site.results))
    return f"{','.join(seen)}->{results}{';counted' if site.counted else ''}"


def _seen(tensor: TensorType) -> str:
    return f"{tensor.dtype.value}{'' if tensor.is_natural else f'@{tensor.layout}'}"
