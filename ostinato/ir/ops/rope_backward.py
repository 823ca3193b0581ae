"""Gradients of the rotations: a rotation by an angle turns back by the same tables, its sine with the other sign, and what passed unchanged passes back.

The form that goes with `rope_split_half_bias_bthd` also turns the order of the axes back, so that the product behind it reads its gradient token by token and
nothing is copied through strides in between. Tables are constants of positions: no gradient goes through them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ostinato.ir.errors import DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import GRADIENT, SECOND
from ostinato.ir.ops.rope import require_tables, turned
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    Arrays,
    Site,
    cost_per_element,
    define,
    make_type,
    require_rank,
    result_float,
)
from ostinato.ir.ops.samplers import invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = [
    "ROPE_BACKWARD_OPS",
    "ROPE_INTERLEAVED_BACKWARD",
    "ROPE_SPLIT_HALF_BACKWARD",
    "ROPE_SPLIT_HALF_BIAS_BTHD_BACKWARD",
]


def _infer(site: Site) -> tuple[TensorType, ...]:
    gradient = site.operand(0)
    require_rank(site.op, "gradient [..., H, D]", gradient, at_least=2)
    require_tables(site, gradient, site.operand(1), site.operand(2))
    return (make_type(site.op, gradient.shape, result_float(site, gradient), gradient.axes),)


def _infer_bthd(site: Site) -> tuple[TensorType, ...]:
    gradient = site.operand(0)
    require_rank(site.op, "gradient [B, H, T, D]", gradient, exactly=4)
    dtype = result_float(site, gradient)
    (batch, heads, time, width), (b, h, t, d) = gradient.shape, gradient.axes
    turned_back = make_type(site.op, (batch, time, heads, width), dtype, (b, t, h, d))
    require_tables(site, turned_back, site.operand(1), site.operand(2))
    return (turned_back,)


def _reference_split_half(call: Arrays) -> tuple[Array, ...]:
    return (_turned_back(call, call.wide(0)),)


def _reference_bthd(call: Arrays) -> tuple[Array, ...]:
    return (_turned_back(call, np.ascontiguousarray(call.wide(0).transpose(0, 2, 1, 3))),)


def _turned_back(call: Arrays, gradient: Array) -> Array:
    half = call.operand(1).shape[-1]
    first, second = slice(0, half), slice(half, 2 * half)
    return turned(gradient, call.wide(1), -call.wide(2), first, second).astype(np.float32)


def _reference_interleaved(call: Arrays) -> tuple[Array, ...]:
    half = call.operand(1).shape[-1]
    first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    return (turned(call.wide(0), call.wide(1), -call.wide(2), first, second).astype(np.float32),)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def call(
        lead: tuple[int, ...], heads: int, width: int, axes: str = "", part: int | None = None, **attrs: str
    ) -> Sample:
        angle = rng.uniform(-3.0, 3.0, (*lead, (width if part is None else part) // 2))
        table = axes[:-2] + "_" if axes else ""
        gradient = normal((*lead, heads, width), axes=axes)
        return valid(gradient, reals(np.cos(angle), table), reals(np.sin(angle), table), **attrs)

    for heads, width in ((1, 2), (3, 32), (14, 64), (2, 80), (4, 128), (1, 6)):
        yield call((1,), heads, width)
        yield call((5,), heads, width)
    for dtype in ("f16", "bf16", "f32"):
        yield call((33,), 3, 64, dtype=dtype)
        yield call((2, 3), 2, 80, "BTGD", part=20, dtype=dtype)
    yield call((2, 31), 3, 64, "BTHD")
    yield call((3, 1), 3, 64, "BTHD")
    # part of the head: a quarter, most of it, one pair, nothing
    for width, part in ((64, 16), (96, 72), (8, 2), (10, 6), (32, 0)):
        yield call((5,), 3, width, part=part)
    yield call((), 2, 32)
    yield call((0,), 2, 32)
    yield call((3,), 0, 32)
    half = normal((5, 16))
    yield invalid(ShapeError, normal((5, 2, 33)), half, half)
    yield invalid(ShapeError, normal((5, 2, 32)), half, normal((4, 16)))
    yield invalid(ShapeError, normal((5, 2, 32)), normal((5, 32)), normal((5, 32)))
    yield invalid(ShapeError, normal((32,)), normal((16,)), normal((16,)))
    yield invalid(ShapeError, normal((5, 2, 32)), half)
    yield invalid(DTypeError, normal((5, 2, 32), DType.BF16), half, half)
    yield invalid(DTypeError, normal((5, 2, 32)), normal((5, 16), DType.BF16), half)
    yield invalid(DTypeError, normal((5, 2, 32)), half, half, attrs={"dtype": "i32"})
    square = normal((2, 3, 16), axes="BT_")
    yield invalid(LayoutError, normal((2, 3, 3, 32), axes="BHTD"), square, square)


def _samples_bthd(rng: np.random.Generator) -> Iterator[Sample]:
    def call(shape: tuple[int, int, int, int], axes: str = "", half: int = -1, **attrs: str) -> Sample:
        batch, _, time, width = shape
        angle = rng.uniform(-3.0, 3.0, (batch, time, width // 2 if half < 0 else half))
        table = f"{axes[0]}{axes[2]}_" if axes else ""
        return valid(normal(shape, axes=axes), reals(np.cos(angle), table), reals(np.sin(angle), table), **attrs)

    for heads, width in ((1, 2), (3, 32), (14, 64), (2, 80), (2, 128), (1, 6)):
        yield call((1, heads, 1, width))
        yield call((2, heads, 5, width))
    yield call((2, 3, 31, 64), "BHTD")
    yield call((3, 3, 3, 32), "BGTD")
    yield call((2, 3, 7, 64), half=20)
    for dtype in ("bf16", "f16"):
        yield call((1, 3, 33, 64), dtype=dtype)
        yield call((2, 2, 9, 48), half=5, dtype=dtype)
    yield call((0, 2, 5, 32))
    yield call((2, 2, 0, 32))
    yield call((2, 0, 5, 32))
    gradient, half = normal((2, 3, 5, 32)), normal((2, 5, 16))
    yield invalid(ShapeError, normal((6, 5, 32)), half, half)
    yield invalid(ShapeError, normal((2, 5, 3, 32)), half, half)
    yield invalid(ShapeError, normal((2, 3, 5, 33)), half, half)
    yield invalid(ShapeError, gradient, half, normal((2, 5, 15)))
    yield invalid(ShapeError, gradient, normal((2, 5, 17)), normal((2, 5, 17)))
    yield invalid(DTypeError, normal((2, 3, 5, 32), DType.BF16), half, half)
    yield invalid(DTypeError, gradient, half, normal((2, 5, 16), DType.BF16))
    yield invalid(DTypeError, gradient, half, half, attrs={"dtype": "i32"})
    square = normal((3, 3, 16), axes="BT_")
    yield invalid(LayoutError, normal((3, 3, 3, 32), axes="BTHD"), square, square)


_OPERANDS = (GRADIENT, OperandSpec("cos", F32), OperandSpec("sin", F32))
_TOLERANCE = Tolerance(3e-5, 3e-5, "contract of rope_backward: two fp32 products and a sum, fused or not")

ROPE_SPLIT_HALF_BACKWARD = define(
    "rope_split_half_backward",
    "Turns the pairs (i, i + half) of gradient [..., H, D] back by the angles of cos and sin [..., half]; elements from 2 * half on pass.",
    _OPERANDS,
    ("y",),
    _infer,
    _reference_split_half,
    _samples,
    _TOLERANCE,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(3),
    derivative=SECOND,
)

ROPE_INTERLEAVED_BACKWARD = define(
    "rope_interleaved_backward",
    "Turns the pairs (2i, 2i + 1) of gradient [..., H, D] back by the angles of cos and sin [..., half]; elements from 2 * half on pass.",
    _OPERANDS,
    ("y",),
    _infer,
    _reference_interleaved,
    _samples,
    _TOLERANCE,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(3),
    derivative=SECOND,
)

ROPE_SPLIT_HALF_BIAS_BTHD_BACKWARD = define(
    "rope_split_half_bias_bthd_backward",
    "gradient [B,H,T,D] with the pairs (i, half + i) turned back by the angles of cos and sin [B,T,half], in token-major order: [B,T,H,D].",
    _OPERANDS,
    ("y",),
    _infer_bthd,
    _reference_bthd,
    _samples_bthd,
    _TOLERANCE,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(3),
    derivative=SECOND,
)

ROPE_BACKWARD_OPS = (
    ROPE_SPLIT_HALF_BACKWARD,
    ROPE_INTERLEAVED_BACKWARD,
    ROPE_SPLIT_HALF_BIAS_BTHD_BACKWARD,
)
