"""The type-signature class of a call: what a validation record is about."""

from __future__ import annotations

from ostinato.ir.target import CallSite
from ostinato.ir.types import TensorType

__all__ = ["signature_class"]


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
