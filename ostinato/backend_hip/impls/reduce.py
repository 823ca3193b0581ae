"""Rows of the reductions."""

from __future__ import annotations

from ostinato.backend_hip.impls.common import FLOATS, HOST, fixed, need_dtype, number, rows_and_width
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = ["REDUCE_ROWS", "mean_accepts", "sum_accepts"]


_SUM_RUN = 4096
"""Values whose sum, a double, is one entry of the workspace."""


def sum_accepts(site: CallSite) -> str | None:
    """float32 values."""
    return need_dtype("x", site.operand(0), (DType.F32,))


def _sum_params(site: CallSite) -> tuple[int, ...]:
    return rows_and_width(site.operand(0))


def _sum_workspace(site: CallSite) -> int:
    return -(-site.operand(0).elements // _SUM_RUN) * DType.F64.block_bytes


def mean_accepts(site: CallSite) -> str | None:
    """Floats, the dtype kept, with int32 starts and lengths."""
    x = site.operand(0)
    return (
        need_dtype("x", x, FLOATS)
        or need_dtype("start", site.operand(1), (DType.I32,))
        or need_dtype("length", site.operand(2), (DType.I32,))
        or need_dtype("y", site.results[0], (x.dtype,))
    )


def _mean_params(site: CallSite) -> tuple[int, ...]:
    x = site.operand(0)
    return (*x.static_shape, site.operand(1).elements, number(x))


REDUCE_ROWS = (
    Impl(
        op="reduce_sum",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        operands=("x", "count", "workspace", "y"),
        kernel=fixed("reduce_sum"),
        params=_sum_params,
        accepts=sum_accepts,
        workspace=_sum_workspace,
    ),
    Impl(
        op="masked_mean",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=("x", "start", "length", "count", "y"),
        kernel=fixed("masked_mean"),
        params=_mean_params,
        accepts=mean_accepts,
    ),
)
