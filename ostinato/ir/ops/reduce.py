"""Reductions: the sum of a whole tensor, and the mean of each sequence of packed tokens.

Sums run in one order that neither threads nor a row's place in its batch changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import BoundsError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, Cost, OperandSpec, OperandTypes, Sample, Tolerance
from ostinato.ir.ops.rules import (
    F32,
    FLOATS,
    I32,
    Arrays,
    Site,
    check_index,
    define,
    join_axes,
    make_type,
    nbytes,
    require_rank,
    require_shape,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["MASKED_MEAN", "REDUCE_OPS", "REDUCE_SUM"]

TOLERANCE = Tolerance(2e-5, 2e-5, "contract of reduce_sum: fp32 sums of short runs, added up in ascending order")


def _infer_mean(site: Site) -> tuple[TensorType, ...]:
    x, start, length = site.operand(0), site.operand(1), site.operand(2)
    require_rank(site.op, "x [N, C]", x, exactly=2)
    require_rank(site.op, "start", start, exactly=1)
    require_shape(site.op, "length", length, start.shape)
    axes = join_axes(site.op, "length", start.axes, length.axes)
    return (make_type(site.op, (*start.shape, x.shape[1]), x.dtype, (*axes, x.axes[1])),)


def _reference_mean(call: Arrays) -> tuple[Array, ...]:
    x, start, length = call.wide(0), call.operand(1), call.operand(2)
    check_index(call.op, "length", length, 0, x.shape[0] + 1)
    check_index(call.op, "start of a row that has tokens", np.where(length > 0, start, 0), 0, x.shape[0] + 1)
    stop = np.where(length > 0, start.astype(np.int64) + length, 0)
    check_index(call.op, "end of a row", stop, 0, x.shape[0] + 1)
    y = np.zeros((start.shape[0], x.shape[1]), dtype=np.float32)
    for row in np.flatnonzero(length > 0):
        y[row] = np.mean(x[start[row] : stop[row]], axis=0)
    return (y,)


def _infer_sum(site: Site) -> tuple[TensorType, ...]:
    return (make_type(site.op, (), DType.F32, ()),)


def _reference_sum(call: Arrays) -> tuple[Array, ...]:
    return (np.asarray(np.sum(call.wide(0)), dtype=np.float32),)


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """A sum an element of x; for the means as if every token belonged to one row."""
    del attrs
    x = operands[0]
    assert x is not None
    return Cost(x.elements, nbytes(*operands, *results))


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
    cost=_cost,
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
    cost=_cost,
)

REDUCE_OPS = (
    REDUCE_SUM,
    MASKED_MEAN,
)
