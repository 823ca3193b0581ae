"""Causal grouped-query attention: over a block-table cache with packed tokens, and dense over whole sequences.

In the packed form prefill, chunks, decode and mixed batches are one operator: token n of row r sees keys j <= position[n] and j < length[r]. Query head h
reads kv head h // (H / G). A token that sees nothing, and a padding token (row -1), gives zeros, never NaN. With a window of W keys, position[n] - W < j
holds too, and blocks of the cache that hold no key that is seen need not exist: their place in the table is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Sizes
from ostinato.ir.ops.attend import (
    ATTENTION_TOLERANCE,
    SCALE,
    SOFT_CAP,
    WINDOW,
    attend,
    causal_pairs,
    check_causal,
    check_heads,
    check_scale,
    check_window,
    sizes_of_sequences,
    visible_keys,
)
from ostinato.ir.ops.attention_bidirectional import ATTENTION_BIDIRECTIONAL
from ostinato.ir.ops.cache import check_cache, check_token_vectors
from ostinato.ir.ops.derivatives import CACHED, only_gradient
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    FLOATS,
    I32,
    Arrays,
    Site,
    check_index,
    define,
    make_type,
    nbytes,
    refuse_mixed_halves,
    require_axes,
    require_rank,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import floats, indices, invalid, normal, valid
from ostinato.ir.rounding import working
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ATTENTION_CAUSAL", "ATTENTION_OPS", "ATTENTION_PACKED", "HEADS", "WRONG_ATTRIBUTES"]


def _infer_packed(site: Site) -> tuple[TensorType, ...]:
    q, k_cache, v_cache, block_table, length = (site.operand(i) for i in (0, 1, 2, 5, 6))
    require_rank(site.op, "q", q, exactly=3)
    require_axes(site.op, "q", q, "NHD")
    check_cache(site, k_cache, v_cache, q)
    check_heads(site.op, q.shape[1], k_cache.shape[1])
    check_token_vectors(site, q, site.operand(3), site.operand(4), block_table)
    require_shape(site.op, "length", length, block_table.shape[:1])
    require_axes(site.op, "length", length, "R")
    refuse_mixed_halves(site.op, q, k_cache)
    check_scale(site)
    check_window(site)
    return (make_type(site.op, q.shape, result_float(site, q), q.axes),)


def _infer_causal(site: Site) -> tuple[TensorType, ...]:
    check_causal(site)
    q = site.operand(0)
    return (make_type(site.op, q.shape, result_float(site, q), q.axes),)


def _reference_packed(call: Arrays) -> tuple[Array, ...]:
    q, row_of_token, position, table, length = call.wide(0), *(call.operand(i) for i in range(3, 7))
    blocks, _, block_size, _ = call.operand(1).shape
    window = call.integer("window")
    check_index(call.op, "row_of_token", row_of_token[row_of_token >= 0], 0, table.shape[0])
    y = np.zeros(q.shape, dtype=np.float32)
    for row in np.unique(row_of_token[row_of_token >= 0]):
        tokens = np.flatnonzero(row_of_token == row)
        after = position[tokens].astype(np.int64) + 1
        end = np.minimum(after, length[row])
        end = end[end > (np.maximum(after - window, 0) if window else 0)]  # of the tokens that see any
        if not end.size:
            continue
        keys = int(np.max(end))
        if keys > table.shape[1] * block_size:
            raise BoundsError(
                f"{call.op}: expected at most {table.shape[1] * block_size} keys a row, found {keys} in row {row}",
                hint="the block table bounds what a row can hold",
            )
        visible = visible_keys(position[tokens], keys, window)
        seen = np.flatnonzero(visible.any(axis=0))
        block = table[row, seen // block_size]
        check_index(call.op, "block", block, 0, blocks)
        k, v = (call.operand(i)[block, :, seen % block_size, :].astype(working()) for i in (1, 2))
        y[tokens] = attend(q[tokens], k, v, visible[:, seen], call.real("scale"), call.real("soft_cap"))
    return (y,)


def _reference_causal(call: Arrays) -> tuple[Array, ...]:
    q, k, v = (call.wide(i) for i in range(3))
    visible = visible_keys(np.arange(q.shape[1]), q.shape[1], call.integer("window"))
    y = np.zeros(q.shape, dtype=np.float32)
    for batch in range(q.shape[0]):
        y[batch] = attend(q[batch], k[batch], v[batch], visible, call.real("scale"), call.real("soft_cap"))
    return (y,)


def _cost_packed(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """At full tables: every token sees W blocks or a whole window, and the keys and values that a row's tokens see are read once."""
    q, k_cache, table = operands[0], operands[1], operands[5]
    assert q is not None
    assert k_cache is not None
    assert table is not None
    rows, width = table.static_shape
    _, groups, block_size, head = k_cache.static_shape
    window, capacity = attrs["window"], width * block_size
    assert isinstance(window, int)
    seen = min(window or capacity, capacity)
    read = min(seen + -(-q.static_shape[0] // max(rows, 1)), capacity) if window else capacity
    return Cost(
        4 * q.elements * seen,
        nbytes(q, *operands[3:], *results) + 2 * rows * k_cache.dtype.nbytes(read * groups * head),
    )


def _cost_causal(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """Two products for each pair of a query and a key that it sees."""
    window, sequence = attrs["window"], results[0].static_shape[1]
    assert isinstance(window, int)
    pairs = causal_pairs(sequence, window)
    return Cost(4 * (results[0].elements // max(sequence, 1)) * pairs, nbytes(*operands, *results))


def _sizes_packed(operands: OperandTypes) -> Sizes:
    """Tokens, of the rows of the table."""
    q, table = operands[0], operands[5]
    assert q is not None
    assert table is not None
    return Sizes(q.static_shape[0], table.static_shape[0])


WRONG_ATTRIBUTES: tuple[dict[str, Attr], ...] = (
    {"window": -1},
    {"window": 4.0},
    {"soft_cap": -1.0},
    {"soft_cap": float("inf")},
    {"soft_cap": float("nan")},
    {"soft_cap": 1e-46},
    {"soft_cap": 1e39},
    {"scale": 1e-46},
)
HEADS = ((1, 1, 64), (3, 1, 32), (14, 2, 64), (3, 3, 80), (7, 1, 128), (4, 2, 128), (2, 2, 33))


def _samples_packed(rng: np.random.Generator) -> Iterator[Sample]:
    def call(
        tokens: Sequence[tuple[int, int]],
        length: Sequence[int],
        *,
        heads: tuple[int, int, int] = (3, 1, 32),
        block_size: int = 8,
        width: int = 2,
        dtypes: tuple[DType, DType] = (DType.F32, DType.F32),
        table: Sequence[Sequence[int]] | None = None,
        named: bool = False,
    ) -> tuple[SampleOperand, ...]:
        query, shared, head = heads
        pairs = np.array(tokens, dtype=np.int32).reshape(-1, 2)
        blocks = len(length) * width + 1
        order = rng.permutation(blocks)[: len(length) * width].reshape(len(length), width) if table is None else table
        cache = normal((blocks, shared, block_size, head), dtypes[1], "PGSD" if named else "")
        axis = "N" if named else ""
        return (
            normal((len(tokens), query, head), dtypes[0], "NHD" if named else ""),
            cache,
            cache,
            indices(pairs[:, 0], axis),
            indices(pairs[:, 1], axis),
            indices(order, "RW" if named else ""),
            indices(length, "R" if named else ""),
        )

    def packed(
        operands: tuple[SampleOperand, ...],
        dtype: str = "",
        scale: float | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> Sample:
        head = operands[0].type.static_shape[-1]
        scale = head**-0.5 if scale is None else scale
        return valid(*operands, scale=scale, window=window, soft_cap=soft_cap, dtype=dtype)

    mixed = [(0, 12), *((1, p) for p in range(7)), (2, 4)]
    for heads in HEADS:
        yield packed(call(mixed, (13, 7, 5), heads=heads))
        yield packed(call([(0, 0)], (1,), heads=heads, width=1))
    for dtypes in (
        (DType.F32, DType.BF16),
        (DType.F32, DType.F16),
        (DType.BF16, DType.BF16),
        (DType.F16, DType.F16),
        (DType.BF16, DType.F32),
    ):
        yield packed(call(mixed, (13, 7, 5), heads=(14, 2, 64), dtypes=dtypes))
        yield packed(call(mixed, (13, 7, 5), heads=(7, 1, 128), dtypes=dtypes), dtype="f32")
    # a chunk of 33 tokens behind 67 cached ones, in blocks that do not divide it
    chunk = [(0, p) for p in range(67, 100)]
    yield packed(call(chunk, (100,), heads=(6, 2, 64), block_size=100, width=1))
    yield packed(call(chunk, (100,), heads=(6, 2, 80), block_size=31, width=4))
    # decode of several rows; tokens of a row apart from each other; padding tokens; rows of length 0 and shorter than the position
    yield packed(call([(r, 15 - r) for r in range(5)], [16 - r for r in range(5)], heads=(14, 2, 64), named=True))
    yield packed(call([(1, 3), (0, 2), (1, 9), (0, 5)], (6, 10)))
    yield packed(call([(0, 3), (-1, 0), (-1, 7), (1, 0)], (4, 1), named=True))
    yield packed(call([(0, 3), (1, 5), (1, 1)], (0, 4)))
    yield packed(call([(0, 3)], (4,), table=((1, -1),)))
    yield packed(call(mixed, (13, 7, 5)), scale=1.0)
    yield packed(call([], (4,)))
    # windows: one key, as long as what is cached, one longer, much longer; chunks across window and segment edges; a window past the length
    for window in (1, 4, 12, 13, 14, 2**40):
        yield packed(call(mixed, (13, 7, 5), heads=(4, 2, 32)), window=window)
    for window in (1, 5, 64, 96):
        yield packed(call(chunk, (100,), heads=(6, 2, 64), block_size=31, width=4, named=True), window=window)
    # many queries of halves, of one row and of two, in turns
    turns = [*((r, p) for p in range(20) for r in (1, 0)), (-1, 0)]
    for half in (DType.BF16, DType.F16):
        for window in (0, 5, 40):
            longer = call(chunk, (100,), heads=(6, 2, 64), block_size=31, width=4, dtypes=(half, half), named=True)
            yield packed(longer, window=window)
        for query in (half, DType.F32):
            both = call(turns, (20, 13), heads=(4, 1, 128), block_size=7, width=3, dtypes=(query, half))
            yield packed(both, dtype="f32")
            yield packed(both, soft_cap=3.0)
        wide = call(chunk, (100,), heads=(6, 2, 64), block_size=31, width=4, dtypes=(DType.F32, half), named=True)
        for window in (0, 9):
            yield packed(wide, dtype=half.value, window=window)
    far = [(0, p) for p in (*range(505, 520), 700, 1099)]
    yield packed(call(far, (1100,), heads=(2, 1, 16), block_size=160, width=7), window=513)
    yield packed(call([(0, 1099), (1, 1024), (2, 20)], (1100, 1030, 30), heads=(3, 1, 16), block_size=1100), window=600)
    yield packed(call([(0, 9), (0, 8), (0, 7)], (8,), heads=(2, 2, 32)), window=2)
    yield packed(
        call([(0, 2**31 - 1), (0, 1)], (1000,), heads=(2, 2, 32)), window=2
    )  # it sees nothing, wherever that would lie
    # blocks that no window reaches are gone
    yield packed(call([(0, 12), (0, 13)], (14,), block_size=4, width=4, table=((-1, -1, 1, 2),)), window=5)
    yield packed(call([(0, 1), (0, 13)], (14,), block_size=4, width=4, table=((0, -7, 99, 2),)), window=2)
    # caps that hardly bend the scores, and caps that saturate
    for cap, scale in ((50.0, 0.125), (30.0, 4.0), (1.0, 1.0), (0.01, 1.0)):
        yield packed(call(mixed, (13, 7, 5), heads=(4, 2, 64)), scale=scale, soft_cap=cap)
    yield packed(call(chunk, (100,), heads=(4, 2, 80), block_size=100, width=1), window=40, soft_cap=5.0, scale=1.0)
    yield packed(call(mixed, (13, 7, 5), dtypes=(DType.BF16, DType.BF16)), dtype="f32", window=3, soft_cap=2.0)
    attrs: dict[str, Attr] = {"scale": 0.125}
    yield invalid(BoundsError, *call([(2, 0)], (1, 1)), attrs=attrs)
    yield invalid(
        BoundsError,
        *call([(0, 13)], (14,), block_size=4, width=4, table=((-1, -1, -1, 2),)),
        attrs={**attrs, "window": 5},
    )
    yield invalid(BoundsError, *call([(0, 9)], (10,), table=((1, 3),)), attrs=attrs)
    yield invalid(BoundsError, *call([(0, 9)], (10,), table=((1, -1),)), attrs=attrs)
    yield invalid(BoundsError, *call([(0, 16)], (17,)), attrs=attrs)
    many = call(
        [(0, p) for p in range(20)],
        (20,),
        heads=(2, 1, 64),
        width=3,
        dtypes=(DType.BF16, DType.BF16),
        table=((0, -1, 1),),
    )
    yield invalid(BoundsError, *many, attrs=attrs)
    good = call(mixed, (13, 7, 5))
    yield invalid(ShapeError, normal((9, 3, 31)), *good[1:], attrs=attrs)
    yield invalid(ShapeError, normal((9, 96)), *good[1:], attrs=attrs)
    yield invalid(ShapeError, *good[:4], indices([0] * 8), *good[5:], attrs=attrs)
    yield invalid(ShapeError, *good[:6], indices([1, 2]), attrs=attrs)
    yield invalid(ShapeError, *good[:2], normal((7, 1, 9, 32)), *good[3:], attrs=attrs)
    uneven = normal((7, 2, 8, 32))
    yield invalid(ShapeError, good[0], uneven, uneven, *good[3:], attrs=attrs)
    yield invalid(DTypeError, *good[:2], normal((7, 1, 8, 32), DType.BF16), *good[3:], attrs=attrs)
    yield invalid(
        DTypeError,
        normal((9, 3, 32), DType.F16),
        *call(mixed, (13, 7, 5), dtypes=(DType.F32, DType.BF16))[1:],
        attrs=attrs,
    )
    yield invalid(LayoutError, normal((9, 3, 32), axes="NGD"), *good[1:], attrs=attrs)
    yield invalid(ConfigError, *good, attrs={"scale": 0.0})
    yield invalid(ConfigError, *good)
    for wrong in WRONG_ATTRIBUTES:
        yield invalid(ConfigError, *good, attrs={**attrs, **wrong})


def _samples_causal(rng: np.random.Generator) -> Iterator[Sample]:
    def call(
        batch: int, sequence: int, heads: tuple[int, int, int], dtype: DType = DType.F32, named: bool = False
    ) -> tuple[SampleOperand, ...]:
        query, shared, head = heads
        kv = normal((batch, sequence, shared, head), dtype, "BTGD" if named else "")
        return normal((batch, sequence, query, head), dtype, "BTHD" if named else ""), kv, kv

    for heads in HEADS:
        for batch, sequence in ((1, 1), (2, 9), (1, 33)):
            yield valid(*call(batch, sequence, heads), scale=heads[2] ** -0.5)
    for dtype in (DType.F16, DType.BF16):
        yield valid(*call(2, 31, (14, 2, 64), dtype), scale=0.125)
        yield valid(*call(1, 17, (3, 1, 80), dtype), scale=0.125, dtype="f32")
        yield valid(*call(2, 37, (6, 2, 64), dtype, named=True), scale=0.125, window=30)
    yield valid(*call(1, 100, (6, 2, 64), named=True), scale=0.125)
    yield valid(*call(2, 5, (4, 4, 32), named=True), scale=1.0, dtype="bf16")
    yield valid(*call(0, 5, (2, 1, 32)), scale=0.2)
    yield valid(*call(2, 0, (2, 1, 32)), scale=0.2)
    for window in (1, 4, 6, 7, 100):
        yield valid(*call(2, 6, (4, 2, 32)), scale=0.2, window=window)
    for window in (1, 33, 64):
        yield valid(*call(1, 150, (4, 2, 16)), scale=0.25, window=window)
    yield valid(*call(1, 1100, (1, 1, 8), named=True), scale=0.3, window=520)
    for cap in (50.0, 0.5):
        yield valid(*call(2, 19, (4, 2, 64)), scale=1.0, soft_cap=cap)
    yield valid(*call(2, 70, (3, 1, 32), DType.BF16, named=True), scale=0.2, window=9, soft_cap=3.0)
    # scores so large that one rounding of them is more than an exponential can hold; whole numbers, so that the largest is the same everywhere
    far, near = (rng.integers(-8, 9, (2, 40, heads, 8)) for heads in (4, 2))
    keys = floats(near, DType.F32)
    yield valid(floats(far * 2.0**30, DType.F32), keys, normal((2, 40, 2, 8)), scale=0.3)
    good = call(2, 5, (6, 2, 32))
    attrs: dict[str, Attr] = {"scale": 0.125}
    uneven, short, thin = normal((2, 5, 4, 32)), normal((2, 4, 2, 32)), normal((2, 5, 2, 31))
    yield invalid(ShapeError, good[0], uneven, uneven, attrs=attrs)
    yield invalid(ShapeError, good[0], short, short, attrs=attrs)
    yield invalid(ShapeError, good[0], thin, thin, attrs=attrs)
    yield invalid(ShapeError, good[0], good[1], short, attrs=attrs)
    yield invalid(ShapeError, normal((5, 6, 32)), good[1], good[2], attrs=attrs)
    yield invalid(DTypeError, good[0], good[1], normal((2, 5, 2, 32), DType.BF16), attrs=attrs)
    yield invalid(
        LayoutError, normal((2, 5, 5, 32), axes="BHTD"), normal((2, 5, 5, 32)), normal((2, 5, 5, 32)), attrs=attrs
    )
    yield invalid(LayoutError, good[0], normal((2, 5, 2, 32), axes="BGTD"), good[2], attrs=attrs)
    yield invalid(ConfigError, *good, attrs={"scale": float("inf")})
    for wrong in WRONG_ATTRIBUTES:
        yield invalid(ConfigError, *good, attrs={**attrs, **wrong})


def _gradients_causal(at: Gradients) -> Mapping[int, str]:
    """Attention computed again block by block, from its result and the sum of exponentials of each query."""
    q, k, v = (at.operand(index) for index in range(3))
    attrs = {name: at.attrs[name] for name in ("scale", "window", "soft_cap")}
    log_sum = at.apply("attention_log_sum", [q, k], attrs)
    operands = [only_gradient(at), q, k, v, at.result(), log_sum]
    return dict(enumerate(at.apply_many("attention_causal_backward", operands, attrs)))


ATTENTION_PACKED = define(
    "attention_packed",
    "Causal grouped-query attention of packed tokens q [N,H,D] over caches [P,G,S,D]; length holds each row's keys.",
    (
        OperandSpec("q", FLOATS),
        OperandSpec("k_cache", FLOATS),
        OperandSpec("v_cache", FLOATS),
        OperandSpec("row_of_token", I32),
        OperandSpec("position", I32),
        OperandSpec("block_table", I32),
        OperandSpec("length", I32),
    ),
    ("y",),
    _infer_packed,
    _reference_packed,
    _samples_packed,
    ATTENTION_TOLERANCE,
    attrs=(SCALE, WINDOW, SOFT_CAP, DTYPE_ATTR),
    cost=_cost_packed,
    sizes=_sizes_packed,
    derivative=CACHED,
)

ATTENTION_CAUSAL = define(
    "attention_causal",
    "Causal grouped-query attention over whole sequences: q [B,T,H,D], k and v [B,T,G,D] -> [B,T,H,D].",
    (OperandSpec("q", FLOATS), OperandSpec("k", FLOATS), OperandSpec("v", FLOATS)),
    ("y",),
    _infer_causal,
    _reference_causal,
    _samples_causal,
    ATTENTION_TOLERANCE,
    attrs=(SCALE, WINDOW, SOFT_CAP, DTYPE_ATTR),
    cost=_cost_causal,
    sizes=sizes_of_sequences,
    derivative=_gradients_causal,
)

ATTENTION_OPS = (
    ATTENTION_PACKED,
    ATTENTION_CAUSAL,
    ATTENTION_BIDIRECTIONAL,
)
