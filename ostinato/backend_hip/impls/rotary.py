"""Rows of the rotary embedding: tables of angles, and the rotation in both pairings of elements.

A rotation has two rows: one writes the natural order and may work in place, the other writes head-major memory (`BHTD`), which whole-sequence attention
reads best, so that the change of layout costs nothing of its own; it also reads heads that are columns of a joint product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ostinato.backend_hip.impls.common import (
    FLOATS,
    HOST,
    Predicate,
    all_of,
    all_rows_twin,
    first_reason,
    fixed,
    foldable_count,
    need_dtype,
    number,
)
from ostinato.backend_hip.impls.matmul import one_run
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import NATURAL, CallSite, Impl, Level
from ostinato.ir.types import DType, TensorType

__all__ = [
    "ROTARY_ROWS",
    "dynamic_dtypes",
    "head_major",
    "longrope_dtypes",
    "rope_bias_dtypes",
    "rope_dtypes",
    "rope_head_major",
    "table_dtypes",
    "token_step",
    "tokens_at_one_distance",
]


def head_major(tensor: TensorType) -> str | None:
    """Layout with the head axis outside the sequence axis, for a named [B,T,H,D] tensor."""
    if tensor.rank != 4 or not all(tensor.axes):
        return None
    batch, time, head, width = tensor.axes
    return f"{batch}{head}{time}{width}"


def table_dtypes(site: CallSite) -> str | None:
    """int32 positions and float32 frequencies."""
    return need_dtype("position", site.operand(0), (DType.I32,)) or need_dtype(
        "inverse_frequency", site.operand(1), (DType.F32,)
    )


def dynamic_dtypes(site: CallSite) -> str | None:
    """int32 positions and lengths."""
    return need_dtype("position", site.operand(0), (DType.I32,)) or need_dtype("length", site.operand(1), (DType.I32,))


def longrope_dtypes(site: CallSite) -> str | None:
    """int32 positions and lengths, two sets of float32 frequencies."""
    return (
        dynamic_dtypes(site)
        or need_dtype("short", site.operand(2), (DType.F32,))
        or need_dtype("long", site.operand(3), (DType.F32,))
    )


def _table_params(site: CallSite) -> tuple[int | float, ...]:
    return (site.operand(0).elements, site.operand(1).elements, site.real("scale"))


def _dynamic_params(site: CallSite) -> tuple[int | float, ...]:
    sizes = (site.operand(0).elements, site.integer("width") // 2)
    return (*sizes, site.real("theta"), site.real("factor"), site.integer("original_positions"), site.real("scale"))


def _longrope_params(site: CallSite) -> tuple[int | float, ...]:
    sizes = (site.operand(0).elements, site.operand(2).elements)
    return (*sizes, site.integer("original_positions"), site.real("scale"))


def rope_dtypes(site: CallSite) -> str | None:
    """Floats of an even head width, the dtype kept, with float32 tables."""
    x = site.operand(0)
    width = x.static_shape[-1] if isinstance(x.shape[-1], int) else 0
    return (
        need_dtype("x", x, FLOATS)
        or need_dtype("y", site.results[0], (x.dtype,))
        or need_dtype("cos", site.operand(1), (DType.F32,))
        or need_dtype("sin", site.operand(2), (DType.F32,))
        or (f"head width must be even, found {width}" if width % 2 else None)
    )


def rope_head_major(site: CallSite) -> str | None:
    """A result whose four axes are named, so that it has a head-major layout."""
    x = site.operand(0)
    return None if head_major(x) else f"head-major results need four named axes, found {x}"


def token_step(site: CallSite) -> int | None:
    """Elements from the heads of one token of x [..., H, D] to those of the next: more than H * D where they are columns of a joint product. None where the
    heads of a token are not one run, or tokens are not at one distance."""
    x, strides = site.operand(0).static_shape, site.strides[0]
    if strides is None:
        return None
    *tokens, (heads, head), (width, element) = zip(x, strides, strict=True)
    found = one_run(tokens)
    if found is None or (width > 1 and element != 1) or (heads > 1 and head != width):
        return None
    return found[1] if found[0] > 1 else heads * width


def tokens_at_one_distance(site: CallSite) -> str | None:
    """The reason when `token_step` finds none."""
    if token_step(site) is not None:
        return None
    strides = list(site.strides[0] or ())
    return f"x must have the heads of a token in one run, and tokens at one distance, found {site.operand(0)} with strides {strides}"


def _rope_params(site: CallSite) -> tuple[int, ...]:
    """M, H, D, half, dtype, where row m = b*T + t of head h goes: b*batch_stride + t*row_stride + h*head_stride, and from one row of x to the next."""
    result, half = site.results[0], site.operand(1).static_shape[-1]
    *leading, heads, width = result.static_shape
    rows, step = math.prod(leading), token_step(site)
    assert step is not None, "accepted before"
    if result.is_natural:
        return (rows, heads, width, half, number(result), heads * width, width, rows, rows * heads * width, step)
    batch_stride, row_stride, head_stride, _ = result.strides
    return (rows, heads, width, half, number(result), row_stride, head_stride, leading[-1], batch_stride, step)


def _table(
    op: str,
    operands: tuple[str, ...],
    params: Callable[[CallSite], tuple[int | float, ...]],
    dtypes: Predicate,
) -> tuple[Impl, ...]:
    row = Impl(
        op=op,
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=(*operands, "count", "cos", "sin"),
        kernel=fixed(op),
        params=params,
        accepts=all_of(dtypes, foldable_count(inner=0)),
    )
    return (row, all_rows_twin(row, dtypes))


def _rope(op: str) -> tuple[Impl, ...]:
    row = Impl(
        op=op,
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=("x", "cos", "sin", "count", "y"),
        kernel=fixed(op),
        params=_rope_params,
        accepts=all_of(rope_dtypes, foldable_count(inner=2)),
        in_place=(("y", "x"),),
    )
    head_major_row = replace(
        row,
        name="host_head_major",
        accepts=all_of(rope_dtypes, foldable_count(inner=2), rope_head_major, tokens_at_one_distance),
        result_layout=lambda site: head_major(site.results[0]),
        layouts=(("y", ("BHTD", "BGTD", NATURAL)),),
        in_place=(),
        strided=frozenset({"x"}),
        priority=-2,
    )
    return (row, all_rows_twin(row, rope_dtypes), head_major_row)


def rope_bias_dtypes(site: CallSite) -> str | None:
    """float32 or bfloat16 in and out, with float32 bias and tables."""
    floats = (DType.F32, DType.BF16)
    return first_reason(
        need_dtype("x", site.operand(0), floats),
        *(need_dtype(name, site.operand(index), (DType.F32,)) for index, name in enumerate(("bias", "cos", "sin"), 1)),
        need_dtype("y", site.results[0], floats),
    )


def _bias_params(site: CallSite) -> tuple[int, ...]:
    x, half = site.operand(0), site.operand(2).static_shape[-1]
    return (*x.static_shape, half, number(x), number(site.results[0]))


_ROPE_BIAS = Impl(
    op="rope_split_half_bias_bthd",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "bias", "cos", "sin", "count", "y"),
    kernel=fixed("rope_split_half_bias_bthd"),
    params=_bias_params,
    accepts=rope_bias_dtypes,
)

ROTARY_ROWS = (
    *_table("rotary_table", ("position", "inverse_frequency"), _table_params, table_dtypes),
    *_table("rotary_table_dynamic", ("position", "length"), _dynamic_params, dynamic_dtypes),
    *_table("rotary_table_longrope", ("position", "length", "short", "long"), _longrope_params, longrope_dtypes),
    *_rope("rope_split_half"),
    *_rope("rope_interleaved"),
    _ROPE_BIAS,
)
