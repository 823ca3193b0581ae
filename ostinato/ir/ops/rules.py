"""What the operator files share: how an `OpDef` is put together, and the checks that every type rule repeats.

`define` wraps an operator's own rule so that it only ever sees operands of the right count, presence, dtype and layout, and complete attributes. A rule is
then a handful of lines about shapes, axis names and dtype combinations. Result types carry no layout: assigning one is a pass's decision, so whoever compares
inferred with declared types leaves the layout out. Extents may be symbolic; two are equal only when they are the same integer or the same `Dim`.
Named axes must agree; an anonymous axis goes with any name and takes it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ostinato.ir.derivative import Derivative
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, OstinatoError, ShapeError
from ostinato.ir.opdef import (
    Attr,
    AttrSpec,
    Cost,
    Effect,
    OpDef,
    OperandSpec,
    OperandTypes,
    Sample,
    Sizes,
    Tolerance,
    ViewRule,
    complete_attributes,
    rows_of_first,
)
from ostinato.ir.rounding import working
from ostinato.ir.types import Array, DType, Extent, TensorType, element_count

__all__ = [
    "BLOCKS",
    "DTYPE_ATTR",
    "ELEMENTS",
    "F32",
    "FLOATS",
    "I32",
    "I64",
    "WEIGHTS",
    "Arrays",
    "Site",
    "check_index",
    "cost_per_element",
    "define",
    "describe",
    "elements",
    "fail",
    "join_axes",
    "make_type",
    "nbytes",
    "refuse_mixed_halves",
    "require_axes",
    "require_positive",
    "require_rank",
    "require_same_extent",
    "require_shape",
    "result_float",
]

F32 = frozenset({DType.F32})
FLOATS = frozenset({DType.F32, DType.F16, DType.BF16})
BLOCKS = frozenset(dtype for dtype in DType if dtype.is_block)
WEIGHTS = FLOATS | BLOCKS
I32 = frozenset({DType.I32})
I64 = frozenset({DType.I64})
ELEMENTS = frozenset(dtype for dtype in DType if not dtype.is_block)
"""Every dtype that has addressable elements."""

_FLOAT32 = np.finfo(np.float32)

DTYPE_ATTR = AttrSpec("dtype", str, "")
"""Result dtype by name; "" keeps the dtype of the first operand."""

Axes = tuple[str, ...]
Shape = tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class _Attributed:
    op: str
    attrs: Mapping[str, Attr]

    def integer(self, name: str) -> int:
        value = self.attrs[name]
        assert type(value) is int
        return value

    def real(self, name: str) -> float:
        value = self.attrs[name]
        assert isinstance(value, float)
        return value

    def boolean(self, name: str) -> bool:
        value = self.attrs[name]
        assert isinstance(value, bool)
        return value

    def text(self, name: str) -> str:
        value = self.attrs[name]
        assert isinstance(value, str)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return value


@dataclass(frozen=True, slots=True)
class Site(_Attributed):
    """What a type rule sees: operands in schema order (None where absent) and complete attributes."""

    operands: tuple[TensorType | None, ...]

    def operand(self, index: int) -> TensorType:
        found = self.operands[index]
        assert found is not None
        return found

    def optional(self, index: int) -> TensorType | None:
        return self.operands[index]


@dataclass(frozen=True, slots=True)
class Arrays(_Attributed):
    """What a reference sees: operand values in schema order, complete attributes and the result types."""

    operands: tuple[Array | None, ...]
    results: tuple[TensorType, ...]

    def operand(self, index: int) -> Array:
        found = self.operands[index]
        assert found is not None
        return found

    def wide(self, index: int) -> Array:
        """The operand in the precision that references compute in, float64."""
        return self.operand(index).astype(working())

    def optional(self, index: int) -> Array | None:
        return self.operands[index]


def define(
    name: str,
    summary: str,
    operands: tuple[OperandSpec, ...],
    results: tuple[str, ...],
    infer: Callable[[Site], tuple[TensorType, ...]],
    reference: Callable[[Arrays], tuple[Array, ...]],
    samples: Callable[[np.random.Generator], Iterator[Sample]],
    tolerance: Tolerance,
    *,
    attrs: tuple[AttrSpec, ...] = (),
    effect: Effect = Effect.PURE,
    view: ViewRule | None = None,
    must_alias: tuple[tuple[int, int], ...] = (),
    extent: str = "",
    sizes: Callable[[OperandTypes], Sizes] = rows_of_first,
    cost: Callable[[OperandTypes, Sequence[TensorType], Mapping[str, Attr]], Cost],
    packed: Mapping[str, str] | None = None,
    derivative: Derivative | None = None,
) -> OpDef:
    """An `OpDef` whose rule and reference are guarded by the schema. `packed` names the packed layout that an operand may have besides an unpacked one."""
    allowed_packed = dict(packed or {})

    def checked_infer(found: OperandTypes, given: Mapping[str, Attr]) -> tuple[TensorType, ...]:
        present = _checked_operands(name, operands, allowed_packed, found)
        return infer(Site(name, complete_attributes(name, attrs, given), present))

    def checked_reference(
        arrays: Sequence[Array | None], given: Mapping[str, Attr], result_types: Sequence[TensorType]
    ) -> tuple[Array, ...]:
        present = (*arrays, *([None] * (len(operands) - len(arrays))))
        return reference(Arrays(name, complete_attributes(name, attrs, given), present, tuple(result_types)))

    return OpDef(
        name=name,
        summary=summary,
        operands=operands,
        results=results,
        infer=checked_infer,
        reference=checked_reference,
        samples=samples,
        tolerance=tolerance,
        attrs=attrs,
        effect=effect,
        view=view,
        must_alias=must_alias,
        extent=extent,
        sizes=sizes,
        cost=cost,
        derivative=derivative,
    )


def cost_per_element(
    flops: int, operand: int | None = None
) -> Callable[[OperandTypes, Sequence[TensorType], Mapping[str, Attr]], Cost]:
    """So many operations for each element of the first result, or of that operand, an exponential counted as one; everything is read and written once."""

    def cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
        del attrs
        counted = results[0] if operand is None else operands[operand]
        assert counted is not None
        return Cost(flops * counted.elements, nbytes(*operands, *results))

    return cost


def _checked_operands(
    op: str, specs: tuple[OperandSpec, ...], packed: Mapping[str, str], found: OperandTypes
) -> tuple[TensorType | None, ...]:
    if len(found) > len(specs):
        fail(ShapeError, op, f"at most {len(specs)} operands", f"{len(found)}", f"operands are {_names(specs)}")
    present = (*found, *([None] * (len(specs) - len(found))))
    for spec, tensor in zip(specs, present, strict=True):
        if tensor is None:
            if not spec.optional:
                fail(ShapeError, op, f"operand {spec.name}", "none", f"operands are {_names(specs)}")
            continue
        if tensor.dtype not in spec.dtypes:
            wanted = " or ".join(sorted(dtype.value for dtype in spec.dtypes))
            fail(
                DTypeError,
                op,
                f"{spec.name} of dtype {wanted}",
                str(tensor),
                "insert an explicit cast; nothing is converted silently",
            )
        if tensor.is_packed and tensor.layout != packed.get(spec.name):
            wanted = f" or {packed[spec.name]}" if spec.name in packed else ""
            fail(
                LayoutError,
                op,
                f"{spec.name} in an unpacked layout{wanted}",
                str(tensor),
                "pack the weight in the layout that the operator reads",
            )
        if tensor.dtype.is_block and (tensor.rank == 0 or not _whole_blocks(tensor.shape[-1], tensor.dtype)):
            fail(
                DTypeError,
                op,
                f"{spec.name} with a last axis of whole blocks of {tensor.dtype.block_elements}",
                str(tensor),
                "keep this weight in a float dtype",
            )
    return present


def _whole_blocks(extent: Extent, dtype: DType) -> bool:
    return isinstance(extent, int) and extent % dtype.block_elements == 0


def _names(specs: tuple[OperandSpec, ...]) -> str:
    return ", ".join(f"{spec.name}?" if spec.optional else spec.name for spec in specs)


def fail(kind: type[OstinatoError], op: str, expected: str, found: str, hint: str) -> NoReturn:
    """Raises `kind` in the form that every type rule uses."""
    raise kind(f"{op}: expected {expected}, found {found}", hint=hint)


def describe(shape: Sequence[Extent]) -> str:
    return f"[{','.join(str(extent) for extent in shape)}]"


def require_rank(op: str, name: str, tensor: TensorType, *, exactly: int | None = None, at_least: int = 0) -> None:
    if exactly is not None and tensor.rank != exactly:
        fail(ShapeError, op, f"{name} of rank {exactly}", str(tensor), "reshape it first")
    if tensor.rank < at_least:
        fail(ShapeError, op, f"{name} of rank {at_least} or more", str(tensor), "reshape it first")


def require_same_extent(op: str, what: str, expected: Extent, found: Extent) -> None:
    if expected != found:
        fail(ShapeError, op, f"{what} of {expected}", str(found), "shapes must agree exactly; nothing is broadcast")


def require_shape(op: str, name: str, tensor: TensorType, shape: Shape) -> None:
    """The exact shape; a symbolic extent only equals itself."""
    if tensor.shape != shape:
        fail(
            ShapeError,
            op,
            f"{name} of shape {describe(shape)}",
            str(tensor),
            "shapes must agree exactly; nothing is broadcast",
        )


def require_axes(op: str, name: str, tensor: TensorType, axes: str) -> None:
    """Named axes must be these letters in this order, one a dimension; anonymous ones pass."""
    for expected, found in zip(axes, tensor.axes, strict=True):
        if found not in ("", expected):
            fail(
                LayoutError,
                op,
                f"{name} with axes {axes}",
                str(tensor),
                "transpose it; equal extents do not make two axes the same",
            )


def join_axes(op: str, what: str, first: Axes, second: Axes) -> Axes:
    """The common names of two axis lists of equal length; raises `LayoutError` where two names differ."""
    joined = []
    for a, b in zip(first, second, strict=True):
        if a and b and a != b:
            fail(
                LayoutError,
                op,
                f"{what} with axes {_axes(first)}",
                _axes(second),
                "transpose one of them; equal extents do not make two axes the same",
            )
        joined.append(a or b)
    return tuple(joined)


def _axes(axes: Axes) -> str:
    return "".join(axis or "_" for axis in axes) or "()"


def refuse_mixed_halves(op: str, *tensors: TensorType) -> None:
    """f16 beside bf16 is an error: neither holds the other's values."""
    found = {tensor.dtype for tensor in tensors}
    if {DType.F16, DType.BF16} <= found:
        fail(
            DTypeError,
            op,
            "f16 or bf16 operands, not both",
            " and ".join(str(tensor) for tensor in tensors),
            "cast one side explicitly",
        )


def result_float(site: Site, source: TensorType) -> DType:
    """The result dtype: the `dtype` attribute, or the source's own when that is ""."""
    text = site.text("dtype")
    dtype = DType.parse(text) if text else source.dtype
    if dtype not in FLOATS:
        fail(
            DTypeError,
            site.op,
            "a result dtype of f32, f16 or bf16",
            dtype.value,
            "name one of them in the dtype attribute",
        )
    return dtype


def require_positive(site: Site, name: str, hint: str) -> None:
    """The attribute is a positive number that float32, which kernels compute in, holds as such: `ConfigError` for those that it takes for 0 or infinity."""
    value = site.real(name)
    if not float(_FLOAT32.tiny) <= value <= float(_FLOAT32.max):  # nor NaN
        fail(ConfigError, site.op, f"a finite positive {name} that float32 holds", str(value), hint)


def check_index(op: str, what: str, index: Array, low: int, high: int) -> None:
    """Raises `BoundsError` naming the first value outside [low, high)."""
    outside = (index < low) | (index >= high)
    if outside.any():
        place = tuple(int(i) for i in np.argwhere(outside)[0])
        raise BoundsError(
            f"{op}: expected {what} in [{low}, {high}), found {index[place]} at {list(place)}",
            hint="check the values before they are written to the input",
        )


def make_type(op: str, shape: Shape, dtype: DType, axes: Axes) -> TensorType:
    """A result type; raises `LayoutError` when a name stands on two axes."""
    named = [axis for axis in axes if axis]
    if len(set(named)) != len(named):
        fail(
            LayoutError,
            op,
            "a result whose axis names differ",
            _axes(axes),
            "name the new axis otherwise, or leave it anonymous",
        )
    return TensorType(shape, dtype, axes)


def elements(shape: Sequence[Extent]) -> int:
    """Elements of a bound shape; raises `ShapeError` while a dimension is symbolic."""
    return element_count(TensorType(tuple(shape), DType.U8).static_shape)


def nbytes(*tensors: TensorType | None) -> int:
    """Bytes of all present tensors together."""
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
