"""Rows of the rotary embedding.

The rotation has two rows: one writes the natural order and may work in place, the other writes head-major memory (`BHTD`), which whole-sequence attention
reads best, so that the change of layout costs nothing of its own.
"""

from __future__ import annotations

import math

from ostinato.backend_hip.impls.common import (
    FLOATS,
    HOST,
    all_of,
    all_rows_twin,
    fixed,
    foldable_count,
    need_dtype,
    number,
)
from ostinato.ir.target import NATURAL, CallSite, Impl, Level
from ostinato.ir.types import DType, TensorType

__all__ = ["ROTARY_ROWS", "head_major"]


def head_major(tensor: TensorType) -> str | None:
    """Layout with the head axis outside the sequence axis, for a named [B,T,H,D] tensor."""
    if tensor.rank != 4 or not all(tensor.axes):
        return None
    batch, time, head, width = tensor.axes
    return f"{batch}{head}{time}{width}"


def _table_dtypes(site: CallSite) -> str | None:
    return need_dtype("position", site.operand(0), (DType.I32,)) or need_dtype(
        "inverse_frequency", site.operand(1), (DType.F32,)
    )


def _table_params(site: CallSite) -> tuple[int | float, ...]:
    return (site.operand(0).elements, site.operand(1).elements, site.real("scale"))


def _rope_dtypes(site: CallSite) -> str | None:
    x = site.operand(0)
    width = x.static_shape[-1] if isinstance(x.shape[-1], int) else 0
    return (
        need_dtype("x", x, FLOATS)
        or need_dtype("y", site.results[0], (x.dtype,))
        or need_dtype("cos", site.operand(1), (DType.F32,))
        or need_dtype("sin", site.operand(2), (DType.F32,))
        or (f"head width must be even, found {width}" if width % 2 else None)
    )


def _rope_head_major(site: CallSite) -> str | None:
    x = site.operand(0)
    return None if head_major(x) else f"head-major results need four named axes, found {x}"


def _rope_params(site: CallSite) -> tuple[int, ...]:
    """M, H, D, dtype and where row m = b*T + t of head h goes: b*batch_stride + t*row_stride + h*head_stride."""
    result = site.results[0]
    *leading, heads, width = result.static_shape
    rows = math.prod(leading)
    if result.is_natural:
        return (rows, heads, width, number(result), heads * width, width, rows, rows * heads * width)
    batch_stride, row_stride, head_stride, _ = result.strides
    return (rows, heads, width, number(result), row_stride, head_stride, leading[-1], batch_stride)


_TABLE = Impl(
    op="rotary_table",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    operands=("position", "inverse_frequency", "count", "cos", "sin"),
    kernel=fixed("rotary_table"),
    params=_table_params,
    accepts=all_of(_table_dtypes, foldable_count(inner=0)),
)

_ROPE = Impl(
    op="rope_split_half",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    operands=("x", "cos", "sin", "count", "y"),
    kernel=fixed("rope_split_half"),
    params=_rope_params,
    accepts=all_of(_rope_dtypes, foldable_count(inner=2)),
    in_place=(("y", "x"),),
)

_ROPE_HEAD_MAJOR = Impl(
    op="rope_split_half",
    name="host_head_major",
    level=Level.TUNED,
    architectures=HOST,
    operands=("x", "cos", "sin", "count", "y"),
    kernel=fixed("rope_split_half"),
    params=_rope_params,
    accepts=all_of(_rope_dtypes, foldable_count(inner=2), _rope_head_major),
    result_layout=lambda site: head_major(site.results[0]),
    layouts=(("y", ("BHTD", "BGTD", NATURAL)),),
    priority=-2,
)

ROTARY_ROWS = (
    _TABLE,
    all_rows_twin(_TABLE, _table_dtypes),
    _ROPE,
    all_rows_twin(_ROPE, _rope_dtypes),
    _ROPE_HEAD_MAJOR,
)
