"""Gradients of causal attention over whole sequences, and what its forward pass keeps for them: for each query the logarithm of the sum of its exponentials.

With it the probabilities P = exp(scores - log_sum) are made again block by block, in any order, and nothing of the size of the square of scores is ever kept
(Dao et al. 2022). With dP = gradient v^T, the gradient of the scores is P (dP - delta), delta the dot product of the gradient with the result of attention;
a soft cap c bends it by 1 - (score / c)^2 of the capped score. Keys and values of shared heads get the sum over the query heads that read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.derivative import Gradients, NotDifferentiable
from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.attend import (
    ATTENTION_TOLERANCE,
    SCALE,
    SOFT_CAP,
    WINDOW,
    attend,
    causal_pairs,
    check_causal,
    sizes_of_sequences,
    visible_keys,
)
from ostinato.ir.ops.attention import HEADS, WRONG_ATTRIBUTES
from ostinato.ir.ops.derivatives import GRADIENT, SECOND, upstream
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    FLOATS,
    Arrays,
    Site,
    define,
    join_axes,
    make_type,
    nbytes,
    refuse_mixed_halves,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import floats, invalid, normal, reals, valid
from ostinato.ir.rounding import multiply, working
from ostinato.ir.types import Array, DType, TensorType

__all__ = [
    "ATTENTION_BACKWARD_OPS",
    "ATTENTION_BACKWARD_TOLERANCE",
    "ATTENTION_CAUSAL_BACKWARD",
    "ATTENTION_CAUSAL_SAVED",
    "ATTENTION_LOG_SUM",
    "attend_backward",
    "log_sums",
]

ATTENTION_BACKWARD_TOLERANCE = Tolerance(
    5e-5, 5e-5, "attention computed again in fp32, and fp32 sums over keys and queries in any order, against float64"
)


def _log_sum_type(site: Site) -> TensorType:
    q = site.operand(0)
    (batch, time, heads, _), (b, t, h, _) = q.shape, q.axes
    return make_type(site.op, (batch, heads, time), DType.F32, (b, h, t))


def _infer_saved(site: Site) -> tuple[TensorType, ...]:
    check_causal(site)
    q = site.operand(0)
    return (make_type(site.op, q.shape, result_float(site, q), q.axes), _log_sum_type(site))


def _infer_log_sum(site: Site) -> tuple[TensorType, ...]:
    check_causal(site)
    return (_log_sum_type(site),)


def _infer_backward(site: Site) -> tuple[TensorType, ...]:
    check_causal(site, first=1)
    gradient = upstream(site, 0, 1)
    q, k, v, y, log_sum = (site.operand(i) for i in range(1, 6))
    require_shape(site.op, "y", y, q.shape)
    join_axes(site.op, "y", q.axes, y.axes)
    refuse_mixed_halves(site.op, q, y)
    (batch, time, heads, _), (b, t, h, _) = q.shape, q.axes
    require_shape(site.op, "log_sum", log_sum, (batch, heads, time))
    join_axes(site.op, "log_sum", (b, h, t), log_sum.axes)
    dtype = result_float(site, gradient)
    return tuple(make_type(site.op, like.shape, dtype, like.axes) for like in (q, k, v))


def _scores(q: Array, k: Array, visible: Array, scale: float, soft_cap: float) -> Array:
    """q [n,H,D] and k [keys,G,D] -> capped scores [H,n,keys], -inf where a query does not see a key."""
    heads = q.shape[1] // max(k.shape[1], 1)
    scores = multiply(q.transpose(1, 0, 2), np.repeat(k.transpose(1, 2, 0), heads, axis=0)) * scale
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
    return np.where(visible, scores, -np.inf)


def log_sums(q: Array, k: Array, visible: Array, scale: float, soft_cap: float = 0.0) -> Array:
    """The logarithm of the sum of exp(score) over the keys that a query sees: [H,n]; -inf for a query that sees none."""
    scores = _scores(q, k, visible, scale, soft_cap)
    largest = np.max(scores, axis=-1, initial=-np.inf)
    about = np.where(largest == -np.inf, 0.0, largest)
    with np.errstate(divide="ignore"):
        found: Array = about + np.log(np.sum(np.exp(scores - about[..., None]), axis=-1))
    return found


def attend_backward(
    gradient: Array,
    operands: tuple[Array, Array, Array, Array],
    log_sum: Array,
    visible: Array,
    scale: float,
    soft_cap: float = 0.0,
) -> tuple[Array, Array, Array]:
    """The gradients of q [n,H,D], k and v [keys,G,D] for the gradient of y [n,H,D]; `operands` are q, k, v and y, `log_sum` [H,n] is finite where a query
    sees a key."""
    q, k, v, y = operands
    groups = k.shape[1]
    heads = q.shape[1] // max(groups, 1)
    scores = _scores(q, k, visible, scale, soft_cap)
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.where(visible, np.exp(scores - np.where(log_sum == -np.inf, 0.0, log_sum)[..., None]), 0.0)
    upstream_of = gradient.transpose(1, 0, 2)
    dp = multiply(upstream_of, np.repeat(v.transpose(1, 2, 0), heads, axis=0))
    ds = p * (dp - np.sum(gradient * y, axis=-1).T[..., None])
    if soft_cap:
        ds = ds * (1 - np.square(np.where(visible, scores, 0.0) / soft_cap))
    ds = ds * scale
    dq = multiply(ds, np.repeat(k.transpose(1, 0, 2), heads, axis=0)).transpose(1, 0, 2)
    dk, dv = (
        multiply(weights.swapaxes(-1, -2), by).reshape(groups, heads, *k.shape[::2]).sum(axis=1).transpose(1, 0, 2)
        for weights, by in ((ds, q.transpose(1, 0, 2)), (p, upstream_of))
    )
    return dq, dk, dv


def _reference_log_sum(call: Arrays) -> tuple[Array, ...]:
    q, k = call.wide(0), call.wide(1)
    batch, time, heads, _ = q.shape
    visible = visible_keys(np.arange(time), time, call.integer("window"))
    found = np.zeros((batch, heads, time), dtype=np.float32)
    for row in range(batch):
        found[row] = log_sums(q[row], k[row], visible, call.real("scale"), call.real("soft_cap"))
    return (found,)


def _reference_saved(call: Arrays) -> tuple[Array, ...]:
    q, k, v = (call.wide(i) for i in range(3))
    visible = visible_keys(np.arange(q.shape[1]), q.shape[1], call.integer("window"))
    y = np.zeros(q.shape, dtype=np.float32)
    for row in range(q.shape[0]):
        y[row] = attend(q[row], k[row], v[row], visible, call.real("scale"), call.real("soft_cap"))
    return (y, *_reference_log_sum(call))


def _reference_backward(call: Arrays) -> tuple[Array, ...]:
    gradient, q, k, v, y, log_sum = (call.wide(i) for i in range(6))
    visible = visible_keys(np.arange(q.shape[1]), q.shape[1], call.integer("window"))
    found = tuple(np.zeros(like.shape, dtype=working()) for like in (q, k, v))
    for row in range(q.shape[0]):
        operands = q[row], k[row], v[row], y[row]
        scale, cap = call.real("scale"), call.real("soft_cap")
        made = attend_backward(gradient[row], operands, log_sum[row], visible, scale, cap)
        for whole, part in zip(found, made, strict=True):
            whole[row] = part
    return tuple(array.astype(np.float32) for array in found)


def _flops(q: TensorType | None, attrs: Mapping[str, Attr], products: int) -> int:
    """So many products for each pair of a query and a key that it sees."""
    assert q is not None
    window, sequence = attrs["window"], q.static_shape[1]
    assert isinstance(window, int)
    return 2 * products * (q.elements // max(sequence, 1)) * causal_pairs(sequence, window)


def _cost_saved(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    return Cost(_flops(operands[0], attrs, 2), nbytes(*operands, *results))


def _cost_log_sum(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    return Cost(_flops(operands[0], attrs, 1), nbytes(*operands, *results))


def _cost_backward(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """The scores again, the gradient of the probabilities, and a product for each result."""
    return Cost(_flops(operands[1], attrs, 5), nbytes(*operands, *results))


_Case = tuple[tuple[SampleOperand, SampleOperand, SampleOperand], dict[str, Attr]]


def _cases(rng: np.random.Generator) -> Iterator[_Case]:
    """Operands q, k, v and attributes, their values given, so that a result of theirs can be given too."""

    def call(
        batch: int, sequence: int, heads: tuple[int, int, int], dtype: DType = DType.F32, named: bool = False
    ) -> tuple[SampleOperand, SampleOperand, SampleOperand]:
        query, shared, head = heads
        shapes = ((batch, sequence, query, head), *[(batch, sequence, shared, head)] * 2)
        axes = ("BTHD", "BTGD", "BTGD") if named else ("", "", "")
        q, k, v = (floats(rng.standard_normal(shape), dtype, name) for shape, name in zip(shapes, axes, strict=True))
        return q, k, v

    for heads in HEADS:
        for batch, sequence in ((1, 1), (2, 9), (1, 33)):
            yield call(batch, sequence, heads), {"scale": heads[2] ** -0.5}
    for dtype in (DType.F16, DType.BF16):
        yield call(2, 31, (14, 2, 64), dtype), {"scale": 0.125}
        yield call(1, 17, (3, 1, 80), dtype), {"scale": 0.125}
        yield call(2, 37, (6, 2, 64), dtype, named=True), {"scale": 0.125, "window": 30}
    yield call(1, 100, (6, 2, 64), named=True), {"scale": 0.125}
    yield call(1, 150, (4, 2, 16)), {"scale": 0.25, "window": 33}
    for window in (1, 4, 6, 7, 100):
        yield call(2, 6, (4, 2, 32)), {"scale": 0.2, "window": window}
    for cap in (50.0, 0.5):
        yield call(2, 19, (4, 2, 64)), {"scale": 1.0, "soft_cap": cap}
    yield call(2, 70, (3, 1, 32), DType.BF16, named=True), {"scale": 0.2, "window": 9, "soft_cap": 3.0}
    yield call(0, 5, (2, 1, 32)), {"scale": 0.2}
    yield call(2, 0, (2, 1, 32)), {"scale": 0.2}


def _samples_saved(rng: np.random.Generator) -> Iterator[Sample]:
    for operands, attrs in _cases(rng):
        yield valid(*operands, **attrs)
    for dtype in (DType.F16, DType.BF16):
        half = [normal((1, 17, heads, 80), dtype) for heads in (3, 1, 1)]
        yield valid(*half, scale=0.125, dtype="f32")
    yield valid(*(normal((2, 5, 4, 32)) for _ in range(3)), scale=1.0, dtype="bf16")
    good = [normal((2, 5, heads, 32)) for heads in (6, 2, 2)]
    yield from _invalid(good)
    yield invalid(ShapeError, *good[:2], attrs={"scale": 0.2})
    yield invalid(ShapeError, *good[:2], normal((2, 4, 2, 32)), attrs={"scale": 0.2})
    yield invalid(DTypeError, *good, attrs={"scale": 0.2, "dtype": "i32"})


def _samples_log_sum(rng: np.random.Generator) -> Iterator[Sample]:
    for operands, attrs in _cases(rng):
        yield valid(*operands[:2], **attrs)
    yield from _invalid([normal((2, 5, heads, 32)) for heads in (6, 2)])


def _samples_backward(rng: np.random.Generator) -> Iterator[Sample]:
    for number, (operands, attrs) in enumerate(_cases(rng)):
        q, k, v = operands
        made, log_sum = _forward(operands, attrs)
        axes = "".join(axis or "_" for axis in q.type.axes)
        more = {} if number % 5 or number < 20 else {"dtype": "bf16"}
        gradient = normal(q.type.static_shape, axes=axes)
        of_log_sum = reals(log_sum, f"{axes[0]}{axes[2]}{axes[1]}")
        yield valid(gradient, q, k, v, floats(made, q.type.dtype, axes), of_log_sum, **attrs, **more)
        if q.type.dtype is not DType.F32:
            yield valid(gradient, q, k, v, floats(made, DType.F32, axes), of_log_sum, **attrs, dtype=q.type.dtype.value)
    y, good = normal((2, 5, 6, 32)), [normal((2, 5, heads, 32)) for heads in (6, 2, 2)]
    log_sum_of = normal((2, 6, 5))
    yield from _invalid([y, *good, y, log_sum_of], first=1)
    small = {"scale": 0.2}
    yield invalid(ShapeError, normal((2, 6, 5, 32)), *good, y, log_sum_of, attrs=small)
    yield invalid(ShapeError, y, *good, normal((2, 5, 6, 31)), log_sum_of, attrs=small)
    yield invalid(ShapeError, y, *good, y, normal((2, 5, 6)), attrs=small)
    yield invalid(ShapeError, y, *good, y, attrs=small)
    yield invalid(DTypeError, normal((2, 5, 6, 32), DType.BF16), *good, y, log_sum_of, attrs=small)
    yield invalid(DTypeError, y, *good, y, normal((2, 6, 5), DType.BF16), attrs=small)
    yield invalid(DTypeError, y, *good, y, log_sum_of, attrs={**small, "dtype": "i32"})
    square = [normal((2, 6, heads, 32)) for heads in (6, 2, 2)]
    turned = normal((2, 6, 6, 32), axes="BHTD")
    named = normal((2, 6, 6, 32), axes="BTHD")
    yield invalid(LayoutError, turned, named, *square[1:], named, normal((2, 6, 6)), attrs=small)
    yield invalid(LayoutError, named, named, *square[1:], named, normal((2, 6, 6), axes="BTH"), attrs=small)


def _forward(
    operands: tuple[SampleOperand, SampleOperand, SampleOperand], attrs: Mapping[str, Attr]
) -> tuple[Array, ...]:
    """y in float32 and log_sum of the operands of a sample."""
    arrays = [operand.data.astype(np.float32) for operand in operands if operand.data is not None]
    types = [TensorType(array.shape, DType.F32) for array in arrays]
    results = ATTENTION_CAUSAL_SAVED.infer(types, attrs)
    return ATTENTION_CAUSAL_SAVED.reference(arrays, attrs, results)


def _invalid(good: Sequence[SampleOperand], first: int = 0) -> Iterator[Sample]:
    """Heads that are no multiple, a width and a dtype of another, and attributes that are none, of q and k at `first`."""
    before, behind = good[: first + 1], good[first + 2 :]
    attrs: dict[str, Attr] = {"scale": 0.125}
    yield invalid(ShapeError, *before, normal((2, 5, 4, 32)), *behind, attrs=attrs)
    yield invalid(ShapeError, *before, normal((2, 5, 2, 31)), *behind, attrs=attrs)
    yield invalid(DTypeError, *before, normal((2, 5, 2, 32), DType.BF16), *behind, attrs=attrs)
    yield invalid(LayoutError, *before, normal((2, 5, 2, 32), axes="BGTD"), *behind, attrs=attrs)
    yield invalid(ConfigError, *good)
    for wrong in WRONG_ATTRIBUTES:
        yield invalid(ConfigError, *good, attrs={**attrs, **wrong})


_NOT_PART_OF_A_LOSS = NotDifferentiable("its sums of exponentials are kept for gradients alone; trace attention_causal")


def _gradients_saved(at: Gradients) -> Mapping[int, str]:
    dy = at.gradient(0)
    if dy is None or at.gradient(1) is not None:
        raise ConfigError(f"{at.op} has a derivative by its first result alone: {_NOT_PART_OF_A_LOSS.reason}")
    operands = [dy, *(at.operand(index) for index in range(3)), at.result(0), at.result(1)]
    attrs = {name: at.attrs[name] for name in ("scale", "window", "soft_cap")}
    return dict(enumerate(at.apply_many("attention_causal_backward", operands, attrs)))


_ATTRS = (SCALE, WINDOW, SOFT_CAP)
_Q, _K, _V = OperandSpec("q", FLOATS), OperandSpec("k", FLOATS), OperandSpec("v", FLOATS)

ATTENTION_CAUSAL_SAVED = define(
    "attention_causal_saved",
    "attention_causal, and for each head and query the logarithm of its sum of exponentials: [B,T,H,D] and [B,H,T].",
    (_Q, _K, _V),
    ("y", "log_sum"),
    _infer_saved,
    _reference_saved,
    _samples_saved,
    ATTENTION_TOLERANCE,
    attrs=(*_ATTRS, DTYPE_ATTR),
    cost=_cost_saved,
    sizes=sizes_of_sequences,
    derivative=_gradients_saved,
)

ATTENTION_LOG_SUM = define(
    "attention_log_sum",
    "The logarithm of the sum of exp(score) over the keys that each query of causal attention sees: q [B,T,H,D], k [B,T,G,D] -> [B,H,T].",
    (_Q, _K),
    ("log_sum",),
    _infer_log_sum,
    _reference_log_sum,
    _samples_log_sum,
    ATTENTION_TOLERANCE,
    attrs=_ATTRS,
    cost=_cost_log_sum,
    sizes=sizes_of_sequences,
    derivative=_NOT_PART_OF_A_LOSS,
)

ATTENTION_CAUSAL_BACKWARD = define(
    "attention_causal_backward",
    "Gradients of q [B,T,H,D], k and v [B,T,G,D] of attention_causal from the gradient of its result y and its log_sum [B,H,T].",
    (GRADIENT, _Q, _K, _V, OperandSpec("y", FLOATS), OperandSpec("log_sum", F32)),
    ("q_gradient", "k_gradient", "v_gradient"),
    _infer_backward,
    _reference_backward,
    _samples_backward,
    ATTENTION_BACKWARD_TOLERANCE,
    attrs=(*_ATTRS, DTYPE_ATTR),
    cost=_cost_backward,
    sizes=sizes_of_sequences,
    derivative=SECOND,
)

ATTENTION_BACKWARD_OPS = (
    ATTENTION_CAUSAL_SAVED,
    ATTENTION_LOG_SUM,
    ATTENTION_CAUSAL_BACKWARD,
)
