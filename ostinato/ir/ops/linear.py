"""Linear projections over dense and block weights kept as the checkpoint has them, [out, in].

Products and sums of a block weight are those of its dequantised values: nothing is requantised. `linear_split` and `linear_swiglu` exist because one pass
over x then serves several projections; their weights are the same rows put one after another by the load program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.activation import sigmoid
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    FLOATS,
    WEIGHTS,
    Arrays,
    Site,
    define,
    fail,
    join_axes,
    make_type,
    nbytes,
    refuse_mixed_halves,
    require_rank,
    require_same_extent,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import invalid, normal, valid, whole
from ostinato.ir.types import Array, DType, Extent, TensorType

__all__ = ["LINEAR", "LINEAR_OPS", "LINEAR_SPLIT", "LINEAR_SWIGLU"]

TOLERANCE = Tolerance(
    2e-4,
    2e-4,
    "contract of matmul: fp32 sums of K products in another order than the float64 reference; K up to some ten thousand",
)
ROWS_AT_ONCE = 4096
"""Weight rows that the reference holds in float64 at a time, to keep its memory small on large heads."""

AXIS = AttrSpec("axis", str, "")


def _product(site: Site) -> tuple[TensorType, TensorType, DType]:
    """x, weight and result dtype of any projection, checked."""
    x, weight = site.operand(0), site.operand(1)
    require_rank(site.op, "x", x, at_least=1)
    require_rank(site.op, "weight", weight, exactly=2)
    require_same_extent(site.op, "the extent K of weight [M, K], equal to x's last,", x.shape[-1], weight.shape[1])
    join_axes(site.op, "weight columns", (x.axes[-1],), (weight.axes[1],))
    refuse_mixed_halves(site.op, x, weight)
    return x, weight, result_float(site, x)


def _check_bias(site: Site, weight: TensorType) -> None:
    bias = site.optional(2)
    if bias is not None:
        require_shape(site.op, "bias", bias, (weight.shape[0],))
        join_axes(site.op, "bias", (weight.axes[0],), bias.axes)


def _infer_linear(site: Site) -> tuple[TensorType, ...]:
    x, weight, dtype = _product(site)
    _check_bias(site, weight)
    axis = site.text("axis")
    join_axes(site.op, "result axis", (axis,), (weight.axes[0],))
    return (make_type(site.op, (*x.shape[:-1], weight.shape[0]), dtype, (*x.axes[:-1], axis)),)


def _infer_split(site: Site) -> tuple[TensorType, ...]:
    x, weight, dtype = _product(site)
    _check_bias(site, weight)
    sizes, axes = site.integers("sizes"), site.text("axes") or "_" * len(site.integers("sizes"))
    if not sizes or min(sizes) < 0:
        fail(
            ShapeError,
            site.op,
            "sizes of one or more outputs, none negative",
            str(list(sizes)),
            "give the columns of each output",
        )
    require_same_extent(site.op, "weight rows, the sum of sizes,", sum(sizes), weight.shape[0])
    if len(axes) != len(sizes):
        fail(
            LayoutError,
            site.op,
            f"axes with {len(sizes)} letters, one an output",
            repr(axes),
            'use "_" for an anonymous axis',
        )
    names = ("" if letter == "_" else letter for letter in axes)
    return tuple(
        make_type(site.op, (*x.shape[:-1], size), dtype, (*x.axes[:-1], name))
        for size, name in zip(sizes, names, strict=True)
    )


def _infer_swiglu(site: Site) -> tuple[TensorType, ...]:
    x, weight, dtype = _product(site)
    return (
        make_type(site.op, (*x.shape[:-1], _half(site.op, weight.shape[0])), dtype, (*x.axes[:-1], site.text("axis"))),
    )


def _half(op: str, rows: Extent) -> int:
    if not isinstance(rows, int) or rows % 2:
        fail(
            ShapeError,
            op,
            "a weight of an even number of rows, gate then up",
            str(rows),
            "concatenate gate and up projections of one size",
        )
    return rows // 2


def _project(call: Arrays) -> Array:
    """x @ weight^T + bias in float64, a few thousand weight rows at a time."""
    x, weight, bias = call.wide(0), call.operand(1), call.optional(2) if len(call.operands) > 2 else None
    y = np.empty((*x.shape[:-1], weight.shape[0]), dtype=np.float64)
    for first in range(0, weight.shape[0], ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        y[..., rows] = x @ weight[rows].astype(np.float64).T
    return y if bias is None else y + bias.astype(np.float64)


def _reference_linear(call: Arrays) -> tuple[Array, ...]:
    return (_project(call).astype(np.float32),)


def _reference_split(call: Arrays) -> tuple[Array, ...]:
    y = _project(call).astype(np.float32)
    edges = np.cumsum(call.integers("sizes"))[:-1]
    return tuple(np.split(y, edges, axis=-1))


def _reference_swiglu(call: Arrays) -> tuple[Array, ...]:
    gate, up = np.split(_project(call), 2, axis=-1)
    return ((gate * sigmoid(gate) * up).astype(np.float32),)


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    del attrs
    x, weight = operands[0], operands[1]
    assert x is not None
    assert weight is not None
    inner = x.static_shape[-1]
    rows = x.elements // inner if inner else 0
    return Cost(2 * rows * weight.elements, nbytes(*operands, *results))


KINDS = tuple(dtype for dtype in DType if dtype in WEIGHTS)


def _samples_linear(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for weight in KINDS:
        # one token, a few, more than a tile; rows past a panel; one and several outputs panels
        for m, n, least in ((1, 100, 96), (3, 33, 64), (33, 31, 128), (7, 1, 32)):
            k = whole(weight, least)
            yield valid(normal((m, k)), normal((n, k), weight), normal((n,)) if m != 3 else None)
    for k in (1, 31, 33, 100):
        for weight in (DType.F32, DType.F16, DType.BF16):
            yield valid(normal((5, k)), normal((34, k), weight), normal((34,)))
            yield valid(normal((1, k)), normal((65, k), weight))
    for x, weight in (
        (DType.BF16, DType.BF16),
        (DType.BF16, DType.F32),
        (DType.F16, DType.F16),
        (DType.BF16, DType.Q8_0),
        (DType.F16, DType.Q4_0),
        (DType.BF16, DType.Q4_1),
    ):
        for m in (1, 2, 33):
            yield valid(normal((m, 96), x), normal((70, 96), weight), normal((70,)))
            yield valid(normal((m, 96), x), normal((70, 96), weight), dtype="f32")
    yield valid(normal((9, 64)), normal((40, 64), DType.BF16), dtype="bf16")
    yield valid(normal((9, 64)), normal((40, 64), DType.F16), dtype="f16")
    yield valid(normal((2, 3, 64), axes="BTC"), normal((96, 64), axes="FC"), normal((96,), axes="F"), axis="F")
    yield valid(normal((1, 1, 2048)), normal((32, 2048)))
    yield valid(normal((64,)), normal((48, 64)))
    yield valid(normal((0, 64)), normal((48, 64)), normal((48,)))
    yield valid(normal((4, 64)), normal((0, 64)))
    yield valid(normal((3, 0)), normal((40, 0)), normal((40,)))
    yield invalid(ShapeError, normal((4, 64)), normal((48, 65)))
    yield invalid(ShapeError, normal((4, 64)), normal((48, 64)), normal((47,)))
    yield invalid(ShapeError, normal((4, 64)), normal((48, 64)), normal((1, 48)))
    yield invalid(ShapeError, normal(()), normal((48, 64)))
    yield invalid(ShapeError, normal((4, 64)), normal((2, 24, 64)))
    yield invalid(ShapeError, normal((4, 64)))
    yield invalid(DTypeError, normal((4, 64), DType.F16), normal((48, 64), DType.BF16))
    yield invalid(DTypeError, normal((4, 64), DType.F64), normal((48, 64)))
    yield invalid(DTypeError, normal((4, 48)), normal((48, 48), DType.Q8_0))
    yield invalid(DTypeError, normal((4, 96)), normal((48, 96), DType.Q4_K))
    yield invalid(DTypeError, normal((4, 64)), normal((48, 64)), normal((48,), DType.BF16))
    yield invalid(DTypeError, normal((4, 64)), normal((48, 64)), attrs={"dtype": "q8_0"})
    yield invalid(LayoutError, normal((4, 64), axes="NF"), normal((48, 64), axes="FC"))
    yield invalid(LayoutError, normal((4, 64), axes="NC"), normal((48, 64)), attrs={"axis": "N"})
    yield invalid(LayoutError, normal((4, 64)), _packed((48, 64), "panel32_pair"))
    yield invalid(ConfigError, normal((4, 64)), normal((48, 64)), attrs={"bias": 1})


def _samples_split(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for weight in KINDS:
        few, many = whole(weight, 64), whole(weight, 96)
        yield valid(normal((1, few)), normal((96, few), weight), normal((96,)), sizes=(64, 16, 16))
        yield valid(normal((33, many)), normal((64, many), weight), sizes=(32, 32))
    yield valid(normal((2, 5, 100), axes="BTC"), normal((131, 100)), normal((131,)), sizes=(100, 31), axes="HG")
    yield valid(normal((5, 64), DType.BF16), normal((130, 64), DType.BF16), sizes=(64, 33, 33), dtype="f32")
    yield valid(normal((5, 64), DType.F16), normal((130, 64), DType.F16), normal((130,)), sizes=(64, 33, 33))
    yield valid(normal((3, 33)), normal((7, 33)), sizes=(7,), axes="F")
    yield valid(normal((0, 64)), normal((96, 64)), sizes=(64, 16, 16))
    yield invalid(ShapeError, normal((3, 64)), normal((96, 64)), attrs={"sizes": (64, 16)})
    yield invalid(ShapeError, normal((3, 64)), normal((96, 64)), attrs={"sizes": ()})
    yield invalid(ShapeError, normal((3, 64)), normal((96, 64)), attrs={"sizes": (112, -16)})
    yield invalid(ShapeError, normal((3, 32)), normal((96, 64)), attrs={"sizes": (64, 32)})
    yield invalid(LayoutError, normal((3, 64)), normal((96, 64)), attrs={"sizes": (64, 32), "axes": "HGG"})
    yield invalid(ConfigError, normal((3, 64)), normal((96, 64)))


def _samples_swiglu(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for weight in KINDS:
        for m, n, least in ((1, 32, 64), (3, 17, 96), (33, 100, 32), (2, 1, 64)):
            k = whole(weight, least)
            yield valid(normal((m, k)), normal((2 * n, k), weight))
    for weight in (DType.F32, DType.BF16):
        yield valid(normal((4, 33)), normal((66, 33), weight))
    yield valid(normal((4, 64), DType.BF16), normal((96, 64), DType.BF16))
    yield valid(normal((1, 64), DType.BF16), normal((96, 64), DType.Q4_0), dtype="f32")
    yield valid(normal((4, 64), DType.F16), normal((96, 64), DType.F16))
    yield valid(normal((2, 3, 64), axes="BTC"), normal((96, 64), axes="_C"), axis="F")
    yield valid(normal((0, 64)), normal((96, 64)))
    yield valid(normal((3, 0)), normal((40, 0)))
    yield invalid(ShapeError, normal((4, 64)), normal((95, 64)))
    yield invalid(ShapeError, normal((4, 63)), normal((96, 64)))
    yield invalid(DTypeError, normal((4, 64), DType.BF16), normal((96, 64), DType.F16))
    yield invalid(LayoutError, normal((4, 64)), _packed((96, 64), "panel32"))


def _packed(shape: tuple[int, int], layout: str) -> SampleOperand:
    return SampleOperand(TensorType(shape, DType.F32, layout=layout))


X, WEIGHT, BIAS = OperandSpec("x", FLOATS), OperandSpec("weight", WEIGHTS), OperandSpec("bias", F32, optional=True)

LINEAR = define(
    "linear",
    "x [..., K] times weight [M, K] transposed, plus bias [M]: [..., M].",
    (X, WEIGHT, BIAS),
    ("y",),
    _infer_linear,
    _reference_linear,
    _samples_linear,
    TOLERANCE,
    attrs=(DTYPE_ATTR, AXIS),
    cost=_cost,
    packed={"weight": "panel32"},
)

LINEAR_SPLIT = define(
    "linear_split",
    "linear whose columns are handed out to several results of `sizes` columns each.",
    (X, WEIGHT, BIAS),
    ("y*",),
    _infer_split,
    _reference_split,
    _samples_split,
    TOLERANCE,
    attrs=(AttrSpec("sizes", tuple), DTYPE_ATTR, AttrSpec("axes", str, "")),
    cost=_cost,
    packed={"weight": "panel32"},
)

LINEAR_SWIGLU = define(
    "linear_swiglu",
    "silu(x @ gate^T) * (x @ up^T) with weight [2F, K]: gate rows, then up rows.",
    (X, WEIGHT),
    ("y",),
    _infer_swiglu,
    _reference_swiglu,
    _samples_swiglu,
    TOLERANCE,
    attrs=(DTYPE_ATTR, AXIS),
    cost=_cost,
    packed={"weight": "panel32_pair"},
)

LINEAR_OPS = (
    LINEAR,
    LINEAR_SPLIT,
    LINEAR_SWIGLU,
)
