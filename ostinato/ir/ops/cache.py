"""Writing keys and values into a block-table cache: the only operator of the spine that changes state.

The cache is `[blocks, kv heads, block size, head width]`; token n of row r lies in block `block_table[r, position // block size]`, so a cache of whole rows
and a paged one differ only in their table. A value in and a value out that must be the same bytes: nothing else in a graph mutates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import BoundsError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, Cost, Effect, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.derivatives import CACHED
from ostinato.ir.ops.rules import (
    FLOATS,
    I32,
    Arrays,
    Site,
    check_index,
    define,
    fail,
    nbytes,
    require_axes,
    require_rank,
    require_same_extent,
    require_shape,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["CACHE_OPS", "KV_STORE", "check_cache", "check_token_vectors", "stored"]


def check_cache(site: Site, k_cache: TensorType, v_cache: TensorType, width: TensorType) -> None:
    """K and V caches [P,G,S,D] of one shape and dtype, with the head width of `width` [..., D]."""
    require_rank(site.op, "k_cache", k_cache, exactly=4)
    require_axes(site.op, "k_cache", k_cache, "PGSD")
    require_shape(site.op, "v_cache", v_cache, k_cache.shape)
    require_axes(site.op, "v_cache", v_cache, "PGSD")
    if k_cache.dtype is not v_cache.dtype:
        fail(
            DTypeError,
            site.op,
            f"v_cache of dtype {k_cache.dtype.value} like k_cache",
            str(v_cache),
            "one dtype serves both caches",
        )
    require_same_extent(site.op, "cache head width", width.shape[-1], k_cache.shape[3])
    for cache in (k_cache, v_cache):
        if not cache.is_natural:
            fail(
                LayoutError,
                site.op,
                "a cache in its natural layout PGSD",
                str(cache),
                "caches are never stored in another order",
            )


def check_token_vectors(
    site: Site, tokens: TensorType, row_of_token: TensorType, position: TensorType, block_table: TensorType
) -> None:
    """row_of_token [N], position [N] and block_table [R,W] beside tokens [N, ...]."""
    for name, vector in (("row_of_token", row_of_token), ("position", position)):
        require_shape(site.op, name, vector, (tokens.shape[0],))
        require_axes(site.op, name, vector, "N")
    require_rank(site.op, "block_table", block_table, exactly=2)
    require_axes(site.op, "block_table", block_table, "RW")


def _infer(site: Site) -> tuple[TensorType, ...]:
    k, v, k_cache, v_cache = site.operand(0), site.operand(1), site.operand(5), site.operand(6)
    require_rank(site.op, "k", k, exactly=3)
    require_axes(site.op, "k", k, "NGD")
    require_shape(site.op, "v", v, k.shape)
    require_axes(site.op, "v", v, "NGD")
    if k.dtype is not v.dtype:
        fail(DTypeError, site.op, f"v of dtype {k.dtype.value} like k", str(v), "cast one of them explicitly")
    check_cache(site, k_cache, v_cache, k)
    require_same_extent(site.op, "cache kv heads", k.shape[1], k_cache.shape[1])
    check_token_vectors(site, k, site.operand(2), site.operand(3), site.operand(4))
    return (k_cache.with_layout(None), v_cache.with_layout(None))


def stored(
    op: str, k: Array, v: Array, row: Array, position: Array, table: Array, k_cache: Array, v_cache: Array
) -> tuple[Array, Array]:
    """Copies of the caches with k and v [N,G,D] at each token's place; tokens of row -1 are skipped. Raises `BoundsError` for a place that there is not."""
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    blocks, _, block_size, _ = k_cache.shape
    kept = np.flatnonzero(row >= 0)
    row, position = row[kept], position[kept]
    check_index(op, "row_of_token", row, 0, table.shape[0])
    check_index(op, "position", position, 0, table.shape[1] * block_size)
    block = table[row, position // block_size] if kept.size else kept
    check_index(op, "block", block, 0, blocks)
    slot = position % block_size if kept.size else kept
    k_cache[block, :, slot, :] = k[kept]
    v_cache[block, :, slot, :] = v[kept]
    return k_cache, v_cache


def _reference(call: Arrays) -> tuple[Array, ...]:
    return stored(call.op, *(call.operand(index) for index in range(7)))


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """The tokens are read and written once; the rest of the cache is not touched."""
    del attrs
    k = operands[0]
    assert k is not None
    return Cost(0, nbytes(*operands[:4]) + 2 * k.elements * results[0].dtype.block_bytes)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def call(
        tokens: list[tuple[int, int]],
        heads: int = 2,
        width: int = 32,
        block_size: int = 4,
        table: tuple[tuple[int, ...], ...] = ((3, 0), (5, 2), (1, 4)),
        dtype: DType = DType.F32,
        cache: DType = DType.F32,
        named: bool = False,
    ) -> tuple[SampleOperand, ...]:
        pairs = np.array(tokens, dtype=np.int32).reshape(-1, 2)
        shape = (len(tokens), heads, width)
        new = normal(shape, dtype, "NGD" if named else "")
        store = normal((6, heads, block_size, width), cache, "PGSD" if named else "")
        axis = "N" if named else ""
        return (
            new,
            new,
            indices(pairs[:, 0], axis),
            indices(pairs[:, 1], axis),
            indices(table, "RW" if named else ""),
            store,
            store,
        )

    prompt = [(0, p) for p in range(5)] + [(2, p) for p in range(3, 8)]
    for width in (32, 64, 80, 128, 1, 33):
        yield valid(*call(prompt, width=width))
    for cache in (DType.F32, DType.F16, DType.BF16):
        for dtype in (DType.F32, DType.F16, DType.BF16):
            yield valid(*call(prompt, dtype=dtype, cache=cache))
    yield valid(*call([(1, 7)], heads=1))
    yield valid(*call([(0, 0), (-1, 0), (2, 4), (-1, 99)], named=True))
    yield valid(*call([(2, 32), (0, 3), (1, 31)], block_size=33, table=((3,), (5,), (1,))))
    yield valid(*call([]))
    yield valid(*call([(1, 2)], table=((9, 9), (5, -1), (9, 9))))
    for bad in ([(3, 0)], [(0, 8)], [(0, -1)]):
        yield invalid(BoundsError, *call(bad))
    yield invalid(BoundsError, *call([(0, 0)], table=((6, 0),)))
    yield invalid(BoundsError, *call([(0, 5)], table=((0, -1),)))
    good = call(prompt)
    long = normal((10, 3, 32))
    yield invalid(ShapeError, long, long, *good[2:])
    yield invalid(ShapeError, good[0], long, *good[2:])
    yield invalid(ShapeError, *good[:2], indices([0] * 9), *good[3:])
    yield invalid(ShapeError, *good[:4], indices([0, 1]), *good[5:])
    yield invalid(ShapeError, *good[:6], normal((6, 2, 5, 32)))
    yield invalid(ShapeError, *good[:5], normal((6, 2, 4, 31)), normal((6, 2, 4, 31)))
    yield invalid(DTypeError, *good[:6], normal((6, 2, 4, 32), DType.BF16))
    yield invalid(DTypeError, good[0], normal((10, 2, 32), DType.F16), *good[2:])
    yield invalid(DTypeError, *good[:2], normal((10,)), *good[3:])
    swapped = normal((6, 2, 4, 32), axes="PSGD")
    yield invalid(LayoutError, *good[:5], swapped, swapped)


KV_STORE = define(
    "kv_store",
    "Stores k and v [N,G,D] in the caches at each token's row and position; tokens of row -1 are skipped.",
    (
        OperandSpec("k", FLOATS),
        OperandSpec("v", FLOATS),
        OperandSpec("row_of_token", I32),
        OperandSpec("position", I32),
        OperandSpec("block_table", I32),
        OperandSpec("k_cache", FLOATS),
        OperandSpec("v_cache", FLOATS),
    ),
    ("k_cache_out", "v_cache_out"),
    _infer,
    _reference,
    _samples,
    Tolerance(0, 0, "values are rounded once to the dtype of the cache"),
    effect=Effect.STATE,
    must_alias=((0, 5), (1, 6)),
    extent="k",
    cost=_cost,
    derivative=CACHED,
)

CACHE_OPS = (KV_STORE,)
