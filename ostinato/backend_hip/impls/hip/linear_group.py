"""Rows of projections of one x by weights of their own, for GPUs: one launch in place of two or three.

No library of a vendor's serves them. hipBLASLt's grouped products are C++ only; those of cublasLt (13.1) are experimental, for compute capability 10 and 11
and without a bias. Here a kernel is one for each shape. What differs from layer to layer, where weights, biases and results lie, are arguments of the launch:
they lie in the step table and in the nodes of a captured graph, where conformance compares each with the plan, and kernels are loaded with the program.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ostinato.backend_hip.impls.common import FLOATS, WEIGHT_DTYPES, all_of, first_reason, need_dtype
from ostinato.backend_hip.impls.hip.common import (
    WAVES,
    Params,
    block_launch,
    by_dtypes,
    counts_entries,
    element_launch,
    readable,
    rows_of,
)
from ostinato.backend_hip.impls.hip.linear import TILE, Panels, fixed_cut, halves, panels_of
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.ops.linear_group import MOST_MEMBERS
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl, Level

__all__ = ["LINEAR_GROUP_ROWS"]

_LANES = 32


def _members(site: CallSite) -> list[int]:
    """Outputs of each, 0 where there is none."""
    return [site.operand(1 + index).static_shape[0] if site.has(1 + index) else 0 for index in range(MOST_MEMBERS)]


def _dtypes(site: CallSite) -> str | None:
    weight = site.operand(1)
    columns, block = weight.static_shape[1], weight.dtype.block_elements
    return first_reason(
        need_dtype("x", site.operand(0), FLOATS),
        need_dtype("w0", weight, WEIGHT_DTYPES),
        *(need_dtype("result", result, FLOATS) for result in site.results),
        f"weight columns must be a multiple of {block}, found {columns}" if columns % block else None,
    )


def _params(site: CallSite) -> Params:
    return (*rows_of(site.operand(0)), *_members(site))


def _rows(site: CallSite) -> int:
    return math.prod(site.operand(0).static_shape[:-1])


def _launch(site: CallSite) -> Launch:
    return element_launch(sum(_members(site)) * _LANES, rows=_rows(site))


def _cut(site: CallSite) -> tuple[int, int]:
    return fixed_cut(_rows(site), site.operand(1).static_shape[1])


def _panels(site: CallSite) -> Panels | None:
    return panels_of(_rows(site), site.operand(1).static_shape[1], _members(site))


def _tile_kernel(site: CallSite) -> str:
    dtypes = (site.operand(0).dtype, site.results[0].dtype)
    if (panels := _panels(site)) is not None:
        return panels.kernel("linear_panel_group", _cut(site)[1], *dtypes)
    return kernel_name("linear/tile", "linear_tile_group", *_cut(site), *(dtype.value for dtype in dtypes))


def _on_matrix_units(row: Impl, wave: int) -> Impl:
    def launch(site: CallSite) -> Launch:
        if (panels := _panels(site)) is not None:
            return panels.launch(wave)
        tiles, parts = _cut(site)
        across = sum(-(-outputs // TILE) for outputs in _members(site))
        return block_launch(across, parts * wave, rows=-(-_rows(site) // (tiles * TILE)))

    return replace(
        row,
        name=f"hip_tile{wave}",
        level=Level.TUNED,
        architectures=(f"wave{wave}",),
        kernel=_tile_kernel,
        launch=launch,
        accepts=all_of(row.accepts, halves),
    )


_LINEAR_GROUP = readable(
    "linear_group",
    (
        "x",
        *(f"w{index}" for index in range(MOST_MEMBERS)),
        *(f"b{index}" for index in range(MOST_MEMBERS)),
        "count",
        *(f"y{index}" for index in range(MOST_MEMBERS)),
    ),
    by_dtypes("linear/group", "linear_group", 0, 1, result=0),
    _params,
    _launch,
    all_of(_dtypes, counts_entries(1)),
)

LINEAR_GROUP_ROWS = (_LINEAR_GROUP, *(_on_matrix_units(_LINEAR_GROUP, wave) for wave in WAVES))
