"""Grouped-query attention: over a block-table cache with packed tokens, and dense over whole sequences.

In the packed form prefill, chunks, decode and mixed batches are one operator: token n of row r sees keys j <= position[n] and j < length[r]. Query head h
reads kv head h // (H / G). A token that sees nothing, and a padding token (row -1), gives zeros, never NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.cache import check_cache, check_token_vectors
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
    refuse_mixed_halves,
    require_axes,
    require_rank,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, valid
from ostinato.ir.types import Array, DType, Extent, TensorType

__all__ = ["ATTENTION_CAUSAL", "ATTENTION_OPS", "ATTENTION_PACKED"]

TOLERANCE = Tolerance(
    2e-5, 2e-5, "contract of cached attention: fp32 scores, exponentials and sums against float64, in any order of keys"
)
SCALE = AttrSpec("scale", float)


def _check_heads(op: str, query: Extent, shared: Extent) -> None:
    if not isinstance(query, int) or not isinstance(shared, int) or shared < 1 or query % shared:
        fail(
            ShapeError,
            op,
            "query heads that are a multiple of the kv heads",
            f"{query} and {shared}",
            "grouped queries share kv heads evenly",
        )


def _check_scale(site: Site) -> None:
    scale = site.real("scale")
    if not (np.isfinite(scale) and scale > 0):
        fail(
            ConfigError,
            site.op,
            "a finite positive scale",
            str(scale),
            "1 / sqrt(head width) unless the model says otherwise",
        )


def _infer_packed(site: Site) -> tuple[TensorType, ...]:
    q, k_cache, v_cache, block_table, length = (site.operand(i) for i in (0, 1, 2, 5, 6))
    require_rank(site.op, "q", q, exactly=3)
    require_axes(site.op, "q", q, "NHD")
    check_cache(site, k_cache, v_cache, q)
    _check_heads(site.op, q.shape[1], k_cache.shape[1])
    check_token_vectors(site, q, site.operand(3), site.operand(4), block_table)
    require_shape(site.op, "length", length, block_table.shape[:1])
    require_axes(site.op, "length", length, "R")
    refuse_mixed_halves(site.op, q, k_cache)
    _check_scale(site)
    return (make_type(site.op, q.shape, result_float(site, q), q.axes),)


def _infer_causal(site: Site) -> tuple[TensorType, ...]:
    q, k, v = (site.operand(i) for i in range(3))
    require_rank(site.op, "q", q, exactly=4)
    require_axes(site.op, "q", q, "BTHD")
    require_rank(site.op, "k", k, exactly=4)
    require_axes(site.op, "k", k, "BTGD")
    require_shape(site.op, "k", k, (*q.shape[:2], k.shape[2], q.shape[3]))
    require_shape(site.op, "v", v, k.shape)
    require_axes(site.op, "v", v, "BTGD")
    _check_heads(site.op, q.shape[2], k.shape[2])
    if not q.dtype is k.dtype is v.dtype:
        fail(DTypeError, site.op, f"k and v of dtype {q.dtype.value} like q", f"{k} and {v}", "cast explicitly")
    _check_scale(site)
    return (make_type(site.op, q.shape, result_float(site, q), q.axes),)


def _attend(q: Array, k: Array, v: Array, visible: Array, scale: float) -> Array:
    """q [n,H,D] over k, v [keys,G,D] where visible [n,keys]; one kv head at a time, float64 in and out."""
    groups = k.shape[1]
    y = np.zeros(q.shape, dtype=np.float64)
    if not k.shape[0] or not q.size:
        return y
    per_group = q.shape[1] // groups
    mask = visible[:, None, :]
    for group in range(groups):
        heads = slice(group * per_group, (group + 1) * per_group)
        scores = np.where(mask, (q[:, heads] @ k[:, group].T) * scale, -np.inf)
        largest = np.max(scores, axis=-1, keepdims=True)
        power = np.exp(scores - np.where(largest == -np.inf, 0.0, largest))
        total = np.sum(power, axis=-1, keepdims=True)
        y[:, heads] = (power / np.where(total == 0, 1.0, total)) @ v[:, group]
    return y


def _reference_packed(call: Arrays) -> tuple[Array, ...]:
    q, row_of_token, position, table, length = call.wide(0), *(call.operand(i) for i in range(3, 7))
    k_cache, v_cache = call.operand(1), call.operand(2)
    blocks, groups, block_size, width = k_cache.shape
    check_index(call.op, "row_of_token", row_of_token[row_of_token >= 0], 0, table.shape[0])
    y = np.zeros(q.shape, dtype=np.float32)
    for row in np.unique(row_of_token[row_of_token >= 0]):
        tokens = np.flatnonzero(row_of_token == row)
        keys = int(min(np.max(position[tokens]) + 1, length[row]))
        if keys <= 0:
            continue
        if keys > table.shape[1] * block_size:
            raise BoundsError(
                f"{call.op}: expected at most {table.shape[1] * block_size} keys a row, found {keys} in row {row}",
                hint="the block table bounds what a row can hold",
            )
        used = table[row, : -(-keys // block_size)]
        check_index(call.op, "block", used, 0, blocks)
        k, v = (
            cache[used].transpose(0, 2, 1, 3).reshape(-1, groups, width)[:keys].astype(np.float64)
            for cache in (k_cache, v_cache)
        )
        visible = np.arange(keys) <= position[tokens][:, None]
        y[tokens] = _attend(q[tokens], k, v, visible, call.real("scale"))
    return (y,)


def _reference_causal(call: Arrays) -> tuple[Array, ...]:
    q, k, v = (call.wide(i) for i in range(3))
    visible = np.tri(q.shape[1], dtype=np.bool_)
    y = np.zeros(q.shape, dtype=np.float32)
    for batch in range(q.shape[0]):
        y[batch] = _attend(q[batch], k[batch], v[batch], visible, call.real("scale"))
    return (y,)


def _cost_packed(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """At full tables: every token sees W blocks, and the cached keys and values of every row are read once."""
    del attrs
    q, k_cache, table = operands[0], operands[1], operands[5]
    assert q is not None
    assert k_cache is not None
    assert table is not None
    rows, width = table.static_shape
    _, groups, block_size, head = k_cache.static_shape
    keys = width * block_size
    return Cost(
        4 * q.elements * keys,
        nbytes(q, *operands[3:], *results) + 2 * rows * k_cache.dtype.nbytes(keys * groups * head),
    )


def _cost_causal(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """Half of the square of scores is computed."""
    del attrs
    sequence = results[0].static_shape[1]
    return Cost(2 * results[0].elements * (sequence + 1), nbytes(*operands, *results))


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

    def packed(operands: tuple[SampleOperand, ...], dtype: str = "", scale: float | None = None) -> Sample:
        head = operands[0].type.static_shape[-1]
        return valid(*operands, scale=head**-0.5 if scale is None else scale, dtype=dtype)

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
    attrs: dict[str, Attr] = {"scale": 0.125}
    yield invalid(BoundsError, *call([(2, 0)], (1, 1)), attrs=attrs)
    yield invalid(BoundsError, *call([(0, 9)], (10,), table=((1, 3),)), attrs=attrs)
    yield invalid(BoundsError, *call([(0, 9)], (10,), table=((1, -1),)), attrs=attrs)
    yield invalid(BoundsError, *call([(0, 16)], (17,)), attrs=attrs)
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


def _samples_causal(rng: np.random.Generator) -> Iterator[Sample]:
    del rng

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
    yield valid(*call(1, 100, (6, 2, 64), named=True), scale=0.125)
    yield valid(*call(2, 5, (4, 4, 32), named=True), scale=1.0, dtype="bf16")
    yield valid(*call(0, 5, (2, 1, 32)), scale=0.2)
    yield valid(*call(2, 0, (2, 1, 32)), scale=0.2)
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
    TOLERANCE,
    attrs=(SCALE, DTYPE_ATTR),
    cost=_cost_packed,
)

ATTENTION_CAUSAL = define(
    "attention_causal",
    "Causal grouped-query attention over whole sequences: q [B,T,H,D], k and v [B,T,G,D] -> [B,T,H,D].",
    (OperandSpec("q", FLOATS), OperandSpec("k", FLOATS), OperandSpec("v", FLOATS)),
    ("y",),
    _infer_causal,
    _reference_causal,
    _samples_causal,
    TOLERANCE,
    attrs=(SCALE, DTYPE_ATTR),
    cost=_cost_causal,
)

ATTENTION_OPS = (
    ATTENTION_PACKED,
    ATTENTION_CAUSAL,
)
