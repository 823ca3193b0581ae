"""Gradients of the normalisations along the last axis, by their x; those of their vectors are column sums (`column_sums`).

A row's statistics are computed again from x, which is read anyway, and handed on for the column sums: nothing but x is kept of the forward pass. With
r = 1 / sqrt(mean(x^2) + eps), n = x r and h = gradient * gain, the gradient of an RMS norm is r (h - n mean(h n)); that of a layer norm has n = (x - mean) r
and loses mean(h) as well. `addend` is the gradient that reaches x on another way, as around a residual block: added in the same pass over the data.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import COPY_ATTR, GRADIENT, SECOND, copies, upstream
from ostinato.ir.ops.norm import EPS, GAIN, SIZES
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    FLOATS,
    Arrays,
    Site,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    require_positive,
    require_rank,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["L2_NORMALIZE_BACKWARD", "LAYER_NORM_BACKWARD", "NORM_BACKWARD_OPS", "RMS_NORM_BACKWARD", "require_columns"]

TOLERANCE = Tolerance(3e-4, 3e-4, "contract of rms_norm_backward: two fp32 sums a row, one reciprocal square root")


def require_columns(op: str, x: TensorType) -> None:
    """A last axis that has elements: the mean over it is read."""
    require_rank(op, "x", x, at_least=1)
    if x.shape[-1] == 0:
        fail(ShapeError, op, "a last axis that is not empty", str(x), "rows of no elements have no statistics")


def _gradient_type(site: Site) -> TensorType:
    require_columns(site.op, site.operand(1))
    require_positive(site, "eps", "take the one of the forward node")
    return upstream(site, 0, 1)


def _infer_affine(site: Site, statistics: int) -> tuple[TensorType, ...]:
    common = _gradient_type(site)
    gain, addend = site.operand(2), site.optional(3)
    require_shape(site.op, "gain", gain, common.shape[-1:])
    axes = (*common.axes[:-1], *join_axes(site.op, "gain", common.axes[-1:], gain.axes))
    if addend is not None:
        require_shape(site.op, "addend", addend, common.shape)
        axes = join_axes(site.op, "addend", axes, addend.axes)
    dx = make_type(site.op, common.shape, result_float(site, common), axes)
    row = make_type(site.op, common.shape[:-1], DType.F32, axes[:-1])
    return (dx, *[row] * statistics)


def _infer_rms(site: Site) -> tuple[TensorType, ...]:
    dx, row = _infer_affine(site, 1)
    return (dx, row, *copies(site, dx))


def _infer_layer(site: Site) -> tuple[TensorType, ...]:
    return _infer_affine(site, 2)


def _infer_l2(site: Site) -> tuple[TensorType, ...]:
    return (_gradient_type(site),)


def _finished(call: Arrays, dx: Array) -> Array:
    addend = call.optional(3)
    return (dx if addend is None else dx + addend).astype(np.float32)


def _mean(values: Array) -> Array:
    return np.asarray(np.mean(values, axis=-1, keepdims=True))


def _reference_rms(call: Arrays) -> tuple[Array, ...]:
    x, h = call.wide(1), call.wide(0) * call.wide(2)
    inverse = 1.0 / np.sqrt(_mean(x * x) + call.real("eps"))
    unit = x * inverse
    dx = _finished(call, inverse * (h - unit * _mean(h * unit)))
    return dx, inverse[..., 0].astype(np.float32), *[dx] * (len(call.results) - 2)


def _reference_layer(call: Arrays) -> tuple[Array, ...]:
    x, h = call.wide(1), call.wide(0) * call.wide(2)
    mean = _mean(x)
    centred = x - mean
    inverse = 1.0 / np.sqrt(_mean(centred * centred) + call.real("eps"))
    unit = centred * inverse
    dx = inverse * (h - _mean(h) - unit * _mean(h * unit))
    return _finished(call, dx), mean[..., 0].astype(np.float32), inverse[..., 0].astype(np.float32)


def _reference_l2(call: Arrays) -> tuple[Array, ...]:
    """A row shorter than eps is divided by eps, which is a constant."""
    gradient, x, eps = call.wide(0), call.wide(1), call.real("eps")
    length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True))
    divisor = np.maximum(length, eps)
    unit = x / divisor
    along = np.where(length >= eps, np.sum(gradient * unit, axis=-1, keepdims=True), 0.0)
    return (((gradient - unit * along) / divisor).astype(np.float32),)


def _samples_affine(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for shape in SIZES:
        yield valid(normal(shape), normal(shape), normal(shape[-1:]), eps=1e-6)
        yield valid(normal(shape), normal(shape), normal(shape[-1:]), normal(shape), eps=1e-5)
    for dtype in (DType.F16, DType.BF16):
        yield valid(normal((5, 100)), normal((5, 100), dtype), normal((100,)), eps=1e-5)
        yield valid(normal((5, 96)), normal((5, 96)), normal((96,)), normal((5, 96)), eps=1e-5, dtype=dtype.value)
        yield valid(normal((5, 33)), normal((5, 33), dtype), normal((33,)), eps=1e-5, dtype=dtype.value)
    named = normal((2, 5, 48), axes="BTC"), normal((2, 5, 48), axes="B__"), normal((48,), axes="C")
    yield valid(*named, normal((2, 5, 48), axes="BT_"), eps=1e-6)
    yield valid(normal((2, 3, 4, 32), axes="B___"), normal((2, 3, 4, 32), axes="BTHD"), normal((32,)), eps=1e-6)
    yield valid(normal((33,)), normal((33,)), normal((33,)), eps=1.0)
    yield valid(normal((0, 64)), normal((0, 64)), normal((64,)), normal((0, 64)), eps=1e-6)
    good = normal((4, 64)), normal((4, 64)), normal((64,))
    yield invalid(ShapeError, *good[:2], normal((63,)), attrs={"eps": 1e-6})
    yield invalid(ShapeError, normal((4, 63)), *good[1:], attrs={"eps": 1e-6})
    yield invalid(ShapeError, *good, normal((1, 64)), attrs={"eps": 1e-6})
    yield invalid(ShapeError, normal(()), normal(()), normal((1,)), attrs={"eps": 1e-6})
    yield invalid(ShapeError, normal((4, 0)), normal((4, 0)), normal((0,)), attrs={"eps": 1e-6})
    yield invalid(ShapeError, *good[:2], attrs={"eps": 1e-6})
    yield invalid(DTypeError, normal((4, 64), DType.BF16), *good[1:], attrs={"eps": 1e-6})
    yield invalid(DTypeError, *good[:2], normal((64,), DType.BF16), attrs={"eps": 1e-6})
    yield invalid(DTypeError, *good, normal((4, 64), DType.F16), attrs={"eps": 1e-6})
    yield invalid(DTypeError, *good, attrs={"eps": 1e-6, "dtype": "f64"})
    yield invalid(LayoutError, normal((4, 64), axes="NC"), normal((4, 64), axes="NF"), good[2], attrs={"eps": 1e-6})
    yield invalid(ConfigError, *good, attrs={"eps": 0.0})
    yield invalid(ConfigError, *good)


def _samples_rms(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _samples_affine(rng)
    for dtype in ("f16", "bf16"):
        yield valid(normal((5, 96)), normal((5, 96)), normal((96,)), normal((5, 96)), eps=1e-5, copy=dtype)
        yield valid(normal((2, 5, 33)), normal((2, 5, 33), DType.BF16), normal((33,)), eps=1e-5, copy=dtype)
    yield valid(normal((3, 5000)), normal((3, 5000)), normal((5000,)), eps=1e-5, copy="bf16")
    good, eps = (normal((4, 64)), normal((4, 64)), normal((64,))), {"eps": 1e-6}
    yield invalid(DTypeError, *good, attrs={**eps, "copy": "f32"})
    yield invalid(DTypeError, *good, attrs={**eps, "dtype": "bf16", "copy": "bf16"})


def _samples_layer(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _samples_affine(rng)
    far = reals(rng.standard_normal((4, 100)) + 30.0)  # a mean far larger than the spread
    yield valid(normal((4, 100)), far, normal((100,)), eps=1e-5)


def _samples_l2(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SIZES:
        yield valid(normal(shape), normal(shape))
    for dtype in (DType.F16, DType.BF16):
        yield valid(normal((5, 100)), normal((5, 100), dtype), eps=1e-6)
    yield valid(normal((2, 5, 48), axes="B__"), normal((2, 5, 48), axes="BTC"))
    yield valid(normal((33,)), normal((33,)), eps=100.0)
    small = rng.standard_normal((3, 40)).astype(np.float32)
    small[0] = 0.0
    small[1] *= 1e-15
    yield valid(normal((3, 40)), reals(small))
    yield valid(normal((0, 64)), normal((0, 64)))
    yield invalid(ShapeError, normal(()), normal(()))
    yield invalid(ShapeError, normal((4, 0)), normal((4, 0)))
    yield invalid(ShapeError, normal((4, 64)), normal((64,)))
    yield invalid(DTypeError, normal((1, 2)), indices([[1, 2]]))
    yield invalid(DTypeError, normal((4, 64), DType.F16), normal((4, 64)))
    yield invalid(LayoutError, normal((4, 64), axes="NC"), normal((4, 64), axes="NF"))
    yield invalid(ConfigError, normal((4, 64)), normal((4, 64)), attrs={"eps": 0.0})


OPERANDS = (GRADIENT, OperandSpec("x", FLOATS), GAIN, OperandSpec("addend", F32, optional=True))

RMS_NORM_BACKWARD = define(
    "rms_norm_backward",
    "Gradient of rms_norm by x, plus addend, and 1 / sqrt(mean(x^2) + eps) of each row, and with `copy` that gradient rounded.",
    OPERANDS,
    ("x_gradient", "inverse_rms", "rounded*"),
    _infer_rms,
    _reference_rms,
    _samples_rms,
    TOLERANCE,
    attrs=(EPS, DTYPE_ATTR, COPY_ATTR),
    cost=cost_per_element(9),
    derivative=SECOND,
)

LAYER_NORM_BACKWARD = define(
    "layer_norm_backward",
    "Gradient of layer_norm by x, plus addend, and each row's mean and 1 / sqrt(variance + eps).",
    OPERANDS,
    ("x_gradient", "mean", "inverse_deviation"),
    _infer_layer,
    _reference_layer,
    _samples_layer,
    Tolerance(3e-4, 3e-4, "that of rms_norm_backward, and the rounding of the mean"),
    attrs=(EPS, DTYPE_ATTR),
    cost=cost_per_element(9),
    derivative=SECOND,
)

L2_NORMALIZE_BACKWARD = define(
    "l2_normalize_backward",
    "Gradient of l2_normalize by x: what is orthogonal to x of the upstream gradient, divided by the length; a row shorter than eps is divided by eps.",
    (GRADIENT, OperandSpec("x", FLOATS)),
    ("x_gradient",),
    _infer_l2,
    _reference_l2,
    _samples_l2,
    Tolerance(2e-5, 2e-5, "two fp32 sums a row, one square root"),
    attrs=(AttrSpec("eps", float, 1e-12),),
    cost=cost_per_element(9),
    derivative=SECOND,
)

NORM_BACKWARD_OPS = (
    RMS_NORM_BACKWARD,
    LAYER_NORM_BACKWARD,
    L2_NORMALIZE_BACKWARD,
)
