"""Element types, symbolic dimensions and tensor types.

A tensor type is a logical shape, an element type, a name for each axis (or "" where none is known) and a layout. The layout is the order of the
axes in memory: the letters of the axes, outermost first, where all are named (`BHTD`), `row` for the logical order of an anonymous tensor, or the
name of a packed weight format (`panel32`). Naming axes is what keeps `[B,T,H,D]` and `[B,H,T,D]` apart when T equals H.
No layout (None) means that none was assigned yet. Block dtypes hold 32 or 256 values along the last axis in one block of a fixed byte size.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ostinato.ir.errors import DTypeError, LayoutError, ShapeError

__all__ = [
    "PACKED_LAYOUTS",
    "PANEL",
    "Array",
    "Attr",
    "DType",
    "Dim",
    "Extent",
    "TensorType",
    "element_count",
    "is_contiguous",
    "packed_nbytes",
]

Array = npt.NDArray[Any]
Attr = int | float | bool | str | tuple[int, ...]
"""The value of a node's attribute."""

MAX_ELEMENTS = 2**62
PANEL = 32
"""Output rows that a packed weight panel interleaves."""

PACKED_LAYOUTS = ("panel32", "panel32_pair")


class DType(enum.Enum):
    """Element types. The value is the name in the text form; `number` is the one in `native/ostinato.h`."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F64 = "f64"
    I64 = "i64"
    I32 = "i32"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    IQ4_NL = "iq4_nl"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"

    @property
    def number(self) -> int:
        return _NUMBERS[self]

    @property
    def is_block(self) -> bool:
        return self in _BLOCKS

    @property
    def is_float(self) -> bool:
        return self in (DType.F32, DType.F16, DType.BF16, DType.F64)

    @property
    def is_integer(self) -> bool:
        return self in (DType.I64, DType.I32, DType.I8, DType.U8)

    @property
    def block_elements(self) -> int:
        """Elements of one indivisible unit: 1, or 32 or 256 for block types."""
        return _BLOCKS[self][0] if self in _BLOCKS else 1

    @property
    def block_bytes(self) -> int:
        """Bytes of one indivisible unit."""
        return _BLOCKS[self][1] if self in _BLOCKS else self.numpy.itemsize

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` values; raises `DTypeError` when a block type does not divide them."""
        if elements % self.block_elements:
            raise DTypeError(
                f"{self.value} stores blocks of {self.block_elements} values, {elements} values do not fill whole blocks"
            )
        return elements // self.block_elements * self.block_bytes

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; block types have none and raise `DTypeError`."""
        if self in _BLOCKS:
            raise DTypeError(f"{self.value} is a block type and has no numpy dtype", hint="dequantise it first")
        return _NUMPY[self]

    @staticmethod
    def of(dtype: npt.DTypeLike) -> DType:
        """The element type of a numpy dtype; raises `DTypeError` for others."""
        found = _FROM_NUMPY.get(np.dtype(dtype))
        if found is None:
            raise DTypeError(
                f"numpy dtype {np.dtype(dtype)} has no counterpart",
                hint=f"convert to one of {', '.join(str(d) for d in _FROM_NUMPY)}",
            )
        return found

    @staticmethod
    def parse(text: str) -> DType:
        """The element type of that name; raises `DTypeError` naming the known ones."""
        try:
            return DType(text)
        except ValueError:
            raise DTypeError(f"unknown dtype {text!r}", hint=f"known: {', '.join(d.value for d in DType)}") from None


_NUMBERS = {
    DType.F32: 0,
    DType.F16: 1,
    DType.BF16: 2,
    DType.F64: 3,
    DType.I64: 4,
    DType.I32: 5,
    DType.I8: 6,
    DType.U8: 7,
    DType.BOOL: 8,
    DType.Q8_0: 16,
    DType.Q4_0: 17,
    DType.Q4_1: 18,
    DType.Q5_0: 19,
    DType.Q5_1: 20,
    DType.IQ4_NL: 21,
    DType.Q4_K: 22,
    DType.Q5_K: 23,
    DType.Q6_K: 24,
}
# values a block, bytes a block: the GGUF formats
_BLOCKS = {
    DType.Q8_0: (32, 34),
    DType.Q4_0: (32, 18),
    DType.Q4_1: (32, 20),
    DType.Q5_0: (32, 22),
    DType.Q5_1: (32, 24),
    DType.IQ4_NL: (32, 18),
    DType.Q4_K: (256, 144),
    DType.Q5_K: (256, 176),
    DType.Q6_K: (256, 210),
}
_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F64: np.dtype(np.float64),
    DType.I64: np.dtype(np.int64),
    DType.I32: np.dtype(np.int32),
    DType.I8: np.dtype(np.int8),
    DType.U8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_),
}
_FROM_NUMPY = {dtype: ours for ours, dtype in _NUMPY.items()}


@dataclass(frozen=True, slots=True)
class Dim:
    """A symbolic dimension: bound to an integer in [low, high] for each bucket before planning.

    `high` None says that no upper bound is known. Memory cannot be planned for such a dimension: every stage refuses it by name.
    """

    name: str
    low: int
    high: int | None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ShapeError(f"dimension name {self.name!r} is not an identifier")
        if not 0 <= self.low <= (self.low if self.high is None else self.high):
            raise ShapeError(f"dimension {self.name} has bounds {self.bounds}", hint="0 <= low <= high")

    @property
    def bounds(self) -> str:
        """The bounds as text: "[1, 512]", or "[1, _]" where there is no upper one."""
        return f"[{self.low}, {'_' if self.high is None else self.high}]"

    def __str__(self) -> str:
        return self.name


Extent = int | Dim


def element_count(shape: tuple[int, ...]) -> int:
    """Product of the extents, 1 for a scalar; raises `ShapeError` on negative extents and on overflow."""
    if any(extent < 0 for extent in shape):
        raise ShapeError(f"negative extent in shape {list(shape)}")
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise ShapeError(
            f"expected a shape of at most {MAX_ELEMENTS} elements, found {list(shape)} of {count}",
            hint="no memory holds more; check the extents",
        )
    return count


def packed_nbytes(shape: tuple[int, int], dtype: DType, layout: str) -> int:
    """Bytes of a `[rows, columns]` weight in a packed layout: whole panels of 32 rows, padding included.

    bf16 pairs two columns, so an odd column count is padded to even. `panel32_pair` interleaves 16 rows of the first half with the same 16 of the second.
    """
    rows, columns = shape
    if layout == "panel32_pair":
        if rows % 2:
            raise LayoutError(f"panel32_pair needs an even number of rows, found {rows}")
        panels = -(-(rows // 2) // (PANEL // 2))
    else:
        panels = -(-rows // PANEL)
    if dtype is DType.BF16:
        columns += columns % 2
    return panels * PANEL * dtype.nbytes(columns)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Logical shape, element type, axis names (`""` = anonymous) and layout of a value."""

    shape: tuple[Extent, ...]
    dtype: DType
    axes: tuple[str, ...] = ()
    layout: str | None = None

    def __post_init__(self) -> None:
        if not self.axes:
            object.__setattr__(self, "axes", ("",) * len(self.shape))
        if len(self.axes) != len(self.shape):
            raise ShapeError(f"{len(self.axes)} axis names for {len(self.shape)} dimensions")
        named = [axis for axis in self.axes if axis]
        if len(set(named)) != len(named):
            raise LayoutError(f"axis names {self.axes} repeat")
        for axis in named:
            if len(axis) != 1 or not (axis.isascii() and axis.isalpha() and axis.isupper()):
                raise LayoutError(f"axis name {axis!r} is not one capital letter")
        if self.is_static:
            element_count(self.static_shape)
        known = (None, *PACKED_LAYOUTS, self.natural_layout)
        if self.layout not in known and ("" in self.axes or sorted(self.layout or "") != sorted(self.axes)):
            raise LayoutError(
                f"layout {self.layout!r} does not fit axes {list(self.axes)}",
                hint=f"use {self.natural_layout} or a permutation of named axes",
            )

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        for extent in self.shape:  # noqa: SIM110 - twice as fast as all(), and asked of every type there is
            if isinstance(extent, Dim):
                return False
        return True

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as integers; raises `ShapeError` while a dimension is symbolic."""
        shape: list[int] = []
        for extent in self.shape:
            if isinstance(extent, Dim):
                raise ShapeError(f"dimension {extent.name} is not bound", hint="bind the graph to a bucket first")
            shape.append(extent)
        return tuple(shape)

    @property
    def elements(self) -> int:
        return element_count(self.static_shape)

    @property
    def is_packed(self) -> bool:
        return self.layout in PACKED_LAYOUTS

    @property
    def natural_layout(self) -> str:
        """The layout that stores the axes in logical order."""
        return "".join(self.axes) if self.axes and all(self.axes) else "row"

    @property
    def is_natural(self) -> bool:
        return self.layout is None or self.layout == self.natural_layout

    @property
    def nbytes(self) -> int:
        """Bytes in memory, packing and padding included."""
        shape = self.static_shape
        if self.is_packed:
            assert self.layout is not None
            if len(shape) != 2:
                raise LayoutError(f"packed layout {self.layout} needs two dimensions, found {list(shape)}")
            return packed_nbytes((shape[0], shape[1]), self.dtype, self.layout)
        if self.dtype.is_block and shape and shape[-1] % self.dtype.block_elements:
            raise DTypeError(
                f"{self.dtype.value} needs a last axis divisible by {self.dtype.block_elements}, found {list(shape)}"
            )
        return self.dtype.nbytes(self.elements)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each logical axis, for an unpacked layout."""
        if self.is_packed:
            raise LayoutError(f"packed layout {self.layout} has no strides")
        shape = self.static_shape
        order = range(self.rank) if self.is_natural else [self.axes.index(axis) for axis in self.layout or ""]
        strides = [0] * self.rank
        step = 1
        for index in reversed(list(order)):
            strides[index] = step
            step *= shape[index]
        return tuple(strides)

    def with_layout(self, layout: str | None) -> TensorType:
        return replace(self, layout=layout)

    def with_dtype(self, dtype: DType) -> TensorType:
        return replace(self, dtype=dtype)

    def bind(self, dims: Mapping[str, int]) -> TensorType:
        """Replaces symbolic dimensions by integers; raises `ShapeError` outside their bounds. Unnamed ones stay symbolic."""
        shape: list[Extent] = []
        for extent in self.shape:
            if isinstance(extent, Dim) and extent.name in dims:
                value = dims[extent.name]
                if value < extent.low or (extent.high is not None and value > extent.high):
                    raise ShapeError(f"dimension {extent.name} = {value} is outside {extent.bounds}")
                shape.append(value)
            else:
                shape.append(extent)
        return replace(self, shape=tuple(shape))

    def __str__(self) -> str:
        dims = ",".join(
            f"{axis}:{extent}" if axis else str(extent) for axis, extent in zip(self.axes, self.shape, strict=True)
        )
        layout = f"@{self.layout}" if self.layout is not None else ""
        return f"{self.dtype.value}[{dims}]{layout}"


def is_contiguous(tensor: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether these strides walk the elements in logical order without gaps; strides of axes with at most one element do not matter."""
    expected = 1
    contiguous = True
    for extent, stride in zip(reversed(tensor.static_shape), reversed(strides), strict=True):
        if extent == 0:
            return True
        contiguous = contiguous and (extent == 1 or stride == expected)
        expected *= extent
    return contiguous
