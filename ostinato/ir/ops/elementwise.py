"""Arithmetic on elements, casts and copies. No operand is converted, `cast` is the only conversion there is; none is broadcast but the vector of `add_bias`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import in_dtype, only_gradient, passed_on
from ostinato.ir.ops.rules import (
    ELEMENTS,
    F32,
    FLOATS,
    Arrays,
    Site,
    check_index,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    require_rank,
    require_shape,
)
from ostinato.ir.ops.samplers import floats, given, indices, invalid, normal, reals, valid
from ostinato.ir.rounding import round_to
from ostinato.ir.types import Array, DType, TensorType

__all__ = [
    "ADD",
    "ADD_BIAS",
    "CAST",
    "CONTIGUOUS",
    "DEFAULT",
    "ELEMENTWISE_OPS",
    "FILL",
    "HALVES",
    "MUL",
    "SCALE",
    "SHAPES",
    "SPECIAL",
    "infer_same",
    "pair_type",
    "require_finite_factor",
    "samples_one",
    "samples_pair",
]

DEFAULT = Tolerance(
    1e-6, 1e-5, "default of the contract: a few fp32 roundings, fast exponentials within some units in the last place"
)
SHAPES = ((1, 64), (3, 33), (31, 100), (1, 1), (7, 257))


def infer_same(site: Site) -> tuple[TensorType, ...]:
    x = site.operand(0)
    return (make_type(site.op, x.shape, x.dtype, x.axes),)


def pair_type(site: Site, first: str, second: str) -> TensorType:
    """Two operands of one shape and dtype; the result type joins their axis names."""
    a, b = site.operand(0), site.operand(1)
    require_shape(site.op, second, b, a.shape)
    if a.dtype is not b.dtype:
        fail(
            DTypeError,
            site.op,
            f"{second} of dtype {a.dtype.value} like {first}",
            str(b),
            "cast one of them explicitly",
        )
    return make_type(site.op, a.shape, a.dtype, join_axes(site.op, second, a.axes, b.axes))


def _infer_pair(site: Site) -> tuple[TensorType, ...]:
    return (pair_type(site, "a", "b"),)


def require_finite_factor(site: Site, name: str) -> None:
    """The attribute is a number that float32 holds; raises `ConfigError` otherwise."""
    factor = site.real(name)
    if not abs(factor) <= float(np.finfo(np.float32).max):
        fail(ConfigError, site.op, f"a finite float32 {name}", str(factor), "fold constants before they overflow")


def _infer_scale(site: Site) -> tuple[TensorType, ...]:
    require_finite_factor(site, "factor")
    return infer_same(site)


def _infer_bias(site: Site) -> tuple[TensorType, ...]:
    x, bias = site.operand(0), site.operand(1)
    require_rank(site.op, "x", x, at_least=1)
    require_shape(site.op, "bias", bias, (x.shape[-1],))
    axes = (*x.axes[:-1], *join_axes(site.op, "bias", (x.axes[-1],), bias.axes))
    return (make_type(site.op, x.shape, x.dtype, axes),)


CASTS = FLOATS | {DType.F64}


def _infer_cast(site: Site) -> tuple[TensorType, ...]:
    x, target = site.operand(0), DType.parse(site.text("dtype"))
    both_integers = {x.dtype, target} <= {DType.I32, DType.I64}
    if not both_integers and not (x.dtype in CASTS and target in CASTS):
        fail(
            DTypeError,
            site.op,
            "float to float (f64, f32, f16, bf16) or i32 and i64 to each other",
            f"{x.dtype.value} to {target.value}",
            "convert between integers and floats, or from blocks, outside the graph",
        )
    return (make_type(site.op, x.shape, target, x.axes),)


def _reference_add(call: Arrays) -> tuple[Array, ...]:
    return (call.operand(0) + call.operand(1),)


def _reference_mul(call: Arrays) -> tuple[Array, ...]:
    return (call.operand(0) * call.operand(1),)


def _reference_scale(call: Arrays) -> tuple[Array, ...]:
    return (call.operand(0) * np.float32(call.real("factor")),)


def _reference_bias(call: Arrays) -> tuple[Array, ...]:
    return (call.operand(0) + call.operand(1),)


def _reference_fill(call: Arrays) -> tuple[Array, ...]:
    return (np.full(call.operand(0).shape, call.real("value"), dtype=np.float32),)


def _reference_cast(call: Arrays) -> tuple[Array, ...]:
    x, dtype = call.operand(0), call.results[0].dtype
    if dtype is DType.I32:
        check_index(call.op, "a value that int32 holds", x, -(2**31), 2**31)
    return (round_to(x, dtype),)


def _reference_contiguous(call: Arrays) -> tuple[Array, ...]:
    return (np.array(call.operand(0), order="C", copy=True),)


def _gradients_mul(at: Gradients) -> Mapping[int, str]:
    """Gradients are float32, and mul converts nothing."""
    found = {}
    for index in (0, 1):
        if at.wants(index):
            other = in_dtype(at, at.operand(1 - index), DType.F32)
            found[index] = at.apply(at.op, (only_gradient(at), other))
    return found


def _gradients_bias(at: Gradients) -> Mapping[int, str]:
    gradient = only_gradient(at)
    return {0: gradient, 1: at.apply("bias_gradient", (gradient,))} if at.wants(1) else {0: gradient}


def _gradients_scale(at: Gradients) -> Mapping[int, str]:
    return {0: at.apply(at.op, (only_gradient(at),), at.attrs)}


def _gradients_fill(at: Gradients) -> Mapping[int, str]:
    """The values of x are not read."""
    del at
    return {}


HALVES = (DType.F16, DType.BF16)
SPECIAL = (0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 1e4, -1e4, 0.5, -0.5, 3.0, 1.0)


def samples_one(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for shape in SHAPES:
        yield valid(normal(shape))
    for dtype in HALVES:
        yield valid(normal((5, 33), dtype))
    yield valid(normal((2, 3, 4, 32), axes="BTHD"))
    yield valid(reals([SPECIAL]))
    yield valid(normal((17,)))
    yield valid(normal((0, 8)))
    yield valid(normal((3, 0)))
    yield invalid(DTypeError, indices([[1, 2]]))
    yield invalid(DTypeError, normal((2, 2), DType.F64))
    yield invalid(DTypeError, normal((2, 32), DType.Q8_0))
    yield invalid(ShapeError)


def samples_pair(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for shape in SHAPES:
        yield valid(normal(shape), normal(shape))
    for dtype in HALVES:
        yield valid(normal((5, 33), dtype), normal((5, 33), dtype))
    yield valid(normal((2, 3, 32), axes="BTC"), normal((2, 3, 32), axes="B__"))
    yield valid(reals([SPECIAL]), reals([SPECIAL[::-1]]))
    yield valid(normal((0, 8)), normal((0, 8)))
    yield valid(normal((3, 0)), normal((3, 0)))
    yield invalid(ShapeError, normal((3, 4)), normal((4,)))
    yield invalid(ShapeError, normal((3, 4)), normal((1, 4)))
    yield invalid(ShapeError, normal((3, 4)), normal((4, 3)))
    yield invalid(ShapeError, normal((3, 4)))
    yield invalid(DTypeError, normal((3, 4)), normal((3, 4), DType.BF16))
    yield invalid(DTypeError, normal((3, 4), DType.F16), normal((3, 4), DType.BF16))
    yield invalid(DTypeError, indices([1]), indices([2]))
    yield invalid(LayoutError, normal((4, 4), axes="TC"), normal((4, 4), axes="CT"))


def _samples_scale(rng: np.random.Generator) -> Iterator[Sample]:
    factors = (0.125, -3.0, 0.0, 1.0, 0.1, 1e-20)
    for position, sample in enumerate(samples_one(rng)):
        yield Sample(sample.operands, {"factor": factors[position % len(factors)]}, sample.error)
    yield invalid(ConfigError, normal((2, 2)), attrs={"factor": float("inf")})
    yield invalid(ConfigError, normal((2, 2)), attrs={"factor": float("nan")})
    yield invalid(ConfigError, normal((2, 2)), attrs={"factor": 1e39})
    yield invalid(ConfigError, normal((2, 2)))


def _samples_bias(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for shape in SHAPES:
        yield valid(normal(shape), normal(shape[-1:]))
    for dtype in HALVES:
        yield valid(normal((5, 33), dtype), normal((33,)))
    yield valid(normal((2, 3, 32), axes="BTC"), normal((32,), axes="C"))
    yield valid(normal((2, 3, 4, 32), axes="BTHD"), normal((32,)))
    yield valid(normal((17,)), normal((17,)))
    yield valid(normal((0, 8)), normal((8,)))
    yield valid(normal((3, 0)), normal((0,)))
    yield invalid(ShapeError, normal((3, 4)), normal((3,)))
    yield invalid(ShapeError, normal((3, 4)), normal((1, 4)))
    yield invalid(ShapeError, normal(()), normal((1,)))
    yield invalid(ShapeError, normal((3, 4)))
    yield invalid(DTypeError, normal((3, 4), DType.BF16), normal((4,), DType.BF16))
    yield invalid(DTypeError, indices([[1, 2]]), normal((2,)))
    yield invalid(LayoutError, normal((4, 4), axes="TC"), normal((4,), axes="T"))


def _samples_fill(rng: np.random.Generator) -> Iterator[Sample]:
    values = (0.0, -0.0, 0.1, 1e4, -3.5, float("-inf"), float("nan"))
    for position, sample in enumerate(samples_one(rng)):
        yield Sample(sample.operands, {"value": values[position % len(values)]}, sample.error)
    yield invalid(ConfigError, normal((2, 2)))


def _samples_cast(rng: np.random.Generator) -> Iterator[Sample]:
    kinds = (DType.F32, DType.F16, DType.BF16, DType.F64)
    numbers = np.concatenate(
        [rng.standard_normal(63), SPECIAL, 2.0 ** rng.uniform(-30, 15, 32), [65519.0, 65520.0, 1e-7, 3e38]]
    )
    for source in kinds:
        for target in kinds:
            with np.errstate(over="ignore"):
                yield valid(floats(numbers, source), dtype=target.value)
    ties = (1.0 + np.arange(1, 9) * 2.0**-8)[None] + np.array([[0.0], [2.0**-40], [-(2.0**-40)]])
    yield valid(given(ties), dtype="bf16")
    yield valid(given(ties), dtype="f16")
    yield valid(reals([[np.inf, -np.inf, np.nan]]), dtype="bf16")
    yield valid(given(np.array([[5, -7, 2**31 - 1, -(2**31)]])), dtype="i32")
    yield valid(indices([[5, -7], [2**31 - 1, 0]]), dtype="i64")
    yield valid(indices([[5, -7], [2**31 - 1, 0]]), dtype="i32")
    yield valid(given(np.array([[5, -7, 2**62, -(2**63)]])), dtype="i64")
    yield valid(normal((2, 3, 4), axes="BTC"), dtype="bf16")
    yield valid(normal((0, 4)), dtype="f16")
    yield invalid(BoundsError, given(np.array([0, 2**31])), attrs={"dtype": "i32"})
    yield invalid(DTypeError, normal((2, 2)), attrs={"dtype": "i32"})
    yield invalid(DTypeError, indices([1]), attrs={"dtype": "f32"})
    yield invalid(DTypeError, normal((2, 2), DType.I8), attrs={"dtype": "i32"})
    yield invalid(DTypeError, normal((2, 32), DType.Q8_0), attrs={"dtype": "f32"})
    yield invalid(DTypeError, normal((2, 2)), attrs={"dtype": "q8_0"})
    yield invalid(DTypeError, normal((2, 2)), attrs={"dtype": "float"})
    yield invalid(ConfigError, normal((2, 2)))


def _samples_contiguous(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for dtype in (DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64, DType.U8, DType.F64):
        yield valid(normal((3, 5, 7), dtype))
    yield valid(normal((2, 3, 4, 8), axes="BTHD"))
    yield valid(normal((0, 3)))
    yield valid(normal(()))
    yield invalid(DTypeError, normal((2, 32), DType.Q4_0))


X = OperandSpec("x", FLOATS)
PAIR = (OperandSpec("a", FLOATS), OperandSpec("b", FLOATS))
EXACT = Tolerance(0, 0, "one correctly rounded operation")

ADD = define(
    "add",
    "a + b.",
    PAIR,
    ("y",),
    _infer_pair,
    _reference_add,
    samples_pair,
    EXACT,
    cost=cost_per_element(1),
    derivative=passed_on,
)
MUL = define(
    "mul",
    "a * b.",
    PAIR,
    ("y",),
    _infer_pair,
    _reference_mul,
    samples_pair,
    EXACT,
    cost=cost_per_element(1),
    derivative=_gradients_mul,
)
ADD_BIAS = define(
    "add_bias",
    "x [..., D] plus bias [D], in float32 and rounded once to the dtype of x.",
    (X, OperandSpec("bias", F32)),
    ("y",),
    _infer_bias,
    _reference_bias,
    _samples_bias,
    EXACT,
    cost=cost_per_element(1),
    derivative=_gradients_bias,
)
SCALE = define(
    "scale",
    "x times a constant, rounded to float32 first.",
    (X,),
    ("y",),
    _infer_scale,
    _reference_scale,
    _samples_scale,
    EXACT,
    attrs=(AttrSpec("factor", float),),
    cost=cost_per_element(1),
    derivative=_gradients_scale,
)
FILL = define(
    "fill",
    "A constant, rounded to float32 first, in every element of a tensor like x, whose values are not read.",
    (X,),
    ("y",),
    infer_same,
    _reference_fill,
    _samples_fill,
    Tolerance(0, 0, "one correctly rounded constant"),
    attrs=(AttrSpec("value", float),),
    cost=cost_per_element(0),
    derivative=_gradients_fill,
)
CAST = define(
    "cast",
    "x in another dtype, rounded once to nearest even: floats to floats, i32 and i64 to each other.",
    (OperandSpec("x", CASTS | {DType.I32, DType.I64}),),
    ("y",),
    _infer_cast,
    _reference_cast,
    _samples_cast,
    Tolerance(0, 0, "one correctly rounded conversion"),
    attrs=(AttrSpec("dtype", str),),
    cost=cost_per_element(0),
    derivative=passed_on,
)
CONTIGUOUS = define(
    "contiguous",
    "A copy in logical order: what a strided view needs before an operator that reads dense rows. Counted as a strided copy.",
    (OperandSpec("x", ELEMENTS),),
    ("y",),
    infer_same,
    _reference_contiguous,
    _samples_contiguous,
    Tolerance(0, 0, "bytes are copied"),
    cost=cost_per_element(0),
    derivative=passed_on,
)

ELEMENTWISE_OPS = (
    ADD,
    ADD_BIAS,
    MUL,
    SCALE,
    FILL,
    CAST,
    CONTIGUOUS,
)
