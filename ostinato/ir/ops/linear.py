"""Linear projections over dense and block weights kept as the checkpoint has them, [out, in].

`linear_split` and `linear_swiglu` exist because one pass over x then serves several projections; their weights are the same rows put one after another by the
load program. A norm of x before the product (`gain`) and a sum behind it (`bias`, `residual`) spare the memory passes between them; see `projection.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, SampleOperand
from ostinato.ir.ops.activation import sigmoid
from ostinato.ir.ops.projection import (
    BIAS,
    EPS,
    GAIN,
    TOLERANCE,
    WEIGHT,
    X,
    check_bias,
    check_gain,
    check_product,
    product,
    product_flops,
)
from ostinato.ir.ops.projection_gradients import (
    gradients_of_linear,
    gradients_of_split,
    gradients_of_swiglu,
)
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    FLOATS,
    WEIGHTS,
    Arrays,
    Site,
    define,
    fail,
    join_axes,
    make_type,
    nbytes,
    require_same_extent,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import invalid, normal, valid, whole
from ostinato.ir.rounding import working
from ostinato.ir.types import Array, DType, Extent, TensorType

__all__ = ["LINEAR", "LINEAR_OPS", "LINEAR_SPLIT", "LINEAR_SWIGLU"]

AXIS = AttrSpec("axis", str, "")
RESIDUAL = OperandSpec("residual", FLOATS, optional=True)


def _infer_linear(site: Site) -> tuple[TensorType, ...]:
    x, weight = check_product(site)
    check_bias(site, 2)
    check_gain(site, 4)
    dtype, axis = result_float(site, x), site.text("axis")
    join_axes(site.op, "result axis", (axis,), (weight.axes[0],))
    y = make_type(site.op, (*x.shape[:-1], weight.shape[0]), dtype, (*x.axes[:-1], axis))
    residual = site.optional(3)
    if residual is not None:
        require_shape(site.op, "residual", residual, y.shape)
        join_axes(site.op, "residual", y.axes, residual.axes)
        if residual.dtype is not dtype:
            expected = f"residual of dtype {dtype.value} like the result"
            fail(DTypeError, site.op, expected, str(residual), "cast it, or name its dtype as the result's")
    return (y,)


def _infer_split(site: Site) -> tuple[TensorType, ...]:
    x, weight = check_product(site)
    check_bias(site, 2)
    check_gain(site, 3)
    dtype = result_float(site, x)
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
    x, weight = check_product(site)
    check_gain(site, 2)
    shape, axes = (*x.shape[:-1], _half(site.op, weight.shape[0])), (*x.axes[:-1], site.text("axis"))
    return (make_type(site.op, shape, result_float(site, x), axes),)


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


def _reference_linear(call: Arrays) -> tuple[Array, ...]:
    y, residual = product(call, bias=2, gain=4), call.optional(3)
    return ((y if residual is None else y + residual.astype(working())).astype(np.float32),)


def _reference_split(call: Arrays) -> tuple[Array, ...]:
    y = product(call, bias=2, gain=3).astype(np.float32)
    edges = np.cumsum(call.integers("sizes"))[:-1]
    return tuple(np.split(y, edges, axis=-1))


def _reference_swiglu(call: Arrays) -> tuple[Array, ...]:
    gate, up = np.split(product(call, bias=None, gain=2), 2, axis=-1)
    return ((gate * sigmoid(gate) * up).astype(np.float32),)


def _cost(gain: int) -> Callable[[OperandTypes, Sequence[TensorType], Mapping[str, Attr]], Cost]:
    """The cost of a product whose gain is that operand."""

    def cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
        del attrs
        return Cost(product_flops(operands, gain), nbytes(*operands, *results))

    return cost


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
    yield from _samples_fused()
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
    plain = (normal((4, 64)), normal((48, 64)), None)
    yield invalid(ShapeError, *plain, normal((48,)))
    yield invalid(DTypeError, *plain, normal((4, 48), DType.BF16))
    yield invalid(LayoutError, normal((4, 64), axes="NC"), *plain[1:], normal((4, 48), axes="TC"))
    yield from _invalid_gains(*plain, None)


def _samples_fused() -> Iterator[Sample]:
    """A norm before the product and a residual behind it, each alone and together, with a bias and without."""
    for weight in KINDS:
        k = whole(weight, 96)
        for m in (1, 5):
            yield valid(normal((m, k)), normal((40, k), weight), None, normal((m, 40)))
            yield valid(normal((m, k)), normal((40, k), weight), normal((40,)), None, normal((k,)), eps=1e-6)
    for half in (DType.BF16, DType.F16):
        for m in (1, 3, 33):
            pair, gain = (normal((m, 96), half), normal((70, 96), half)), normal((96,))
            yield valid(*pair, None, normal((m, 70), half))
            yield valid(*pair, normal((70,)), normal((m, 70)), dtype="f32")
            yield valid(*pair, None, None, gain, eps=1e-6)
            yield valid(*pair, None, normal((m, 70), half), gain, eps=1e-6)
    for m, k in ((1, 33), (7, 100), (40, 64)):
        yield valid(normal((m, k)), normal((34, k)), None, None, normal((k,)), eps=1e-5)
        yield valid(normal((m, k)), normal((34, k), DType.BF16), normal((34,)), normal((m, 34)), normal((k,)), eps=1e-5)
    named = normal((7, 64), axes="NC"), normal((48, 64), axes="FC"), None, normal((7, 48), axes="NF")
    yield valid(*named, normal((64,), axes="C"), axis="F", eps=1e-6)
    yield valid(normal((0, 64)), normal((48, 64)), None, normal((0, 48)), normal((64,)), eps=1e-6)


def _invalid_gains(*before: SampleOperand | None, **attrs: Attr) -> Iterator[Sample]:
    """A gain of another length or dtype, one without an eps, and an eps without one, behind operands whose x has 64 columns."""
    yield invalid(ShapeError, *before, normal((48,)), attrs={**attrs, "eps": 1e-6})
    yield invalid(DTypeError, *before, normal((64,), DType.BF16), attrs={**attrs, "eps": 1e-6})
    for eps in (0.0, -1e-6, float("nan")):
        yield invalid(ConfigError, *before, normal((64,)), attrs={**attrs, "eps": eps})
    yield invalid(ConfigError, *before, attrs={**attrs, "eps": 1e-6})


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
    for x, weight in ((DType.F32, DType.F32), (DType.F32, DType.Q8_0), (DType.BF16, DType.BF16)):
        for m in (1, 9):
            operands = normal((m, 64), x), normal((96, 64), weight), normal((96,)), normal((64,))
            yield valid(*operands, sizes=(64, 16, 16), eps=1e-6)
    yield valid(normal((5, 33)), normal((7, 33), DType.BF16), None, normal((33,)), sizes=(4, 3), eps=1e-5)
    yield invalid(ShapeError, normal((3, 64)), normal((96, 64)), attrs={"sizes": (64, 16)})
    yield invalid(ShapeError, normal((3, 64)), normal((96, 64)), attrs={"sizes": ()})
    yield invalid(ShapeError, normal((3, 64)), normal((96, 64)), attrs={"sizes": (112, -16)})
    yield invalid(ShapeError, normal((3, 32)), normal((96, 64)), attrs={"sizes": (64, 32)})
    yield invalid(LayoutError, normal((3, 64)), normal((96, 64)), attrs={"sizes": (64, 32), "axes": "HGG"})
    yield invalid(ConfigError, normal((3, 64)), normal((96, 64)))
    yield from _invalid_gains(normal((3, 64)), normal((96, 64)), None, sizes=(64, 32))


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
    for x, weight in ((DType.F32, DType.F32), (DType.F32, DType.Q8_0), (DType.BF16, DType.BF16)):
        for m in (1, 9):
            yield valid(normal((m, 64), x), normal((68, 64), weight), normal((64,)), eps=1e-6)
    yield valid(normal((5, 33)), normal((14, 33), DType.BF16), normal((33,)), eps=1e-5)
    yield invalid(ShapeError, normal((4, 64)), normal((95, 64)))
    yield invalid(ShapeError, normal((4, 63)), normal((96, 64)))
    yield invalid(DTypeError, normal((4, 64), DType.BF16), normal((96, 64), DType.F16))
    yield invalid(LayoutError, normal((4, 64)), _packed((96, 64), "panel32"))
    yield from _invalid_gains(normal((4, 64)), normal((96, 64)))


def _packed(shape: tuple[int, int], layout: str) -> SampleOperand:
    return SampleOperand(TensorType(shape, DType.F32, layout=layout))


LINEAR = define(
    "linear",
    "x [..., K], RMS-normalised with gain [K] where there is one, times weight [M, K] transposed, plus bias [M], plus residual [..., M]: [..., M].",
    (X, WEIGHT, BIAS, RESIDUAL, GAIN),
    ("y",),
    _infer_linear,
    _reference_linear,
    _samples_linear,
    TOLERANCE,
    attrs=(DTYPE_ATTR, AXIS, EPS),
    cost=_cost(gain=4),
    packed={"weight": "panel32"},
    derivative=gradients_of_linear,
)

LINEAR_SPLIT = define(
    "linear_split",
    "linear whose columns are handed out to several results of `sizes` columns each.",
    (X, WEIGHT, BIAS, GAIN),
    ("y*",),
    _infer_split,
    _reference_split,
    _samples_split,
    TOLERANCE,
    attrs=(AttrSpec("sizes", tuple), DTYPE_ATTR, AttrSpec("axes", str, ""), EPS),
    cost=_cost(gain=3),
    packed={"weight": "panel32"},
    derivative=gradients_of_split,
)

LINEAR_SWIGLU = define(
    "linear_swiglu",
    "silu(x @ gate^T) * (x @ up^T) with weight [2F, K], gate rows, then up rows; x RMS-normalised with gain [K] where there is one.",
    (X, WEIGHT, GAIN),
    ("y",),
    _infer_swiglu,
    _reference_swiglu,
    _samples_swiglu,
    TOLERANCE,
    attrs=(DTYPE_ATTR, AXIS, EPS),
    cost=_cost(gain=2),
    packed={"weight": "panel32_pair"},
    derivative=gradients_of_swiglu,
)

LINEAR_OPS = (
    LINEAR,
    LINEAR_SPLIT,
    LINEAR_SWIGLU,
)
