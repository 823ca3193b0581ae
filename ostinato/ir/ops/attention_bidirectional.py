"""Attention of an encoder over packed sequences: every token sees the whole of its own row, and no row sees another.

Rows lie one after the other among the tokens, row r in tokens [start[r], start[r] + length[r]); padding is told by length and never computed. Query head h
reads kv head h // (H / G). A row that no token names may say anything; one that is named must lie within the tokens that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Sizes
from ostinato.ir.ops.attend import ATTENTION_TOLERANCE, SCALE, attend, check_heads, check_scale
from ostinato.ir.ops.derivatives import only_gradient
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    FLOATS,
    I32,
    Arrays,
    Site,
    check_index,
    define,
    fail,
    make_type,
    nbytes,
    require_axes,
    require_rank,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ATTENTION_BIDIRECTIONAL", "check_packed", "packed_operands", "packed_rows", "sizes_of_rows"]


def _infer(site: Site) -> tuple[TensorType, ...]:
    check_packed(site)
    q = site.operand(0)
    return (make_type(site.op, q.shape, result_float(site, q), q.axes),)


def check_packed(site: Site, first: int = 0) -> None:
    """q [N,H,D] (operand `first`), k and v [N,G,D] of one dtype behind it, then the row of each token and where rows lie; and a scale."""
    q, k, v, row_of_token, start, length = (site.operand(first + i) for i in range(6))
    require_rank(site.op, "q", q, exactly=3)
    require_axes(site.op, "q", q, "NHD")
    require_rank(site.op, "k", k, exactly=3)
    require_axes(site.op, "k", k, "NGD")
    require_shape(site.op, "k", k, (q.shape[0], k.shape[1], q.shape[2]))
    require_shape(site.op, "v", v, k.shape)
    require_axes(site.op, "v", v, "NGD")
    check_heads(site.op, q.shape[1], k.shape[1])
    if not q.dtype is k.dtype is v.dtype:
        fail(DTypeError, site.op, f"k and v of dtype {q.dtype.value} like q", f"{k} and {v}", "cast explicitly")
    require_shape(site.op, "row_of_token", row_of_token, (q.shape[0],))
    require_axes(site.op, "row_of_token", row_of_token, "N")
    require_rank(site.op, "start", start, exactly=1)
    require_axes(site.op, "start", start, "R")
    require_shape(site.op, "length", length, start.shape)
    require_axes(site.op, "length", length, "R")
    check_scale(site)


def packed_rows(op: str, row_of_token: Array, start: Array, length: Array) -> Iterator[tuple[Array, slice]]:
    """The rows that tokens name: which tokens those are, and which tokens they see. Raises `BoundsError` for a row that does not lie within the tokens."""
    check_index(op, "row_of_token", row_of_token[row_of_token >= 0], 0, start.shape[0])
    for row in np.unique(row_of_token[row_of_token >= 0]):
        first, end = int(start[row]), int(start[row]) + int(length[row])
        if length[row] <= 0:
            continue
        if first < 0 or end > row_of_token.shape[0]:
            raise BoundsError(
                f"{op}: expected row {row} within the {row_of_token.shape[0]} tokens, found tokens [{first}, {end})",
                hint="start and length count tokens of this batch",
            )
        yield np.flatnonzero(row_of_token == row), slice(first, end)


def _reference(call: Arrays) -> tuple[Array, ...]:
    q, k, v = (call.wide(i) for i in range(3))
    y = np.zeros(q.shape, dtype=np.float32)
    if not y.size:
        return (y,)
    for tokens, seen in packed_rows(call.op, call.operand(3), call.operand(4), call.operand(5)):
        everything = np.ones((len(tokens), seen.stop - seen.start), dtype=np.bool_)
        y[tokens] = attend(q[tokens], k[seen], v[seen], everything, call.real("scale"))
    return (y,)


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """At full extents, with rows of equal length."""
    del attrs
    start = operands[4]
    assert start is not None
    tokens, rows = results[0].static_shape[0], start.static_shape[0]
    keys = -(-tokens // rows) if rows else 0
    return Cost(4 * results[0].elements * keys, nbytes(*operands, *results))


def sizes_of_rows(operands: OperandTypes) -> Sizes:
    """Tokens, of the rows; q or its gradient comes first, where rows start and how long they are last."""
    first, start = operands[0], operands[-2]
    assert first is not None
    assert start is not None
    return Sizes(first.static_shape[0], start.static_shape[0])


def packed_operands(
    lengths: Sequence[int],
    heads: tuple[int, int, int] = (12, 12, 32),
    dtype: DType = DType.F32,
    *,
    rows: Sequence[int] | None = None,
    starts: Sequence[int] | None = None,
    tokens: int | None = None,
) -> tuple[SampleOperand, ...]:
    """Rows of `lengths` one after the other; `rows` and `starts` replace what follows from that."""
    query, shared, head = heads
    owner = np.repeat(np.arange(len(lengths)), lengths) if rows is None else np.array(rows, dtype=np.int32)
    count = len(owner) if tokens is None else tokens
    owner = np.concatenate([owner, np.full(count - len(owner), -1)])
    begin = np.cumsum([0, *lengths])[:-1] if starts is None else np.array(starts)
    kv = normal((count, shared, head), dtype, "NGD")
    return (
        normal((count, query, head), dtype, "NHD"),
        kv,
        kv,
        indices(owner, "N"),
        indices(begin, "R"),
        indices(lengths, "R"),
    )


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    call = packed_operands
    for heads in ((12, 12, 32), (1, 1, 64), (6, 2, 80), (7, 1, 128), (2, 2, 33), (3, 1, 7)):
        yield valid(*call([1], heads), scale=heads[2] ** -0.5)
        yield valid(*call([5, 1, 31, 16], heads), scale=heads[2] ** -0.5)
    yield valid(*call([64, 65, 63, 1, 128], (4, 4, 32)), scale=0.17)
    yield valid(*call([100], (2, 1, 16)), scale=1.0)
    yield valid(*call([530, 3, 512], (1, 1, 32)), scale=0.17)
    for dtype in (DType.F16, DType.BF16):
        yield valid(*call([33, 7], (3, 3, 32), dtype), scale=0.17)
        yield valid(*call([9, 20], (4, 2, 64), dtype), scale=0.125, dtype="f32")
        yield valid(*call([40, 9], (4, 2, 64), dtype, tokens=52), scale=0.125)
    yield valid(*call([3, 5], (2, 2, 32)), scale=0.2, dtype="bf16")
    # padding tokens at the end and between rows, rows without tokens, tokens of a row apart from each other, rows that share tokens
    yield valid(*call([9, 4], (2, 2, 32), tokens=20), scale=0.2)
    yield valid(*call([2, 3], (2, 1, 32), rows=[0, 0, -1, -1, 1, 1, 1], starts=[0, 4]), scale=0.2)
    yield valid(*call([3, 0, 2], (2, 2, 32), rows=[0, 0, 0, 1, 1], starts=[0, 0, 3]), scale=0.2)
    yield valid(*call([3, 0, 2], (2, 2, 32)), scale=0.2)
    yield valid(*call([2, 3], (2, 2, 32), rows=[1, 0, 1, 0, 1], starts=[0, 2]), scale=0.2)
    yield valid(*call([4, 5], (2, 2, 32), rows=[0, 1, 0, 1, 1], starts=[0, 0]), scale=0.2)
    # a row that no token names may lie anywhere
    yield valid(*call([3, 100, -5], (2, 2, 32), rows=[0, 0, 0], starts=[0, -7, 99]), scale=0.2)
    yield valid(*call([-2, 2], (2, 2, 32), rows=[0, 1, 1], starts=[50, 1]), scale=0.2)
    # nothing to do: no tokens, no rows, no heads
    yield valid(*call([], (2, 2, 32)), scale=0.2)
    yield valid(*call([0, 0], (2, 2, 32)), scale=0.2)
    yield valid(*call([], (2, 2, 32), tokens=3), scale=0.2)
    yield valid(*call([3], (0, 1, 32)), scale=0.2)
    attrs: dict[str, Attr] = {"scale": 0.125}
    small = (2, 2, 32)
    yield invalid(BoundsError, *call([2, 2], small, rows=[0, 0, 1, 2], starts=[0, 2]), attrs=attrs)
    yield invalid(BoundsError, *call([2, 3], small, rows=[0, 0, 1, 1], starts=[0, 2]), attrs=attrs)
    yield invalid(BoundsError, *call([2, 2], small, rows=[0, 0, 1, 1], starts=[-1, 2]), attrs=attrs)
    good = call([5, 4], (6, 2, 32))
    yield invalid(ShapeError, normal((8, 6, 32)), *good[1:], attrs=attrs)
    yield invalid(ShapeError, normal((9, 5, 32)), *good[1:], attrs=attrs)
    yield invalid(ShapeError, normal((9, 6, 31)), *good[1:], attrs=attrs)
    yield invalid(ShapeError, normal((9, 192)), *good[1:], attrs=attrs)
    yield invalid(ShapeError, *good[:2], normal((9, 3, 32)), *good[3:], attrs=attrs)
    yield invalid(ShapeError, *good[:3], indices([0] * 8), *good[4:], attrs=attrs)
    yield invalid(ShapeError, *good[:5], indices([5, 4, 1]), attrs=attrs)
    yield invalid(DTypeError, *good[:2], normal((9, 2, 32), DType.BF16), *good[3:], attrs=attrs)
    yield invalid(LayoutError, normal((9, 6, 32), axes="NGD"), *good[1:], attrs=attrs)
    yield invalid(LayoutError, *good[:4], indices([0, 5], "N"), good[5], attrs=attrs)
    yield invalid(ConfigError, *good, attrs={"scale": -1.0})
    yield invalid(ConfigError, *good, attrs={"scale": 0.125, "window": 3})


def _gradients(at: Gradients) -> Mapping[int, str]:
    operands = [only_gradient(at), *(at.operand(index) for index in range(6))]
    made = at.apply_many("attention_bidirectional_backward", operands, {"scale": at.attrs["scale"]})
    return dict(enumerate(made))


ATTENTION_BIDIRECTIONAL = define(
    "attention_bidirectional",
    "Grouped-query attention of packed tokens q [N,H,D], k and v [N,G,D] -> [N,H,D]; token n sees length tokens of its row from start on.",
    (
        OperandSpec("q", FLOATS),
        OperandSpec("k", FLOATS),
        OperandSpec("v", FLOATS),
        OperandSpec("row_of_token", I32),
        OperandSpec("start", I32),
        OperandSpec("length", I32),
    ),
    ("y",),
    _infer,
    _reference,
    _samples,
    ATTENTION_TOLERANCE,
    attrs=(SCALE, DTYPE_ATTR),
    cost=_cost,
    sizes=sizes_of_rows,
    derivative=_gradients,
)
