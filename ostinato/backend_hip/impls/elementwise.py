"""Rows of the elementwise operators and of the movements: activations, arithmetic, casts, gathers, materialised views.

Outputs may take an input's bytes where kernel and dtype allow it: the kernels read an element before they write the same place. A swiglu that changes the
dtype has a row of its own without that permission, since its places differ in size.
"""

from __future__ import annotations

from collections.abc import Callable

from ostinato.backend_hip.impls.common import FLOATS, HOST, Predicate, fixed, need_dtype, number, rows_and_width
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = ["ELEMENTWISE_ROWS", "MAX_COPY_RANK"]

MAX_COPY_RANK = 6
_CASTS = (*FLOATS, DType.F64)
_INTEGER_CASTS = (DType.I64, DType.I32)


def _same_dtype(*operands: str) -> Predicate:
    """All operands have one float dtype, and so does the result."""

    def accepts(site: CallSite) -> str | None:
        first = site.operand(0).dtype
        reason = need_dtype(operands[0], site.operand(0), FLOATS)
        for index, name in enumerate(operands[1:], 1):
            reason = reason or need_dtype(name, site.operand(index), (first,))
        return reason or need_dtype("y", site.results[0], (first,))

    return accepts


def _elementwise_params(site: CallSite) -> tuple[int | float, ...]:
    return (*rows_and_width(site.operand(0)), number(site.operand(0)))


def _scale_params(site: CallSite) -> tuple[int | float, ...]:
    return (*rows_and_width(site.operand(0)), site.real("factor"), number(site.operand(0)))


def _two_dtype_params(site: CallSite) -> tuple[int | float, ...]:
    return (*rows_and_width(site.operand(0)), number(site.operand(0)), number(site.results[0]))


def _swiglu_converts(site: CallSite) -> str | None:
    gate = site.operand(0)
    return (
        need_dtype("gate", gate, FLOATS)
        or need_dtype("up", site.operand(1), (gate.dtype,))
        or need_dtype("y", site.results[0], FLOATS)
    )


def _cast_accepts(site: CallSite) -> str | None:
    source, result = site.operand(0), site.results[0]
    if source.dtype in _INTEGER_CASTS:
        return need_dtype("y", result, _INTEGER_CASTS)
    return need_dtype("x", source, (*_CASTS, *_INTEGER_CASTS)) or need_dtype("y", result, _CASTS)


def _copy_accepts(site: CallSite) -> str | None:
    source = site.operand(0)
    if source.dtype.is_block:
        return f"block dtype {source.dtype.value} has no strides"
    if source.rank > MAX_COPY_RANK:
        return f"the kernel copies at most {MAX_COPY_RANK} axes, found {source.rank}"
    return None


def _copy_params(site: CallSite) -> tuple[int, ...]:
    """Element size, rank, then extents and source strides in elements, each padded to six."""
    source, strides = site.operand(0), site.strides[0]
    assert strides is not None, "the operand of contiguous is never packed"
    padding = MAX_COPY_RANK - source.rank
    return (source.dtype.block_bytes, source.rank, *source.static_shape, *[1] * padding, *strides, *[0] * padding)


def _gather_accepts(site: CallSite) -> str | None:
    source = site.operand(0)
    if source.dtype.is_block:
        return f"block dtype {source.dtype.value} has no rows of elements"
    return need_dtype("index", site.operand(1), (DType.I32,)) or need_dtype("y", site.results[0], (source.dtype,))


def _gather_params(site: CallSite) -> tuple[int, ...]:
    source = site.operand(0)
    width = source.static_shape[-1]
    rows = source.elements // width if width else 0
    return (site.operand(1).elements, rows, width, number(source))


def _row(
    op: str,
    operands: tuple[str, ...],
    params: Callable[[CallSite], tuple[int | float, ...]],
    accepts: Predicate,
    name: str = "host",
    in_place: tuple[tuple[str, str], ...] = (),
    priority: int = 0,
) -> Impl:
    kernel = fixed(op)
    return Impl(op, name, Level.TUNED, HOST, operands, kernel, params, accepts, in_place=in_place, priority=priority)


ELEMENTWISE_ROWS = (
    _row("silu", ("x", "count", "y"), _elementwise_params, _same_dtype("x"), in_place=(("y", "x"),)),
    _row(
        "swiglu",
        ("gate", "up", "count", "y"),
        _two_dtype_params,
        _same_dtype("gate", "up"),
        in_place=(("y", "gate"), ("y", "up")),
    ),
    _row("swiglu", ("gate", "up", "count", "y"), _two_dtype_params, _swiglu_converts, name="host_convert", priority=-1),
    _row(
        "add", ("a", "b", "count", "y"), _elementwise_params, _same_dtype("a", "b"), in_place=(("y", "a"), ("y", "b"))
    ),
    _row(
        "mul", ("a", "b", "count", "y"), _elementwise_params, _same_dtype("a", "b"), in_place=(("y", "a"), ("y", "b"))
    ),
    _row("scale", ("x", "count", "y"), _scale_params, _same_dtype("x"), in_place=(("y", "x"),)),
    _row("cast", ("x", "count", "y"), _two_dtype_params, _cast_accepts),
    _row("gather_rows", ("x", "index", "count", "y"), _gather_params, _gather_accepts),
    Impl(
        op="contiguous",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        operands=("x", "y"),
        kernel=fixed("copy"),
        params=_copy_params,
        accepts=_copy_accepts,
        strided=frozenset({"x"}),
    ),
)
