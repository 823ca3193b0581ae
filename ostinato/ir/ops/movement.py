"""Operators that move elements without looking at them: tensors joined along an axis, elements repeated, a scalar spread over a shape.

An axis that is joined or repeated is a new one: it is anonymous unless the node names it, so that rows that are only partly valid in a run cannot be mistaken
for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import only_gradient, reshaped
from ostinato.ir.ops.rules import (
    ELEMENTS,
    Arrays,
    Site,
    cost_per_element,
    define,
    describe,
    fail,
    join_axes,
    make_type,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = [
    "AXIS",
    "BROADCAST_SCALAR",
    "CONCAT",
    "MAX_PARTS",
    "MOVEMENT_OPS",
    "NAME",
    "REPEAT_INTERLEAVE",
    "checked_axis",
]

MAX_PARTS = 8
"""Tensors that one `concat` joins; more are joined in steps."""

AXIS = AttrSpec("axis", int)
NAME = AttrSpec("name", str, "")
"""Name of the axis that an operator makes; "" leaves it anonymous."""


def checked_axis(site: Site, x: TensorType) -> int:
    axis = site.integer("axis")
    if not 0 <= axis < x.rank:
        fail(BoundsError, site.op, f"an axis in [0, {x.rank})", str(axis), "axes are counted from 0, from the front")
    return axis


def _infer_concat(site: Site) -> tuple[TensorType, ...]:
    first = site.operand(0)
    axis = checked_axis(site, first)
    joined, axes = 0, first.axes
    for place, part in enumerate(site.operands):
        if part is None:
            continue
        name = f"x{place}"
        if part.dtype is not first.dtype:
            fail(
                DTypeError,
                site.op,
                f"{name} of dtype {first.dtype.value} like x0",
                str(part),
                "cast the parts to one dtype",
            )
        others = (*first.shape[:axis], *first.shape[axis + 1 :])
        if part.rank != first.rank or (*part.shape[:axis], *part.shape[axis + 1 :]) != others:
            fail(
                ShapeError,
                site.op,
                f"{name} of the shape {describe(first.shape)} of x0 but for axis {axis}",
                str(part),
                "only the joined axis may differ",
            )
        axes = join_axes(site.op, name, axes, part.axes)
        extent = part.shape[axis]
        if not isinstance(extent, int):
            fail(ShapeError, site.op, "integers along the joined axis", str(part), "bind this dimension first")
        joined += extent
    shape = (*first.shape[:axis], joined, *first.shape[axis + 1 :])
    return (make_type(site.op, shape, first.dtype, (*axes[:axis], site.text("name"), *axes[axis + 1 :])),)


def _infer_repeat(site: Site) -> tuple[TensorType, ...]:
    x, repeats = site.operand(0), site.integer("repeats")
    axis = checked_axis(site, x)
    extent = x.shape[axis]
    if repeats < 1:
        fail(ConfigError, site.op, "1 repeat or more", str(repeats), "leave the operator out where nothing is repeated")
    if not isinstance(extent, int):
        fail(ShapeError, site.op, "an integer along the repeated axis", str(x), "bind this dimension first")
    shape = (*x.shape[:axis], extent * repeats, *x.shape[axis + 1 :])
    return (make_type(site.op, shape, x.dtype, (*x.axes[:axis], site.text("name"), *x.axes[axis + 1 :])),)


def _infer_broadcast(site: Site) -> tuple[TensorType, ...]:
    x, shape, axes = site.operand(0), site.integers("shape"), site.text("axes") or "_" * len(site.integers("shape"))
    if any(extent != 1 for extent in x.shape):
        fail(ShapeError, site.op, "x of one element", str(x), "repeat_interleave repeats longer axes")
    if any(extent < 0 for extent in shape):
        fail(ShapeError, site.op, "a shape without negative extents", str(list(shape)), "give every extent as a number")
    if len(axes) != len(shape):
        hint = 'use "_" for an anonymous axis'
        fail(LayoutError, site.op, f"axes with {len(shape)} letters, one a dimension", repr(axes), hint)
    return (make_type(site.op, shape, x.dtype, tuple("" if letter == "_" else letter for letter in axes)),)


def _gradients_concat(at: Gradients) -> Mapping[int, str]:
    """Each part's is a slice of the gradient: a view."""
    dy, axis, start = only_gradient(at), at.attrs["axis"], 0
    assert isinstance(axis, int)
    found: dict[int, str] = {}
    for index in range(MAX_PARTS):
        if not at.has(index):
            continue
        part = at.type(at.operand(index))
        stop = start + part.static_shape[axis]
        if at.wants(index):
            piece = at.apply("slice", [dy], {"axis": axis, "start": start, "stop": stop})
            found[index] = reshaped(at, piece, part.shape, part.axes)
        start = stop
    return found


def _gradients_repeat(at: Gradients) -> Mapping[int, str]:
    axis = at.attrs["axis"]
    assert isinstance(axis, int)
    attrs = {"axis": axis, "repeats": at.attrs["repeats"], "name": at.type(at.operand(0)).axes[axis]}
    return {0: at.apply("repeat_interleave_backward", [only_gradient(at)], attrs)}


def _gradients_broadcast(at: Gradients) -> Mapping[int, str]:
    x = at.type(at.operand(0))
    return {0: reshaped(at, at.apply("reduce_sum", (only_gradient(at),)), x.shape, x.axes)}


def _reference_repeat(call: Arrays) -> tuple[Array, ...]:
    return (np.repeat(call.operand(0), call.integer("repeats"), axis=call.integer("axis")),)


def _reference_broadcast(call: Arrays) -> tuple[Array, ...]:
    return (np.full(call.integers("shape"), call.operand(0).reshape(())),)


def _reference_concat(call: Arrays) -> tuple[Array, ...]:
    return (np.concatenate([part for part in call.operands if part is not None], axis=call.integer("axis")),)


def _samples_concat(rng: np.random.Generator) -> Iterator[Sample]:
    yield valid(normal((3, 5)), normal((3, 7)), axis=1)
    yield valid(normal((3, 5)), normal((4, 5)), axis=0)
    yield valid(normal((3, 1), axes="NC"), normal((3, 64), axes="NC"), normal((3, 33), axes="N_"), axis=1)
    yield valid(normal((2, 3, 4, 8), axes="BTHD"), normal((2, 3, 2, 8), axes="BT_D"), axis=2, name="H")
    yield valid(normal((7, 2, 16), axes="NHD"), normal((7, 2, 16), axes="NHD"), axis=2)
    yield valid(*(normal((5, extent)) for extent in (1, 2, 3, 4, 5, 6, 7, 8)), axis=1)
    yield valid(normal((17,)), normal((5,)), axis=0, name="N")
    for dtype in (DType.F16, DType.BF16, DType.I32, DType.I64, DType.U8, DType.F64):
        yield valid(normal((5, 33), dtype), normal((5, 3), dtype), axis=1)
    yield valid(indices(rng.integers(0, 9, (3, 0))), indices(rng.integers(0, 9, (3, 4))), axis=1)
    yield valid(normal((0, 4)), normal((0, 5)), axis=1)
    yield valid(normal((200, 300)), normal((200, 211)), axis=1)
    yield invalid(ShapeError, normal((3, 5)), attrs={"axis": 1})
    yield invalid(ShapeError, normal((3, 5)), normal((4, 5)), attrs={"axis": 1})
    yield invalid(ShapeError, normal((3, 5)), normal((3, 5, 1)), attrs={"axis": 1})
    yield invalid(ShapeError, *(normal((3, 5)) for _ in range(MAX_PARTS + 1)), attrs={"axis": 1})
    yield invalid(BoundsError, normal((3, 5)), normal((3, 5)), attrs={"axis": 2})
    yield invalid(BoundsError, normal((3, 5)), normal((3, 5)), attrs={"axis": -1})
    yield invalid(BoundsError, normal(()), normal(()), attrs={"axis": 0})
    yield invalid(DTypeError, normal((3, 5)), normal((3, 5), DType.F16), attrs={"axis": 1})
    yield invalid(DTypeError, normal((3, 32), DType.Q8_0), normal((3, 32), DType.Q8_0), attrs={"axis": 1})
    yield invalid(LayoutError, normal((5, 5), axes="NC"), normal((5, 5), axes="CN"), attrs={"axis": 1})
    yield invalid(LayoutError, normal((5, 5), axes="NC"), normal((5, 5), axes="NC"), attrs={"axis": 1, "name": "N"})


def _samples_repeat(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield valid(normal((3, 5)), axis=1, repeats=3)
    yield valid(normal((3, 5)), axis=0, repeats=2)
    yield valid(normal((2, 7, 2, 16), axes="BTGD"), axis=2, repeats=7, name="H")
    yield valid(normal((5, 3, 8), axes="NGD"), axis=1, repeats=1, name="H")
    yield valid(normal((17,)), axis=0, repeats=4)
    for dtype in (DType.F16, DType.BF16, DType.I32, DType.I64, DType.U8, DType.F64):
        yield valid(normal((5, 33), dtype), axis=1, repeats=2)
    yield valid(normal((2, 2, 2, 2, 2, 2, 3)), axis=4, repeats=3)
    yield valid(normal((3, 0, 4)), axis=0, repeats=5)
    yield valid(normal((1, 1)), axis=1, repeats=100)
    yield invalid(ConfigError, normal((3, 5)), attrs={"axis": 1, "repeats": 0})
    yield invalid(ConfigError, normal((3, 5)), attrs={"axis": 1})
    yield invalid(BoundsError, normal((3, 5)), attrs={"axis": 2, "repeats": 2})
    yield invalid(BoundsError, normal((3, 5)), attrs={"axis": -1, "repeats": 2})
    yield invalid(ShapeError, normal((3, 5)), attrs={"axis": 0, "repeats": 2**62})
    yield invalid(DTypeError, normal((3, 32), DType.Q8_0), attrs={"axis": 0, "repeats": 2})
    yield invalid(LayoutError, normal((3, 5), axes="NC"), attrs={"axis": 1, "repeats": 2, "name": "N"})


def _samples_broadcast(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield valid(normal(()), shape=(3, 5))
    yield valid(normal((1, 1)), shape=(2, 3, 33), axes="BTC")
    for dtype in (DType.F16, DType.BF16, DType.I32):
        yield valid(normal((1,), dtype), shape=(257,))
    yield valid(normal(()), shape=())
    yield valid(normal(()), shape=(3, 0))
    yield valid(normal(()), shape=(2, 1, 3, 1, 2, 1, 5), axes="_______")
    yield invalid(ShapeError, normal((2,)), attrs={"shape": (2, 2)})
    yield invalid(ShapeError, normal((0,)), attrs={"shape": (2, 2)})
    yield invalid(ShapeError, normal(()), attrs={"shape": (2, -1)})
    yield invalid(ConfigError, normal(()))
    yield invalid(LayoutError, normal(()), attrs={"shape": (2, 2), "axes": "N"})
    yield invalid(LayoutError, normal(()), attrs={"shape": (2, 2), "axes": "NN"})


EXACT = Tolerance(0, 0, "bytes are copied")

CONCAT = define(
    "concat",
    f"Two to {MAX_PARTS} tensors one after another along an axis; the other extents are equal.",
    tuple(OperandSpec(f"x{place}", ELEMENTS, optional=place > 1) for place in range(MAX_PARTS)),
    ("y",),
    _infer_concat,
    _reference_concat,
    _samples_concat,
    EXACT,
    attrs=(AXIS, NAME),
    cost=cost_per_element(0),
    derivative=_gradients_concat,
)

REPEAT_INTERLEAVE = define(
    "repeat_interleave",
    "Every element along an axis so many times in a row: an extent D becomes D * repeats.",
    (OperandSpec("x", ELEMENTS),),
    ("y",),
    _infer_repeat,
    _reference_repeat,
    _samples_repeat,
    EXACT,
    attrs=(AXIS, AttrSpec("repeats", int), NAME),
    cost=cost_per_element(0),
    derivative=_gradients_repeat,
)

BROADCAST_SCALAR = define(
    "broadcast_scalar",
    "The one element of x in every place of a shape; `axes` has one letter a dimension.",
    (OperandSpec("x", ELEMENTS),),
    ("y",),
    _infer_broadcast,
    _reference_broadcast,
    _samples_broadcast,
    EXACT,
    attrs=(AttrSpec("shape", tuple), AttrSpec("axes", str, "")),
    cost=cost_per_element(0),
    derivative=_gradients_broadcast,
)

MOVEMENT_OPS = (
    CONCAT,
    REPEAT_INTERLEAVE,
    BROADCAST_SCALAR,
)
