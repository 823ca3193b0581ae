"""Bias, rotation and the change to head-major order in one operator: what stands between a projection with a bias and attention over whole sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import only_gradient, reshaped
from ostinato.ir.ops.rope import refuse_trained_tables, require_tables, turned
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    Arrays,
    Site,
    cost_per_element,
    define,
    fail,
    make_type,
    require_rank,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ROPE_BIAS_OPS", "ROPE_SPLIT_HALF_BIAS_BTHD"]

FLOATS = frozenset({DType.F32, DType.BF16})


def _infer(site: Site) -> tuple[TensorType, ...]:
    x, bias = site.operand(0), site.operand(1)
    require_rank(site.op, "x [B, T, H, D]", x, exactly=4)
    require_tables(site, x, site.operand(2), site.operand(3))
    batch, time, heads, width = x.shape
    if not isinstance(heads, int) or not isinstance(width, int):
        fail(ShapeError, site.op, "integer heads and head width", str(x), "bind these dimensions first")
    require_shape(site.op, "bias", bias, (heads * width,))
    dtype = result_float(site, x)
    if dtype not in FLOATS:
        fail(DTypeError, site.op, "a result dtype of f32 or bf16", dtype.value, "cast the result")
    b, t, h, d = x.axes
    return (make_type(site.op, (batch, heads, time, width), dtype, (b, h, t, d)),)


def _reference(call: Arrays) -> tuple[Array, ...]:
    x, cos, sin = call.wide(0), call.wide(2), call.wide(3)
    half = cos.shape[-1]
    y = turned(x + call.wide(1).reshape(x.shape[2:]), cos, sin, slice(0, half), slice(half, 2 * half))
    return (np.ascontiguousarray(y.transpose(0, 2, 1, 3)).astype(np.float32),)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def call(
        shape: tuple[int, int, int, int], stored: DType = DType.F32, axes: str = "", half: int = -1, **attrs: str
    ) -> Sample:
        batch, time, heads, width = shape
        angle = rng.uniform(-3.0, 3.0, (batch, time, width // 2 if half < 0 else half))
        table = axes[:2] + "_" if axes else ""
        operands = (normal(shape, stored, axes), normal((heads * width,)))
        return valid(*operands, reals(np.cos(angle), table), reals(np.sin(angle), table), **attrs)

    for heads, width in ((1, 2), (3, 32), (14, 64), (2, 80), (2, 128), (1, 6)):
        yield call((1, 1, heads, width))
        yield call((2, 5, heads, width))
    yield call((2, 31, 3, 64), axes="BTHD")
    yield call((3, 3, 3, 32), axes="BTGD")
    yield call((2, 7, 3, 64), half=20)
    yield call((1, 33, 3, 64), DType.BF16)
    yield call((2, 9, 2, 48), DType.BF16, dtype="f32")
    yield call((2, 9, 2, 48), dtype="bf16")
    yield call((0, 5, 2, 32))
    yield call((2, 0, 2, 32))
    yield call((2, 5, 0, 32))
    x, bias, half = normal((2, 5, 3, 32)), normal((96,)), normal((2, 5, 16))
    yield invalid(ShapeError, normal((5, 3, 32)), bias, normal((5, 16)), normal((5, 16)))
    yield invalid(ShapeError, normal((2, 5, 3, 33)), normal((99,)), half, half)
    yield invalid(ShapeError, x, normal((32,)), half, half)
    yield invalid(ShapeError, x, normal((3, 32)), half, half)
    yield invalid(ShapeError, x, bias, half, normal((2, 5, 15)))
    yield invalid(ShapeError, x, bias, normal((2, 5, 17)), normal((2, 5, 17)))
    yield invalid(DTypeError, normal((2, 5, 3, 32), DType.F16), bias, half, half)
    yield invalid(DTypeError, x, normal((96,), DType.BF16), half, half)
    yield invalid(DTypeError, x, bias, half, half, attrs={"dtype": "f16"})
    square = normal((3, 3, 16), axes="BT_")
    yield invalid(LayoutError, normal((3, 3, 3, 32), axes="BHTD"), bias, square, square)


def _gradients(at: Gradients) -> Mapping[int, str]:
    """Turned back, in both senses, for x; its sums over tokens are the bias's."""
    refuse_trained_tables(at, 2, 3)
    dy, (cos, sin), x = only_gradient(at), (at.operand(2), at.operand(3)), at.type(at.operand(0))
    dx = at.apply("rope_split_half_bias_bthd_backward", [dy, cos, sin])
    found = {0: dx} if at.wants(0) else {}
    if at.wants(1):
        bias = at.type(at.operand(1))
        columns = reshaped(at, dx, (*x.shape[:2], bias.shape[0]), (*x.axes[:2], bias.axes[0]))
        found[1] = at.apply("bias_gradient", [columns])
    return found


ROPE_SPLIT_HALF_BIAS_BTHD = define(
    "rope_split_half_bias_bthd",
    "x [B,T,H,D] plus bias [H*D], the pairs (i, half + i) turned by the angles of cos and sin [B,T,half], in head-major order: [B,H,T,D].",
    (OperandSpec("x", FLOATS), OperandSpec("bias", F32), OperandSpec("cos", F32), OperandSpec("sin", F32)),
    ("y",),
    _infer,
    _reference,
    _samples,
    Tolerance(3e-5, 3e-5, "contract of rope_split_half_bias_bthd: a sum, two fp32 products and a sum, fused or not"),
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(4),
    derivative=_gradients,
)

ROPE_BIAS_OPS = (ROPE_SPLIT_HALF_BIAS_BTHD,)
