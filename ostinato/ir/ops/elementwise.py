"""Elementwise operators and the row softmax. No operand is broadcast and none is converted: `cast` is the only conversion there is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    ELEMENTS,
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
    result_float,
)
from ostinato.ir.ops.samplers import floats, given, indices, invalid, normal, reals, valid
from ostinato.ir.rounding import round_to
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ADD", "CAST", "CONTIGUOUS", "ELEMENTWISE_OPS", "MUL", "SCALE", "SILU", "SOFTMAX", "SWIGLU", "sigmoid"]

DEFAULT = Tolerance(
    1e-6, 1e-5, "default of the contract: a few fp32 roundings, fast exponentials within some units in the last place"
)
SOFTMAX_LIKE = Tolerance(2e-6, 2e-5, "contract of softmax and swiglu: fp32 exponentials and one fp32 reduction")
SHAPES = ((1, 64), (3, 33), (31, 100), (1, 1), (7, 257))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow on either side."""
    power = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, power) / (1.0 + power)


def _infer_same(site: Site) -> tuple[TensorType, ...]:
    x = site.operand(0)
    return (make_type(site.op, x.shape, x.dtype, x.axes),)


def _pair(site: Site, first: str, second: str) -> TensorType:
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
    return (_pair(site, "a", "b"),)


def _infer_swiglu(site: Site) -> tuple[TensorType, ...]:
    common = _pair(site, "gate", "up")
    return (common.with_dtype(result_float(site, common)),)


def _infer_scale(site: Site) -> tuple[TensorType, ...]:
    factor = site.real("factor")
    if not abs(factor) <= float(np.finfo(np.float32).max):
        fail(ConfigError, site.op, "a finite float32 factor", str(factor), "fold constants before they overflow")
    return _infer_same(site)


def _infer_softmax(site: Site) -> tuple[TensorType, ...]:
    x = site.operand(0)
    require_rank(site.op, "x", x, at_least=1)
    if x.shape[-1] == 0:
        fail(ShapeError, site.op, "a last axis that is not empty", str(x), "softmax of nothing is undefined")
    return _infer_same(site)


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


def _reference_silu(call: Arrays) -> tuple[Array, ...]:
    x = call.wide(0)
    return ((x * sigmoid(x)).astype(np.float32),)


def _reference_swiglu(call: Arrays) -> tuple[Array, ...]:
    gate = call.wide(0)
    return ((gate * sigmoid(gate) * call.wide(1)).astype(np.float32),)


def _reference_add(call: Arrays) -> tuple[Array, ...]:
    return (call.operand(0) + call.operand(1),)


def _reference_mul(call: Arrays) -> tuple[Array, ...]:
    return (call.operand(0) * call.operand(1),)


def _reference_scale(call: Arrays) -> tuple[Array, ...]:
    return (call.operand(0) * np.float32(call.real("factor")),)


def _reference_softmax(call: Arrays) -> tuple[Array, ...]:
    """A row of -inf only has no visible entry and gives zeros; +inf or NaN gives NaN."""
    x = call.wide(0)
    largest = np.max(x, axis=-1, keepdims=True)
    hidden = largest == -np.inf
    with np.errstate(invalid="ignore"):
        power = np.exp(x - np.where(hidden, 0.0, largest))
        total = np.sum(power, axis=-1, keepdims=True)
        return ((power / np.where(hidden, 1.0, total)).astype(np.float32),)


def _reference_cast(call: Arrays) -> tuple[Array, ...]:
    x, dtype = call.operand(0), call.results[0].dtype
    if dtype is DType.I32:
        check_index(call.op, "a value that int32 holds", x, -(2**31), 2**31)
    return (round_to(x, dtype),)


def _reference_contiguous(call: Arrays) -> tuple[Array, ...]:
    return (np.array(call.operand(0), order="C", copy=True),)


HALVES = (DType.F16, DType.BF16)
SPECIAL = (0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 1e4, -1e4, 0.5, -0.5, 3.0, 1.0)


def _samples_one(rng: np.random.Generator) -> Iterator[Sample]:
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


def _samples_pair(rng: np.random.Generator) -> Iterator[Sample]:
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


def _samples_swiglu(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _samples_pair(rng)
    yield valid(normal((5, 33), DType.BF16), normal((5, 33), DType.BF16), dtype="f32")
    yield valid(normal((5, 33)), normal((5, 33)), dtype="bf16")
    yield invalid(DTypeError, normal((3, 4)), normal((3, 4)), attrs={"dtype": "i8"})


def _samples_scale(rng: np.random.Generator) -> Iterator[Sample]:
    factors = (0.125, -3.0, 0.0, 1.0, 0.1, 1e-20)
    for position, sample in enumerate(_samples_one(rng)):
        yield Sample(sample.operands, {"factor": factors[position % len(factors)]}, sample.error)
    yield invalid(ConfigError, normal((2, 2)), attrs={"factor": float("inf")})
    yield invalid(ConfigError, normal((2, 2)), attrs={"factor": float("nan")})
    yield invalid(ConfigError, normal((2, 2)), attrs={"factor": 1e39})
    yield invalid(ConfigError, normal((2, 2)))


def _samples_softmax(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        yield valid(normal(shape))
    for dtype in HALVES:
        yield valid(normal((5, 33), dtype))
    yield valid(normal((2, 3, 4, 32), axes="BHTS"))
    masked = rng.standard_normal((4, 65)).astype(np.float32)
    masked[0, 1:] = -np.inf
    masked[1, :] = -np.inf
    masked[2, ::2] = -np.inf
    yield valid(given(masked))
    yield valid(reals([[1e4, 1e4, -1e4], [-3e38, -3e38, 3e38]]))
    yield valid(normal((0, 8)))
    yield invalid(ShapeError, normal((3, 0)))
    yield invalid(ShapeError, normal(()))
    yield invalid(DTypeError, indices([[1, 2]]))


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

SILU = define(
    "silu",
    "x / (1 + exp(-x)).",
    (X,),
    ("y",),
    _infer_same,
    _reference_silu,
    _samples_one,
    DEFAULT,
    cost=cost_per_element(4),
)
SWIGLU = define(
    "swiglu",
    "silu(gate) * up.",
    (OperandSpec("gate", FLOATS), OperandSpec("up", FLOATS)),
    ("y",),
    _infer_swiglu,
    _reference_swiglu,
    _samples_swiglu,
    SOFTMAX_LIKE,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(5),
)
ADD = define("add", "a + b.", PAIR, ("y",), _infer_pair, _reference_add, _samples_pair, EXACT, cost=cost_per_element(1))
MUL = define("mul", "a * b.", PAIR, ("y",), _infer_pair, _reference_mul, _samples_pair, EXACT, cost=cost_per_element(1))
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
)
SOFTMAX = define(
    "softmax",
    "exp(x) / sum(exp(x)) over the last axis, shifted by the row's maximum; a row of -inf gives zeros.",
    (X,),
    ("y",),
    _infer_softmax,
    _reference_softmax,
    _samples_softmax,
    SOFTMAX_LIKE,
    cost=cost_per_element(5),
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
)
CONTIGUOUS = define(
    "contiguous",
    "A copy in logical order: what a strided view needs before an operator that reads dense rows. Counted as a strided copy.",
    (OperandSpec("x", ELEMENTS),),
    ("y",),
    _infer_same,
    _reference_contiguous,
    _samples_contiguous,
    Tolerance(0, 0, "bytes are copied"),
    cost=cost_per_element(0),
)

ELEMENTWISE_OPS = (
    SOFTMAX,
    SILU,
    SWIGLU,
    ADD,
    MUL,
    SCALE,
    CAST,
    CONTIGUOUS,
)
