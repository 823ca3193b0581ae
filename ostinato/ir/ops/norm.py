"""RMS normalisation, alone and with the residual addition before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, Tolerance
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    FLOATS,
    Arrays,
    Site,
    define,
    fail,
    join_axes,
    make_type,
    nbytes,
    require_rank,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import invalid, normal, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ADD_RMS_NORM", "NORM_OPS", "RMS_NORM"]

TOLERANCE = Tolerance(
    2e-4, 2e-4, "contract of rms_norm: an fp32 sum of squares in another order, one rounded reciprocal square root"
)
EPS = AttrSpec("eps", float)


def _normalised(site: Site, x: TensorType, gain: TensorType) -> TensorType:
    require_rank(site.op, "x", x, at_least=1)
    require_shape(site.op, "gain", gain, (x.shape[-1],))
    last = join_axes(site.op, "gain", (x.axes[-1],), gain.axes)
    eps = site.real("eps")
    if not (np.isfinite(eps) and eps > 0):
        fail(ConfigError, site.op, "a finite positive eps", str(eps), "take rms_norm_eps of the model's configuration")
    return make_type(site.op, x.shape, result_float(site, x), (*x.axes[:-1], *last))


def _infer_norm(site: Site) -> tuple[TensorType, ...]:
    return (_normalised(site, site.operand(0), site.operand(1)),)


def _infer_add(site: Site) -> tuple[TensorType, ...]:
    a, b = site.operand(0), site.operand(1)
    require_shape(site.op, "b", b, a.shape)
    if a.dtype is not b.dtype:
        fail(DTypeError, site.op, f"b of dtype {a.dtype.value} like a", str(b), "cast one of them explicitly")
    total = make_type(site.op, a.shape, a.dtype, join_axes(site.op, "b", a.axes, b.axes))
    return (total, _normalised(site, total, site.operand(2)))


def _normalise(x: Array, gain: Array, eps: float) -> Array:
    if not x.size:
        return x.astype(np.float32)
    mean = np.mean(x * x, axis=-1, keepdims=True)
    normalised: Array = (x / np.sqrt(mean + eps) * gain).astype(np.float32)
    return normalised


def _reference_norm(call: Arrays) -> tuple[Array, ...]:
    return (_normalise(call.wide(0), call.wide(1), call.real("eps")),)


def _reference_add(call: Arrays) -> tuple[Array, ...]:
    """The sum is what the next layer adds to, so the norm is that of the sum as stored: rounded to the dtype of the result."""
    total = (call.operand(0).astype(np.float32) + call.operand(1).astype(np.float32)).astype(
        call.results[0].dtype.numpy
    )
    stored = total.astype(np.float32)
    return stored, _normalise(stored.astype(np.float64), call.wide(2), call.real("eps"))


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """A square, two products and a sum an element; one more sum with the residual."""
    del attrs
    return Cost((2 + 2 + len(results) - 1) * results[0].elements, nbytes(*operands, *results))


SIZES = ((1, 64), (3, 33), (7, 100), (33, 31), (2, 1), (2, 896))


def _samples_norm(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for shape in SIZES:
        yield valid(normal(shape), normal(shape[-1:]), eps=1e-6)
    for dtype in (DType.F16, DType.BF16):
        yield valid(normal((5, 100), dtype), normal((100,)), eps=1e-5)
        yield valid(normal((5, 96), dtype), normal((96,)), eps=1e-5, dtype="f32")
        yield valid(normal((5, 33)), normal((33,)), eps=1e-5, dtype=dtype.value)
    yield valid(normal((2, 5, 48), axes="BTC"), normal((48,), axes="C"), eps=1e-6)
    yield valid(normal((2, 3, 4, 32), axes="BTHD"), normal((32,)), eps=1e-6)
    yield valid(normal((33,)), normal((33,)), eps=1.0)
    yield valid(normal((0, 64)), normal((64,)), eps=1e-6)
    yield valid(normal((4, 0)), normal((0,)), eps=1e-6)
    yield invalid(ShapeError, normal((4, 64)), normal((63,)), attrs={"eps": 1e-6})
    yield invalid(ShapeError, normal((4, 64)), normal((1, 64)), attrs={"eps": 1e-6})
    yield invalid(ShapeError, normal(()), normal((1,)), attrs={"eps": 1e-6})
    yield invalid(DTypeError, normal((4, 64)), normal((64,), DType.BF16), attrs={"eps": 1e-6})
    yield invalid(DTypeError, normal((4, 64), DType.I32), normal((64,)), attrs={"eps": 1e-6})
    yield invalid(DTypeError, normal((4, 64)), normal((64,)), attrs={"eps": 1e-6, "dtype": "f64"})
    yield invalid(LayoutError, normal((4, 64), axes="NC"), normal((64,), axes="F"), attrs={"eps": 1e-6})
    yield invalid(ConfigError, normal((4, 64)), normal((64,)), attrs={"eps": 0.0})
    yield invalid(ConfigError, normal((4, 64)), normal((64,)), attrs={"eps": float("nan")})
    yield invalid(ConfigError, normal((4, 64)), normal((64,)))


def _samples_add(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for shape in SIZES:
        yield valid(normal(shape), normal(shape), normal(shape[-1:]), eps=1e-6)
    for dtype in (DType.F16, DType.BF16):
        yield valid(normal((5, 100), dtype), normal((5, 100), dtype), normal((100,)), eps=1e-5)
        yield valid(normal((5, 96), dtype), normal((5, 96), dtype), normal((96,)), eps=1e-5, dtype="f32")
        yield valid(normal((5, 33)), normal((5, 33)), normal((33,)), eps=1e-5, dtype=dtype.value)
    yield valid(normal((2, 5, 48), axes="BTC"), normal((2, 5, 48), axes="BT_"), normal((48,), axes="C"), eps=1e-6)
    yield valid(normal((0, 64)), normal((0, 64)), normal((64,)), eps=1e-6)
    yield invalid(ShapeError, normal((4, 64)), normal((1, 64)), normal((64,)), attrs={"eps": 1e-6})
    yield invalid(ShapeError, normal((4, 64)), normal((4, 64)), normal((4,)), attrs={"eps": 1e-6})
    yield invalid(DTypeError, normal((4, 64)), normal((4, 64), DType.BF16), normal((64,)), attrs={"eps": 1e-6})
    yield invalid(
        LayoutError, normal((4, 64), axes="NC"), normal((4, 64), axes="NF"), normal((64,)), attrs={"eps": 1e-6}
    )
    yield invalid(ConfigError, normal((4, 64)), normal((4, 64)), normal((64,)), attrs={"eps": -1e-6})


GAIN = OperandSpec("gain", F32)

RMS_NORM = define(
    "rms_norm",
    "x / sqrt(mean(x^2) + eps) * gain over the last axis.",
    (OperandSpec("x", FLOATS), GAIN),
    ("y",),
    _infer_norm,
    _reference_norm,
    _samples_norm,
    TOLERANCE,
    attrs=(EPS, DTYPE_ATTR),
    cost=_cost,
)

ADD_RMS_NORM = define(
    "add_rms_norm",
    "a + b, and rms_norm of that sum: two results of one pass over the data.",
    (OperandSpec("a", FLOATS), OperandSpec("b", FLOATS), GAIN),
    ("sum", "y"),
    _infer_add,
    _reference_add,
    _samples_add,
    TOLERANCE,
    attrs=(EPS, DTYPE_ATTR),
    cost=_cost,
)

NORM_OPS = (
    RMS_NORM,
    ADD_RMS_NORM,
)
