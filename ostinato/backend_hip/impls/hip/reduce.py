"""Rows of the reductions, for GPUs."""

from __future__ import annotations

from ostinato.backend_hip.impls.hip.common import Params, by_dtypes, element_launch, entries, one_block, readable
from ostinato.backend_hip.impls.reduce import mean_accepts, sum_accepts
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite

__all__ = ["REDUCE_ROWS"]

_FILE = "reduce/reduce"


def _sum_params(site: CallSite) -> Params:
    return entries(site.operand(0))


def _mean_params(site: CallSite) -> Params:
    return (site.operand(1).elements, *site.operand(0).static_shape)


def _mean_launch(site: CallSite) -> Launch:
    """A thread a column, rows along the second axis."""
    return element_launch(site.operand(0).static_shape[1], rows=site.operand(1).elements)


REDUCE_ROWS = (
    readable(
        "reduce_sum",
        ("x", "count", "y"),
        by_dtypes(_FILE, "reduce_sum"),
        _sum_params,
        one_block,
        sum_accepts,
        exactness=Exactness.TOLERANCE,
    ),
    readable(
        "masked_mean",
        ("x", "start", "length", "count", "y"),
        by_dtypes(_FILE, "masked_mean", 0),
        _mean_params,
        _mean_launch,
        mean_accepts,
    ),
)
