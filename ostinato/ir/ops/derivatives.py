"""What rules of derivatives share (`ir/derivative.py`): the reason that backward operators give instead of one, and how the schema of a backward operator reads
its upstream gradient (float32 of a value's shape, with axis names that go with that value's) and writes a gradient in a second dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ostinato.ir.derivative import Gradients, NotDifferentiable
from ostinato.ir.errors import DTypeError
from ostinato.ir.opdef import AttrSpec, OperandSpec
from ostinato.ir.ops.rules import F32, FLOATS, Shape, Site, fail, join_axes, make_type, require_shape
from ostinato.ir.types import DType, TensorType

__all__ = [
    "CACHED",
    "CHOSEN",
    "COPY_ATTR",
    "GRADIENT",
    "SECOND",
    "UPDATE",
    "copies",
    "dtype_of_f32",
    "gradient_or_zeros",
    "in_dtype",
    "only_gradient",
    "passed_on",
    "reshaped",
    "rows_of",
    "upstream",
]

SECOND = NotDifferentiable("second derivatives are not supported; differentiate a loss once")
"""Of every operator that stands in a backward graph."""

UPDATE = NotDifferentiable("it writes over what the step before left; differentiate the loss, not the update")
"""Of operators that keep parameters and what belongs to them up to date."""

CACHED = NotDifferentiable("it reads or writes a cache; trace whole sequences, which have none")
"""Of operators over a cache of keys and values."""

CHOSEN = NotDifferentiable("it belongs to the choice of tokens; differentiate a loss of the logits")
"""Of operators between logits and the next token."""

GRADIENT = OperandSpec("gradient", F32)
"""The gradient of a result of the forward operator."""

COPY_ATTR = AttrSpec("copy", str, "")
"""Dtype of a further result, the first one rounded to it, for those who read it so; "" where there is none."""


def copies(site: Site, first: TensorType) -> tuple[TensorType, ...]:
    """The further result that the `copy` attribute asks for of a first one of that type; raises `DTypeError` where that would be rounded a second time."""
    text = site.text("copy")
    if not text:
        return ()
    dtype = DType.parse(text)
    if first.dtype is not DType.F32 or dtype not in FLOATS - F32:
        found = f"{dtype.value} of {first.dtype.value}"
        fail(DTypeError, site.op, "a copy of f32 in f16 or bf16", found, "a value is rounded once: leave dtype alone")
    return (first.with_dtype(dtype),)


def upstream(site: Site, gradient: int, value: int) -> TensorType:
    """Operand `gradient`, which belongs to operand `value`: of its shape. Returns it with the axis names that the two have together."""
    found, like = site.operand(gradient), site.operand(value)
    require_shape(site.op, "gradient", found, like.shape)
    return make_type(site.op, found.shape, found.dtype, join_axes(site.op, "gradient", like.axes, found.axes))


def only_gradient(at: Gradients) -> str:
    """The gradient of the first result, for operators that have no other."""
    gradient = at.gradient()
    assert gradient is not None, "a rule is called where the gradient of some result is there"
    return gradient


def gradient_or_zeros(at: Gradients, result: int) -> str:
    """The gradient of that result, zeros of its shape where nothing reads it."""
    found = at.gradient(result)
    return in_dtype(at, at.apply("fill", [at.result(result)], {"value": 0.0}), DType.F32) if found is None else found


def dtype_of_f32(at: Gradients, source: str) -> str:
    """The `dtype` attribute that makes a result float32 of an operator whose first operand is `source`, in its normal form."""
    return "" if at.type(source).dtype is DType.F32 else DType.F32.value


def in_dtype(at: Gradients, value: str, dtype: DType) -> str:
    """The value in that dtype: itself, or a cast of it."""
    return value if at.type(value).dtype is dtype else at.apply("cast", [value], {"dtype": dtype.value})


def reshaped(at: Gradients, value: str, shape: Shape, axes: tuple[str, ...]) -> str:
    """The same elements in that shape and with those axis names: the value itself, or a view of it. A symbolic extent keeps its place."""
    found = at.type(value)
    if (found.shape, found.axes) == (shape, axes):
        return value
    kept = [index for index, extent in enumerate(shape) if found.shape[index : index + 1] == (extent,)]
    unknown = [index for index, extent in enumerate(shape) if extent == 0 or not isinstance(extent, int)]
    extents = [extent if isinstance(extent, int) else 0 for extent in shape]
    for index in unknown:
        extents[index] = 0 if index in kept else -1
    names = "".join(axis or "_" for axis in axes)
    return at.apply("reshape", [value], {"shape": tuple(extents), "axes": names})


def rows_of(at: Gradients, value: str, axis: str) -> str:
    """[..., C] as a matrix [rows, C], a view whose columns are called `axis`."""
    shape = at.type(value).shape
    rows = math.prod(extent for extent in shape[:-1] if isinstance(extent, int))
    symbols = [extent for extent in shape[:-1] if not isinstance(extent, int)]
    return reshaped(at, value, (symbols[0] if symbols else rows, shape[-1]), ("", axis))


def passed_on(at: Gradients) -> Mapping[int, str]:
    """The rule of operators whose result changes as each of their first two operands does: sums, and copies."""
    return {index: only_gradient(at) for index in range(2) if at.wants(index)}
