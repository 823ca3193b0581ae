"""Normalisations along the last axis: RMS norm, alone and with the residual addition before it, layer norm, and vectors of length one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, Tolerance
from ostinato.ir.ops.derivatives import only_gradient
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
    nbytes,
    require_positive,
    require_rank,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import given, indices, invalid, normal, reals, valid
from ostinato.ir.rounding import working
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ADD_RMS_NORM", "L2_NORMALIZE", "LAYER_NORM", "NORM_OPS", "RMS_NORM"]

TOLERANCE = Tolerance(
    2e-4, 2e-4, "contract of rms_norm: an fp32 sum of squares in another order, one rounded reciprocal square root"
)
EPS = AttrSpec("eps", float)


def _check_eps(site: Site) -> None:
    require_positive(site, "eps", "take the one of the model's configuration")


def _normalised(site: Site, x: TensorType, **vectors: TensorType | None) -> TensorType:
    """The result of a norm of x with these vectors along its last axis."""
    require_rank(site.op, "x", x, at_least=1)
    last = x.axes[-1:]
    for name, vector in vectors.items():
        if vector is not None:
            require_shape(site.op, name, vector, (x.shape[-1],))
            last = join_axes(site.op, name, last, vector.axes)
    _check_eps(site)
    return make_type(site.op, x.shape, result_float(site, x), (*x.axes[:-1], *last))


def _infer_norm(site: Site) -> tuple[TensorType, ...]:
    return (_normalised(site, site.operand(0), gain=site.operand(1)),)


def _infer_add(site: Site) -> tuple[TensorType, ...]:
    a, b = site.operand(0), site.operand(1)
    require_shape(site.op, "b", b, a.shape)
    if a.dtype is not b.dtype:
        fail(DTypeError, site.op, f"b of dtype {a.dtype.value} like a", str(b), "cast one of them explicitly")
    total = make_type(site.op, a.shape, a.dtype, join_axes(site.op, "b", a.axes, b.axes))
    return (total, _normalised(site, total, gain=site.operand(2)))


def _infer_layer_norm(site: Site) -> tuple[TensorType, ...]:
    return (_normalised(site, site.operand(0), gain=site.operand(1), bias=site.optional(2)),)


def _infer_l2(site: Site) -> tuple[TensorType, ...]:
    x = site.operand(0)
    require_rank(site.op, "x", x, at_least=1)
    _check_eps(site)
    return (make_type(site.op, x.shape, x.dtype, x.axes),)


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
    return stored, _normalise(stored.astype(working()), call.wide(2), call.real("eps"))


def _reference_layer_norm(call: Arrays) -> tuple[Array, ...]:
    x, bias = call.wide(0), call.optional(2)
    if not x.size:
        return (x.astype(np.float32),)
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    scaled = centred / np.sqrt(variance + call.real("eps")) * call.wide(1)
    return ((scaled if bias is None else scaled + bias).astype(np.float32),)


def _reference_l2(call: Arrays) -> tuple[Array, ...]:
    x = call.wide(0)
    length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True))
    return ((x / np.maximum(length, call.real("eps"))).astype(np.float32),)


def _gradients_rms(at: Gradients) -> Mapping[int, str]:
    gradient, x, eps = only_gradient(at), at.operand(0), {"eps": at.attrs["eps"]}
    dx, inverse = at.apply_many("rms_norm_backward", (gradient, x, at.operand(1)), eps)
    if not at.wants(1):
        return {0: dx}
    return {0: dx, 1: at.apply("rms_norm_gain_gradient", (gradient, x, inverse))}


def _gradients_add(at: Gradients) -> Mapping[int, str]:
    """Both of a and b have the gradient of the sum: what reaches it past the norm, and through it."""
    past, gradient, eps = at.gradient(0), at.gradient(1), {"eps": at.attrs["eps"]}
    if gradient is None:
        assert past is not None, "a rule is called where the gradient of some result is there"
        return {0: past, 1: past}
    total = at.result(0)
    dx, inverse = at.apply_many("rms_norm_backward", (gradient, total, at.operand(2), past), eps)
    if not at.wants(2):
        return {0: dx, 1: dx}
    return {0: dx, 1: dx, 2: at.apply("rms_norm_gain_gradient", (gradient, total, inverse))}


def _gradients_layer(at: Gradients) -> Mapping[int, str]:
    gradient, x, found = only_gradient(at), at.operand(0), dict[int, str]()
    if at.wants(2):
        found[2] = at.apply("bias_gradient", (gradient,))
    if at.wants(0) or at.wants(1):
        eps = {"eps": at.attrs["eps"]}
        found[0], mean, inverse = at.apply_many("layer_norm_backward", (gradient, x, at.operand(1)), eps)
        if at.wants(1):
            found[1] = at.apply("layer_norm_gain_gradient", (gradient, x, mean, inverse))
    return found


def _gradients_l2(at: Gradients) -> Mapping[int, str]:
    return {0: at.apply("l2_normalize_backward", (only_gradient(at), at.operand(0)), {"eps": at.attrs["eps"]})}


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """A square, two products and a sum an element; one more sum with the residual."""
    del attrs
    return Cost((2 + 2 + len(results) - 1) * results[0].elements, nbytes(*operands, *results))


def _cost_layer_norm(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """A sum, a difference, a square, two products and a sum an element."""
    del attrs
    return Cost(7 * results[0].elements, nbytes(*operands, *results))


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
    yield invalid(ConfigError, normal((4, 64)), normal((64,)), attrs={"eps": 1e-46})  # 0 in float32
    yield invalid(ConfigError, normal((4, 64)), normal((64,)), attrs={"eps": 1e39})
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


def _samples_layer_norm(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SIZES:
        yield valid(normal(shape), normal(shape[-1:]), normal(shape[-1:]), eps=1e-12)
        yield valid(normal(shape), normal(shape[-1:]), eps=1e-5)
    for dtype in (DType.F16, DType.BF16):
        yield valid(normal((5, 100), dtype), normal((100,)), normal((100,)), eps=1e-5)
        yield valid(normal((5, 96), dtype), normal((96,)), normal((96,)), eps=1e-5, dtype="f32")
        yield valid(normal((5, 33)), normal((33,)), normal((33,)), eps=1e-5, dtype=dtype.value)
    yield valid(normal((2, 5, 48), axes="BTC"), normal((48,), axes="C"), normal((48,), axes="C"), eps=1e-6)
    yield valid(normal((2, 3, 4, 32), axes="BTHD"), normal((32,)), normal((32,)), eps=1e-6)
    yield valid(normal((33,)), normal((33,)), normal((33,)), eps=1.0)
    far = reals(rng.standard_normal((4, 100)) * 0.25 + 300.0)  # a mean far larger than the spread
    yield valid(far, normal((100,)), normal((100,)), eps=1e-5)
    yield valid(reals(np.full((3, 77), 1234.567)), normal((77,)), normal((77,)), eps=1e-12)  # no spread at all
    yield valid(normal((0, 64)), normal((64,)), normal((64,)), eps=1e-6)
    yield valid(normal((4, 0)), normal((0,)), normal((0,)), eps=1e-6)
    good = normal((64,))
    yield invalid(ShapeError, normal((4, 64)), normal((63,)), good, attrs={"eps": 1e-6})
    yield invalid(ShapeError, normal((4, 64)), good, normal((1, 64)), attrs={"eps": 1e-6})
    yield invalid(ShapeError, normal(()), normal((1,)), normal((1,)), attrs={"eps": 1e-6})
    yield invalid(DTypeError, normal((4, 64)), good, normal((64,), DType.BF16), attrs={"eps": 1e-6})
    yield invalid(DTypeError, normal((4, 64), DType.I32), good, good, attrs={"eps": 1e-6})
    yield invalid(DTypeError, normal((4, 64)), good, good, attrs={"eps": 1e-6, "dtype": "f64"})
    yield invalid(LayoutError, normal((4, 64), axes="NC"), good, normal((64,), axes="F"), attrs={"eps": 1e-6})
    yield invalid(ConfigError, normal((4, 64)), good, good, attrs={"eps": 0.0})
    yield invalid(ConfigError, normal((4, 64)), good, good)


def _samples_l2(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SIZES:
        yield valid(normal(shape))
    for dtype in (DType.F16, DType.BF16):
        yield valid(normal((5, 100), dtype), eps=1e-6)
    yield valid(normal((2, 5, 48), axes="BTC"))
    yield valid(normal((33,)), eps=100.0)
    small = rng.standard_normal((3, 40)).astype(np.float32)
    small[0] = 0.0
    small[1] *= 1e-15
    yield valid(given(small))
    yield valid(normal((0, 64)))
    yield valid(normal((4, 0)))
    yield invalid(ShapeError, normal(()))
    yield invalid(DTypeError, indices([[1, 2]]))
    yield invalid(DTypeError, normal((4, 64), DType.F64))
    yield invalid(ConfigError, normal((4, 64)), attrs={"eps": 0.0})
    yield invalid(ConfigError, normal((4, 64)), attrs={"eps": float("inf")})


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
    derivative=_gradients_rms,
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
    derivative=_gradients_add,
)

LAYER_NORM = define(
    "layer_norm",
    "(x - mean) / sqrt(variance + eps) * gain + bias over the last axis, with the variance of the whole population.",
    (OperandSpec("x", FLOATS), GAIN, OperandSpec("bias", F32, optional=True)),
    ("y",),
    _infer_layer_norm,
    _reference_layer_norm,
    _samples_layer_norm,
    Tolerance(
        2e-5,
        1e-4,
        "that of the other norms less the sum's size: two fp32 sums, a mean of rounding error 1e-7 |x| before it is corrected, one reciprocal square root",
    ),
    attrs=(EPS, DTYPE_ATTR),
    cost=_cost_layer_norm,
    derivative=_gradients_layer,
)

L2_NORMALIZE = define(
    "l2_normalize",
    "x / max(|x|, eps) with the Euclidean length |x| of the last axis.",
    (OperandSpec("x", FLOATS),),
    ("y",),
    _infer_l2,
    _reference_l2,
    _samples_l2,
    Tolerance(1e-6, 1e-5, "default of the contract: one fp32 sum of squares, one square root, one division"),
    attrs=(AttrSpec("eps", float, 1e-12),),
    cost=cost_per_element(3),
    derivative=_gradients_l2,
)

NORM_OPS = (
    RMS_NORM,
    ADD_RMS_NORM,
    LAYER_NORM,
    L2_NORMALIZE,
)
