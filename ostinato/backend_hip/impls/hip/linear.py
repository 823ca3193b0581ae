"""Rows of the projections, the embedding and products of activations, for GPUs. Weights lie as the checkpoint has them, block dtypes as rows of blocks.

A projection of a few rows by a float weight has a row of its own, which reads every weight once; all others are by the readable kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ostinato.backend_hip.impls.common import FLOATS, all_of, need_dtype
from ostinato.backend_hip.impls.hip.common import (
    THREADS,
    Params,
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

__all__ = ["LINEAR_ROWS"]

_FILE = "linear/linear"
_GEMV_FILE = "linear/gemv"
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
_GROUPS = THREADS // _LANES
_COLUMNS_A_GROUP = 1024
"""Columns from which on more than one group of lanes shares an output."""


def _rows(site: CallSite) -> int:
    first, inner, _ = rows_of(site.operand(0))
    return first * inner


def _few_rows(site: CallSite) -> str | None:
    """Few rows, and rows of the weight that are whole runs of 16 bytes."""
    weight = site.operand(1)
    if _rows(site) > _FEW_ROWS[-1]:
        return f"the kernel is for at most {_FEW_ROWS[-1]} rows, found {_rows(site)}"
    unit = 16 // weight.dtype.block_bytes
    columns = weight.static_shape[1]
    return f"weight columns must be a multiple of {unit}, found {columns}" if columns % unit else None


def _float_weight(site: CallSite) -> str | None:
    return need_dtype("weight", site.operand(1), FLOATS)


def _split(site: CallSite) -> int:
    """Groups of lanes that share an output: a power of two, at most all of a block."""
    split, columns = 1, site.operand(1).static_shape[1]
    while split < _GROUPS and columns > split * _COLUMNS_A_GROUP:
        split *= 2
    return split


def _gemv(function: str) -> Callable[[CallSite], str]:
    def name(site: CallSite) -> str:
        room = next(count for count in _FEW_ROWS if count >= _rows(site))
        dtypes = (site.operand(0).dtype, site.operand(1).dtype, site.results[0].dtype)
        return kernel_name(_GEMV_FILE, function, room, _split(site), *(dtype.value for dtype in dtypes))

    return name


def _gemv_launch(site: CallSite) -> Launch:
    outputs = sum(result.static_shape[-1] for result in site.results)
    return element_launch(outputs * _split(site) * _LANES)


def _for_few_rows(row: Impl, function: str) -> Impl:
    """The row for a few rows of a float weight."""
    return replace(
        row,
        name="hip_few_rows",
        level=Level.TUNED,
        kernel=_gemv(function),
        launch=_gemv_launch,
        accepts=all_of(row.accepts, _float_weight, _few_rows),
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
    _for_few_rows(_LINEAR, "gemv"),
    _LINEAR_SPLIT,
    _for_few_rows(_LINEAR_SPLIT, "gemv"),
    _LINEAR_SWIGLU,
    _for_few_rows(_LINEAR_SWIGLU, "gemv_swiglu"),
    readable(
        "matmul",
        ("a", "b", "count", "y"),
        by_dtypes("matmul/matmul", "matmul", 0, result=0),
        _matmul_params,
        _matmul_launch,
        matmul_accepts,
    ),
)
