"""Rotary position embedding (Su et al. 2021): the rotation of every Q and K of every layer by the tables of `rotary.py`, in both pairings of elements.

A table of `half` angles turns the first 2 * half elements of each head; where that is less than the head width, the elements behind pass unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import only_gradient
from ostinato.ir.ops.rotary import ROTARY_TABLE, ROTARY_TABLE_DYNAMIC, ROTARY_TABLE_LONGROPE
from ostinato.ir.ops.rules import (
    F32,
    FLOATS,
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
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ROPE_INTERLEAVED", "ROPE_OPS", "ROPE_SPLIT_HALF", "refuse_trained_tables", "require_tables", "turned"]

_OPERANDS = (OperandSpec("x", FLOATS), OperandSpec("cos", F32), OperandSpec("sin", F32))
_TOLERANCE = Tolerance(2e-5, 2e-5, "contract of rope: two fp32 products and a sum, fused or not")


def require_tables(site: Site, x: TensorType, cos: TensorType, sin: TensorType) -> None:
    """x [..., H, D] of an even head width, and tables [..., half] of its tokens; raises `ShapeError` or `LayoutError` otherwise."""
    require_rank(site.op, "cos", cos, exactly=x.rank - 1)
    width, half = x.shape[-1], cos.shape[-1]
    if not isinstance(width, int) or width % 2:
        fail(ShapeError, site.op, "an even head width", str(x), "rotary embedding turns pairs of elements")
    if not isinstance(half, int) or 2 * half > width:
        hint = "a table has an angle for each pair that is turned"
        fail(ShapeError, site.op, f"cos of at most {width // 2} angles", str(cos), hint)
    for name, table in (("cos", cos), ("sin", sin)):
        require_shape(site.op, name, table, (*x.shape[:-2], half))
        join_axes(site.op, name, x.axes[:-2], table.axes[:-1])


def _infer(site: Site) -> tuple[TensorType, ...]:
    x = site.operand(0)
    require_rank(site.op, "x [..., H, D]", x, at_least=2)
    require_tables(site, x, site.operand(1), site.operand(2))
    return (make_type(site.op, x.shape, x.dtype, x.axes),)


def turned(x: Array, cos: Array, sin: Array, first: slice, second: slice) -> Array:
    """x [..., H, D] with the pairs (x[..., first], x[..., second]) turned by the angles of cos and sin [..., half]."""
    cos, sin = cos[..., None, :], sin[..., None, :]
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def _reference(call: Arrays, first: slice, second: slice) -> tuple[Array, ...]:
    return (turned(call.wide(0), call.wide(1), call.wide(2), first, second).astype(np.float32),)


def _reference_split_half(call: Arrays) -> tuple[Array, ...]:
    half = call.operand(1).shape[-1]
    return _reference(call, slice(0, half), slice(half, 2 * half))


def _reference_interleaved(call: Arrays) -> tuple[Array, ...]:
    half = call.operand(1).shape[-1]
    return _reference(call, slice(0, 2 * half, 2), slice(1, 2 * half, 2))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def call(
        lead: tuple[int, ...],
        heads: int,
        width: int,
        dtype: DType = DType.F32,
        axes: str = "",
        turned: int | None = None,
    ) -> Sample:
        angle = rng.uniform(-3.0, 3.0, (*lead, (width if turned is None else turned) // 2))
        table = axes[:-2] + "_" if axes else ""
        return valid(
            normal((*lead, heads, width), dtype, axes), reals(np.cos(angle), table), reals(np.sin(angle), table)
        )

    for heads, width in ((1, 2), (3, 32), (14, 64), (2, 80), (4, 128), (1, 6)):
        yield call((1,), heads, width)
        yield call((5,), heads, width)
    for dtype in (DType.F16, DType.BF16):
        yield call((33,), 3, 64, dtype)
        yield call((2, 3), 2, 80, dtype, "BTGD")
    yield call((2, 31), 3, 64, axes="BTHD")
    yield call((3, 1), 3, 64, axes="BTHD")
    yield call((7,), 2, 32, axes="NGD")
    # part of the head: a quarter, most of it, one pair, nothing
    for width, turned in ((64, 16), (96, 72), (8, 2), (10, 6), (32, 0)):
        yield call((5,), 3, width, turned=turned)
    yield call((9,), 2, 64, DType.BF16, "NHD", turned=32)
    yield call((2, 5), 3, 80, DType.F16, "BTHD", turned=20)
    yield call((), 2, 32)
    yield call((0,), 2, 32)
    yield call((3,), 0, 32)
    half = normal((5, 16))
    yield invalid(ShapeError, normal((5, 2, 33)), half, half)
    yield invalid(ShapeError, normal((5, 2, 32)), half, normal((4, 16)))
    yield invalid(ShapeError, normal((5, 2, 32)), half, normal((5, 8)))
    yield invalid(ShapeError, normal((5, 2, 32)), normal((5, 32)), normal((5, 32)))
    yield invalid(ShapeError, normal((5, 2, 32)), normal((16,)), normal((16,)))
    yield invalid(ShapeError, normal((32,)), normal((16,)), normal((16,)))
    yield invalid(DTypeError, indices(np.zeros((5, 2, 32))), half, half)
    yield invalid(DTypeError, normal((5, 2, 32)), normal((5, 16), DType.BF16), half)
    square = normal((2, 3, 16), axes="BT_")
    yield invalid(LayoutError, normal((2, 3, 3, 32), axes="BHTD"), square, square)


def refuse_trained_tables(at: Gradients, *tables: int) -> None:
    """Raises `ConfigError` where somebody wants the gradient of a table: positions are not trained, and nothing computes it."""
    if any(at.wants(table) for table in tables):
        message = f"{at.op} has a derivative by its first operand alone, not by tables of angles"
        raise ConfigError(message, hint="make the tables of positions, which are integers, with rotary_table")


def _gradients_split_half(at: Gradients) -> Mapping[int, str]:
    refuse_trained_tables(at, 1, 2)
    return {0: at.apply("rope_split_half_backward", [only_gradient(at), at.operand(1), at.operand(2)])}


def _gradients_interleaved(at: Gradients) -> Mapping[int, str]:
    refuse_trained_tables(at, 1, 2)
    return {0: at.apply("rope_interleaved_backward", [only_gradient(at), at.operand(1), at.operand(2)])}


ROPE_SPLIT_HALF = define(
    "rope_split_half",
    "Turns the pairs (i, i + half) of x [..., H, D] by the angles of cos and sin [..., half]; elements from 2 * half on pass.",
    _OPERANDS,
    ("y",),
    _infer,
    _reference_split_half,
    _samples,
    _TOLERANCE,
    cost=cost_per_element(3),
    derivative=_gradients_split_half,
)

ROPE_INTERLEAVED = define(
    "rope_interleaved",
    "Turns the pairs (2i, 2i + 1) of x [..., H, D] by the angles of cos and sin [..., half]; elements from 2 * half on pass.",
    _OPERANDS,
    ("y",),
    _infer,
    _reference_interleaved,
    _samples,
    _TOLERANCE,
    cost=cost_per_element(3),
    derivative=_gradients_interleaved,
)

ROPE_OPS = (
    ROTARY_TABLE,
    ROTARY_TABLE_DYNAMIC,
    ROTARY_TABLE_LONGROPE,
    ROPE_SPLIT_HALF,
    ROPE_INTERLEAVED,
)
