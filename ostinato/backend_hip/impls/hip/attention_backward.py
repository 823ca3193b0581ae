"""Rows of attention for training, for GPUs: what its forward pass keeps, and its gradients.

The forward rows are those of attention over whole sequences, with the logarithms of sums of exponentials as a second result. A gradient has a block a query
and head and a block a key and key-value head, for any head. Over bf16 with heads of 64 or 128 it is made by tiles on the matrix units, over f32 with heads of
32, 64 or 128 by tiles without them. No sum is shared by blocks but in a fixed order, so that a row gives the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ostinato.backend_hip.impls.attention import contiguous_width, head_width, strides_of
from ostinato.backend_hip.impls.common import FLOATS, Predicate, all_of, first_reason, need_dtype
from ostinato.backend_hip.impls.hip.attention import causal_rows
from ostinato.backend_hip.impls.hip.common import TICKETS, WAVES, Params, block_launch, readable, row_launch
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import Launch
from ostinato.ir.target import NATURAL, CallSite, Extents, Impl, Level
from ostinato.ir.types import DType

__all__ = ["ATTENTION_BACKWARD_ROWS"]

_FILE = "attention/backward"
_THREADS = 64
_HELD = (1, 2, 16)
"""Elements of the head width that a thread holds; the last one is enough for the widest head."""
_SHARES = 8
"""Blocks that share the keys of a key-value head of an encoder."""
_LAYOUTS = (("q", (NATURAL, "BHTD")), ("k", (NATURAL, "BGTD")), ("v", (NATURAL, "BGTD")))


def _held(site: CallSite) -> int:
    return next(count for count in _HELD if count * _THREADS >= site.operand(0).static_shape[-1])


def _kernel(function: str, *operands: int, results: bool = True) -> Callable[[CallSite], str]:
    """The kernel for the head width, the dtypes of these operands and, of all results alike, theirs."""

    def name(site: CallSite) -> str:
        dtypes = [site.operand(index).dtype for index in operands] + [site.results[0].dtype] * results
        held = (_held(site),) if results else ()
        return kernel_name(_FILE, function, *held, *(dtype.value for dtype in dtypes))

    return name


def _operands(first: int, *names: str) -> Predicate:
    """Operands of one float dtype from `first` on, contiguous along a head that fits."""

    def accepts(site: CallSite) -> str | None:
        dtype = site.operand(first).dtype
        return first_reason(
            need_dtype(names[0], site.operand(first), FLOATS),
            *(need_dtype(name, site.operand(first + i), (dtype,)) for i, name in enumerate(names)),
            *(contiguous_width(site, first + i, name) for i, name in enumerate(names)),
            head_width(site),
        )

    return accepts


def _gradients(site: CallSite) -> str | None:
    """A gradient of float32, and gradients of one float dtype."""
    return first_reason(
        need_dtype("gradient", site.operand(0), (DType.F32,)), need_dtype("q_gradient", site.results[0], FLOATS)
    )


def _scoring(site: CallSite) -> Params:
    return (site.real("scale"), site.integer("window"), site.real("soft_cap"))


def _log_sum_params(site: CallSite) -> Params:
    batches, time, heads, width = site.operand(0).static_shape
    sizes = (batches, time, heads, site.operand(1).static_shape[2], width)
    return (*sizes, *_scoring(site), *strides_of(site, 0, 2))


def _sizes(site: CallSite) -> tuple[int, int, int, int, int]:
    """Batches, time, heads, key-value heads and head width of the gradient of whole sequences."""
    batches, time, heads, width = site.operand(1).static_shape
    return (batches, time, heads, site.operand(2).static_shape[2], width)


def _causal_params(site: CallSite) -> Params:
    return (*_sizes(site), *_scoring(site), *strides_of(site, 1, 3))


def _causal_launch(site: CallSite) -> Launch:
    batches, time, heads, kv_heads, _ = _sizes(site)
    return row_launch(batches * time * (heads + kv_heads), _THREADS)


def _causal_operands(site: CallSite) -> str | None:
    """A result of attention in float, and logarithms in float32."""
    return first_reason(need_dtype("y", site.operand(4), FLOATS), need_dtype("log_sum", site.operand(5), (DType.F32,)))


def _bidirectional_params(site: CallSite) -> Params:
    tokens, heads, width = site.operand(1).static_shape
    sizes = (tokens, heads, site.operand(2).static_shape[1], width, site.operand(5).elements)
    return (*sizes, site.real("scale"), _SHARES, *strides_of(site, 1, 3))


def _bidirectional_launch(site: CallSite) -> Launch:
    tokens, heads, _ = site.operand(1).static_shape
    return row_launch(tokens * heads + site.operand(2).static_shape[1] * _SHARES, _THREADS)


def _bidirectional_workspace(site: CallSite) -> int:
    """Two numbers a token and head for each block of keys."""
    tokens, heads, _ = site.operand(1).static_shape
    return DType.F32.nbytes(2 * _SHARES * tokens * heads)


def _indices(site: CallSite) -> str | None:
    names = enumerate(("row_of_token", "start", "length"), 4)
    return first_reason(*(need_dtype(name, site.operand(index), (DType.I32,)) for index, name in names))


_WIDTHS = (64, 128)
_OWN = 32
"""Queries or keys of a block, as the kernels of tiles have it."""
_WAVES = 4
_BLOCK_THREADS = 128
_FEWEST = 16
"""Tokens of a sequence from which on matrix units pay."""


def _tiles(site: CallSite) -> int:
    return -(-_sizes(site)[1] // _OWN)


def _sharers(site: CallSite) -> int:
    """Heads of a group that have a block each: all of them, or one that has them all where there are too few tickets."""
    batches, _, heads, kv_heads, _ = _sizes(site)
    return heads // kv_heads if batches * kv_heads * _tiles(site) <= TICKETS else 1


_SPAN = 8
"""Tiles that a block on matrix units goes over, at least, where what streams by is cut: the fastest on an H200."""
_PIECES = 1024
"""Blocks that the tiles of a launch are cut for: fewer than three turns of three a multiprocessor of an H200. It bounds the workspace too."""


def _turns(site: CallSite) -> list[int]:
    """Tiles that stream by each tile of keys, or of queries from the last one on, of a sequence."""
    tiles, window = _tiles(site), site.integer("window")
    seen = -(-(window + _OWN - 1) // _OWN) if window > 0 else tiles
    return [min(tiles - turn, seen) for turn in range(tiles)]


def _span(site: CallSite) -> int:
    """Tiles of a span: all that there are where a block goes over all that its own sees."""
    batches, _, heads, kv_heads, _ = _sizes(site)
    turns, tiles = _turns(site), _tiles(site)
    span = max(_SPAN, -(-2 * batches * heads * sum(turns) // _PIECES))
    tickets = batches * (kv_heads * tiles + heads * (tiles - span))
    return span if 2 * max(turns) >= 3 * span and tickets <= TICKETS else tiles


def _pieces(site: CallSite) -> int:
    """Spans of all turns of a head."""
    span = _span(site)
    return sum(-(-tiles // span) for tiles in _turns(site))


def _blocks(site: CallSite) -> int:
    """For each tile of keys and of queries, whole."""
    batches, _, heads, kv_heads, _ = _sizes(site)
    return _tiles(site) * batches * (kv_heads * _sharers(site) + heads)


def _block_params(site: CallSite) -> Params:
    return (*_sizes(site)[:4], _sharers(site), *_scoring(site), *strides_of(site, 1, 3))


def _tile_params(site: CallSite) -> Params:
    return (*_sizes(site)[:4], _sharers(site), _span(site), *_scoring(site), *strides_of(site, 1, 3))


def _block_workspace(site: CallSite) -> int:
    """Two tiles of sums for each block that shares keys."""
    batches, _, _, kv_heads, width = _sizes(site)
    sharers = _sharers(site)
    units = batches * kv_heads * _tiles(site) * sharers
    return DType.F32.nbytes(units * 2 * _OWN * width) if sharers > 1 else 0


def _tile_workspace(site: CallSite) -> int:
    """The same for each of its spans, and a tile of sums for each span of queries."""
    batches, _, heads, kv_heads, width = _sizes(site)
    sharers, cut = _sharers(site), _span(site) < max(_turns(site))
    of_keys = 2 * kv_heads * sharers if sharers > 1 or cut else 0
    of_queries = heads if cut else 0
    return DType.F32.nbytes(batches * _pieces(site) * (of_keys + of_queries) * _OWN * width)


def _tile_fits(site: CallSite) -> str | None:
    """Keys of bf16, results of it or of f32, with heads that the kernel has tiles for."""
    width, both = site.operand(1).static_shape[-1], (DType.BF16, DType.F32)
    return first_reason(
        need_dtype("q", site.operand(1), (DType.BF16,)),
        need_dtype("y", site.operand(4), both),
        need_dtype("q_gradient", site.results[0], both),
        None if width in _WIDTHS else f"the head width must be {' or '.join(map(str, _WIDTHS))}, found {width}",
    )


_BLOCK_WIDTHS = (32, 64, 128)


def _block_fits(site: CallSite) -> str | None:
    """All of f32, with heads that the kernel has room for."""
    width = site.operand(1).static_shape[-1]
    widths = ", ".join(map(str, _BLOCK_WIDTHS))
    return first_reason(
        need_dtype("q", site.operand(1), (DType.F32,)),
        need_dtype("y", site.operand(4), (DType.F32,)),
        None if width in _BLOCK_WIDTHS else f"the head width must be one of {widths}, found {width}",
    )


def _on_matrix_units(row: Impl, wave: int) -> Impl:
    """The row of gradients over bf16 on GPUs with waves of so many lanes."""

    def kernel(site: CallSite) -> str:
        width, dtypes = site.operand(1).static_shape[-1], (site.operand(4).dtype, site.results[0].dtype)
        names = (dtype.value for dtype in dtypes)
        return kernel_name("attention/tile_backward", "attention_tile_causal_backward", width, *names)

    def launch(site: CallSite) -> Launch:
        batches, _, heads, kv_heads, _ = _sizes(site)
        return block_launch(_pieces(site) * batches * (kv_heads * _sharers(site) + heads), _WAVES * wave)

    shared = _by_tiles(row, f"hip_tile{wave}", kernel, _tile_fits)
    return replace(
        shared,
        architectures=(f"wave{wave}",),
        params=_tile_params,
        launch=launch,
        workspace=_tile_workspace,
    )


def _in_blocks(row: Impl) -> Impl:
    """The row of gradients of f32."""

    def kernel(site: CallSite) -> str:
        width, dtype = site.operand(1).static_shape[-1], site.results[0].dtype
        return kernel_name("attention/block_backward", "attention_block_causal_backward", width, dtype.value)

    shared = _by_tiles(row, "hip_block", kernel, _block_fits)
    return replace(
        shared,
        params=_block_params,
        launch=lambda site: block_launch(_blocks(site), _BLOCK_THREADS),
        workspace=_block_workspace,
    )


def _by_tiles(row: Impl, name: str, kernel: Callable[[CallSite], str], fits: Predicate) -> Impl:
    """What rows share whose blocks have tiles of keys and of queries."""
    return replace(
        row,
        name=name,
        level=Level.TUNED,
        operands=(*row.operands, "workspace"),
        kernel=kernel,
        accepts=all_of(row.accepts, fits),
        extents=Extents(sequence=(_FEWEST, None)),
        exactness=Exactness.TOLERANCE,  # how blocks share keys, and what streams by, follows from the batch too
    )


_RESULTS = ("q_gradient", "k_gradient", "v_gradient")

_CAUSAL = replace(
    readable(
        "attention_causal_backward",
        ("gradient", "q", "k", "v", "y", "log_sum", "count", *_RESULTS),
        _kernel("attention_causal_backward", 1, 4),
        _causal_params,
        _causal_launch,
        all_of(_gradients, _operands(1, "q", "k", "v"), _causal_operands),
    ),
    strided=frozenset({"q", "k", "v"}),
    layouts=_LAYOUTS,
)

ATTENTION_BACKWARD_ROWS = (
    *causal_rows("attention_causal_saved", "log_sum"),
    replace(
        readable(
            "attention_log_sum",
            ("q", "k", "count", "log_sum"),
            _kernel("attention_log_sum", 0, results=False),
            _log_sum_params,
            lambda site: row_launch(site.results[0].elements, _THREADS),
            _operands(0, "q", "k"),
        ),
        strided=frozenset({"q", "k"}),
        layouts=_LAYOUTS[:2],
    ),
    _CAUSAL,
    *(_on_matrix_units(_CAUSAL, wave) for wave in WAVES),
    _in_blocks(_CAUSAL),
    replace(
        readable(
            "attention_bidirectional_backward",
            ("gradient", "q", "k", "v", "row_of_token", "start", "length", "count", *_RESULTS, "workspace"),
            _kernel("attention_bidirectional_backward", 1),
            _bidirectional_params,
            _bidirectional_launch,
            all_of(_gradients, _operands(1, "q", "k", "v"), _indices),
            exactness=Exactness.TOLERANCE,
        ),
        strided=frozenset({"q", "k", "v"}),
        workspace=_bidirectional_workspace,
    ),
)
