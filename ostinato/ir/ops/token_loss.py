"""Losses in parts, and backwards. `cross_entropy` is the mean of `token_cross_entropy` over the tokens that have a target; of the parts a loss over chunks of
the tokens is made, which never holds all logits at once: the gradient of a chunk comes from its logits and the sum that was kept of each token.

Tokens without a target give exact zeros, and their logits are not read. The gradient of a token's loss by its logits is softmax(logits) less 1 at the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import GRADIENT, SECOND, only_gradient
from ostinato.ir.ops.loss import IGNORED, counted_rows, require_logits
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    I32,
    Arrays,
    Site,
    check_index,
    cost_per_element,
    define,
    join_axes,
    make_type,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = [
    "CROSS_ENTROPY_BACKWARD",
    "TARGET_MEAN",
    "TARGET_MEAN_BACKWARD",
    "TOKEN_CROSS_ENTROPY",
    "TOKEN_CROSS_ENTROPY_BACKWARD",
    "TOKEN_LOSS_OPS",
]

_FORWARD = Tolerance(2e-5, 2e-5, "contract of cross_entropy: fp32 exponentials and sums")
_BACKWARD = Tolerance(3e-5, 3e-5, "contract of cross_entropy_backward: fp32 exponentials and sums")
_MEAN = Tolerance(
    2e-5, 2e-5, "contract of reduce_sum: fp32 sums of short runs, added up in float64 and ascending order"
)


def _infer_token(site: Site) -> tuple[TensorType, ...]:
    rows = require_logits(site, 0, 1)
    y = make_type(site.op, site.operand(1).shape, DType.F32, rows)
    return (y, y)


def _infer_backward(site: Site) -> tuple[TensorType, ...]:
    """For a scalar gradient."""
    rows = require_logits(site, 1, 2)
    require_shape(site.op, "gradient", site.operand(0), ())
    return (_like_logits(site, rows),)


def _infer_token_backward(site: Site) -> tuple[TensorType, ...]:
    rows, target = require_logits(site, 1, 2), site.operand(2)
    for place, name in ((0, "gradient"), (3, "log_sum")):
        require_shape(site.op, name, site.operand(place), target.shape)
        rows = join_axes(site.op, name, rows, site.operand(place).axes)
    return (_like_logits(site, rows),)


def _like_logits(site: Site, rows: tuple[str, ...]) -> TensorType:
    logits = site.operand(1)
    return make_type(site.op, logits.shape, result_float(site, logits), (*rows, logits.axes[-1]))


def _infer_mean(site: Site) -> tuple[TensorType, ...]:
    require_shape(site.op, "target", site.operand(1), site.operand(0).shape)
    join_axes(site.op, "target", site.operand(0).axes, site.operand(1).axes)
    return (make_type(site.op, (), DType.F32, ()),)


def _infer_mean_backward(site: Site) -> tuple[TensorType, ...]:
    target = site.operand(1)
    require_shape(site.op, "gradient", site.operand(0), ())
    return (make_type(site.op, target.shape, DType.F32, target.axes),)


def _log_sums(logits: Array) -> Array:
    largest = np.max(logits, axis=-1, keepdims=True)
    return np.asarray(np.log(np.sum(np.exp(logits - largest), axis=-1)) + largest[:, 0])


def _rows_of(call: Arrays, logits: int, target: int) -> tuple[Array, Array, Array]:
    """The places of the tokens that have a target, their logits and their targets."""
    found = call.operand(target).reshape(-1)
    rows = np.flatnonzero(found != IGNORED)
    width = call.operand(logits).shape[-1]
    check_index(call.op, "target", found[rows], 0, width)
    return rows, call.wide(logits).reshape(-1, width)[rows], found[rows]


def _reference_token(call: Arrays) -> tuple[Array, ...]:
    rows, logits, target = _rows_of(call, 0, 1)
    shape = call.operand(1).shape
    y, log_sum = (np.zeros(call.operand(1).size, dtype=np.float32) for _ in range(2))
    if rows.size:
        sums = _log_sums(logits)
        y[rows] = sums - logits[np.arange(rows.size), target]
        log_sum[rows] = sums
    return y.reshape(shape), log_sum.reshape(shape)


def _placed(call: Arrays, rows: Array, power: Array, target: Array, factor: Array) -> Array:
    """factor * (power - 1 at the target) in the rows of the logits that count, zeros in the others."""
    power[np.arange(rows.size), target] -= 1.0
    found = np.zeros((call.operand(2).size, power.shape[-1]), dtype=np.float32)
    found[rows] = factor * power
    return found.reshape(call.operand(1).shape)


def _reference_backward(call: Arrays) -> tuple[Array, ...]:
    """Of no tokens an empty gradient: nothing is computed, so nothing is refused."""
    if not call.operand(1).size:
        return (call.operand(1),)
    counted_rows(call, 2)
    rows, logits, target = _rows_of(call, 1, 2)
    power = np.exp(logits - _log_sums(logits)[:, None])
    return (_placed(call, rows, power, target, call.wide(0) / rows.size),)


def _reference_token_backward(call: Arrays) -> tuple[Array, ...]:
    rows, logits, target = _rows_of(call, 1, 2)
    power = np.exp(logits - call.wide(3).reshape(-1)[rows, None])
    return (_placed(call, rows, power, target, call.wide(0).reshape(-1)[rows, None]),)


def _reference_mean(call: Arrays) -> tuple[Array, ...]:
    return (np.asarray(np.mean(call.wide(0).reshape(-1)[counted_rows(call, 1)]), dtype=np.float32),)


def _reference_mean_backward(call: Arrays) -> tuple[Array, ...]:
    found = np.zeros(call.operand(1).size, dtype=np.float32)
    if found.size:
        rows = counted_rows(call, 1)
        found[rows] = call.wide(0) / rows.size
    return (found.reshape(call.operand(1).shape),)


def _gradients_token(at: Gradients) -> Mapping[int, str]:
    gradient, (logits, target) = at.gradient(0), (at.operand(index) for index in range(2))
    if gradient is None or at.gradient(1) is not None:
        raise ConfigError(f"{at.op}: log_sum has no derivative", hint="make the loss of y alone")
    return {0: at.apply("token_cross_entropy_backward", (gradient, logits, target, at.result(1)))}


def _gradients_mean(at: Gradients) -> Mapping[int, str]:
    return {0: at.apply("target_mean_backward", (only_gradient(at), at.operand(1)))}


SIZES = ((1, 1), (1, 100), (5, 33), (33, 257), (7, 31), (3, 5001))


def _samples_token(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, vocabulary in SIZES:
        target = rng.integers(0, vocabulary, rows)
        target[1::3] = IGNORED
        yield valid(normal((rows, vocabulary)), indices(target))
    yield valid(normal((2, 3, 100), axes="B_V"), indices([[5, -100, 99], [-100, -100, 0]], "BT"))
    yield valid(reals([[1e4, -1e4, 0.0], [-3e38, 0.0, 80.0]]), indices([0, 2]))
    yield valid(reals([[np.nan, 0.0], [1.0, 2.0]]), indices([-100, 1]))  # nobody reads what has no target
    yield valid(normal((17,)), indices(3))
    yield valid(normal((2, 5)), indices([-100, -100]))
    yield valid(normal((0, 5)), indices(np.zeros((0,))))
    yield invalid(BoundsError, normal((2, 5)), indices([0, 5]))
    yield invalid(BoundsError, normal((2, 5)), indices([-1, 0]))
    yield invalid(ShapeError, normal((2, 5)), indices([0, 1, 2]))
    yield invalid(ShapeError, normal((2, 0)), indices([0, 0]))
    yield invalid(ShapeError, normal(()), indices(0))
    yield invalid(DTypeError, normal((2, 5)), normal((2,), DType.I64))
    yield invalid(DTypeError, normal((2, 5), DType.BF16), indices([0, 1]))
    yield invalid(LayoutError, normal((3, 3, 5), axes="BTV"), indices(np.zeros((3, 3)), "TB"))


def _samples_backward(rng: np.random.Generator) -> Iterator[Sample]:
    """Those of the forward operator with a scalar in front; tokens without targets have no mean."""
    for sample in _samples_token(rng):
        target = sample.operands[1]
        assert target is not None
        error = sample.error
        if error is None and target.data is not None and target.data.size and np.all(target.data == IGNORED):
            error = BoundsError
        yield Sample((reals(-1.75), *sample.operands), sample.attrs, error)
    for dtype in ("f16", "bf16"):
        yield valid(reals(1.0), normal((5, 33)), indices([3, 0, -100, 32, 1]), dtype=dtype)
    yield invalid(ShapeError, reals([1.0]), normal((2, 5)), indices([0, 1]))
    yield invalid(DTypeError, reals(1.0), normal((2, 5)), indices([0, 1]), attrs={"dtype": "i8"})


def _samples_token_backward(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in _samples_token(rng):
        logits, target = sample.operands
        assert logits is not None
        assert target is not None
        rows = target.type.static_shape
        if sample.error is not None:
            yield Sample((normal(rows), logits, target, normal(rows)), sample.attrs, sample.error)
            continue
        values = rng.standard_normal(logits.type.static_shape) if logits.data is None else logits.data
        with np.errstate(over="ignore", invalid="ignore"):
            sums = _log_sums(values.astype(np.float64).reshape(-1, values.shape[-1])).reshape(rows)
        yield valid(normal(rows), reals(values, "".join(axis or "_" for axis in logits.type.axes)), target, reals(sums))
    for dtype in ("f16", "bf16"):
        yield valid(normal((3,)), normal((3, 33)), indices([3, -100, 32]), reals([4.0, 0.0, 3.5]), dtype=dtype)
    good = normal((2,)), normal((2, 5)), indices([0, 1]), reals([2.0, 2.5])
    yield invalid(ShapeError, normal(()), *good[1:])
    yield invalid(ShapeError, *good[:3], normal((2, 1)))
    yield invalid(ShapeError, *good[:3])
    yield invalid(DTypeError, *good, attrs={"dtype": "i8"})
    yield invalid(LayoutError, normal((2,), axes="N"), *good[1:3], reals([2.0, 2.5], "R"))


def _samples_mean(rng: np.random.Generator) -> Iterator[Sample]:
    for rows in (1, 5, 33, 1030):
        target = rng.integers(0, 100, rows)
        target[1::3] = IGNORED
        yield valid(normal((rows,)), indices(target))
    yield valid(normal((2, 3), axes="B_"), indices([[5, -100, 99], [-100, -100, 0]], "BT"))
    yield valid(reals([np.nan, 1.0, np.inf]), indices([-100, 1, -100]))
    yield valid(normal(()), indices(3))
    yield invalid(BoundsError, normal((2,)), indices([-100, -100]))
    yield invalid(BoundsError, normal((0,)), indices(np.zeros((0,))))
    yield invalid(ShapeError, normal((2,)), indices([[0, 1]]))
    yield invalid(DTypeError, normal((2,), DType.BF16), indices([0, 1]))
    yield invalid(DTypeError, normal((2,)), normal((2,)))
    yield invalid(LayoutError, normal((3, 3), axes="BT"), indices(np.zeros((3, 3)), "TB"))


def _samples_mean_backward(rng: np.random.Generator) -> Iterator[Sample]:
    for rows in (1, 5, 33, 1030):
        target = rng.integers(0, 100, rows)
        target[1::3] = IGNORED
        yield valid(normal(()), indices(target))
    yield valid(reals(3.0), indices([[5, -100, 99], [-100, -100, 0]], "BT"))
    yield valid(normal(()), indices(3))
    yield valid(normal(()), indices(np.zeros((0,))))
    yield invalid(BoundsError, normal(()), indices([-100, -100]))
    yield invalid(ShapeError, normal((1,)), indices([0, 1]))
    yield invalid(DTypeError, normal((), DType.BF16), indices([0, 1]))


LOGITS, TARGET = OperandSpec("logits", F32), OperandSpec("target", I32)

CROSS_ENTROPY_BACKWARD = define(
    "cross_entropy_backward",
    f"Gradient of cross_entropy by its logits: gradient / n * (softmax(logits) - 1 at the target) in the n rows whose target is not {IGNORED}, else 0.",
    (GRADIENT, LOGITS, TARGET),
    ("logits_gradient",),
    _infer_backward,
    _reference_backward,
    _samples_backward,
    _BACKWARD,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(6, operand=1),
    derivative=SECOND,
)

TOKEN_CROSS_ENTROPY = define(
    "token_cross_entropy",
    f"logsumexp(logits) - logits[target] of each token, and the logsumexp: logits S + [V], target S -> twice S; both 0 where the target is {IGNORED}.",
    (LOGITS, TARGET),
    ("y", "log_sum"),
    _infer_token,
    _reference_token,
    _samples_token,
    _FORWARD,
    cost=cost_per_element(4, operand=0),
    derivative=_gradients_token,
)

TOKEN_CROSS_ENTROPY_BACKWARD = define(
    "token_cross_entropy_backward",
    f"Gradient of token_cross_entropy by its logits: gradient * (exp(logits - log_sum) - 1 at the target), 0 where the target is {IGNORED}.",
    (GRADIENT, LOGITS, TARGET, OperandSpec("log_sum", F32)),
    ("logits_gradient",),
    _infer_token_backward,
    _reference_token_backward,
    _samples_token_backward,
    _BACKWARD,
    attrs=(DTYPE_ATTR,),
    cost=cost_per_element(4, operand=1),
    derivative=SECOND,
)

TARGET_MEAN = define(
    "target_mean",
    f"Mean of x over the tokens whose target is not {IGNORED}: x S, target S -> scalar.",
    (OperandSpec("x", F32), TARGET),
    ("y",),
    _infer_mean,
    _reference_mean,
    _samples_mean,
    _MEAN,
    extent="x",
    cost=cost_per_element(1, operand=0),
    derivative=_gradients_mean,
)

TARGET_MEAN_BACKWARD = define(
    "target_mean_backward",
    f"Gradient of target_mean by x: gradient / n for the n tokens whose target is not {IGNORED}, 0 for the others.",
    (GRADIENT, TARGET),
    ("x_gradient",),
    _infer_mean_backward,
    _reference_mean_backward,
    _samples_mean_backward,
    Tolerance(1e-6, 1e-6, "one division"),
    cost=cost_per_element(1),
    derivative=SECOND,
)

TOKEN_LOSS_OPS = (
    TOKEN_CROSS_ENTROPY,
    TARGET_MEAN,
    CROSS_ENTROPY_BACKWARD,
    TOKEN_CROSS_ENTROPY_BACKWARD,
    TARGET_MEAN_BACKWARD,
)
