"""Rows of the projections and the embedding, for GPUs. Weights lie as the checkpoint has them, block dtypes as rows of blocks.

A projection of halves by halves has a row of its own, on the matrix units, and so has one of a few rows by a float weight (few_rows.py); all others are by the
readable kernel.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ostinato.backend_hip.impls.common import all_of, first_reason, need_dtype, without
from ostinato.backend_hip.impls.hip.common import (
    WAVES,
    Params,
    block_launch,
    by_dtypes,
    counts_entries,
    element_launch,
    entries,
    readable,
    rows_of,
)
from ostinato.backend_hip.impls.linear import MAX_SPLIT, at_most_three, embedding_dtypes, linear_dtypes, residual_dtype
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = ["LINEAR_ROWS"]

_FILE = "linear/linear"
_TILE_FILE = "linear/tile"
_LANES = 32
_TILE = 16


def _tile_params(site: CallSite) -> Params:
    sizes = [result.static_shape[-1] for result in site.results]
    return (*rows_of(site.operand(0)), *sizes, *[0] * (MAX_SPLIT - len(sizes)))


def _tile_swiglu_params(site: CallSite) -> Params:
    return (*rows_of(site.operand(0)), site.results[0].static_shape[-1])


def _linear_params(site: CallSite) -> Params:
    return (*_tile_params(site), site.real("eps"))


def _swiglu_params(site: CallSite) -> Params:
    return (*_tile_swiglu_params(site), site.real("eps"))


def _outputs_launch(site: CallSite) -> Launch:
    """A group of lanes an output, rows along the second axis."""
    first, inner, _ = rows_of(site.operand(0))
    outputs = sum(result.static_shape[-1] for result in site.results)
    return element_launch(outputs * _LANES, rows=first * inner)


def _rows(site: CallSite) -> int:
    first, inner, _ = rows_of(site.operand(0))
    return first * inner


def _outputs(site: CallSite) -> int:
    return sum(result.static_shape[-1] for result in site.results)


_HALVES = (DType.F16, DType.BF16)
_DEPTH = 32
"""Columns that one product of the matrix units takes."""
_PARTS = (4, 8, 16)
"""Waves of a block, which share the columns."""
_STEPS_A_PART = 4
_FULL = 1024
"""Waves from which on more of them help no device."""
_MOST_SHARED = 44
"""Tiles of sums, a KiB each, that a block has memory for."""
_TILES = (1, 2, 4)
"""Tiles of 16 rows that a block takes at most."""


def _halves(site: CallSite) -> str | None:
    """Both operands of one dtype that the matrix units take, in whole steps."""
    x, weight = site.operand(0), site.operand(1)
    columns = weight.static_shape[1]
    return first_reason(
        need_dtype("x", x, _HALVES),
        need_dtype("weight", weight, (x.dtype,)),
        f"weight columns must be a multiple of {_DEPTH}, found {columns}" if columns % _DEPTH else None,
        "one row has no use for matrix units" if _rows(site) <= 1 else None,
    )


def _tiles(site: CallSite) -> int:
    wanted = -(-_rows(site) // _TILE)
    return next((tiles for tiles in _TILES if tiles >= wanted), _TILES[-1])


def _on_matrix_units(row: Impl, wave: int) -> Impl:
    """The row for more than one row of halves, on GPUs with waves of so many lanes."""
    gated = row.op == "linear_swiglu"
    function, params, weights = (
        ("linear_tile_swiglu", _tile_swiglu_params, 2) if gated else ("linear_tile", _tile_params, 1)
    )

    def parts(site: CallSite) -> int:
        """As many waves as have few steps each or fill a device, and memory to be joined."""
        steps = site.operand(1).static_shape[1] // _DEPTH
        able = [count for count in _PARTS if (count - 1) * weights * _tiles(site) <= _MOST_SHARED]
        enough = min(-(-steps // _STEPS_A_PART), -(-_FULL // max(1, math.prod(blocks(site)))))
        return next((count for count in able if count >= enough), able[-1])

    def blocks(site: CallSite) -> tuple[int, int]:
        """For 16 outputs each, and for rows."""
        return (-(-_outputs(site) // _TILE), -(-_rows(site) // (_tiles(site) * _TILE)))

    def kernel(site: CallSite) -> str:
        dtypes = (site.operand(0).dtype, site.results[0].dtype)
        return kernel_name(_TILE_FILE, function, _tiles(site), parts(site), *(dtype.value for dtype in dtypes))

    def launch(site: CallSite) -> Launch:
        across, down = blocks(site)
        return block_launch(across, parts(site) * wave, rows=down)

    return replace(
        row,
        name=f"hip_tile{wave}",
        level=Level.TUNED,
        architectures=(f"wave{wave}",),
        operands=tuple(name for name in row.operands if name != "gain"),
        kernel=kernel,
        params=params,
        launch=launch,
        accepts=all_of(row.accepts, without("gain"), _halves),
        priority=1,
    )


def _embedding_params(site: CallSite) -> Params:
    return (*entries(site.operand(0)), *site.operand(1).static_shape)


def _embedding_launch(site: CallSite) -> Launch:
    return element_launch(site.results[0].elements)


_LINEAR = readable(
    "linear",
    ("x", "weight", "bias", "residual", "gain", "count", "y", "-", "-"),
    by_dtypes(_FILE, "linear", 0, 1, result=0),
    _linear_params,
    _outputs_launch,
    all_of(linear_dtypes, residual_dtype, counts_entries(1)),
    (("y", "residual"),),
)

_LINEAR_SPLIT = readable(
    "linear_split",
    ("x", "weight", "bias", "-", "gain", "count", "y0", "y1", "y2"),
    by_dtypes(_FILE, "linear", 0, 1, result=0),
    _linear_params,
    _outputs_launch,
    all_of(linear_dtypes, at_most_three, counts_entries(1)),
)

_LINEAR_SWIGLU = readable(
    "linear_swiglu",
    ("x", "weight", "gain", "count", "y"),
    by_dtypes(_FILE, "linear_swiglu", 0, 1, result=0),
    _swiglu_params,
    _outputs_launch,
    all_of(linear_dtypes, counts_entries(1)),
)


LINEAR_ROWS = (
    readable(
        "embedding",
        ("ids", "weight", "count", "y"),
        by_dtypes("linear/embedding", "embedding", 1, result=0),
        _embedding_params,
        _embedding_launch,
        all_of(embedding_dtypes, counts_entries(0)),
    ),
    _LINEAR,
    *(_on_matrix_units(_LINEAR, wave) for wave in WAVES),
    _LINEAR_SPLIT,
    *(_on_matrix_units(_LINEAR_SPLIT, wave) for wave in WAVES),
    _LINEAR_SWIGLU,
    *(_on_matrix_units(_LINEAR_SWIGLU, wave) for wave in WAVES),
)
