"""Gradients of tables of rows: what the readers of a row send back is summed in that row, in ascending order of tokens, so that every run gives the same bits.

A table that is also something else (a tied head) has one gradient: `embedding_backward_add` adds the rows that were read to it in place, and touches no other.
Index -1 stands for a row of zeros in `gather_rows`, and adds nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Sizes, Tolerance
from ostinato.ir.ops.derivatives import GRADIENT, SECOND
from ostinato.ir.ops.rules import (
    F32,
    I32,
    Arrays,
    Site,
    check_index,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    nbytes,
    require_rank,
    require_same_extent,
    require_shape,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, valid
from ostinato.ir.rounding import working
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["EMBEDDING_BACKWARD", "EMBEDDING_BACKWARD_ADD", "EMBEDDING_BACKWARD_OPS"]

_SKIPPED = -1


def _require_rows(site: Site, gradient: TensorType, ids: TensorType) -> None:
    """gradient S + [C] of ids S."""
    require_rank(site.op, "gradient S + [C]", gradient, at_least=1)
    require_shape(site.op, "ids", ids, gradient.shape[:-1])
    join_axes(site.op, "ids", gradient.axes[:-1], ids.axes)


def _infer(site: Site) -> tuple[TensorType, ...]:
    gradient, rows = site.operand(0), site.integer("rows")
    _require_rows(site, gradient, site.operand(1))
    if rows < 0:
        fail(ConfigError, site.op, "rows of 0 or more", str(rows), "rows is how many the table has")
    return (make_type(site.op, (rows, gradient.shape[-1]), DType.F32, ("", gradient.axes[-1])),)


def _infer_add(site: Site) -> tuple[TensorType, ...]:
    table, gradient = site.operand(0), site.operand(1)
    _require_rows(site, gradient, site.operand(2))
    require_rank(site.op, "table [V, C]", table, exactly=2)
    require_same_extent(
        site.op, "the extent C of gradient, equal to that of table,", table.shape[1], gradient.shape[-1]
    )
    join_axes(site.op, "C of gradient", table.axes[1:], gradient.axes[-1:])
    return (make_type(site.op, table.shape, table.dtype, table.axes),)


def _added(op: str, table: Array, gradient: Array, ids: Array) -> tuple[Array, ...]:
    check_index(op, "row", ids, _SKIPPED, table.shape[0])
    read = ids != _SKIPPED
    np.add.at(table, ids[read], gradient[read])
    return (table.astype(np.float32),)


def _reference(call: Arrays) -> tuple[Array, ...]:
    return _added(call.op, np.zeros(call.results[0].static_shape, working()), call.wide(0), call.operand(1))


def _reference_add(call: Arrays) -> tuple[Array, ...]:
    return _added(call.op, call.wide(0), call.wide(1), call.operand(2))


def _cost_add(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """A sum for each element that comes back, read and written in its row; other rows are left alone."""
    del results, attrs
    gradient = operands[1]
    assert gradient is not None
    return Cost(gradient.elements, nbytes(*operands[1:]) + 2 * gradient.nbytes)


def _sizes(operands: OperandTypes) -> Sizes:
    """A row for each id, which is the last operand."""
    ids = operands[-1]
    return Sizes(1 if ids is None else ids.elements)


_Case = tuple[SampleOperand, SampleOperand, int]


def _cases(rng: np.random.Generator) -> Iterator[_Case]:
    """Gradient, ids and rows of the table: repeated rows, every row, none, one; rows that nobody reads; widths that no vector divides."""
    for tokens, rows, width in ((1, 1, 1), (7, 100, 96), (33, 5, 64), (100, 13, 33), (64, 64, 130), (300, 2, 7)):
        yield normal((tokens, width)), indices(rng.integers(0, rows, tokens)), rows
    yield normal((2, 5, 64), axes="BTC"), indices(rng.integers(0, 33, (2, 5)), "BT"), 33
    yield normal((2, 9, 32), axes="BT_"), indices(rng.integers(-1, 4, (2, 9))), 4
    yield normal((5, 16)), indices([-1, 3, -1, 3, 3]), 4
    yield normal((7,)), indices(3), 5
    yield normal((6, 8)), indices(np.full(6, -1)), 4
    yield normal((0, 8)), indices(np.zeros((0,))), 4
    yield normal((2, 0, 8)), indices(np.zeros((2, 0))), 4
    yield normal((3, 0)), indices([0, 1, 1]), 2
    yield normal((0, 8)), indices(np.zeros((0,))), 0


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for gradient, ids, rows in _cases(rng):
        yield valid(gradient, ids, rows=rows)
    yield invalid(BoundsError, normal((2, 8)), indices([0, 4]), attrs={"rows": 4})
    yield invalid(BoundsError, normal((1, 8)), indices([-2]), attrs={"rows": 4})
    yield invalid(ShapeError, normal((2, 8)), indices([0]), attrs={"rows": 4})
    yield invalid(ShapeError, normal(()), indices(0), attrs={"rows": 4})
    yield invalid(ShapeError, normal((2, 8)), attrs={"rows": 4})
    yield invalid(DTypeError, normal((2, 8), DType.BF16), indices([0, 1]), attrs={"rows": 4})
    yield invalid(DTypeError, normal((2, 8)), normal((2,)), attrs={"rows": 4})
    yield invalid(ConfigError, normal((2, 8)), indices([0, 1]), attrs={"rows": -1})
    yield invalid(ConfigError, normal((2, 8)), indices([0, 1]))
    yield invalid(LayoutError, normal((2, 2, 8), axes="BTC"), indices([[0, 1], [1, 0]], "TB"), attrs={"rows": 4})


def _samples_add(rng: np.random.Generator) -> Iterator[Sample]:
    for gradient, ids, rows in _cases(rng):
        axis = gradient.type.axes[-1] or "_"
        yield valid(normal((rows, gradient.type.static_shape[-1]), axes=f"_{axis}"), gradient, ids)
    yield valid(normal((9, 64), axes="VC"), normal((5, 64), axes="N_"), indices(rng.integers(0, 9, 5), "N"))
    table = normal((4, 8))
    yield invalid(BoundsError, table, normal((2, 8)), indices([0, 4]))
    yield invalid(BoundsError, table, normal((1, 8)), indices([-2]))
    yield invalid(ShapeError, table, normal((2, 8)), indices([0]))
    yield invalid(ShapeError, table, normal((2, 7)), indices([0, 1]))
    yield invalid(ShapeError, normal((4, 8, 1)), normal((2, 8)), indices([0, 1]))
    yield invalid(ShapeError, table, normal((2, 8)))
    yield invalid(DTypeError, normal((4, 8), DType.BF16), normal((2, 8)), indices([0, 1]))
    yield invalid(DTypeError, table, normal((2, 8), DType.BF16), indices([0, 1]))
    yield invalid(LayoutError, normal((4, 8), axes="VC"), normal((2, 8), axes="NF"), indices([0, 1]))
    yield invalid(ConfigError, table, normal((2, 8)), indices([0, 1]), attrs={"rows": 4})


_TOLERANCE = Tolerance(
    2e-5, 2e-5, "contract of embedding_backward: fp32 sums in ascending order of tokens against float64"
)

EMBEDDING_BACKWARD = define(
    "embedding_backward",
    "Row v of the result [V,C] is the sum of gradient S + [C] over the tokens whose id in S is v, in ascending order; id -1 adds nothing.",
    (GRADIENT, OperandSpec("ids", I32)),
    ("y",),
    _infer,
    _reference,
    _samples,
    _TOLERANCE,
    attrs=(AttrSpec("rows", int),),
    extent="gradient",
    sizes=_sizes,
    cost=cost_per_element(1, operand=0),
    derivative=SECOND,
)

EMBEDDING_BACKWARD_ADD = define(
    "embedding_backward_add",
    "table [V,C] plus, in row v, gradient S + [C] of the tokens whose id in S is v, in ascending order, in the bytes of table; id -1 adds nothing.",
    (OperandSpec("table", F32), GRADIENT, OperandSpec("ids", I32)),
    ("y",),
    _infer_add,
    _reference_add,
    _samples_add,
    _TOLERANCE,
    must_alias=((0, 0),),
    extent="gradient",
    sizes=_sizes,
    cost=_cost_add,
    derivative=SECOND,
)

EMBEDDING_BACKWARD_OPS = (EMBEDDING_BACKWARD, EMBEDDING_BACKWARD_ADD)
