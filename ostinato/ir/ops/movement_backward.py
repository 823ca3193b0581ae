"""Gradients of movements: what was repeated is summed again, what was cut out lies among zeros. Joins need nothing here: their gradients are slices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import GRADIENT, SECOND
from ostinato.ir.ops.movement import AXIS, NAME, checked_axis
from ostinato.ir.ops.rules import (
    F32,
    Arrays,
    Site,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    require_rank,
    require_shape,
)
from ostinato.ir.ops.samplers import invalid, normal, valid
from ostinato.ir.types import Array, DType, Extent, TensorType

__all__ = [
    "MOVEMENT_BACKWARD_OPS",
    "REPEAT_GQA_KV_BTHD_BACKWARD",
    "REPEAT_INTERLEAVE_BACKWARD",
    "SLICE_BACKWARD",
]


def _infer_repeat(site: Site) -> tuple[TensorType, ...]:
    gradient = site.operand(0)
    return (_summed(site, gradient, checked_axis(site, gradient)),)


def _infer_repeat_pair(site: Site) -> tuple[TensorType, ...]:
    k, v = site.operand(0), site.operand(1)
    require_rank(site.op, "k_gradient [B, H, T, D]", k, exactly=4)
    require_rank(site.op, "v_gradient [B, T, H, D]", v, exactly=4)
    require_shape(site.op, "v_gradient", v, (k.shape[0], k.shape[2], k.shape[1], k.shape[3]))
    join_axes(site.op, "axes of v_gradient", (k.axes[0], k.axes[2], k.axes[1], k.axes[3]), v.axes)
    return (_summed(site, k, 1), _summed(site, v, 2))


def _summed(site: Site, gradient: TensorType, axis: int) -> TensorType:
    """The gradient with the repeats of one axis summed."""
    repeats, extent = site.integer("repeats"), _integer(site, gradient, gradient.shape[axis])
    if repeats < 1:
        fail(ConfigError, site.op, "1 repeat or more", str(repeats), "leave the operator out where nothing is repeated")
    if extent % repeats:
        fail(ShapeError, site.op, f"a multiple of {repeats} along axis {axis}", str(gradient), "give what was repeated")
    shape = (*gradient.shape[:axis], extent // repeats, *gradient.shape[axis + 1 :])
    axes = (*gradient.axes[:axis], site.text("name"), *gradient.axes[axis + 1 :])
    return make_type(site.op, shape, gradient.dtype, axes)


def _integer(site: Site, gradient: TensorType, extent: Extent) -> int:
    if not isinstance(extent, int):
        fail(ShapeError, site.op, "an integer along the axis", str(gradient), "bind this dimension first")
    return extent


def _infer_slice(site: Site) -> tuple[TensorType, ...]:
    gradient = site.operand(0)
    axis, start, step, extent = (site.integer(name) for name in ("axis", "start", "step", "extent"))
    if not 0 <= axis < gradient.rank:
        hint = "axes are counted from 0, from the front"
        fail(BoundsError, site.op, f"an axis in [0, {gradient.rank})", str(axis), hint)
    if step < 1:
        fail(ConfigError, site.op, "a step of 1 or more", str(step), "slices go forward")
    count = _integer(site, gradient, gradient.shape[axis])
    last = start + (count - 1) * step if count else start - 1
    if start < 0 or not last < extent:
        expected = f"{count} elements from {start} on, {step} apart, within {extent}"
        fail(BoundsError, site.op, expected, str(gradient), "extent is that of the axis which was sliced")
    shape = (*gradient.shape[:axis], extent, *gradient.shape[axis + 1 :])
    return (make_type(site.op, shape, gradient.dtype, gradient.axes),)


def _grouped(gradient: Array, axis: int, repeats: int) -> Array:
    """[..., extent, repeats, ...] of the axis."""
    shape = gradient.shape
    return gradient.reshape(*shape[:axis], shape[axis] // repeats, repeats, *shape[axis + 1 :])


def _reference_repeat(call: Arrays) -> tuple[Array, ...]:
    axis = call.integer("axis")
    grouped = _grouped(call.wide(0), axis, call.integer("repeats"))
    found: Array = grouped.sum(axis=axis + 1)
    return (found.astype(np.float32),)


def _reference_repeat_pair(call: Arrays) -> tuple[Array, ...]:
    return tuple(_ascending(_grouped(call.operand(i), 1 + i, call.integer("repeats")), 2 + i) for i in range(2))


def _ascending(grouped: Array, axis: int) -> Array:
    """The sum over an axis in float32, one after the other: the order is part of what the operator is, and the sum is exact to the bit."""
    total: Array = np.take(grouped, 0, axis=axis).astype(np.float32)
    for place in range(1, grouped.shape[axis]):
        total = total + np.take(grouped, place, axis=axis).astype(np.float32)
    return total


def _reference_slice(call: Arrays) -> tuple[Array, ...]:
    gradient, axis = call.operand(0), call.integer("axis")
    y = np.zeros(call.results[0].static_shape, dtype=np.float32)
    start, step = call.integer("start"), call.integer("step")
    places = slice(start, start + gradient.shape[axis] * step, step)
    y[(*[slice(None)] * axis, places)] = gradient
    return (y,)


def _samples_repeat(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield valid(normal((3, 15)), axis=1, repeats=3)
    yield valid(normal((6, 5)), axis=0, repeats=2)
    yield valid(normal((2, 7, 14, 16), axes="BTHD"), axis=2, repeats=7, name="G")
    yield valid(normal((5, 3, 8), axes="NHD"), axis=1, repeats=1, name="G")
    yield valid(normal((68,)), axis=0, repeats=4)
    yield valid(normal((5, 66)), axis=1, repeats=66)
    yield valid(normal((2, 2, 2, 2, 6, 2, 3)), axis=4, repeats=3)
    yield valid(normal((15, 0, 4)), axis=0, repeats=5)
    yield valid(normal((3, 0, 4)), axis=1, repeats=5)
    yield valid(normal((1, 100)), axis=1, repeats=100)
    yield invalid(ConfigError, normal((3, 5)), attrs={"axis": 1, "repeats": 0})
    yield invalid(ConfigError, normal((3, 5)), attrs={"axis": 1})
    yield invalid(BoundsError, normal((3, 6)), attrs={"axis": 2, "repeats": 2})
    yield invalid(BoundsError, normal((3, 6)), attrs={"axis": -1, "repeats": 2})
    yield invalid(ShapeError, normal((3, 5)), attrs={"axis": 1, "repeats": 2})
    yield invalid(DTypeError, normal((3, 6), DType.BF16), attrs={"axis": 1, "repeats": 2})
    yield invalid(LayoutError, normal((3, 6), axes="NC"), attrs={"axis": 1, "repeats": 2, "name": "N"})


def _samples_repeat_pair(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for batch, groups, time, width, repeats in ((1, 1, 1, 1, 1), (2, 2, 9, 32, 7), (1, 3, 33, 64, 2), (3, 2, 5, 33, 3)):
        heads = groups * repeats
        yield valid(normal((batch, heads, time, width)), normal((batch, time, heads, width)), repeats=repeats)
    yield valid(normal((2, 6, 5, 16), axes="BHSD"), normal((2, 5, 6, 16), axes="BSHD"), repeats=3, name="G")
    yield valid(normal((0, 6, 5, 16)), normal((0, 5, 6, 16)), repeats=3)
    yield valid(normal((2, 6, 0, 16)), normal((2, 0, 6, 16)), repeats=3)
    k, v = normal((2, 6, 5, 16)), normal((2, 5, 6, 16))
    yield invalid(ConfigError, k, v, attrs={"repeats": 0})
    yield invalid(ConfigError, k, v)
    yield invalid(ShapeError, k, v, attrs={"repeats": 4})
    yield invalid(ShapeError, k, normal((2, 6, 5, 16)), attrs={"repeats": 2})
    yield invalid(ShapeError, k, normal((2, 5, 96)), attrs={"repeats": 2})
    yield invalid(DTypeError, k, normal((2, 5, 6, 16), DType.F16), attrs={"repeats": 2})
    named = normal((2, 6, 6, 16), axes="BHSD"), normal((2, 6, 6, 16), axes="BHSD")
    yield invalid(LayoutError, *named, attrs={"repeats": 2})
    yield invalid(LayoutError, normal((2, 6, 5, 16), axes="BHSD"), v, attrs={"repeats": 2, "name": "S"})


def _samples_slice(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield valid(normal((5, 32)), axis=1, start=32, extent=96)
    yield valid(normal((2, 96), axes="NC"), axis=0, start=1, step=2, extent=5)
    yield valid(normal((3, 2, 5)), axis=1, start=0, step=3, extent=4)
    yield valid(normal((3, 2, 5)), axis=1, start=0, step=3, extent=6)
    yield valid(normal((4, 7, 33)), axis=2, start=5, extent=100)
    yield valid(normal((1,)), axis=0, start=8, extent=9)
    yield valid(normal((5, 96)), axis=0, start=0, extent=5)
    yield valid(normal((0, 96)), axis=0, start=5, extent=5)
    yield valid(normal((5, 0)), axis=0, start=2, extent=9)
    yield valid(normal((0,)), axis=0, start=0, extent=0)
    yield invalid(BoundsError, normal((5, 96)), attrs={"axis": 1, "start": 1, "extent": 96})
    yield invalid(BoundsError, normal((5, 3)), attrs={"axis": 1, "start": 0, "step": 2, "extent": 4})
    yield invalid(BoundsError, normal((5, 3)), attrs={"axis": 1, "start": -1, "extent": 4})
    yield invalid(BoundsError, normal((5, 3)), attrs={"axis": 2, "start": 0, "extent": 4})
    yield invalid(BoundsError, normal(()), attrs={"axis": 0, "start": 0, "extent": 4})
    yield invalid(ConfigError, normal((5, 3)), attrs={"axis": 1, "start": 0, "step": 0, "extent": 4})
    yield invalid(ConfigError, normal((5, 3)), attrs={"axis": 1, "start": 0})
    yield invalid(DTypeError, normal((5, 3), DType.BF16), attrs={"axis": 1, "start": 0, "extent": 4})


_REPEATS = AttrSpec("repeats", int)

REPEAT_INTERLEAVE_BACKWARD = define(
    "repeat_interleave_backward",
    "Sums of so many elements in a row along an axis: an extent D * repeats becomes D.",
    (GRADIENT,),
    ("y",),
    _infer_repeat,
    _reference_repeat,
    _samples_repeat,
    Tolerance(2e-5, 2e-5, "contract of repeat_interleave_backward: fp32 sums in any order against float64"),
    attrs=(AXIS, _REPEATS, NAME),
    cost=cost_per_element(1),
    derivative=SECOND,
)

REPEAT_GQA_KV_BTHD_BACKWARD = define(
    "repeat_gqa_kv_bthd_backward",
    "Gradients [B,H,T,D] and [B,T,H,D] of repeated heads summed over the repeats, in float32 and ascending order: k [B,G,T,D] and v [B,T,G,D].",
    (OperandSpec("k_gradient", F32), OperandSpec("v_gradient", F32)),
    ("k", "v"),
    _infer_repeat_pair,
    _reference_repeat_pair,
    _samples_repeat_pair,
    Tolerance(0, 0, "the order of the fp32 sums is given"),
    attrs=(_REPEATS, NAME),
    cost=cost_per_element(1),
    derivative=SECOND,
)

SLICE_BACKWARD = define(
    "slice_backward",
    "Zeros with the extent that the sliced axis had, and the gradient at the places start, start + step, ... of it.",
    (GRADIENT,),
    ("y",),
    _infer_slice,
    _reference_slice,
    _samples_slice,
    Tolerance(0, 0, "bytes are copied"),
    attrs=(AXIS, AttrSpec("start", int), AttrSpec("step", int, 1), AttrSpec("extent", int)),
    cost=cost_per_element(0),
    derivative=SECOND,
)

MOVEMENT_BACKWARD_OPS = (
    REPEAT_INTERLEAVE_BACKWARD,
    REPEAT_GQA_KV_BTHD_BACKWARD,
    SLICE_BACKWARD,
)
