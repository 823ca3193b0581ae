"""Rows of attention and of the key-value cache.

Packed attention reads the cache through the block table; attention over whole sequences and over packed sequences takes any strides of Q, K and V whose
head width is contiguous, so views and head-major memory need no copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from ostinato.backend_hip.impls.common import FLOATS, HOST, all_of, first_reason, fixed, need_dtype, number, uncounted
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import NATURAL, CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = [
    "ATTENTION_ROWS",
    "MAX_WIDTH",
    "bidirectional_accepts",
    "contiguous_width",
    "dense_accepts",
    "head_width",
    "packed_accepts",
    "store_accepts",
    "strides_of",
]

_INDICES = (DType.I32,)
MAX_WIDTH = 1024


def head_width(site: CallSite) -> str | None:
    """The reason when heads are wider than kernels have room for."""
    width = site.operand(0).shape[-1]
    return (
        f"the head width must be at most {MAX_WIDTH}, found {width}"
        if isinstance(width, int) and width > MAX_WIDTH
        else None
    )


def store_accepts(site: CallSite) -> str | None:
    """Keys and values of one float dtype into caches of one float dtype, with int32 places."""
    key, value = site.operand(0), site.operand(1)
    key_cache, value_cache = site.operand(5), site.operand(6)
    return first_reason(
        need_dtype("k", key, FLOATS),
        need_dtype("v", value, (key.dtype,)),
        need_dtype("row_of_token", site.operand(2), _INDICES),
        need_dtype("position", site.operand(3), _INDICES),
        need_dtype("block_table", site.operand(4), _INDICES),
        need_dtype("k_cache", key_cache, FLOATS),
        need_dtype("v_cache", value_cache, (key_cache.dtype,)),
    )


def _store_params(site: CallSite) -> tuple[int, ...]:
    key, cache = site.operand(0), site.operand(5)
    tokens, heads, width = key.static_shape
    blocks, _, block_size, _ = cache.static_shape
    rows, table_width = site.operand(4).static_shape
    return (tokens, heads, width, blocks, block_size, table_width, rows, number(key), number(cache))


def packed_accepts(site: CallSite) -> str | None:
    """Float queries over float caches of one dtype, with int32 places, and a head that fits."""
    cache = site.operand(1)
    return first_reason(
        need_dtype("q", site.operand(0), FLOATS),
        need_dtype("k_cache", cache, FLOATS),
        need_dtype("v_cache", site.operand(2), (cache.dtype,)),
        *(
            need_dtype(name, site.operand(index), _INDICES)
            for index, name in enumerate(("row_of_token", "position", "block_table", "length"), 3)
        ),
        need_dtype("y", site.results[0], FLOATS),
        head_width(site),
    )


def _packed_params(site: CallSite) -> tuple[int | float, ...]:
    tokens, heads, width = site.operand(0).static_shape
    blocks, cache_heads, block_size, _ = site.operand(1).static_shape
    rows, table_width = site.operand(5).static_shape
    dtypes = (number(site.operand(0)), number(site.operand(1)), number(site.results[0]))
    sizes = (tokens, heads, cache_heads, width, blocks, block_size, table_width, rows)
    return (*sizes, site.real("scale"), site.integer("window"), site.real("soft_cap"), *dtypes)


def dense_accepts(site: CallSite) -> str | None:
    """Queries, keys and values of one float dtype, contiguous along a head that fits."""
    query = site.operand(0)
    return first_reason(
        need_dtype("q", query, FLOATS),
        need_dtype("k", site.operand(1), (query.dtype,)),
        need_dtype("v", site.operand(2), (query.dtype,)),
        need_dtype("y", site.results[0], FLOATS),
        head_width(site),
        *(contiguous_width(site, index, name) for index, name in enumerate("qkv")),
    )


def contiguous_width(site: CallSite, index: int, name: str) -> str | None:
    """The reason when the elements of a head of an operand do not lie side by side."""
    strides = site.strides[index]
    width = site.operand(index).shape[-1]
    if strides is None or strides[-1] == 1 or width == 1:
        return None
    return f"{name} must be contiguous along the head width, found strides {list(strides)}"


def strides_of(site: CallSite, first: int = 0, count: int = 3) -> Iterator[int]:
    """All strides of so many operands but that of the head width: of q, k and v unless others are given."""
    for seen in site.strides[first : first + count]:
        assert seen is not None, "attention operands are never packed"
        yield from seen[:-1]


def _causal_params(site: CallSite) -> tuple[int | float, ...]:
    batch, time, heads, width = site.operand(0).static_shape
    sizes = (batch, time, heads, site.operand(1).static_shape[2], width)
    dtypes = (number(site.operand(0)), number(site.results[0]))
    scoring = (site.real("scale"), site.integer("window"), site.real("soft_cap"))
    return (*sizes, *scoring, *dtypes, *strides_of(site))


def bidirectional_accepts(site: CallSite) -> str | None:
    """The same with int32 rows."""
    vectors = enumerate(("row_of_token", "start", "length"), 3)
    return first_reason(
        dense_accepts(site), *(need_dtype(name, site.operand(index), _INDICES) for index, name in vectors)
    )


def _bidirectional_params(site: CallSite) -> tuple[int | float, ...]:
    tokens, heads, width = site.operand(0).static_shape
    sizes = (tokens, heads, site.operand(1).static_shape[1], width, site.operand(4).static_shape[0])
    dtypes = (number(site.operand(0)), number(site.results[0]))
    return (*sizes, site.real("scale"), *dtypes, *strides_of(site))


ATTENTION_ROWS = (
    Impl(
        op="kv_store",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.REFERENCE,
        operands=("k", "v", "row_of_token", "position", "block_table", "count", "k_cache_out", "v_cache_out"),
        kernel=fixed("kv_store"),
        params=_store_params,
        accepts=store_accepts,
    ),
    Impl(
        op="attention_packed",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=("q", "k_cache", "v_cache", "row_of_token", "position", "block_table", "length", "count", "y"),
        kernel=fixed("attention_packed"),
        params=_packed_params,
        accepts=packed_accepts,
    ),
    Impl(
        op="attention_causal",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=("q", "k", "v", "y"),
        kernel=fixed("attention_causal"),
        params=_causal_params,
        accepts=all_of(dense_accepts, uncounted),
        strided=frozenset({"q", "k", "v"}),
        layouts=(("q", (NATURAL, "BHTD")), ("k", (NATURAL, "BGTD")), ("v", (NATURAL, "BGTD"))),
    ),
    Impl(
        op="attention_bidirectional",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=("q", "k", "v", "row_of_token", "start", "length", "count", "y"),
        kernel=fixed("attention_bidirectional"),
        params=_bidirectional_params,
        accepts=bidirectional_accepts,
        strided=frozenset({"q", "k", "v"}),
    ),
)
