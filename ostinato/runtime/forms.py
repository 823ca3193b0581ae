"""How a tensor lies in memory, and where: what the operators and whatever reads arrays of other libraries share.

Memory is called by its device: "cpu", "hip:0", "hip:1". A GPU of either vendor is "hip".
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from ostinato.ir.checks import integers, shown
from ostinato.ir.errors import DTypeError, LayoutError
from ostinato.ir.types import PACKED_LAYOUTS, DType, TensorType

__all__ = [
    "CPU_MEMORY",
    "Form",
    "Memory",
    "Order",
    "Shape",
    "checked_strides",
    "dtype_of",
    "misalignment",
    "natural_strides",
    "reach",
    "settled_strides",
    "span_of",
]

CPU_MEMORY = "cpu"

Shape = tuple[int, ...]


class Order(Protocol):
    """A stream, as whoever reads an array of somebody else needs it."""

    @property
    def device(self) -> str: ...
    @property
    def handle(self) -> int:
        """0 is the device's default stream."""
        ...

    def follow(self, handle: int) -> None:
        """What is submitted from now on runs after what a stream of that handle has now."""
        ...


class Form(NamedTuple):
    """What a call depends on of a tensor besides its address. `strides` count elements and are None for a packed weight, which has a `layout`."""

    shape: Shape
    strides: Shape | None
    dtype: DType
    layout: str | None
    writable: bool
    offset: int = 0
    """Elements from the last multiple of 16 bytes to the first one, on a GPU: some rows need memory that begins at such a multiple."""

    @property
    def type(self) -> TensorType:
        return TensorType(self.shape, self.dtype, layout=self.layout)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow each other in logical order without gaps."""
        return self.strides == natural_strides(self.shape)


class Memory(NamedTuple):
    """A tensor in memory: the address of its first element, bytes from there to the end of the last one (gaps included), and what keeps them alive.

    `stream` is the handle of the stream in whose order the values are there; None where nobody says so, and nothing needs to be waited for.
    """

    address: int
    span: int
    form: Form
    owner: Any
    device: str = CPU_MEMORY
    stream: int | None = None

    @property
    def end(self) -> int:
        return self.address + self.span

    def overlaps(self, other: Memory) -> bool:
        """Whether some byte belongs to both ranges; the gaps of strided tensors belong to them."""
        return self.address < other.end and other.address < self.end and self.span > 0 and other.span > 0


@functools.lru_cache(maxsize=4096)
def natural_strides(shape: Shape) -> Shape:
    """Strides in elements of the logical order without gaps."""
    return TensorType(shape, DType.U8).strides


def settled_strides(shape: Shape, strides: Shape) -> Shape:
    """The same places with the natural stride wherever nobody walks: axes of at most one element, and all axes of an empty tensor."""
    natural = natural_strides(shape)
    if 0 in shape:
        return natural
    return tuple(own if extent == 1 else given for extent, given, own in zip(shape, strides, natural, strict=True))


def reach(shape: Shape, strides: Shape) -> int:
    """Elements from the first to the last one, both counted."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def misalignment(address: int, dtype: DType) -> int:
    """`Form.offset` of memory on a GPU. Blocks have none: no row asks how they lie."""
    return 0 if dtype.is_block else address % 16 // dtype.block_bytes


def dtype_of(dtype: DType | npt.DTypeLike | None) -> DType:
    """The dtype of that name, or of numpy's dtype. Raises `DTypeError` for one that is none."""
    if isinstance(dtype, DType):
        return dtype
    try:
        if isinstance(dtype, str):
            return DType.parse(dtype)
        if dtype is not None:  # numpy takes it for float64
            return DType.of(dtype)
        raise TypeError
    except TypeError:
        raise DTypeError(f"{shown(dtype)} is no dtype", hint='use a name such as "f32"') from None


def span_of(form: Form) -> int:
    """Bytes from the first element to the end of the last one."""
    if form.strides is None or form.dtype.is_block:
        return form.type.nbytes
    return reach(form.shape, form.strides) * form.dtype.block_bytes


def checked_strides(
    shape: tuple[int, ...], strides: Sequence[int] | None, dtype: DType, layout: object
) -> tuple[int, ...] | None:
    """Strides as a view has them; None stands for the natural ones, and for those of a packed weight. Raises `LayoutError` for strides that no memory has."""
    if layout is not None and not (isinstance(layout, str) and layout in PACKED_LAYOUTS):
        raise LayoutError(
            f"layout {shown(layout)} is no format of packed weights",
            hint=f"leave it out, or use one of {', '.join(PACKED_LAYOUTS)}",
        )
    if strides is None:
        return natural_strides(shape) if layout is None else None
    if layout is not None:
        raise LayoutError(f"a weight packed as {layout} has no strides", hint="leave strides or layout out")
    given = integers(strides, "strides", error=LayoutError)
    if len(given) != len(shape):
        raise LayoutError(f"{len(given)} strides {list(given)} for {len(shape)} extents {list(shape)}")
    if any(stride < 0 for stride in given):
        raise LayoutError(
            f"strides {list(given)} are negative", hint="memory is walked forwards; copy the data reversed"
        )
    settled = settled_strides(shape, given)
    if dtype.is_block and settled != natural_strides(shape):
        raise LayoutError(f"{dtype.value} is stored in dense blocks, found strides {list(given)}")
    return settled
