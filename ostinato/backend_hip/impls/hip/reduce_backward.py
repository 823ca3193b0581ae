"""Rows of the sums that training takes, for GPUs: of columns, of squares, and back through the mean of sequences.

Blocks share a sum and leave their parts in the workspace; the last one to come adds these up in ascending order. How many there are follows from shapes alone,
so that the order of a sum does.
"""

from __future__ import annotations

from dataclasses import replace

from ostinato.backend_hip.impls.common import flat, uncounted
from ostinato.backend_hip.impls.hip.common import (
    THREADS,
    TICKETS,
    Params,
    block_launch,
    by_dtypes,
    element_launch,
    readable,
)
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import DType

__all__ = ["REDUCE_BACKWARD_ROWS"]

_FILE = "reduce/reduce_backward"
_COLUMNS = 32
"""Columns that a block sums."""
_ROWS = 128
"""Rows of a part, at least."""
_MOST_PARTS = 64
_SQUARES = 4096
"""Elements that a block squares, at least."""
_MOST_BLOCKS = 1024
"""That fill any device."""


def _groups(site: CallSite) -> int:
    return -(-flat(site.operand(0))[1] // _COLUMNS)


def _part(site: CallSite) -> int:
    """Rows that a block sums."""
    rows = flat(site.operand(0))[0]
    return max(_ROWS, -(-rows // _MOST_PARTS)) if _groups(site) <= TICKETS else max(1, rows)


def _parts(site: CallSite) -> int:
    return max(1, -(-flat(site.operand(0))[0] // _part(site)))


def _column_params(site: CallSite) -> Params:
    return (*flat(site.operand(0)), _part(site))


def _column_launch(site: CallSite) -> Launch:
    return block_launch(_groups(site), THREADS, _parts(site))


def _column_workspace(site: CallSite) -> int:
    parts = _parts(site)
    return DType.F32.nbytes(parts * flat(site.operand(0))[1]) if parts > 1 else 0


def _columns(op: str, *operands: str) -> Impl:
    """Column sums of products of these operands, of which the second one, where there is one, may be of any float dtype."""
    row = readable(
        op,
        (*operands, "workspace", "y"),
        by_dtypes(_FILE, op, *([1] if len(operands) > 1 else [])),
        _column_params,
        _column_launch,
        uncounted,
        exactness=Exactness.TOLERANCE,
    )
    return replace(row, workspace=_column_workspace)


def _squared(site: CallSite) -> int:
    """How many elements are squared: the last operand's."""
    return site.operand(len(site.node.operands) - 1).elements


def _square_blocks(site: CallSite) -> int:
    return max(1, min(-(-_squared(site) // _SQUARES), _MOST_BLOCKS))


def _squares(op: str, *operands: str) -> Impl:
    row = readable(
        op,
        operands,
        by_dtypes(_FILE, op),
        lambda site: (_squared(site),),
        lambda site: block_launch(_square_blocks(site), THREADS),
        uncounted,
        exactness=Exactness.TOLERANCE,
    )
    return replace(row, workspace=lambda site: DType.F64.nbytes(_square_blocks(site)))


def _mean_params(site: CallSite) -> Params:
    """Rows of means, tokens, and the width of both."""
    return (site.operand(1).elements, *site.results[0].static_shape)


REDUCE_BACKWARD_ROWS = (
    _columns("bias_gradient", "gradient"),
    _columns("rms_norm_gain_gradient", "gradient", "x", "inverse_rms"),
    _columns("layer_norm_gain_gradient", "gradient", "x", "mean", "inverse_deviation"),
    _squares("square_sum", "x", "workspace", "y"),
    _squares("square_sum_add", "total", "x", "workspace"),
    readable(
        "masked_mean_backward",
        ("gradient", "start", "length", "x_gradient"),
        by_dtypes(_FILE, "masked_mean_backward"),
        _mean_params,
        lambda site: element_launch(site.results[0].elements),
        uncounted,
        exactness=Exactness.TOLERANCE,
    ),
)
