"""Sums that grow in place: a second contribution to a gradient, and the squares of all gradients for their common norm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ostinato.ir.errors import DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import SECOND, passed_on
from ostinato.ir.ops.elementwise import SHAPES
from ostinato.ir.ops.rules import (
    F32,
    Arrays,
    Site,
    cost_per_element,
    define,
    join_axes,
    make_type,
    require_shape,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ACCUMULATE", "ACCUMULATE_OPS", "SQUARE_SUM", "SQUARE_SUM_ADD"]

_SQUARES = Tolerance(
    2e-5, 2e-5, "contract of reduce_sum: fp32 sums of short runs, added up in float64 and ascending order"
)


def _infer_accumulate(site: Site) -> tuple[TensorType, ...]:
    """The type of a, whose bytes the result has: names that only x has are not taken on."""
    a, x = site.operand(0), site.operand(1)
    require_shape(site.op, "x", x, a.shape)
    join_axes(site.op, "x", a.axes, x.axes)
    return (a.with_layout(None),)


def _infer_squares(site: Site) -> tuple[TensorType, ...]:
    return (make_type(site.op, (), DType.F32, ()),)


def _infer_squares_add(site: Site) -> tuple[TensorType, ...]:
    require_shape(site.op, "total", site.operand(0), ())
    return _infer_squares(site)


def _reference_accumulate(call: Arrays) -> tuple[Array, ...]:
    with np.errstate(over="ignore", invalid="ignore"):
        return (call.operand(0) + call.operand(1),)


def _squares(before: Array, x: Array) -> tuple[Array, ...]:
    with np.errstate(over="ignore"):
        return (np.asarray(before + np.sum(x * x)).astype(np.float32),)


def _reference_squares(call: Arrays) -> tuple[Array, ...]:
    return _squares(np.zeros(()), call.wide(0))


def _reference_squares_add(call: Arrays) -> tuple[Array, ...]:
    return _squares(call.wide(0), call.wide(1))


def _samples_accumulate(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for shape in SHAPES:
        yield valid(normal(shape), normal(shape))
    yield valid(normal((2, 3, 32), axes="BTC"), normal((2, 3, 32), axes="B__"))
    yield valid(reals([[0.0, np.inf, np.nan, 3e38]]), reals([[-0.0, 1.0, 1.0, 3e38]]))
    yield valid(normal(()), normal(()))
    yield valid(normal((0, 8)), normal((0, 8)))
    yield valid(normal((3, 0)), normal((3, 0)))
    yield invalid(ShapeError, normal((3, 4)), normal((4,)))
    yield invalid(ShapeError, normal((3, 4)), normal((1, 4)))
    yield invalid(ShapeError, normal((3, 4)))
    yield invalid(DTypeError, normal((3, 4)), normal((3, 4), DType.BF16))
    yield invalid(DTypeError, normal((3, 4), DType.BF16), normal((3, 4)))
    yield invalid(LayoutError, normal((4, 4), axes="TC"), normal((4, 4), axes="CT"))


def _samples_squares(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((1,), (3, 33), (31, 100), (2, 3, 4, 5), (70001,)):
        yield valid(normal(shape))
    yield valid(normal((7, 3, 33), axes="NTC"))
    yield valid(reals(rng.standard_normal((40, 5000)) * 1e-4, "NC"))
    yield valid(normal(()))
    yield valid(normal((0, 8)))
    yield valid(reals([np.inf, 1.0]))
    yield valid(reals([np.nan, 1.0]))
    yield valid(reals([1e25, 1.0]))  # its square is infinite
    yield invalid(DTypeError, normal((3, 4), DType.BF16))
    yield invalid(DTypeError, indices([1, 2]))
    yield invalid(ShapeError)


def _samples_squares_add(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in _samples_squares(rng):
        yield Sample((reals(12.5), *sample.operands), sample.attrs, sample.error)
    yield valid(reals(np.inf), normal((3, 4)))
    yield valid(reals(np.nan), normal((3, 4)))
    yield valid(reals(3.0e-8), normal((3, 0)))
    yield invalid(ShapeError, normal((1,)), normal((3, 4)))
    yield invalid(DTypeError, normal((), DType.BF16), normal((3, 4)))


X = OperandSpec("x", F32)

ACCUMULATE = define(
    "accumulate",
    "a + x in the bytes of a.",
    (OperandSpec("a", F32), X),
    ("y",),
    _infer_accumulate,
    _reference_accumulate,
    _samples_accumulate,
    Tolerance(0, 0, "one correctly rounded operation"),
    must_alias=((0, 0),),
    cost=cost_per_element(1),
    derivative=passed_on,
)

SQUARE_SUM = define(
    "square_sum",
    "Sum of x^2 over all elements: S -> scalar, infinite where float32 does not hold it.",
    (X,),
    ("y",),
    _infer_squares,
    _reference_squares,
    _samples_squares,
    _SQUARES,
    extent="x",
    cost=cost_per_element(2, operand=0),
    derivative=SECOND,
)

SQUARE_SUM_ADD = define(
    "square_sum_add",
    "total plus the sum of x^2 over all elements, in the bytes of total.",
    (OperandSpec("total", F32), X),
    ("y",),
    _infer_squares_add,
    _reference_squares_add,
    _samples_squares_add,
    _SQUARES,
    must_alias=((0, 0),),
    extent="x",
    cost=cost_per_element(2, operand=1),
    derivative=SECOND,
)

ACCUMULATE_OPS = (
    ACCUMULATE,
    SQUARE_SUM,
    SQUARE_SUM_ADD,
)
