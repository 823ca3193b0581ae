"""Reductions and their gradients: the sum of a whole tensor, and the mean of each sequence of packed tokens.

Sums run in one order that neither threads nor a row's place in its batch changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import GRADIENT, SECOND, only_gradient
from ostinato.ir.ops.rules import (
    F32,
    FLOATS,
    I32,
    Arrays,
    Site,
    check_index,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    require_rank,
    require_same_extent,
    require_shape,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.rounding import working
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["MASKED_MEAN", "MASKED_MEAN_BACKWARD", "REDUCE_OPS", "REDUCE_SUM"]

TOLERANCE = Tolerance(2e-5, 2e-5, "contract of reduce_sum: fp32 sums of short runs, added up in ascending order")


def _infer_mean(site: Site) -> tuple[TensorType, ...]:
    x, start, length = site.operand(0), site.operand(1), site.operand(2)
    require_rank(site.op, "x [N, C]", x, exactly=2)
    require_rank(site.op, "start", start, exactly=1)
    require_shape(site.op, "length", length, start.shape)
    axes = join_axes(site.op, "length", start.axes, length.axes)
    return (make_type(site.op, (*start.shape, x.shape[1]), x.dtype, (*axes, x.axes[1])),)


def _check_rows(op: str, start: Array, length: Array, tokens: int) -> None:
    """Raises `BoundsError` for a row that is not made of these tokens."""
    check_index(op, "length", length, 0, tokens + 1)
    check_index(op, "start of a row that has tokens", np.where(length > 0, start, 0), 0, tokens + 1)
    check_index(op, "end of a row", np.where(length > 0, start.astype(np.int64) + length, 0), 0, tokens + 1)


def _reference_mean(call: Arrays) -> tuple[Array, ...]:
    x, start, length = call.wide(0), call.operand(1), call.operand(2)
    _check_rows(call.op, start, length, x.shape[0])
    y = np.zeros((start.shape[0], x.shape[1]), dtype=np.float32)
    for row in np.flatnonzero(length > 0):
        y[row] = np.mean(x[start[row] : start[row] + length[row]], axis=0)
    return (y,)


def _infer_mean_backward(site: Site) -> tuple[TensorType, ...]:
    gradient, start, length, rows = site.operand(0), site.operand(1), site.operand(2), site.integer("rows")
    require_rank(site.op, "gradient [R, C]", gradient, exactly=2)
    require_rank(site.op, "start", start, exactly=1)
    require_same_extent(site.op, "rows of gradient like start,", start.shape[0], gradient.shape[0])
    require_shape(site.op, "length", length, start.shape)
    join_axes(site.op, "length", join_axes(site.op, "start", gradient.axes[:1], start.axes), length.axes)
    if rows < 0:
        fail(ConfigError, site.op, "rows of 0 or more", str(rows), "as many as x has")
    return (make_type(site.op, (rows, gradient.shape[1]), DType.F32, (site.text("name"), gradient.axes[1])),)


def _reference_mean_backward(call: Arrays) -> tuple[Array, ...]:
    gradient, start, length, rows = call.wide(0), call.operand(1), call.operand(2), call.integer("rows")
    _check_rows(call.op, start, length, rows)
    found = np.zeros((rows, gradient.shape[1]), dtype=working())
    for row in np.flatnonzero(length > 0):
        found[start[row] : start[row] + length[row]] += gradient[row] / length[row]
    return (found.astype(np.float32),)


def _infer_sum(site: Site) -> tuple[TensorType, ...]:
    return (make_type(site.op, (), DType.F32, ()),)


def _reference_sum(call: Arrays) -> tuple[Array, ...]:
    return (np.asarray(np.sum(call.wide(0)), dtype=np.float32),)


def _sum_gradient(at: Gradients) -> Mapping[int, str]:
    x = at.type(at.operand(0))
    attrs: Mapping[str, Attr] = {"shape": x.static_shape, "axes": "".join(axis or "_" for axis in x.axes)}
    return {0: at.apply("broadcast_scalar", (only_gradient(at),), attrs)}


def _mean_gradient(at: Gradients) -> Mapping[int, str]:
    """Only a fixed number of tokens can be written into an attribute."""
    x = at.type(at.operand(0))
    attrs: Mapping[str, Attr] = {"rows": x.static_shape[0], "name": x.axes[0]}
    return {0: at.apply("masked_mean_backward", (only_gradient(at), at.operand(1), at.operand(2)), attrs)}


def _samples_mean(rng: np.random.Generator) -> Iterator[Sample]:
    yield valid(normal((1, 1)), indices([0]), indices([1]))
    yield valid(normal((7, 33), axes="NC"), indices([0, 3, 6], "R"), indices([3, 3, 1], "R"))
    yield valid(normal((40, 384)), indices([5, 0, 0, 39]), indices([30, 0, 40, 1]))
    yield valid(normal((300, 65)), indices(rng.integers(0, 100, 33)), indices(rng.integers(0, 200, 33)))
    for dtype in (DType.F16, DType.BF16):
        yield valid(normal((13, 100), dtype), indices([0, 4]), indices([4, 9]))
    yield valid(normal((5, 8)), indices([77, -3]), indices([0, 0]))
    yield valid(normal((0, 8)), indices([0]), indices([0]))
    yield valid(normal((5, 0)), indices([0]), indices([2]))
    yield valid(normal((5, 8)), indices(np.zeros(0)), indices(np.zeros(0)))
    yield invalid(BoundsError, normal((5, 8)), indices([3]), indices([3]))
    yield invalid(BoundsError, normal((5, 8)), indices([-1]), indices([2]))
    yield invalid(BoundsError, normal((5, 8)), indices([0]), indices([-1]))
    yield invalid(BoundsError, normal((5, 8)), indices([2**31 - 1]), indices([5]))
    yield invalid(ShapeError, normal((5,)), indices([0]), indices([1]))
    yield invalid(ShapeError, normal((5, 8)), indices([0]), indices([1, 2]))
    yield invalid(ShapeError, normal((5, 8)), indices([[0]]), indices([[1]]))
    yield invalid(DTypeError, normal((5, 8)), normal((1,)), indices([1]))
    yield invalid(DTypeError, normal((5, 8), DType.F64), indices([0]), indices([1]))
    yield invalid(LayoutError, normal((5, 8), axes="NC"), indices([0], "R"), indices([1], "B"))


def _samples_mean_backward(rng: np.random.Generator) -> Iterator[Sample]:
    yield valid(normal((1, 1)), indices([0]), indices([1]), rows=1)
    yield valid(normal((3, 33), axes="_C"), indices([0, 3, 6], "R"), indices([3, 3, 1], "R"), rows=7, name="N")
    yield valid(normal((4, 384)), indices([5, 0, 0, 39]), indices([30, 0, 40, 1]), rows=40)
    yield valid(normal((33, 65)), indices(rng.integers(0, 100, 33)), indices(rng.integers(0, 200, 33)), rows=300)
    yield valid(normal((2, 8)), indices([77, -3]), indices([0, 0]), rows=5)
    yield valid(normal((1, 8)), indices([0]), indices([0]), rows=0)
    yield valid(normal((1, 0)), indices([0]), indices([2]), rows=5)
    yield valid(normal((0, 8)), indices(np.zeros(0)), indices(np.zeros(0)), rows=5)
    attrs: Mapping[str, Attr] = {"rows": 5}
    yield invalid(BoundsError, normal((1, 8)), indices([3]), indices([3]), attrs=attrs)
    yield invalid(BoundsError, normal((1, 8)), indices([-1]), indices([2]), attrs=attrs)
    yield invalid(BoundsError, normal((1, 8)), indices([0]), indices([-1]), attrs=attrs)
    yield invalid(ShapeError, normal((8,)), indices([0]), indices([1]), attrs=attrs)
    yield invalid(ShapeError, normal((2, 8)), indices([0]), indices([1]), attrs=attrs)
    yield invalid(ShapeError, normal((1, 8)), indices([0]), indices([1, 2]), attrs=attrs)
    yield invalid(DTypeError, normal((1, 8), DType.BF16), indices([0]), indices([1]), attrs=attrs)
    yield invalid(LayoutError, normal((1, 8), axes="RC"), indices([0], "B"), indices([1]), attrs=attrs)
    yield invalid(LayoutError, normal((1, 8), axes="RC"), indices([0]), indices([1]), attrs={**attrs, "name": "C"})
    yield invalid(ConfigError, normal((1, 8)), indices([0]), indices([1]), attrs={"rows": -1})
    yield invalid(ConfigError, normal((1, 8)), indices([0]), indices([1]))


def _samples_sum(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((1,), (3, 33), (31, 100), (2, 3, 4, 5), (70001,)):
        yield valid(normal(shape))
    yield valid(normal((7, 3, 33), axes="NTC"))
    yield valid(reals(rng.standard_normal((40, 5000)) + 3.0, "NC"))
    yield valid(normal(()))
    yield valid(normal((0, 8)))
    yield valid(reals([np.inf, 1.0]))
    yield invalid(DTypeError, normal((3, 4), DType.BF16))
    yield invalid(DTypeError, indices([1, 2]))
    yield invalid(ShapeError)


REDUCE_SUM = define(
    "reduce_sum",
    "Sum of all elements: S -> scalar.",
    (OperandSpec("x", F32),),
    ("y",),
    _infer_sum,
    _reference_sum,
    _samples_sum,
    Tolerance(2e-5, 2e-5, "contract of reduce_sum: fp32 sums of short runs, added up in float64 and ascending order"),
    extent="x",
    cost=cost_per_element(1, operand=0),
    derivative=_sum_gradient,
)

MASKED_MEAN = define(
    "masked_mean",
    "Mean over the tokens start[r] .. start[r] + length[r] - 1 of packed x [N,C] for each row r: [R,C]; a row of length 0 gives zeros.",
    (OperandSpec("x", FLOATS), OperandSpec("start", I32), OperandSpec("length", I32)),
    ("y",),
    _infer_mean,
    _reference_mean,
    _samples_mean,
    TOLERANCE,
    cost=cost_per_element(1, operand=0),
    derivative=_mean_gradient,
)

MASKED_MEAN_BACKWARD = define(
    "masked_mean_backward",
    "Gradient of masked_mean by its x of `rows` tokens: each token's share of the gradients [R,C] of its rows; `name` names the tokens' axis.",
    (GRADIENT, OperandSpec("start", I32), OperandSpec("length", I32)),
    ("x_gradient",),
    _infer_mean_backward,
    _reference_mean_backward,
    _samples_mean_backward,
    Tolerance(2e-5, 2e-5, "contract of reduce_sum: fp32 sums over the rows of a token"),
    attrs=(AttrSpec("rows", int), AttrSpec("name", str, "")),
    cost=cost_per_element(2),
    derivative=SECOND,
)

REDUCE_OPS = (
    REDUCE_SUM,
    MASKED_MEAN,
    MASKED_MEAN_BACKWARD,
)
