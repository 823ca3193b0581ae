"""What the rows of GPUs share: launch shapes, how a tensor looks to a kernel that goes by its leading axis, and the names of types in kernels.

Every kernel with a count operand sees a tensor as entries of its leading axis times what lies in each, so a count is good wherever that axis is one that the
kernel does not reduce over; there are no twins without it. Launch shapes are made for all entries: blocks past a count end at once. All are early: every
kernel of ours waits for the one before it, most of them before they do anything (`Start` in kernels/device.h).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ostinato.backend_hip.impls.common import Predicate
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType, TensorType

__all__ = [
    "ALL_THREADS",
    "HIP",
    "HIP_ARCHITECTURE",
    "THREADS",
    "TICKETS",
    "WAVES",
    "Params",
    "block_launch",
    "by_dtypes",
    "counts_entries",
    "element_launch",
    "entries",
    "one_block",
    "readable",
    "row_launch",
    "rows_of",
    "word",
]

HIP_ARCHITECTURE = "hip"
HIP = (HIP_ARCHITECTURE,)
"""The architectures of a row that every GPU runs."""

WAVES = (32, 64)
"""Lanes of a wave, one or the other."""

THREADS = 256
"""Threads of a block, unless a row says otherwise: whole waves of 32 and of 64."""
_MOST_BLOCKS = 2**16 - 1
"""Of a grid along each axis: kernels go on in steps of the grid, and this fills any device."""
ALL_THREADS = 1024
"""Of the largest block that every device has."""
TICKETS = 1023
"""Units of work that blocks can share in one launch, as kernels/device.h has it."""

Params = tuple[int | float, ...]


def entries(tensor: TensorType) -> tuple[int, int]:
    """Leading extent and elements of each of its entries; a scalar is one entry of one."""
    shape = tensor.static_shape
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def rows_of(tensor: TensorType) -> tuple[int, int, int]:
    """Leading extent, rows of each of its entries, and their width: how a kernel along the last axis sees a tensor. A vector is one row."""
    shape = tensor.static_shape
    if len(shape) < 2:
        return (1, 1, math.prod(shape))
    return (shape[0], math.prod(shape[1:-1]), shape[-1])


def counts_entries(along: int) -> Predicate:
    """The reason when the axis that is only partly valid is none of the kernel's entries: it goes along the last `along` axes of the first operand."""

    def accepts(site: CallSite) -> str | None:
        tensor = site.operand(0)
        if not site.counted or tensor.rank > along:
            return None
        return f"the valid-rows count is of axis 0, which is no axis that the kernel counts of {tensor}"

    return accepts


def _blocks(units: int) -> int:
    return max(1, min(units, _MOST_BLOCKS))


def element_launch(elements: int, rows: int = 1) -> Launch:
    """A thread an element; `rows` along the grid's second axis."""
    return block_launch(-(-elements // THREADS), THREADS, rows)


def block_launch(blocks: int, threads: int, rows: int = 1) -> Launch:
    """So many blocks; `rows` along the grid's second axis."""
    return Launch((_blocks(blocks), _blocks(rows), 1), (threads, 1, 1), early=True)


def row_launch(rows: int, threads: int = THREADS) -> Launch:
    """A block a row."""
    return block_launch(rows, threads)


def one_block(site: CallSite) -> Launch:
    """The whole work by one block."""
    del site
    return Launch((1, 1, 1), (ALL_THREADS, 1, 1), early=True)


def word(dtype: DType) -> str:
    """The unsigned integer of the size of an element."""
    return f"u{8 * dtype.block_bytes}"


def by_dtypes(file: str, function: str, *operands: int, result: int | None = None) -> Callable[[CallSite], str]:
    """The kernel of that name for the dtypes of these operands and, where given, of that result."""

    def name(site: CallSite) -> str:
        dtypes = [site.operand(index).dtype for index in operands]
        if result is not None:
            dtypes.append(site.results[result].dtype)
        return kernel_name(file, function, *(dtype.value for dtype in dtypes))

    return name


def readable(
    op: str,
    operands: tuple[str, ...],
    kernel: Callable[[CallSite], str],
    params: Callable[[CallSite], Params],
    launch: Callable[[CallSite], Launch],
    accepts: Predicate,
    in_place: tuple[tuple[str, str], ...] = (),
    exactness: Exactness = Exactness.ROW_INVARIANT,
) -> Impl:
    """A row of level `readable` for every GPU."""
    return Impl(
        op,
        "hip",
        Level.READABLE,
        HIP,
        operands,
        kernel,
        params,
        accepts,
        in_place=in_place,
        launch=launch,
        exactness=exactness,
    )
