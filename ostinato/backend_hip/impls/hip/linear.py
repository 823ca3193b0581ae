"""Rows of the projections, the embedding and products of activations, for GPUs. Weights lie as the checkpoint has them, block dtypes as rows of blocks.

A projection of a few rows by a float weight has a row of its own, and so has one of halves by halves, on the matrix units; all others are by the readable
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ostinato.backend_hip.impls.common import FLOATS, all_of, first_reason, need_dtype
from ostinato.backend_hip.impls.hip.common import (
    THREADS,
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
from ostinato.backend_hip.impls.linear import MAX_SPLIT, at_most_three, embedding_dtypes, linear_dtypes
from ostinato.backend_hip.impls.matmul import matmul_accepts
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = ["FEW_ROWS", "LINEAR_ROWS"]

_FILE = "linear/linear"
_GEMV_FILE = "linear/gemv"
_TILE_FILE = "linear/tile"
_LANES = 32
_TILE = 16


def _linear_params(site: CallSite) -> Params:
    sizes = [result.static_shape[-1] for result in site.results]
    return (*rows_of(site.operand(0)), *sizes, *[0] * (MAX_SPLIT - len(sizes)))


def _swiglu_params(site: CallSite) -> Params:
    return (*rows_of(site.operand(0)), site.results[0].static_shape[-1])


def _outputs_launch(site: CallSite) -> Launch:
    """A group of lanes an output, rows along the second axis."""
    first, inner, _ = rows_of(site.operand(0))
    outputs = sum(result.static_shape[-1] for result in site.results)
    return element_launch(outputs * _LANES, rows=first * inner)


_FEW_ROWS = (1, 2, 4, 8)
"""Rows that a kernel for few rows has room for."""
FEW_ROWS = _FEW_ROWS[-1]
_GROUPS = THREADS // _LANES
_STEPS = 4
"""Runs of 16 bytes that a lane takes together."""
_MANY_OUTPUTS = 16384
"""Outputs from which on a group of lanes takes several of them."""
_TOGETHER = 4


def _rows(site: CallSite) -> int:
    first, inner, _ = rows_of(site.operand(0))
    return first * inner


def _few_rows(site: CallSite) -> str | None:
    """Few rows, and rows of the weight that are whole runs of 16 bytes."""
    columns = site.operand(1).static_shape[1]
    if _rows(site) > _FEW_ROWS[-1]:
        return f"the kernel is for at most {_FEW_ROWS[-1]} rows, found {_rows(site)}"
    unit = _unit(site)
    return f"weight columns must be a multiple of {unit}, found {columns}" if columns % unit else None


def _float_weight(site: CallSite) -> str | None:
    return need_dtype("weight", site.operand(1), FLOATS)


def _unit(site: CallSite) -> int:
    """Values of the weight in 16 bytes."""
    return 16 // site.operand(1).dtype.block_bytes


def _outputs(site: CallSite) -> int:
    return sum(result.static_shape[-1] for result in site.results)


def _split(site: CallSite) -> int:
    """Groups of lanes that share an output, so that each lane takes its bytes in one go: a power of two, at most all of a block."""
    split, columns = 1, site.operand(1).static_shape[1]
    while split < _GROUPS and columns > split * _LANES * _STEPS * _unit(site):
        split *= 2
    return split


def _together(site: CallSite) -> int:
    """Outputs that a group of lanes takes together."""
    return _TOGETHER if _outputs(site) >= _MANY_OUTPUTS else 1


def _gemv(site: CallSite) -> str:
    return _few_rows_kernel(site, "gemv", _together(site), _split(site))


def _gemv_swiglu(site: CallSite) -> str:
    return _few_rows_kernel(site, "gemv_swiglu", _split(site))


def _few_rows_kernel(site: CallSite, function: str, *shape: int) -> str:
    room = next(count for count in _FEW_ROWS if count >= _rows(site))
    dtypes = (site.operand(0).dtype, site.operand(1).dtype, site.results[0].dtype)
    return kernel_name(_GEMV_FILE, function, room, *shape, *(dtype.value for dtype in dtypes))


def _gemv_launch(site: CallSite) -> Launch:
    return element_launch(-(-_outputs(site) // _together(site)) * _split(site) * _LANES)


def _gemv_swiglu_launch(site: CallSite) -> Launch:
    return element_launch(_outputs(site) * _split(site) * _LANES)


def _for_few_rows(
    row: Impl, kernel: Callable[[CallSite], str] = _gemv, launch: Callable[[CallSite], Launch] = _gemv_launch
) -> Impl:
    """The row for a few rows of a float weight."""
    accepts = all_of(row.accepts, _float_weight, _few_rows)
    return replace(row, name="hip_few_rows", level=Level.TUNED, kernel=kernel, launch=launch, accepts=accepts)


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


def _on_matrix_units(row: Impl, wave: int, function: str, weights: int = 1) -> Impl:
    """The row for more than one row of halves, on GPUs with waves of so many lanes; `weights` of an output."""

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
        kernel=kernel,
        launch=launch,
        accepts=all_of(row.accepts, _halves),
        priority=1,
    )


def _embedding_params(site: CallSite) -> Params:
    return (*entries(site.operand(0)), *site.operand(1).static_shape)


def _embedding_launch(site: CallSite) -> Launch:
    return element_launch(site.results[0].elements)


def _matmul_params(site: CallSite) -> Params:
    """Entries of the first batch axis and matrices in each, M, K, N, flags, whether a count is of the rows M, scale."""
    a, y = site.operand(0), site.results[0]
    *lead, m, n = y.static_shape
    k = a.static_shape[-2 if site.boolean("transpose_a") else -1]
    flags = (int(site.boolean("transpose_a")), int(site.boolean("transpose_b")), int(not lead))
    return (lead[0] if lead else 1, math.prod(lead[1:]), m, k, n, *flags, site.real("scale"))


def _matmul_launch(site: CallSite) -> Launch:
    """A block a tile, matrices along the second axis."""
    *lead, m, n = site.results[0].static_shape
    return element_launch(-(-m // _TILE) * -(-n // _TILE) * THREADS, rows=math.prod(lead))


_LINEAR = readable(
    "linear",
    ("x", "weight", "bias", "count", "y", "-", "-"),
    by_dtypes(_FILE, "linear", 0, 1, result=0),
    _linear_params,
    _outputs_launch,
    all_of(linear_dtypes, counts_entries(1)),
)

_LINEAR_SPLIT = readable(
    "linear_split",
    ("x", "weight", "bias", "count", "y0", "y1", "y2"),
    by_dtypes(_FILE, "linear", 0, 1, result=0),
    _linear_params,
    _outputs_launch,
    all_of(linear_dtypes, at_most_three, counts_entries(1)),
)

_LINEAR_SWIGLU = readable(
    "linear_swiglu",
    ("x", "weight", "count", "y"),
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
    _for_few_rows(_LINEAR),
    *(_on_matrix_units(_LINEAR, wave, "linear_tile") for wave in WAVES),
    _LINEAR_SPLIT,
    _for_few_rows(_LINEAR_SPLIT),
    *(_on_matrix_units(_LINEAR_SPLIT, wave, "linear_tile") for wave in WAVES),
    _LINEAR_SWIGLU,
    _for_few_rows(_LINEAR_SWIGLU, _gemv_swiglu, _gemv_swiglu_launch),
    *(_on_matrix_units(_LINEAR_SWIGLU, wave, "linear_tile_swiglu", weights=2) for wave in WAVES),
    readable(
        "matmul",
        ("a", "b", "count", "y"),
        by_dtypes("matmul/matmul", "matmul", 0, result=0),
        _matmul_params,
        _matmul_launch,
        matmul_accepts,
    ),
)
