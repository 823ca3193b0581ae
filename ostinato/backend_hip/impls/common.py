"""What the rows of the host device share: dtype lists, how a tensor folds into rows and columns, and how reasons are written.

A predicate returns None or one sentence that says what the row needs and what it found. Layout and contiguity are declared as data in the row
(`layouts`, `strided`) and judged by the selection pass, so predicates speak of dtypes and sizes only.

The `count` operand of a kernel counts the rows the kernel sees. A tensor whose leading axis is only partly valid in a run can use it when the kernel's rows
are that axis; where several axes fold into the rows, the twin `host_all_rows` of a row computes the unused rows too (their results are unspecified and
nobody reads them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

from ostinato.ir.ops import OP
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import DType, TensorType

__all__ = [
    "FLOATS",
    "HOST",
    "HOST_ARCHITECTURE",
    "WEIGHT_DTYPES",
    "Predicate",
    "all_of",
    "all_rows_twin",
    "even_rows",
    "first_reason",
    "fixed",
    "flat",
    "foldable_count",
    "need_dtype",
    "number",
    "row_step",
    "rows_and_width",
    "uncounted",
    "without",
]

HOST_ARCHITECTURE = "host"
HOST = (HOST_ARCHITECTURE,)
"""The architectures of a row for the CPU, whatever its instruction set."""

FLOATS = (DType.F32, DType.F16, DType.BF16)
WEIGHT_DTYPES = (*FLOATS, *(dtype for dtype in DType if dtype.is_block))

Predicate = Callable[[CallSite], str | None]


def fixed(kernel: str) -> Callable[[CallSite], str]:
    """The kernel of a row that has only one."""

    def name(site: CallSite) -> str:
        del site
        return kernel

    return name


def number(tensor: TensorType) -> int:
    return tensor.dtype.number


def rows_and_width(tensor: TensorType) -> tuple[int, int]:
    """Leading extent and the product of the rest: how an elementwise kernel sees a tensor. A scalar is one row of one."""
    shape = tensor.static_shape
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def flat(tensor: TensorType) -> tuple[int, int]:
    """Product of all axes but the last, and the last: how a kernel that works along the last axis sees a tensor."""
    shape = tensor.static_shape
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def need_dtype(name: str, tensor: TensorType, allowed: Iterable[DType]) -> str | None:
    """The reason when `tensor` has none of the dtypes `allowed`."""
    if tensor.dtype in allowed:
        return None
    return f"{name} must be {' or '.join(dtype.value for dtype in allowed)}, found {tensor.dtype.value}"


def without(*names: str) -> Predicate:
    """The reason when one of these optional operands is there: the kernel has no operand for it."""

    def accepts(site: CallSite) -> str | None:
        present = (spec.name for index, spec in enumerate(OP[site.node.op].operands) if site.has(index))
        return next((f"the kernel takes no {name}" for name in present if name in names), None)

    return accepts


def foldable_count(inner: int = 1) -> Predicate:
    """The reason when the kernel's rows (all axes of the first operand but the last `inner`) are not the axis that is partly valid."""

    def accepts(site: CallSite) -> str | None:
        tensor = site.operand(0)
        if not site.counted:
            return None
        if tensor.rank <= inner:
            return f"the valid-rows count is of axis 0, which the kernel does not see as rows of {tensor}"
        if all(extent == 1 for extent in tensor.shape[1 : tensor.rank - inner]):
            return None
        last = tensor.rank - inner - 1
        return f"the valid-rows count is of axis 0, the kernel's rows are axes 0 to {last} of {tensor}"

    return accepts


def uncounted(site: CallSite) -> str | None:
    """The reason when only a part of the leading axis is valid in a run."""
    return "the kernel has no valid-rows count, and the leading axis is only partly valid" if site.counted else None


def row_step(site: CallSite, index: int) -> int | None:
    """Elements from one row of an operand to the next, whatever axes its rows are folded of; None where they have no one distance or are not contiguous. A
    vector is a column of single elements, as `rows_and_width` has it."""
    shape, strides = site.operand(index).static_shape, site.strides[index]
    if strides is None or not shape:
        return 1 if not shape else None
    if len(shape) > 1 and shape[-1] > 1 and strides[-1] != 1:
        return None
    rows = [(extent, stride) for extent, stride in zip(shape, strides, strict=True)]
    outer = [(extent, stride) for extent, stride in (rows[:-1] if len(rows) > 1 else rows) if extent != 1]
    if any(outside != stride * extent for (_, outside), (extent, stride) in pairwise(outer)):
        return None
    return outer[-1][1] if outer else shape[-1]


def even_rows(*operands: str) -> Predicate:
    """The reason when the rows of one of these operands are not contiguous or not at one distance of each other."""

    def accepts(site: CallSite) -> str | None:
        for name in operands:
            index = OP[site.node.op].place(name)
            if row_step(site, index) is None:
                strides = list(site.strides[index] or ())
                return f"{name} must have contiguous rows at one distance, found {site.operand(index)} with strides {strides}"
        return None

    return accepts


def first_reason(*reasons: str | None) -> str | None:
    """The first reason for refusing, None when there is none."""
    return next((reason for reason in reasons if reason is not None), None)


def all_of(*predicates: Predicate) -> Predicate:
    """The first reason that any of the predicates gives; those after it are not asked."""

    def accepts(site: CallSite) -> str | None:
        for predicate in predicates:
            reason = predicate(site)
            if reason is not None:
                return reason
        return None

    return accepts


def all_rows_twin(row: Impl, accepts: Predicate) -> Impl:
    """`row` without its count operand: it computes rows past the valid ones too. Chosen only where `row` refuses."""
    return replace(
        row,
        name=f"{row.name}_all_rows",
        operands=tuple("-" if operand == "count" else operand for operand in row.operands),
        accepts=accepts,
        priority=row.priority - 1,
    )
