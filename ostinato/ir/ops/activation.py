"""Activations: silu, gelu in both forms, tanh, and the gated silu(gate) * up. References are float64; that of the exact gelu
takes the tail of the normal distribution from erfc, so that it keeps its digits where 1 + erf has none left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import ConfigError, DTypeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import only_gradient
from ostinato.ir.ops.elementwise import DEFAULT, infer_same, pair_type, samples_one, samples_pair
from ostinato.ir.ops.rules import DTYPE_ATTR, FLOATS, Arrays, Site, cost_per_element, define, fail, result_float
from ostinato.ir.ops.samplers import invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ACTIVATION_OPS", "GELU", "GELU_FORMS", "SILU", "SWIGLU", "TANH", "erfc", "sigmoid"]

GELU_FORMS = ("none", "tanh")
"""The forms of gelu under the names that torch gives them: exact, and Hendrycks' and Gimpel's approximation by tanh."""

erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow on either side."""
    power = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, power) / (1.0 + power)


def _infer_swiglu(site: Site) -> tuple[TensorType, ...]:
    common = pair_type(site, "gate", "up")
    return (common.with_dtype(result_float(site, common)),)


def _infer_gelu(site: Site) -> tuple[TensorType, ...]:
    form = site.text("approximate")
    if form not in GELU_FORMS:
        fail(
            ConfigError, site.op, f"approximate {' or '.join(map(repr, GELU_FORMS))}", repr(form), "as torch names them"
        )
    (y,) = infer_same(site)
    return (y.with_dtype(result_float(site, y)),)


def _reference_silu(call: Arrays) -> tuple[Array, ...]:
    x = call.wide(0)
    return ((x * sigmoid(x)).astype(np.float32),)


def _reference_swiglu(call: Arrays) -> tuple[Array, ...]:
    gate = call.wide(0)
    return ((gate * sigmoid(gate) * call.wide(1)).astype(np.float32),)


def _reference_gelu(call: Arrays) -> tuple[Array, ...]:
    x = call.wide(0)
    if call.text("approximate") == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        with np.errstate(invalid="ignore"):  # -inf has no limit in this form
            return ((x * sigmoid(2 * inner)).astype(np.float32),)
    size = np.minimum(np.abs(x), 40.0)  # what lies further out has no tail, infinities included
    return ((np.maximum(x, 0.0) - 0.5 * size * erfc(size / math.sqrt(2))).astype(np.float32),)


def _reference_tanh(call: Arrays) -> tuple[Array, ...]:
    return (np.tanh(call.wide(0)).astype(np.float32),)


def _gradients_silu(at: Gradients) -> Mapping[int, str]:
    return {0: at.apply("silu_backward", (only_gradient(at), at.operand(0)))}


def _gradients_swiglu(at: Gradients) -> Mapping[int, str]:
    gate, up = at.apply_many("swiglu_backward", (only_gradient(at), at.operand(0), at.operand(1)))
    return {0: gate, 1: up}


def _gradients_gelu(at: Gradients) -> Mapping[int, str]:
    attrs = {"approximate": at.attrs["approximate"]}
    return {0: at.apply("gelu_backward", (only_gradient(at), at.operand(0)), attrs)}


def _gradients_tanh(at: Gradients) -> Mapping[int, str]:
    return {0: at.apply("tanh_backward", (only_gradient(at), at.result()))}


def _samples_swiglu(rng: np.random.Generator) -> Iterator[Sample]:
    yield from samples_pair(rng)
    yield valid(normal((5, 33), DType.BF16), normal((5, 33), DType.BF16), dtype="f32")
    yield valid(normal((5, 33)), normal((5, 33)), dtype="bf16")
    yield invalid(DTypeError, normal((3, 4)), normal((3, 4)), attrs={"dtype": "i8"})


def _samples_wide(rng: np.random.Generator) -> Iterator[Sample]:
    """Values from the smallest to past saturation on both sides."""
    yield from samples_one(rng)
    yield valid(reals(np.linspace(-14.0, 14.0, 1001)))
    yield valid(reals(rng.standard_normal((4, 257)) * 10.0 ** rng.uniform(-20, 3, (4, 257))))


def _samples_gelu(rng: np.random.Generator) -> Iterator[Sample]:
    for form in GELU_FORMS:
        for sample in _samples_wide(rng):
            yield Sample(sample.operands, {"approximate": form}, sample.error)
        yield valid(reals([np.inf, -np.inf, np.nan]), approximate=form)
        yield valid(normal((5, 33), DType.BF16), approximate=form, dtype="f32")
        yield valid(normal((5, 33)), approximate=form, dtype="bf16")
    yield invalid(DTypeError, normal((3, 4)), attrs={"dtype": "i8"})
    yield invalid(ConfigError, normal((3, 4)), attrs={"approximate": "sigmoid"})


def _samples_tanh(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _samples_wide(rng)
    yield valid(reals([np.inf, -np.inf, np.nan]))


X = OperandSpec("x", FLOATS)

SILU = define(
    "silu",
    "x / (1 + exp(-x)).",
    (X,),
    ("y",),
    infer_same,
    _reference_silu,
    samples_one,
    DEFAULT,
    cost=cost_per_element(4),
    derivative=_gradients_silu,
)
SWIGLU = define(
    "swiglu",
    "silu(gate) * up.",
    (OperandSpec("gate", FLOATS), OperandSpec("up", FLOATS)),
    ("y",),
    _infer_swiglu,
    _reference_swiglu,
    _samples_swiglu,
    Tolerance(2e-6, 2e-5, "contract of swiglu: fp32 exponentials"),
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(5),
    derivative=_gradients_swiglu,
)
GELU = define(
    "gelu",
    'x times the normal cumulative function: x / 2 * (1 + erf(x / sqrt(2))), or with approximate "tanh" its approximation by tanh.',
    (X,),
    ("y",),
    _infer_gelu,
    _reference_gelu,
    _samples_gelu,
    DEFAULT,
    attrs=(AttrSpec("approximate", str, "none"), DTYPE_ATTR),
    cost=cost_per_element(8),
    derivative=_gradients_gelu,
)
TANH = define(
    "tanh",
    "The hyperbolic tangent.",
    (X,),
    ("y",),
    infer_same,
    _reference_tanh,
    _samples_tanh,
    DEFAULT,
    cost=cost_per_element(4),
    derivative=_gradients_tanh,
)

ACTIVATION_OPS = (
    SILU,
    SWIGLU,
    GELU,
    TANH,
)
