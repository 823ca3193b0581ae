"""Gradients of activations and of softmax: by x where the forward operator forgets it, by y where y says enough."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.activation import GELU_FORMS, erfc, sigmoid
from ostinato.ir.ops.derivatives import GRADIENT, SECOND, upstream
from ostinato.ir.ops.elementwise import HALVES, SHAPES, SPECIAL
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
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
    result_float,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = [
    "ACTIVATION_BACKWARD_OPS",
    "CAUSAL_SOFTMAX_BACKWARD",
    "GELU_BACKWARD",
    "SILU_BACKWARD",
    "SOFTMAX_BACKWARD",
    "SWIGLU_BACKWARD",
    "SWIGLU_JOINT_BACKWARD",
    "TANH_BACKWARD",
]

_ELEMENT = Tolerance(2e-5, 2e-5, "contract of silu_backward: fp32 exponentials, a difference of numbers around 1")
_SOFTMAX = Tolerance(2e-5, 2e-5, "contract of softmax_backward: one fp32 sum a row")


def _infer_one(site: Site) -> tuple[TensorType, ...]:
    common = upstream(site, 0, 1)
    return (common.with_dtype(result_float(site, common)),)


def _infer_gelu(site: Site) -> tuple[TensorType, ...]:
    form = site.text("approximate")
    if form not in GELU_FORMS:
        wanted = f"approximate {' or '.join(map(repr, GELU_FORMS))}"
        fail(ConfigError, site.op, wanted, repr(form), "as torch names them")
    return _infer_one(site)


def _infer_swiglu(site: Site) -> tuple[TensorType, ...]:
    common, gate, up = upstream(site, 0, 1), site.operand(1), site.operand(2)
    require_shape(site.op, "up", up, gate.shape)
    if gate.dtype is not up.dtype:
        fail(DTypeError, site.op, f"up of dtype {gate.dtype.value} like gate", str(up), "cast one of them explicitly")
    dtype = result_float(site, common)
    y = make_type(site.op, common.shape, dtype, join_axes(site.op, "up", common.axes, up.axes))
    return (y, y)


def _infer_swiglu_joint(site: Site) -> tuple[TensorType, ...]:
    require_rank(site.op, "gate", site.operand(1), at_least=2)
    y = _infer_swiglu(site)[0]
    columns = y.shape[-1]
    if not isinstance(columns, int):
        fail(ShapeError, site.op, "an integer number of columns", str(y), "bind this dimension first")
    return (make_type(site.op, (*y.shape[:-1], 2 * columns), y.dtype, (*y.axes[:-1], "")),)


def _infer_softmax(site: Site) -> tuple[TensorType, ...]:
    y = site.operand(1)
    require_rank(site.op, "y", y, at_least=1)
    if y.shape[-1] == 0:
        fail(ShapeError, site.op, "a last axis that is not empty", str(y), "softmax of nothing is undefined")
    return (upstream(site, 0, 1),)


def _infer_causal(site: Site) -> tuple[TensorType, ...]:
    y = site.operand(1)
    require_rank(site.op, "y [..., T, T]", y, at_least=2)
    if y.shape[-1] != y.shape[-2] or y.shape[-1] == 0:
        fail(ShapeError, site.op, "last two axes of one extent above 0", str(y), "scores of T queries over T keys")
    return (upstream(site, 0, 1),)


def _silu_slope(x: Array) -> Array:
    """s (1 + x (1 - s)), where 1 - s is the sigmoid of -x, so that it keeps its digits."""
    return np.asarray(sigmoid(x) * (1.0 + x * sigmoid(-x)))


def _reference_silu(call: Arrays) -> tuple[Array, ...]:
    return ((call.wide(0) * _silu_slope(call.wide(1))).astype(np.float32),)


def _reference_swiglu(call: Arrays) -> tuple[Array, ...]:
    gradient, gate, up = call.wide(0), call.wide(1), call.wide(2)
    by_gate, by_up = gradient * up * _silu_slope(gate), gradient * gate * sigmoid(gate)
    return by_gate.astype(np.float32), by_up.astype(np.float32)


def _reference_swiglu_joint(call: Arrays) -> tuple[Array, ...]:
    return (np.concatenate(_reference_swiglu(call), axis=-1),)


def _reference_gelu(call: Arrays) -> tuple[Array, ...]:
    gradient, x = call.wide(0), call.wide(1)
    if call.text("approximate") == "tanh":
        root = math.sqrt(2 / math.pi)
        s = sigmoid(2 * root * (x + 0.044715 * x**3))
        slope = s + x * 2 * root * (1 + 3 * 0.044715 * x * x) * s * (1.0 - s)
    else:
        density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        slope = 0.5 * erfc(-np.clip(x, -40.0, 40.0) / math.sqrt(2)) + x * density
    return ((gradient * slope).astype(np.float32),)


def _reference_tanh(call: Arrays) -> tuple[Array, ...]:
    y = call.wide(1)
    return ((call.wide(0) * (1.0 - y) * (1.0 + y)).astype(np.float32),)


def _softmax_gradient(gradient: Array, y: Array) -> Array:
    along = np.sum(gradient * y, axis=-1, keepdims=True)
    return np.asarray(y * (gradient - along)).astype(np.float32)


def _reference_softmax(call: Arrays) -> tuple[Array, ...]:
    return (_softmax_gradient(call.wide(0), call.wide(1)),)


def _reference_causal(call: Arrays) -> tuple[Array, ...]:
    """What a row does not see is not read, NaN included."""
    gradient, y = call.wide(0), call.wide(1)
    visible = np.tri(y.shape[-1], dtype=np.bool_)
    found = _softmax_gradient(np.where(visible, gradient, 0.0), np.where(visible, y, 0.0))
    return (np.where(visible, found, np.float32(0)),)


def _samples_plain(rng: np.random.Generator) -> Iterator[Sample]:
    """A gradient and a value, as every operator of one value takes them."""
    del rng
    for shape in SHAPES:
        yield valid(normal(shape), normal(shape))
    for dtype in HALVES:
        yield valid(normal((5, 33)), normal((5, 33), dtype))
    yield valid(normal((2, 3, 4, 32), axes="B_H_"), normal((2, 3, 4, 32), axes="BTHD"))
    yield valid(normal((17,)), normal((17,)))
    yield valid(normal((0, 8)), normal((0, 8)))
    yield invalid(ShapeError, normal((3, 4)), normal((4,)))
    yield invalid(ShapeError, normal((3, 4)), normal((4, 3)))
    yield invalid(ShapeError, normal((3, 4)))
    yield invalid(DTypeError, normal((3, 4), DType.BF16), normal((3, 4), DType.BF16))
    yield invalid(DTypeError, normal((1, 2)), indices([[1, 2]]))
    yield invalid(LayoutError, normal((4, 4), axes="TC"), normal((4, 4), axes="CT"))


def _samples_one(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _samples_plain(rng)
    yield valid(normal((3, 0)), normal((3, 0)))
    for dtype in HALVES:
        yield valid(normal((5, 33)), normal((5, 33), dtype), dtype=dtype.value)
        yield valid(normal((5, 33)), normal((5, 33)), dtype=dtype.value)
    yield invalid(DTypeError, normal((3, 4)), normal((3, 4)), attrs={"dtype": "i8"})


def _samples_silu(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _samples_one(rng)
    yield valid(normal((1, len(SPECIAL))), reals([SPECIAL]))
    yield valid(normal((1001,)), reals(np.linspace(-14.0, 14.0, 1001)))


def _samples_gelu(rng: np.random.Generator) -> Iterator[Sample]:
    for form in GELU_FORMS:
        for sample in _samples_silu(rng):
            yield Sample(sample.operands, {**sample.attrs, "approximate": form}, sample.error)
    yield invalid(ConfigError, normal((3, 4)), normal((3, 4)), attrs={"approximate": "sigmoid"})


def _samples_tanh(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _samples_one(rng)
    yield valid(normal((1001,)), reals(np.tanh(np.linspace(-14.0, 14.0, 1001))))


def _samples_swiglu(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in _samples_silu(rng):
        gradient, *x = sample.operands
        yield Sample((gradient, *x, *x), sample.attrs, sample.error)
    for shape in SHAPES:
        yield valid(normal(shape), normal(shape), normal(shape))
    yield invalid(ShapeError, normal((3, 4)), normal((3, 4)), normal((1, 4)))
    yield invalid(DTypeError, normal((3, 4)), normal((3, 4)), normal((3, 4), DType.BF16))
    yield invalid(LayoutError, normal((4, 4)), normal((4, 4), axes="TC"), normal((4, 4), axes="CT"))


def _samples_swiglu_joint(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in _samples_swiglu(rng):
        gate = sample.operands[1] if len(sample.operands) > 1 else None
        if sample.error is not None or (gate is not None and gate.type.rank > 1):
            yield sample
    yield invalid(ShapeError, normal((4,)), normal((4,)), normal((4,)))


def _probabilities(rng: np.random.Generator, *shape: int) -> Array:
    power = np.exp(rng.standard_normal(shape) * 2)
    return np.asarray(power / np.sum(power, axis=-1, keepdims=True), dtype=np.float32)


def _samples_softmax(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _samples_plain(rng)
    for shape in SHAPES:
        yield valid(normal(shape), reals(_probabilities(rng, *shape)))
    hidden = _probabilities(rng, 3, 65)
    hidden[1] = 0.0  # a row that sees nothing
    yield valid(normal((3, 65)), reals(hidden))
    yield invalid(ShapeError, normal((3, 0)), normal((3, 0)))
    yield invalid(ShapeError, normal(()), normal(()))


def _samples_causal(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((1, 1), (2, 2), (33, 33), (3, 17, 17), (2, 3, 65, 65)):
        seen = np.tril(np.exp(rng.standard_normal(shape)))
        yield valid(normal(shape), reals(seen / np.sum(seen, axis=-1, keepdims=True)))
    for dtype in HALVES:
        yield valid(normal((2, 33, 33)), normal((2, 33, 33), dtype))
    yield valid(normal((2, 3, 31, 31), axes="B___"), normal((2, 3, 31, 31), axes="BHTS"))
    hidden = np.triu(np.full((9, 9), np.nan, dtype=np.float32), 1)  # must not matter
    yield valid(reals(hidden + 1.0), reals(hidden + 0.5))
    yield valid(normal((0, 8, 8)), normal((0, 8, 8)))
    yield invalid(ShapeError, normal((3, 0, 0)), normal((3, 0, 0)))
    yield invalid(ShapeError, normal((3, 4)), normal((3, 4)))
    yield invalid(ShapeError, normal((4,)), normal((4,)))
    yield invalid(ShapeError, normal((4, 4)), normal((1, 4, 4)))
    yield invalid(DTypeError, normal((2, 2)), indices([[1, 2], [3, 4]]))


X, Y = OperandSpec("x", FLOATS), OperandSpec("y", FLOATS)

SILU_BACKWARD = define(
    "silu_backward",
    "Gradient of silu: gradient * s * (1 + x * (1 - s)) with s = 1 / (1 + exp(-x)).",
    (GRADIENT, X),
    ("x_gradient",),
    _infer_one,
    _reference_silu,
    _samples_silu,
    _ELEMENT,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(7),
    derivative=SECOND,
)

SWIGLU_BACKWARD = define(
    "swiglu_backward",
    "Gradients of swiglu by its gate and by up: gradient * up * silu'(gate), and gradient * silu(gate).",
    (GRADIENT, OperandSpec("gate", FLOATS), OperandSpec("up", FLOATS)),
    ("gate_gradient", "up_gradient"),
    _infer_swiglu,
    _reference_swiglu,
    _samples_swiglu,
    _ELEMENT,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(10),
    derivative=SECOND,
)

SWIGLU_JOINT_BACKWARD = define(
    "swiglu_joint_backward",
    "Both gradients of swiglu side by side, as their joint product reads them: columns by gate, then by up: [..., 2 F].",
    (GRADIENT, OperandSpec("gate", FLOATS), OperandSpec("up", FLOATS)),
    ("x_gradient",),
    _infer_swiglu_joint,
    _reference_swiglu_joint,
    _samples_swiglu_joint,
    _ELEMENT,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(5),
    derivative=SECOND,
)

GELU_BACKWARD = define(
    "gelu_backward",
    "Gradient of gelu in the form that `approximate` names: of the exact one, gradient * (P(x) + x p(x)) with the normal distribution P and its density p.",
    (GRADIENT, X),
    ("x_gradient",),
    _infer_gelu,
    _reference_gelu,
    _samples_gelu,
    _ELEMENT,
    attrs=(AttrSpec("approximate", str, "none"), DTYPE_ATTR),
    cost=cost_per_element(12),
    derivative=SECOND,
)

TANH_BACKWARD = define(
    "tanh_backward",
    "Gradient of tanh by its result y: gradient * (1 - y^2).",
    (GRADIENT, Y),
    ("x_gradient",),
    _infer_one,
    _reference_tanh,
    _samples_tanh,
    _ELEMENT,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(3),
    derivative=SECOND,
)

SOFTMAX_BACKWARD = define(
    "softmax_backward",
    "Gradient of softmax by its result y: y * (gradient - sum(gradient * y)) over the last axis.",
    (GRADIENT, Y),
    ("x_gradient",),
    _infer_softmax,
    _reference_softmax,
    _samples_softmax,
    _SOFTMAX,
    cost=cost_per_element(4),
    derivative=SECOND,
)

CAUSAL_SOFTMAX_BACKWARD = define(
    "causal_softmax_backward",
    "Gradient of causal_softmax by its result y [..., T, T]; entries that a row does not see are exactly 0 and are not read.",
    (GRADIENT, Y),
    ("x_gradient",),
    _infer_causal,
    _reference_causal,
    _samples_causal,
    _SOFTMAX,
    cost=cost_per_element(2),
    derivative=SECOND,
)

ACTIVATION_BACKWARD_OPS = (
    SILU_BACKWARD,
    SWIGLU_BACKWARD,
    SWIGLU_JOINT_BACKWARD,
    GELU_BACKWARD,
    TANH_BACKWARD,
    SOFTMAX_BACKWARD,
    CAUSAL_SOFTMAX_BACKWARD,
)
