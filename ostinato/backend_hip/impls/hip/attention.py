"""Rows of attention and of the key-value cache, for GPUs: a block a token and query head.

Q, K and V of whole and packed sequences may have any strides whose head width is contiguous. Heads of 4, 8, 16 or 32 times 16 bytes have a row of their own,
in which lanes share keys. Many queries over halves, with heads of 64 or 128, have a row on the matrix units, for waves of either width (but for results in f32
over bf16); many of f32 have a row whose blocks take tiles of queries without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from ostinato.backend_hip.impls.attention import (
    bidirectional_accepts,
    dense_accepts,
    packed_accepts,
    store_accepts,
    strides_of,
)
from ostinato.backend_hip.impls.common import all_of, first_reason, need_dtype
from ostinato.backend_hip.impls.hip.common import (
    TICKETS,
    WAVES,
    Params,
    block_launch,
    by_dtypes,
    element_launch,
    readable,
    row_launch,
)
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import Launch
from ostinato.ir.target import NATURAL, CallSite, Extents, Impl, Level
from ostinato.ir.types import DType

__all__ = ["ATTENTION_ROWS", "causal_rows"]

_FILE = "attention/attention"
_TILE_THREADS = 128
_HELD = (1, 2, 8)
"""Elements of the output that a thread holds; the last one is enough for the widest head."""
_LANES = (4, 8, 16, 32)
"""Lanes that share a key, 16 bytes each."""


def _store_params(site: CallSite) -> Params:
    blocks, _, block_size, _ = site.operand(5).static_shape
    return (*site.operand(0).static_shape, blocks, block_size, *site.operand(4).static_shape)


def _store_launch(site: CallSite) -> Launch:
    return element_launch(site.operand(0).elements)


def _in_tiles(function: str, *operands: int) -> Callable[[CallSite], str]:
    """The kernel for the head width, the dtypes of these operands and that of the result."""

    def name(site: CallSite) -> str:
        width = site.operand(0).static_shape[-1]
        held = next(count for count in _HELD if count * _TILE_THREADS >= width)
        return _kernel(site, function, f"tiles_{held}", operands)

    return name


def _by_lanes(function: str, *operands: int) -> Callable[[CallSite], str]:
    return lambda site: _kernel(site, function, f"lanes_{_lanes(site)}", operands)


def _kernel(site: CallSite, function: str, way: str, operands: Iterable[int]) -> str:
    dtypes = (*(site.operand(index).dtype for index in operands), site.results[0].dtype)
    return kernel_name(_FILE, function, way, *(dtype.value for dtype in dtypes))


def _lanes(site: CallSite) -> int:
    """Runs of 16 bytes of a key; 0 where it is no whole number of them."""
    key = site.operand(1)
    runs, rest = divmod(key.dtype.nbytes(key.static_shape[-1]), 16)
    return 0 if rest else runs


def _fits_lanes(site: CallSite) -> str | None:
    if _lanes(site) in _LANES:
        return None
    return f"a key must be {', '.join(map(str, _LANES))} times 16 bytes, found {site.operand(1)}"


def _units(site: CallSite) -> int:
    """Tokens times query heads."""
    return math.prod(site.operand(0).static_shape[:-1])


def _tiles_launch(site: CallSite) -> Launch:
    return row_launch(_units(site), _TILE_THREADS)


def _lanes_launch(site: CallSite) -> Launch:
    return row_launch(_units(site))


def _packed_params(site: CallSite) -> Params:
    tokens, heads, width = site.operand(0).static_shape
    blocks, kv_heads, block_size, _ = site.operand(1).static_shape
    sizes = (tokens, heads, kv_heads, width, blocks, block_size, *site.operand(5).static_shape)
    return (*sizes, site.real("scale"), site.integer("window"), site.real("soft_cap"))


_SHARERS = 8
"""Blocks that have the keys of a token and head between them, as kernels/attention/decode.hip has it."""
_SHARING_THREADS = 128


def _split_launch(site: CallSite) -> Launch:
    """Blocks that share a token and head are neighbours."""
    return block_launch(max(1, _units(site)) * _SHARERS, _SHARING_THREADS)


def _split_workspace(site: CallSite) -> int:
    """Three numbers an element of a head, for each block."""
    return DType.F32.nbytes(3 * _SHARERS * site.operand(0).elements)


def _split_kernel(site: CallSite) -> str:
    dtypes = (site.operand(0).dtype, site.operand(1).dtype, site.results[0].dtype)
    return kernel_name("attention/decode", "attention_decode", _lanes(site), *(dtype.value for dtype in dtypes))


def _few_units(site: CallSite) -> str | None:
    units = _units(site)
    return f"the kernel has tickets for {TICKETS} tokens and heads, found {units}" if units > TICKETS else None


def _causal_params(site: CallSite) -> Params:
    batches, time, heads, width = site.operand(0).static_shape
    scoring = (site.real("scale"), site.integer("window"), site.real("soft_cap"))
    return (batches, time, heads, site.operand(1).static_shape[2], width, *scoring, *strides_of(site))


def _bidirectional_params(site: CallSite) -> Params:
    tokens, heads, width = site.operand(0).static_shape
    sizes = (tokens, heads, site.operand(1).static_shape[1], width, site.operand(4).elements)
    return (*sizes, site.real("scale"), *strides_of(site))


def _with_lanes(row: Impl, kernel: Callable[[CallSite], str]) -> Impl:
    """The row for heads that lanes can share."""
    accepts = all_of(row.accepts, _fits_lanes)
    return replace(row, name="hip_lanes", level=Level.TUNED, kernel=kernel, launch=_lanes_launch, accepts=accepts)


_TILE_FILE = "attention/tile"
_HALVES = (DType.F16, DType.BF16)
_WIDTHS = (64, 128)
_QUERIES = 64
"""Of a block: so many tokens and heads that share keys."""
_TILE_WAVES = 8
_FEWEST = 16
"""Tokens of a sequence from which on matrix units pay."""


def _enough_bits(site: CallSite) -> str | None:
    """An f32 query and the weights of the values are taken as two halves each."""
    if (site.operand(1).dtype, site.results[0].dtype) != (DType.BF16, DType.F32):
        return None
    return "two bf16 are not enough for a result in f32"


def _halves(site: CallSite) -> str | None:
    """Keys and values of one half dtype and queries of it or of f32, with heads that the kernel has tiles for."""
    query, key = site.operand(0), site.operand(1)
    width = query.static_shape[-1]
    return first_reason(
        need_dtype("k", key, _HALVES),
        need_dtype("q", query, (key.dtype, DType.F32)),
        _enough_bits(site),
        None if width in _WIDTHS else f"the head width must be {' or '.join(map(str, _WIDTHS))}, found {width}",
    )


_MANY = Extents(sequence=(_FEWEST, None))


def _split(row: Impl) -> Impl:
    """The row for few tokens, whose keys several blocks share."""
    return replace(
        row,
        name="hip_split",
        level=Level.TUNED,
        operands=(*row.operands, "workspace"),
        kernel=_split_kernel,
        params=_packed_params,
        launch=_split_launch,
        workspace=_split_workspace,
        accepts=all_of(row.accepts, _fits_lanes, _few_units),
        extents=Extents(rows=(0, TICKETS)),
        exactness=Exactness.ROW_INVARIANT,
        ahead=("row_of_token", "position", "block_table", "length", "count"),
        priority=1,
    )


def _tiles(row: Impl, site: CallSite, queries: int) -> int:
    """So many queries that share a key-value head each."""
    shared = max(1, site.operand(1).static_shape[1 if row.op == "attention_packed" else -2])
    return -(-_units(site) // shared // queries) * shared


def _on_matrix_units(row: Impl, wave: int) -> Impl:
    """The row for many queries of halves, on GPUs with waves of so many lanes."""

    def kernel(site: CallSite) -> str:
        function = row.op.replace("attention", "attention_tile")
        width = site.operand(0).static_shape[-1]
        queries = (site.operand(0).dtype,) if row.op == "attention_packed" else ()
        dtypes = (*queries, site.operand(1).dtype, site.results[0].dtype)
        return kernel_name(_TILE_FILE, function, width, *(dtype.value for dtype in dtypes))

    def launch(site: CallSite) -> Launch:
        return block_launch(_tiles(row, site, _QUERIES), _TILE_WAVES * wave)

    return replace(
        row,
        name=f"hip_tile{wave}",
        level=Level.TUNED,
        architectures=(f"wave{wave}",),
        kernel=kernel,
        launch=launch,
        accepts=all_of(row.accepts, _halves),
        extents=_MANY,
        priority=2,
    )


_BLOCK_FILE = "attention/block"
_BLOCK_WIDTHS = (32, 64)
_BLOCK_QUERIES = 32
_BLOCK_THREADS = 128


def _all_f32(site: CallSite) -> str | None:
    """Queries, keys and values of f32, with heads that the kernel has room for."""
    width = site.operand(0).static_shape[-1]
    return first_reason(
        need_dtype("q", site.operand(0), (DType.F32,)),
        need_dtype("k", site.operand(1), (DType.F32,)),
        None
        if width in _BLOCK_WIDTHS
        else f"the head width must be {' or '.join(map(str, _BLOCK_WIDTHS))}, found {width}",
    )


def _in_blocks(row: Impl) -> Impl:
    """The row for many queries of f32."""

    def kernel(site: CallSite) -> str:
        function = row.op.replace("attention", "attention_block")
        return kernel_name(_BLOCK_FILE, function, site.operand(0).static_shape[-1], site.results[0].dtype.value)

    return replace(
        row,
        name="hip_block",
        level=Level.TUNED,
        kernel=kernel,
        launch=lambda site: block_launch(_tiles(row, site, _BLOCK_QUERIES), _BLOCK_THREADS),
        accepts=all_of(row.accepts, _all_f32),
        extents=_MANY,
        priority=2,
    )


_PACKED = readable(
    "attention_packed",
    ("q", "k_cache", "v_cache", "row_of_token", "position", "block_table", "length", "count", "y"),
    _in_tiles("attention_packed", 0, 1),
    _packed_params,
    _tiles_launch,
    packed_accepts,
)

_BIDIRECTIONAL = replace(
    readable(
        "attention_bidirectional",
        ("q", "k", "v", "row_of_token", "start", "length", "count", "y"),
        _in_tiles("attention_bidirectional", 0),
        _bidirectional_params,
        _tiles_launch,
        bidirectional_accepts,
    ),
    strided=frozenset({"q", "k", "v"}),
)


def causal_rows(op: str, *more: str) -> tuple[Impl, ...]:
    """The rows of an operator of attention over whole sequences, with so many results besides."""
    row = replace(
        readable(
            op,
            ("q", "k", "v", "count", "y", *more),
            _in_tiles(op, 0),
            _causal_params,
            _tiles_launch,
            dense_accepts,
        ),
        strided=frozenset({"q", "k", "v"}),
        layouts=(("q", (NATURAL, "BHTD")), ("k", (NATURAL, "BGTD")), ("v", (NATURAL, "BGTD"))),
    )
    on_units = (_on_matrix_units(row, wave) for wave in WAVES)
    return (row, _with_lanes(row, _by_lanes(op, 0)), *on_units, _in_blocks(row))


ATTENTION_ROWS = (
    readable(
        "kv_store",
        ("k", "v", "row_of_token", "position", "block_table", "count", "k_cache_out", "v_cache_out"),
        by_dtypes("cache/cache", "kv_store", 0, 5),
        _store_params,
        _store_launch,
        store_accepts,
        exactness=Exactness.REFERENCE,
    ),
    _PACKED,
    _with_lanes(_PACKED, _by_lanes("attention_packed", 0, 1)),
    _split(_PACKED),
    *(_on_matrix_units(_PACKED, wave) for wave in WAVES),
    _in_blocks(_PACKED),
    *causal_rows("attention_causal"),
    _BIDIRECTIONAL,
    _with_lanes(_BIDIRECTIONAL, _by_lanes("attention_bidirectional", 0)),
    *(_on_matrix_units(_BIDIRECTIONAL, wave) for wave in WAVES),
    _in_blocks(_BIDIRECTIONAL),
)
