"""Rows of the projections of a few rows by a float weight, for GPUs: decode steps, which are over when the weights have been read.

One phase (kernels/phase.h) with the norm of x before it and what stands behind the product in a decoder inside. `_form` says how a call is cut: everything that
its bits depend on follows from the number of columns, so a row of the result is the same whatever the rows beside it. Weights, biases and gains are read
while the step before still runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ostinato.backend_hip.impls.common import FLOATS, Predicate, all_of, first_reason, need_dtype
from ostinato.backend_hip.impls.hip.common import HIP, Params, block_launch, counts_entries, rows_of
from ostinato.backend_hip.impls.hip.linear import DEPTH, HALVES
from ostinato.backend_hip.impls.linear import MAX_SPLIT, at_most_three, linear_dtypes
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Extents, Impl, Level

__all__ = ["FEW_ROWS", "FEW_ROWS_ROWS"]

_FILE = "linear/few_rows"
_LANES = 32
_ROWS = (1, 2, 4, 8)
"""Rows that a kernel has room for."""
FEW_ROWS = _ROWS[-1]
_STEPS = 8
"""Runs of 16 bytes that a lane takes of a row of the weight at most."""
_MOST_ROOM = 40
"""KiB of shared memory for x at most: every device has 48."""
_HALVES_ROWS = 4
"""Rows by a weight of halves at most: more are faster on matrix units, though norm, rotation and cache store are not inside there."""
_UNSTAGED = 2
"""Rows of x that a kernel takes from where they lie if need be: with more of them it runs out of registers."""
_MOST_THREADS = 512
"""Of a block, for rows of the weight that fewer are too short for."""
_BLOCKS = 132
"""Blocks that share the outputs evenly, or a multiple: the multiprocessors of an H200."""

_AHEAD = ("weight", "bias", "gain", "count", "row_of_token", "position", "block_table")
"""What is read while the step before still runs, as far as a kernel has it."""


class _Cut(NamedTuple):
    """Threads of a block, and blocks in multiples of `_BLOCKS`."""

    threads: int
    turns: int


_SHORT = 4
"""Runs of a lane up to which a row of the weight is short."""
_CUTS = {
    "few_rows": (_Cut(128, 2), _Cut(192, 2)),
    "few_rows_split": (_Cut(256, 2), _Cut(192, 2)),
    "few_rows_swiglu": (_Cut(384, 2), _Cut(384, 2)),
    "few_rows_rope_store": (_Cut(128, 2), _Cut(128, 2)),
    "head": (_Cut(256, 2), _Cut(256, 2)),
}
"""By kernel, for short rows of the weight and for longer ones: the fastest decode steps on an H200. A `head` has many outputs."""
_HEAD = 16384
_TEAMS = 2
"""Outputs that a block takes together where several groups of lanes share one."""


class _Form(NamedTuple):
    """What a kernel is made for, in the order of its arguments."""

    rows: int
    steps: int
    split: int
    room: int
    normed: int
    threads: int


def _form(site: CallSite, function: str, pairs: int) -> tuple[_Form, int]:
    """And the blocks of its launch."""
    columns = rows_of(site.operand(0))[2]
    room, rows = _room(site)
    runs = -(-columns // (_LANES * _unit(site)))
    split = 1
    while runs > split * _STEPS:
        split *= 2
    steps = -(-runs // split)
    if split > 1:
        threads = min(_MOST_THREADS, split * _TEAMS * _LANES)
        cut = _Cut(threads, _MOST_THREADS // threads)
    else:
        many = function == "few_rows" and 2 * pairs >= _HEAD
        cut = _CUTS["head" if many else function][steps > _SHORT]
    normed = int(site.real("eps") > 0.0)  # exactly where there is a gain
    form = _Form(rows, steps, split, room if room <= _MOST_ROOM else 0, normed, cut.threads)
    return form, max(1, min(cut.turns * _BLOCKS, pairs))


def _unit(site: CallSite) -> int:
    """Values of the weight in 16 bytes."""
    return 16 // site.operand(1).dtype.block_bytes


def _fits_block(site: CallSite) -> str | None:
    """Rows of a float weight that are whole runs of 16 bytes, not too long for a block, and rows of x that it has memory for."""
    columns = rows_of(site.operand(0))[2]
    if reason := need_dtype("weight", site.operand(1), FLOATS):
        return reason
    unit = _unit(site)
    most = _MOST_THREADS * unit * _STEPS
    if columns % unit or not 0 < columns <= most:
        return f"weight columns must be a multiple of {unit} and at most {most}, found {columns}"
    room, rows = _room(site)
    to_units = site.operand(0).dtype in HALVES or site.real("eps") > 0.0  # a norm in front rounds to halves
    if rows > _HALVES_ROWS and to_units and site.operand(1).dtype in HALVES and columns % DEPTH == 0:
        return f"more than {_HALVES_ROWS} rows by halves go to the matrix units, found {rows}"
    if rows > _UNSTAGED and room > _MOST_ROOM:
        return f"{rows} rows of x must fit {_MOST_ROOM} KiB of a block's memory, found {room} KiB"
    return None


def _room(site: CallSite) -> tuple[int, int]:
    """KiB of x in f32 with the rows that a kernel is made for, and these rows."""
    first, inner, columns = rows_of(site.operand(0))
    rows = next((count for count in _ROWS if count >= first * inner), first * inner)
    return -(-rows * columns * 4 // 1024), rows


def _pairs(site: CallSite) -> int:
    return -(-sum(result.static_shape[-1] for result in site.results) // 2)


def _gated_pairs(site: CallSite) -> int:
    return site.results[0].static_shape[-1]


def _turned_pairs(site: CallSite) -> int:
    return site.operand(1).static_shape[0] // 2


def _row(
    op: str,
    function: str,
    operands: tuple[str, ...],
    pairs: Callable[[CallSite], int],
    params: Callable[[CallSite], Params],
    accepts: Predicate,
    results: tuple[int, ...] = (0,),
) -> Impl:
    """`results` are those whose dtypes the kernel knows."""

    def kernel(site: CallSite) -> str:
        form, _ = _form(site, function, pairs(site))
        dtypes = (site.operand(0).dtype, site.operand(1).dtype, *(site.results[index].dtype for index in results))
        return kernel_name(_FILE, function, *form, *(dtype.value for dtype in dtypes))

    def launch(site: CallSite) -> Launch:
        form, blocks = _form(site, function, pairs(site))
        return block_launch(blocks, form.threads)

    return Impl(
        op,
        "hip_few_rows",
        Level.TUNED,
        HIP,
        operands,
        kernel,
        params,
        all_of(accepts, _fits_block),
        launch=launch,
        extents=Extents(rows=(0, FEW_ROWS)),
        exactness=Exactness.ROW_INVARIANT,
        ahead=tuple(name for name in _AHEAD if name in operands),
    )


def _sizes(site: CallSite) -> Params:
    """Columns of each result and eps, behind the shape of x."""
    sizes = [result.static_shape[-1] for result in site.results]
    return (*rows_of(site.operand(0)), *sizes, *[0] * (MAX_SPLIT - len(sizes)), site.real("eps"))


def _one_size(site: CallSite) -> Params:
    return (*rows_of(site.operand(0)), site.results[0].static_shape[-1], site.real("eps"))


def _store_sizes(site: CallSite) -> Params:
    tokens, columns = site.operand(0).static_shape
    blocks, kv_heads, block_size, width = site.operand(7).static_shape
    half = site.operand(2).static_shape[-1]
    table = site.operand(6).static_shape
    return (
        tokens, columns, site.integer("heads"), kv_heads, width, half, blocks, block_size, *table, site.real("eps")
    )  # fmt: skip


def _store_accepts(site: CallSite) -> str | None:
    width = site.results[0].static_shape[-1]
    return first_reason(
        linear_dtypes(site) if site.operand(1).dtype in FLOATS else need_dtype("weight", site.operand(1), FLOATS),
        f"the head width must be even, found {width}" if width % 2 else None,
    )


FEW_ROWS_ROWS = (
    _row(
        "linear",
        "few_rows",
        ("x", "weight", "bias", "residual", "gain", "count", "y"),
        _pairs,
        _one_size,
        all_of(linear_dtypes, counts_entries(1)),
    ),
    _row(
        "linear_split",
        "few_rows_split",
        ("x", "weight", "bias", "gain", "count", "y0", "y1", "y2"),
        _pairs,
        _sizes,
        all_of(linear_dtypes, at_most_three, counts_entries(1)),
    ),
    _row(
        "linear_swiglu",
        "few_rows_swiglu",
        ("x", "weight", "gain", "count", "y"),
        _gated_pairs,
        _one_size,
        all_of(linear_dtypes, counts_entries(1)),
    ),
    _row(
        "qkv_rope_store",
        "few_rows_rope_store",
        (
            *("x", "weight", "cos", "sin", "row_of_token", "position", "block_table", "bias", "gain", "count"),
            *("q_rotated", "k_cache_out", "v_cache_out"),
        ),
        _turned_pairs,
        _store_sizes,
        _store_accepts,
        results=(0, 1),
    ),
)
