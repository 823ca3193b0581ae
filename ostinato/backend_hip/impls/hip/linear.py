"""Rows of the projections and the embedding, for GPUs. Weights lie as the checkpoint has them, block dtypes as rows of blocks.

Halves by halves are multiplied on the matrix units, a few rows by a float weight by kernels of their own (few_rows.py), and all else by a kernel that lets a
few rows share what it reads. The readable kernel is what is left: norms before a product of many rows, and weights whose rows are no whole runs of 16 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

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
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops import OP
from ostinato.ir.step import Launch
from ostinato.ir.target import ANY, CallSite, Extents, Impl, Level
from ostinato.ir.types import DType

__all__ = ["DEPTH", "HALVES", "LINEAR_ROWS", "TILE", "Panels", "fixed_cut", "halves", "panels_of"]

_FILE = "linear/linear"
_TILE_FILE = "linear/tile"
_PANEL_FILE = "linear/panel"
_LANES = 32
TILE = 16
"""Rows, and outputs, of a product of the matrix units."""


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


HALVES = (DType.F16, DType.BF16)
DEPTH = 32
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
_PANEL_ROWS, _PANEL_ROWS_OF_LONG = 65, 193
"""Rows from which on products by `fixed_cut` are faster in panels on an H200, and where weights have more than `_LONG` columns."""
_LONG = 2048
_PANEL_WAVES, _PANEL_SIDE = 4, 64
"""Waves of a panel, and its rows and outputs."""


def halves(site: CallSite) -> str | None:
    """x and the weight, or the first one, of one dtype that the matrix units take, in whole steps."""
    x, weight = site.operand(0), site.operand(1)
    columns = weight.static_shape[1]
    return first_reason(
        need_dtype("x", x, HALVES),
        need_dtype(OP[site.node.op].operands[1].name, weight, (x.dtype,)),
        f"weight columns must be a multiple of {DEPTH}, found {columns}" if columns % DEPTH else None,
    )


def fixed_cut(rows: int, columns: int, weights: int = 1) -> tuple[int, int]:
    """Tiles of 16 rows and waves of a block, for outputs of so many weights each. The waves, which share the columns, follow from these alone: one order of
    sums for any number of rows."""
    parts = next((count for count in _PARTS if count * _STEPS_A_PART * DEPTH >= columns), _PARTS[-1])
    able = [tiles for tiles in _TILES if (parts - 1) * weights * tiles <= _MOST_SHARED]
    return next((tiles for tiles in able if tiles * TILE >= rows), able[-1]), parts


@dataclass(frozen=True)
class Panels:
    """How linear/panel cuts a product: in so many blocks. No result depends on it."""

    blocks: int

    def kernel(self, function: str, parts: int, *dtypes: DType) -> str:
        return kernel_name(_PANEL_FILE, function, parts, *(dtype.value for dtype in dtypes))

    def launch(self, wave: int) -> Launch:
        return block_launch(self.blocks, _PANEL_WAVES * wave)


def panels_of(rows: int, columns: int, outputs: Iterable[int]) -> Panels | None:
    """The panels of projections by `fixed_cut` with so many outputs each; None for a few rows, which leave a device empty."""
    if rows < (_PANEL_ROWS if columns <= _LONG else _PANEL_ROWS_OF_LONG):
        return None
    across = sum(-(-count // _PANEL_SIDE) for count in outputs)
    return Panels(across * -(-rows // _PANEL_SIDE))


class _Tiling:
    """How the tile kernels cut a product whose outputs have so many `weights` each, on waves of so many lanes."""

    def __init__(self, weights: int, wave: int) -> None:
        self._weights, self._wave = weights, wave

    def tiles(self, site: CallSite) -> int:
        """Tiles of 16 rows that a block takes; no result depends on it."""
        return next((tiles for tiles in _TILES if tiles * TILE >= _rows(site)), _TILES[-1])

    def parts(self, site: CallSite) -> int:
        """Waves of a block, each with its part of the columns: as many as have few steps each or fill a device, and memory to be joined."""
        able = [count for count in _PARTS if (count - 1) * self._weights * self.tiles(site) <= _MOST_SHARED]
        steps = site.operand(1).static_shape[1] // DEPTH
        enough = min(-(-steps // _STEPS_A_PART), -(-_FULL // max(1, math.prod(self._blocks(site)))))
        return next((count for count in able if count >= enough), able[-1])

    def _blocks(self, site: CallSite) -> tuple[int, int]:
        """For 16 outputs each, and for rows."""
        return (-(-_outputs(site) // TILE), -(-_rows(site) // (self.tiles(site) * TILE)))

    def panels(self, site: CallSite) -> Panels | None:
        """The panels of a product that is cut so."""
        del site
        return None

    def kernel(self, function: str) -> Callable[[CallSite], str]:
        def name(site: CallSite) -> str:
            dtypes = (site.operand(0).dtype, site.results[0].dtype)
            if (panels := self.panels(site)) is not None:
                return panels.kernel(function.replace("tile", "panel"), self.parts(site), *dtypes)
            cut = (self.tiles(site), self.parts(site))
            return kernel_name(_TILE_FILE, function, *cut, *(dtype.value for dtype in dtypes))

        return name

    def launch(self, site: CallSite) -> Launch:
        if (panels := self.panels(site)) is not None:
            return panels.launch(self._wave)
        across, down = self._blocks(site)
        return block_launch(across, self.parts(site) * self._wave, rows=down)


class _FixedTiling(_Tiling):
    """The same by `fixed_cut`, and of many rows by panels, which have the same bits."""

    def panels(self, site: CallSite) -> Panels | None:
        return panels_of(_rows(site), site.operand(1).static_shape[1], [_outputs(site)])

    def tiles(self, site: CallSite) -> int:
        return fixed_cut(_rows(site), site.operand(1).static_shape[1], self._weights)[0]

    def parts(self, site: CallSite) -> int:
        return fixed_cut(_rows(site), site.operand(1).static_shape[1], self._weights)[1]


def _on_matrix_units(row: Impl, wave: int) -> tuple[Impl, Impl]:
    """The rows of halves on GPUs with waves of so many lanes: for more than one row, and for any number in one order of sums."""
    gated = row.op == "linear_swiglu"
    function, params = ("linear_tile_swiglu", _tile_swiglu_params) if gated else ("linear_tile", _tile_params)
    free, fixed = (kind(1 + gated, wave) for kind in (_Tiling, _FixedTiling))
    several = replace(
        row,
        name=f"hip_tile{wave}",
        level=Level.TUNED,
        architectures=(f"wave{wave}",),
        operands=tuple(name for name in row.operands if name != "gain"),
        kernel=free.kernel(function),
        params=params,
        launch=free.launch,
        accepts=all_of(row.accepts, without("gain"), halves),
        extents=Extents(rows=(2, None)),
        exactness=Exactness.TOLERANCE,
        priority=1,
    )
    alike = replace(
        several,
        name=f"hip_tile{wave}_fixed",
        kernel=fixed.kernel(function),
        launch=fixed.launch,
        extents=ANY,
        exactness=Exactness.ROW_INVARIANT,
        priority=-1,
    )
    return several, alike


_MANY_ROWS_FILE = "linear/many_rows"
_TOGETHER = (8, 4)
"""Rows and outputs that a group of lanes has together, as the kernel has it."""


def _whole_runs(site: CallSite) -> str | None:
    """Rows of a float weight are whole runs of 16 bytes."""
    weight = site.operand(1)
    unit = 1 if weight.dtype.is_block else 16 // weight.dtype.block_bytes
    columns = weight.static_shape[1]
    return f"weight columns must be a multiple of {unit}, found {columns}" if columns % unit else None


def _for_any_rows(row: Impl) -> Impl:
    """The row for any number of rows by any weight: an output's bits are the same whatever the rows beside it."""
    gated = row.op == "linear_swiglu"
    function, params = ("many_rows_swiglu", _tile_swiglu_params) if gated else ("many_rows", _tile_params)

    def launch(site: CallSite) -> Launch:
        rows, outputs = _TOGETHER
        of_a_group = outputs // (1 + gated)
        return element_launch(-(-_outputs(site) // of_a_group) * _LANES, rows=-(-_rows(site) // rows))

    return replace(
        row,
        name="hip_rows",
        level=Level.TUNED,
        operands=tuple(name for name in row.operands if name != "gain"),
        kernel=by_dtypes(_MANY_ROWS_FILE, function, 0, 1, result=0),
        params=params,
        launch=launch,
        accepts=all_of(row.accepts, without("gain"), _whole_runs),
        exactness=Exactness.ROW_INVARIANT,
        priority=-2,
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
        exactness=Exactness.REFERENCE,
    ),
    _LINEAR,
    *(found for wave in WAVES for found in _on_matrix_units(_LINEAR, wave)),
    _for_any_rows(_LINEAR),
    _LINEAR_SPLIT,
    *(found for wave in WAVES for found in _on_matrix_units(_LINEAR_SPLIT, wave)),
    _for_any_rows(_LINEAR_SPLIT),
    _LINEAR_SWIGLU,
    *(found for wave in WAVES for found in _on_matrix_units(_LINEAR_SWIGLU, wave)),
    _for_any_rows(_LINEAR_SWIGLU),
)
