"""Gradients of the products of attention one by one, with shared heads where they lie: that of a shared head is the sum over the query heads that read it,
and that of the probabilities comes head-major from a token-major gradient, so that nothing is copied through strides in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.attend import check_heads
from ostinato.ir.ops.derivatives import GRADIENT, SECOND
from ostinato.ir.ops.elementwise import require_finite_factor
from ostinato.ir.ops.rules import (
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
)
from ostinato.ir.ops.samplers import invalid, normal, valid
from ostinato.ir.rounding import multiply
from ostinato.ir.types import Array, DType, TensorType

__all__ = [
    "ATTENTION_PART_BACKWARD_OPS",
    "ATTENTION_PROBABILITY_GRADIENT_BTHD",
    "ATTENTION_SCORES_GQA_BACKWARD",
    "ATTENTION_VALUE_GRADIENT_BTHD",
]


def _infer_scores(site: Site) -> tuple[TensorType, ...]:
    gradient, q, k = (site.operand(i) for i in range(3))
    require_rank(site.op, "q [B, H, T, D]", q, exactly=4)
    require_rank(site.op, "k [B, G, S, D]", k, exactly=4)
    if q.dtype is not k.dtype:
        fail(DTypeError, site.op, f"k of dtype {q.dtype.value} like q", str(k), "cast one of them")
    require_finite_factor(site, "scale")
    require_shape(site.op, "k", k, (q.shape[0], k.shape[1], k.shape[2], q.shape[3]))
    check_heads(site.op, q.shape[1], k.shape[1])
    join_axes(site.op, "batch and head width of k", (q.axes[0], q.axes[3]), (k.axes[0], k.axes[3]))
    require_shape(site.op, "gradient [B, H, T, S]", gradient, (*q.shape[:3], k.shape[2]))
    join_axes(site.op, "gradient", (*q.axes[:3], k.axes[2]), gradient.axes)
    return tuple(make_type(site.op, like.shape, DType.F32, like.axes) for like in (q, k))


def _infer_probability(site: Site) -> tuple[TensorType, ...]:
    gradient, v = site.operand(0), site.operand(1)
    require_rank(site.op, "gradient [B, T, H, D]", gradient, exactly=4)
    require_rank(site.op, "v [B, S, G, D]", v, exactly=4)
    batch, time, heads, width = gradient.shape
    require_shape(site.op, "v", v, (batch, v.shape[1], v.shape[2], width))
    check_heads(site.op, heads, v.shape[2])
    (b, t, h, d), (vb, s, _, vd) = gradient.axes, v.axes
    b, _ = join_axes(site.op, "batch and head width of v", (b, d), (vb, vd))
    # the keys of attention over itself may have the name of its queries
    return (make_type(site.op, (batch, heads, time, v.shape[1]), DType.F32, (b, h, t, "" if s == t else s)),)


def _infer_value(site: Site) -> tuple[TensorType, ...]:
    p, gradient, groups = site.operand(0), site.operand(1), site.integer("groups")
    require_rank(site.op, "p [B, H, T, S]", p, exactly=4)
    require_rank(site.op, "gradient [B, T, H, D]", gradient, exactly=4)
    batch, heads, time, keys = p.shape
    require_shape(site.op, "gradient", gradient, (batch, time, heads, gradient.shape[3]))
    b, h, t, s = p.axes
    b, *_ = join_axes(site.op, "gradient", (b, t, h), gradient.axes[:3])
    if groups < 1:
        fail(ConfigError, site.op, "1 group or more", str(groups), "give the heads that values have")
    check_heads(site.op, heads, groups)
    return (make_type(site.op, (batch, keys, groups, gradient.shape[3]), DType.F32, (b, s, "", gradient.axes[3])),)


def _repeated(shared: Array, heads: int) -> Array:
    """[B, G, ...] for each of H heads."""
    return np.repeat(shared, heads // max(shared.shape[1], 1), axis=1)


def _summed(of_heads: Array, groups: int) -> Array:
    """[B, H, ...] summed over the heads of a group."""
    batch, heads, *rest = of_heads.shape
    found: Array = of_heads.reshape(batch, groups, heads // groups, *rest).sum(axis=2)
    return found


def _reference_scores(call: Arrays) -> tuple[Array, ...]:
    scale = np.float32(call.real("scale"))
    gradient, q, k = call.wide(0), call.wide(1), call.wide(2)
    dq = multiply(gradient, _repeated(k, q.shape[1]))
    dk = _summed(multiply(gradient.swapaxes(-1, -2), q), k.shape[1])
    return ((dq * scale).astype(np.float32), (dk * scale).astype(np.float32))


def _reference_probability(call: Arrays) -> tuple[Array, ...]:
    gradient = call.wide(0).transpose(0, 2, 1, 3)
    v = _repeated(call.wide(1).transpose(0, 2, 3, 1), gradient.shape[1])
    return (multiply(gradient, v).astype(np.float32),)


def _reference_value(call: Arrays) -> tuple[Array, ...]:
    p, gradient = call.wide(0), call.wide(1).transpose(0, 2, 1, 3)
    found = _summed(multiply(p.swapaxes(-1, -2), gradient), call.integer("groups"))
    return (np.ascontiguousarray(found.transpose(0, 2, 1, 3)).astype(np.float32),)


def _cost(scores: int, width: int, products: int, operands: OperandTypes, results: Sequence[TensorType]) -> Cost:
    """So many products for each score and each element of a head."""
    return Cost(2 * products * scores * width, nbytes(*operands, *results))


def _cost_scores(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    del attrs
    gradient = operands[0]
    assert gradient is not None
    return _cost(gradient.elements, results[0].static_shape[3], 2, operands, results)


def _cost_probability(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    del attrs
    gradient = operands[0]
    assert gradient is not None
    return _cost(results[0].elements, gradient.static_shape[3], 1, operands, results)


def _cost_value(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    del attrs
    p = operands[0]
    assert p is not None
    return _cost(p.elements, results[0].static_shape[3], 1, operands, results)


_Sizes = tuple[int, int, int, int, int, int]
_SIZES: tuple[_Sizes, ...] = (
    # batch, query heads, shared heads, queries, keys, head width
    (1, 1, 1, 1, 1, 1),
    (2, 3, 3, 9, 9, 32),
    (1, 14, 2, 33, 33, 64),
    (2, 4, 2, 100, 100, 16),
    (3, 4, 1, 7, 20, 80),
    (1, 6, 6, 130, 70, 8),
)
_EMPTY: tuple[_Sizes, ...] = ((0, 2, 1, 3, 3, 8), (2, 2, 1, 0, 3, 8), (2, 2, 1, 3, 0, 8), (1, 2, 1, 3, 3, 0))
_SQUARE: _Sizes = (2, 4, 2, 17, 17, 32)
_HALVES = (DType.F16, DType.BF16)


def _of_scores(sizes: _Sizes, dtype: DType = DType.F32, named: bool = False) -> tuple[SampleOperand, ...]:
    b, h, g, t, s, d = sizes
    axes = ("BHTS", "BHTD", "BGSD") if named else ("", "", "")
    gradient = normal((b, h, t, s), axes=axes[0])
    return gradient, normal((b, h, t, d), dtype, axes[1]), normal((b, g, s, d), dtype, axes[2])


def _of_probability(sizes: _Sizes, dtype: DType = DType.F32, named: bool = False) -> tuple[SampleOperand, ...]:
    b, h, g, t, s, d = sizes
    axes = ("BTHD", "BSGD") if named else ("", "")
    return normal((b, t, h, d), axes=axes[0]), normal((b, s, g, d), dtype, axes[1])


def _of_value(sizes: _Sizes, dtype: DType = DType.F32, named: bool = False) -> tuple[SampleOperand, ...]:
    b, h, _, t, s, d = sizes
    axes = ("BHTS", "BTHD") if named else ("", "")
    return normal((b, h, t, s), dtype, axes[0]), normal((b, t, h, d), axes=axes[1])


def _samples_scores(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for sizes in (*_SIZES, *_EMPTY):
        yield valid(*_of_scores(sizes), scale=0.125)
    for dtype in _HALVES:
        yield valid(*_of_scores(_SQUARE, dtype))
        yield valid(*_of_scores(_SQUARE, dtype, named=True), scale=-0.5)
    yield valid(*_of_scores((2, 4, 2, 17, 19, 32), named=True), scale=0.25)
    gradient, q, k = _of_scores((2, 6, 2, 5, 5, 32))
    yield invalid(ShapeError, gradient, q, normal((2, 4, 5, 32)))
    yield invalid(ShapeError, gradient, q, normal((2, 2, 5, 31)))
    yield invalid(ShapeError, normal((2, 6, 5, 4)), q, k)
    yield invalid(ShapeError, gradient, normal((6, 5, 32)), k)
    yield invalid(DTypeError, gradient, q, normal((2, 2, 5, 32), DType.BF16))
    yield invalid(DTypeError, normal((2, 6, 5, 5), DType.BF16), q, k)
    yield invalid(ConfigError, gradient, q, k, attrs={"scale": float("inf")})
    named = normal((2, 6, 5, 32), axes="BHTD"), normal((2, 2, 5, 32), axes="BGSD")
    yield invalid(LayoutError, normal((2, 6, 5, 5), axes="BHST"), *named)
    yield invalid(LayoutError, gradient, named[0], normal((2, 2, 5, 32), axes="BGDT"))


def _samples_probability(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for sizes in (*_SIZES, *_EMPTY):
        yield valid(*_of_probability(sizes))
    for dtype in _HALVES:
        yield valid(*_of_probability(_SQUARE, dtype))
        yield valid(*_of_probability(_SQUARE, dtype, named=True))
    yield valid(*_of_probability((2, 4, 2, 17, 19, 32), named=True))
    yield valid(normal((2, 7, 4, 16), axes="BTHD"), normal((2, 7, 2, 16), axes="BTGD"))
    gradient, v = _of_probability((2, 6, 2, 5, 5, 32))
    yield invalid(ShapeError, gradient, normal((2, 5, 4, 32)))
    yield invalid(ShapeError, gradient, normal((2, 5, 2, 31)))
    yield invalid(ShapeError, gradient, normal((1, 5, 2, 32)))
    yield invalid(ShapeError, normal((5, 6, 32)), v)
    yield invalid(DTypeError, normal((2, 5, 6, 32), DType.F16), v)
    yield invalid(ConfigError, gradient, v, attrs={"scale": 1.0})
    yield invalid(LayoutError, normal((2, 5, 6, 32), axes="BTHD"), normal((2, 5, 2, 32), axes="TSGD"))
    yield invalid(LayoutError, normal((2, 5, 6, 32), axes="BTHD"), normal((2, 5, 2, 32), axes="BSDG"))


def _samples_value(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for sizes in (*_SIZES, *_EMPTY):
        yield valid(*_of_value(sizes), groups=sizes[2])
    for dtype in _HALVES:
        yield valid(*_of_value(_SQUARE, dtype), groups=2)
        yield valid(*_of_value(_SQUARE, dtype, named=True), groups=1)
    yield valid(*_of_value((2, 4, 2, 17, 19, 32), named=True), groups=4)
    p, gradient = _of_value((2, 6, 2, 5, 5, 32))
    yield invalid(ShapeError, p, gradient, attrs={"groups": 4})
    yield invalid(ShapeError, p, normal((2, 6, 5, 32)), attrs={"groups": 2})
    yield invalid(ShapeError, p, normal((1, 5, 6, 32)), attrs={"groups": 2})
    yield invalid(ShapeError, normal((6, 5, 5)), gradient, attrs={"groups": 2})
    yield invalid(DTypeError, p, normal((2, 5, 6, 32), DType.BF16), attrs={"groups": 2})
    yield invalid(ConfigError, p, gradient, attrs={"groups": 0})
    yield invalid(ConfigError, p, gradient)
    yield invalid(
        LayoutError, normal((2, 5, 5, 5), axes="BHTS"), normal((2, 5, 5, 32), axes="BHTD"), attrs={"groups": 1}
    )


_BATCHED = Tolerance(3e-5, 3e-5, "contract of attention_probability_gradient_bthd: fp32 sums in another order")

ATTENTION_SCORES_GQA_BACKWARD = define(
    "attention_scores_gqa_backward",
    "Gradients of q [B,H,T,D] and shared keys k [B,G,S,D] of attention_scores_gqa from the gradient [B,H,T,S] of its scores.",
    (GRADIENT, OperandSpec("q", FLOATS), OperandSpec("k", FLOATS)),
    ("q_gradient", "k_gradient"),
    _infer_scores,
    _reference_scores,
    _samples_scores,
    Tolerance(2e-4, 2e-4, "contract of matmul: fp32 sums of products in another order than the float64 reference"),
    attrs=(AttrSpec("scale", float, 1.0),),
    cost=_cost_scores,
    derivative=SECOND,
)

ATTENTION_PROBABILITY_GRADIENT_BTHD = define(
    "attention_probability_gradient_bthd",
    "Gradient [B,H,T,S] of the probabilities of attention_probability_value_bthd: that of its result [B,T,H,D] times values v [B,S,G,D] transposed.",
    (GRADIENT, OperandSpec("v", FLOATS)),
    ("y",),
    _infer_probability,
    _reference_probability,
    _samples_probability,
    _BATCHED,
    cost=_cost_probability,
    derivative=SECOND,
)

ATTENTION_VALUE_GRADIENT_BTHD = define(
    "attention_value_gradient_bthd",
    "Gradient [B,S,G,D] of the values of attention_probability_value_bthd: p [B,H,T,S] transposed times the gradient [B,T,H,D], summed over shared heads.",
    (OperandSpec("p", FLOATS), GRADIENT),
    ("y",),
    _infer_value,
    _reference_value,
    _samples_value,
    _BATCHED,
    attrs=(AttrSpec("groups", int),),
    cost=_cost_value,
    derivative=SECOND,
)

ATTENTION_PART_BACKWARD_OPS = (
    ATTENTION_SCORES_GQA_BACKWARD,
    ATTENTION_PROBABILITY_GRADIENT_BTHD,
    ATTENTION_VALUE_GRADIENT_BTHD,
)
