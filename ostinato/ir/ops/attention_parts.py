"""The products of attention over whole sequences one by one, for graphs that want the scores or the probabilities themselves: grouped heads read shared keys
and values where they lie, and the context comes token-major, as the projection behind it reads it.

Query head h reads key-value head h // (H / G). `repeat_gqa_kv_bthd` is the other way of grouping, keys and values repeated for products of as many heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.attend import check_heads
from ostinato.ir.ops.derivatives import only_gradient
from ostinato.ir.ops.elementwise import require_finite_factor
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    ELEMENTS,
    FLOATS,
    Arrays,
    Site,
    cost_per_element,
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
from ostinato.ir.rounding import multiply
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ATTENTION_PART_OPS", "ATTENTION_PROBABILITY_VALUE_BTHD", "ATTENTION_SCORES_GQA", "REPEAT_GQA_KV_BTHD"]


def _one_dtype(site: Site, name: str) -> None:
    first, second = site.operand(0), site.operand(1)
    if first.dtype is not second.dtype:
        fail(
            DTypeError, site.op, f"{name} of dtype {first.dtype.value} like the other", str(second), "cast one of them"
        )


def _infer_scores(site: Site) -> tuple[TensorType, ...]:
    q, k = site.operand(0), site.operand(1)
    require_rank(site.op, "q [B, H, T, D]", q, exactly=4)
    require_rank(site.op, "k [B, G, S, D]", k, exactly=4)
    _one_dtype(site, "k")
    require_finite_factor(site, "scale")
    require_shape(site.op, "k", k, (q.shape[0], k.shape[1], k.shape[2], q.shape[3]))
    check_heads(site.op, q.shape[1], k.shape[1])
    batch, _ = join_axes(site.op, "batch and head width of k", (q.axes[0], q.axes[3]), (k.axes[0], k.axes[3]))
    shape = (*q.shape[:3], k.shape[2])
    return (make_type(site.op, shape, result_float(site, q), (batch, *q.axes[1:3], k.axes[2])),)


def _infer_context(site: Site) -> tuple[TensorType, ...]:
    p, v = site.operand(0), site.operand(1)
    require_rank(site.op, "p [B, H, T, S]", p, exactly=4)
    require_rank(site.op, "v [B, S, G, D]", v, exactly=4)
    _one_dtype(site, "v")
    require_shape(site.op, "v", v, (p.shape[0], p.shape[3], *v.shape[2:]))
    check_heads(site.op, p.shape[1], v.shape[2])
    batch, _ = join_axes(site.op, "batch and keys of v", (p.axes[0], p.axes[3]), v.axes[:2])
    shape = (p.shape[0], p.shape[2], p.shape[1], v.shape[3])
    return (make_type(site.op, shape, result_float(site, p), (batch, p.axes[2], p.axes[1], v.axes[3])),)


def _infer_repeat(site: Site) -> tuple[TensorType, ...]:
    k, v, repeats = site.operand(0), site.operand(1), site.integer("repeats")
    require_rank(site.op, "k [B, G, T, D]", k, exactly=4)
    require_rank(site.op, "v [B, T, G, D]", v, exactly=4)
    _one_dtype(site, "v")
    require_shape(site.op, "v", v, (k.shape[0], k.shape[2], k.shape[1], k.shape[3]))
    join_axes(site.op, "axes of v", (k.axes[0], k.axes[2], k.axes[1], k.axes[3]), v.axes)
    if repeats < 1:
        fail(ConfigError, site.op, "1 repeat or more", str(repeats), "leave the operator out where nothing is repeated")
    groups = k.shape[1]
    if not isinstance(groups, int):
        fail(ShapeError, site.op, "an integer number of heads", str(k), "bind this dimension first")
    name, heads = site.text("name"), groups * repeats
    return (
        make_type(site.op, (k.shape[0], heads, *k.shape[2:]), k.dtype, (k.axes[0], name, *k.axes[2:])),
        make_type(site.op, (*v.shape[:2], heads, v.shape[3]), v.dtype, (*v.axes[:2], name, v.axes[3])),
    )


def _grouped(shared: Array, heads: int, axis: int) -> Array:
    return np.repeat(shared, heads // max(shared.shape[axis], 1), axis=axis)


def _reference_scores(call: Arrays) -> tuple[Array, ...]:
    q = call.wide(0)
    k = _grouped(call.wide(1), q.shape[1], 1)
    return ((multiply(q, k.swapaxes(-1, -2)) * np.float32(call.real("scale"))).astype(np.float32),)


def _reference_context(call: Arrays) -> tuple[Array, ...]:
    p = call.wide(0)
    v = _grouped(call.wide(1).transpose(0, 2, 1, 3), p.shape[1], 1)
    return (np.ascontiguousarray(multiply(p, v).transpose(0, 2, 1, 3)).astype(np.float32),)


def _reference_repeat(call: Arrays) -> tuple[Array, ...]:
    repeats = call.integer("repeats")
    return (np.repeat(call.operand(0), repeats, axis=1), np.repeat(call.operand(1), repeats, axis=2))


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """A product and a sum for each score (or probability) and each element of a head."""
    del attrs
    first, second = operands[0], operands[1]
    assert first is not None
    assert second is not None
    inner = first.static_shape[3]
    return Cost(2 * inner * results[0].elements, nbytes(*operands, *results))


_SIZES = (
    # batch, query heads, shared heads, queries, keys, head width
    (1, 1, 1, 1, 1, 1),
    (2, 3, 3, 9, 9, 32),
    (1, 14, 2, 33, 33, 64),
    (2, 4, 2, 100, 100, 16),
    (3, 4, 1, 7, 20, 80),
    (1, 6, 6, 130, 70, 8),
)
_HALVES = (DType.F16, DType.BF16)
_SQUARE = (2, 4, 2, 17, 17, 32)
_Sizes = tuple[int, int, int, int, int, int]


def _q_k(sizes: _Sizes, dtype: DType = DType.F32, named: bool = False) -> tuple[SampleOperand, SampleOperand]:
    b, h, g, t, s, d = sizes
    return normal((b, h, t, d), dtype, "BHTD" if named else ""), normal((b, g, s, d), dtype, "BGSD" if named else "")


def _p_v(sizes: _Sizes, dtype: DType = DType.F32, named: bool = False) -> tuple[SampleOperand, SampleOperand]:
    b, h, g, t, s, d = sizes
    return normal((b, h, t, s), dtype, "BHTS" if named else ""), normal((b, s, g, d), dtype, "BSGD" if named else "")


def _samples_scores(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for sizes in _SIZES:
        yield valid(*_q_k(sizes), scale=0.125)
    for dtype in _HALVES:
        yield valid(*_q_k(_SQUARE, dtype))
        yield valid(*_q_k(_SQUARE, dtype, named=True), scale=-0.5, dtype="f32")
    yield valid(*_q_k((2, 4, 2, 17, 19, 32), named=True), scale=0.25)
    for empty in ((0, 2, 1, 3, 3, 8), (2, 2, 1, 0, 3, 8), (2, 2, 1, 3, 0, 8), (1, 2, 1, 3, 3, 0)):
        yield valid(*_q_k(empty))
    q, k = _q_k((2, 6, 2, 5, 5, 32))
    yield invalid(ShapeError, q, normal((2, 4, 5, 32)))
    yield invalid(ShapeError, q, normal((2, 2, 5, 31)))
    yield invalid(ShapeError, q, normal((1, 2, 5, 32)))
    yield invalid(ShapeError, normal((6, 5, 32)), k)
    yield invalid(DTypeError, q, normal((2, 2, 5, 32), DType.BF16))
    yield invalid(ConfigError, q, k, attrs={"scale": float("inf")})
    yield invalid(LayoutError, normal((2, 6, 5, 32), axes="BHTD"), normal((2, 2, 5, 32), axes="BGDT"))
    yield invalid(LayoutError, normal((2, 6, 5, 32), axes="BHTD"), normal((2, 2, 5, 32), axes="BGTD"))


def _samples_context(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for sizes in _SIZES:
        yield valid(*_p_v(sizes))
    for dtype in _HALVES:
        yield valid(*_p_v(_SQUARE, dtype))
        yield valid(*_p_v(_SQUARE, dtype, named=True), dtype="f32")
    yield valid(*_p_v((2, 4, 2, 17, 19, 32), named=True))
    for empty in ((0, 2, 1, 3, 3, 8), (2, 2, 1, 0, 3, 8), (2, 2, 1, 3, 0, 8), (1, 2, 1, 3, 3, 0)):
        yield valid(*_p_v(empty))
    p, _ = _p_v((2, 6, 2, 5, 5, 32))
    yield invalid(ShapeError, p, normal((2, 5, 4, 32)))
    yield invalid(ShapeError, p, normal((2, 4, 2, 32)))
    yield invalid(ShapeError, p, normal((1, 5, 2, 32)))
    yield invalid(ShapeError, p, normal((2, 5, 32)))
    yield invalid(DTypeError, p, normal((2, 5, 2, 32), DType.F16))
    yield invalid(LayoutError, normal((2, 6, 5, 5), axes="BHTS"), normal((2, 5, 2, 32), axes="BTGD"))
    yield invalid(LayoutError, normal((2, 5, 5, 5), axes="BHTS"), normal((2, 5, 5, 32), axes="BHSD"))


def _samples_repeat(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for batch, groups, time, width, repeats in ((1, 1, 1, 1, 1), (2, 2, 9, 32, 7), (1, 3, 33, 64, 2), (3, 2, 5, 33, 3)):
        yield valid(normal((batch, groups, time, width)), normal((batch, time, groups, width)), repeats=repeats)
    for dtype in _HALVES:
        yield valid(normal((2, 2, 5, 16), dtype), normal((2, 5, 2, 16), dtype), repeats=4)
    yield valid(normal((2, 2, 5, 16), axes="BGSD"), normal((2, 5, 2, 16), axes="BSGD"), repeats=3, name="H")
    yield valid(normal((0, 2, 5, 16)), normal((0, 5, 2, 16)), repeats=3)
    yield valid(normal((2, 2, 0, 16)), normal((2, 0, 2, 16)), repeats=3)
    k, v = normal((2, 3, 5, 16)), normal((2, 5, 3, 16))
    yield invalid(ConfigError, k, v, attrs={"repeats": 0})
    yield invalid(ConfigError, k, v)
    yield invalid(ShapeError, k, normal((2, 3, 5, 16)), attrs={"repeats": 2})
    yield invalid(ShapeError, k, normal((2, 5, 16)), attrs={"repeats": 2})
    yield invalid(DTypeError, k, normal((2, 5, 3, 16), DType.F16), attrs={"repeats": 2})
    named = normal((2, 5, 5, 16), axes="BGSD"), normal((2, 5, 5, 16), axes="BGSD")
    yield invalid(LayoutError, *named, attrs={"repeats": 2})
    yield invalid(LayoutError, normal((2, 3, 5, 16), axes="BGSD"), v, attrs={"repeats": 2, "name": "S"})


def _gradients_scores(at: Gradients) -> Mapping[int, str]:
    operands = [only_gradient(at), at.operand(0), at.operand(1)]
    return dict(enumerate(at.apply_many("attention_scores_gqa_backward", operands, {"scale": at.attrs["scale"]})))


def _gradients_context(at: Gradients) -> Mapping[int, str]:
    dy, p, v = only_gradient(at), at.operand(0), at.operand(1)
    found: dict[int, str] = {}
    if at.wants(0):
        found[0] = at.apply("attention_probability_gradient_bthd", [dy, v])
    if at.wants(1):
        found[1] = at.apply("attention_value_gradient_bthd", [p, dy], {"groups": at.type(v).static_shape[2]})
    return found


def _gradients_repeat(at: Gradients) -> Mapping[int, str]:
    """Of keys and values in one node where both have a gradient."""
    gradients, attrs = (at.gradient(0), at.gradient(1)), {"repeats": at.attrs["repeats"]}
    name = at.type(at.operand(0)).axes[1]
    if None not in gradients:
        both = at.apply_many("repeat_gqa_kv_bthd_backward", gradients, {**attrs, "name": name})
        return dict(enumerate(both))
    found: dict[int, str] = {}
    for index, dy in enumerate(gradients):
        if dy is not None:
            found[index] = at.apply("repeat_interleave_backward", [dy], {"axis": 1 + index, **attrs, "name": name})
    return found


_BATCHED = Tolerance(
    3e-5, 3e-5, "contract of attention_probability_value_bthd: fp32 sums in another order than float64"
)

ATTENTION_SCORES_GQA = define(
    "attention_scores_gqa",
    "scale * q k^T of q [B,H,T,D] and shared keys k [B,G,S,D]: [B,H,T,S]; head h reads key head h // (H / G). Sums in float32.",
    (OperandSpec("q", FLOATS), OperandSpec("k", FLOATS)),
    ("y",),
    _infer_scores,
    _reference_scores,
    _samples_scores,
    Tolerance(2e-4, 2e-4, "contract of matmul: fp32 sums of D products in another order than the float64 reference"),
    attrs=(AttrSpec("scale", float, 1.0), DTYPE_ATTR),
    cost=_cost,
    derivative=_gradients_scores,
)

ATTENTION_PROBABILITY_VALUE_BTHD = define(
    "attention_probability_value_bthd",
    "p [B,H,T,S] times shared values v [B,S,G,D] -> [B,T,H,D], token-major; head h reads value head h // (H / G). Sums in float32.",
    (OperandSpec("p", FLOATS), OperandSpec("v", FLOATS)),
    ("y",),
    _infer_context,
    _reference_context,
    _samples_context,
    _BATCHED,
    attrs=(DTYPE_ATTR,),
    cost=_cost,
    derivative=_gradients_context,
)

REPEAT_GQA_KV_BTHD = define(
    "repeat_gqa_kv_bthd",
    "Shared heads of k [B,G,T,D] and v [B,T,G,D] repeated for each query head of theirs, in both orders: [B,H,T,D] and [B,T,H,D].",
    (OperandSpec("k", ELEMENTS), OperandSpec("v", ELEMENTS)),
    ("k_repeated", "v_repeated"),
    _infer_repeat,
    _reference_repeat,
    _samples_repeat,
    Tolerance(0, 0, "bytes are copied"),
    attrs=(AttrSpec("repeats", int), AttrSpec("name", str, "")),
    cost=cost_per_element(0),
    derivative=_gradients_repeat,
)

ATTENTION_PART_OPS = (
    ATTENTION_SCORES_GQA,
    ATTENTION_PROBABILITY_VALUE_BTHD,
    REPEAT_GQA_KV_BTHD,
)
