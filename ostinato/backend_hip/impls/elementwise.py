"""Rows of the elementwise operators: activations, arithmetic, casts.

Outputs may take an input's bytes where kernel and dtype allow it: the kernels read an element before they write the same place. An activation
that changes the dtype, or reads columns of a joint product, has a row of its own without that permission, since its places differ.
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
    even_rows,
    fixed,
    flat,
    foldable_count,
    need_dtype,
    number,
    row_step,
    rows_and_width,
)
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops.activation import GELU_FORMS
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = [
    "ELEMENTWISE_ROWS",
    "ROUNDED_ONCE",
    "add_bias_dtypes",
    "cast_accepts",
    "gelu_converts",
    "same_dtype",
    "swiglu_converts",
    "swiglu_params",
]

ROUNDED_ONCE = frozenset({"add", "mul", "scale", "fill", "cast", "add_bias"})
"""Operators of one float32 operation or none, whose results are the reference's to the bit."""
_CASTS = (*FLOATS, DType.F64)
_INTEGER_CASTS = (DType.I64, DType.I32)


def same_dtype(*operands: str) -> Predicate:
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


def _gelu_params(site: CallSite) -> tuple[int | float, ...]:
    return (*_two_dtype_params(site), GELU_FORMS.index(site.text("approximate")))


def _fill_params(site: CallSite) -> tuple[int | float, ...]:
    return (*rows_and_width(site.operand(0)), site.real("value"), number(site.operand(0)))


def gelu_converts(site: CallSite) -> str | None:
    """Floats in and out, of any two dtypes."""
    return need_dtype("x", site.operand(0), FLOATS) or need_dtype("y", site.results[0], FLOATS)


def add_bias_dtypes(site: CallSite) -> str | None:
    """Floats plus a float32 bias, the dtype kept."""
    x = site.operand(0)
    return (
        need_dtype("x", x, FLOATS)
        or need_dtype("bias", site.operand(1), (DType.F32,))
        or need_dtype("y", site.results[0], (x.dtype,))
    )


def _add_bias_params(site: CallSite) -> tuple[int, ...]:
    return (*flat(site.operand(0)), number(site.operand(0)))


def swiglu_converts(site: CallSite) -> str | None:
    """Gate and up of one float dtype, the result of any."""
    gate = site.operand(0)
    return (
        need_dtype("gate", gate, FLOATS)
        or need_dtype("up", site.operand(1), (gate.dtype,))
        or need_dtype("y", site.results[0], FLOATS)
    )


def swiglu_params(site: CallSite) -> tuple[int, ...]:
    """Rows, runs in each, their width, and elements from one run of gate, and of up, to the next; then, for the host, the dtypes."""
    shape = site.operand(0).static_shape
    sizes = (shape[0], math.prod(shape[1:-1]), shape[-1]) if len(shape) > 1 else (*rows_and_width(site.operand(0)), 1)
    steps = tuple(step for index in range(2) if (step := row_step(site, index)) is not None)  # the row refuses others
    return (*sizes, *steps)


def _swiglu_params(site: CallSite) -> tuple[int, ...]:
    return (*swiglu_params(site), number(site.operand(0)), number(site.results[0]))


def cast_accepts(site: CallSite) -> str | None:
    """Floats to floats, int32 and int64 to each other."""
    source, result = site.operand(0), site.results[0]
    if source.dtype in _INTEGER_CASTS:
        return need_dtype("y", result, _INTEGER_CASTS)
    return need_dtype("x", source, (*_CASTS, *_INTEGER_CASTS)) or need_dtype("y", result, _CASTS)


def _row(
    op: str,
    operands: tuple[str, ...],
    params: Callable[[CallSite], tuple[int | float, ...]],
    accepts: Predicate,
    name: str = "host",
    in_place: tuple[tuple[str, str], ...] = (),
    priority: int = 0,
) -> Impl:
    return Impl(
        op,
        name,
        Level.TUNED,
        HOST,
        operands,
        fixed(op),
        params,
        accepts,
        in_place=in_place,
        priority=priority,
        exactness=Exactness.REFERENCE if op in ROUNDED_ONCE else Exactness.ROW_INVARIANT,
    )


_ADD_BIAS = _row(
    "add_bias",
    ("x", "bias", "count", "y"),
    _add_bias_params,
    all_of(add_bias_dtypes, foldable_count()),
    in_place=(("y", "x"),),
)

_SWIGLU = _row(
    "swiglu",
    ("gate", "up", "count", "y"),
    _swiglu_params,
    same_dtype("gate", "up"),
    in_place=(("y", "gate"), ("y", "up")),
)

ELEMENTWISE_ROWS = (
    _row("silu", ("x", "count", "y"), _elementwise_params, same_dtype("x"), in_place=(("y", "x"),)),
    _row("gelu", ("x", "count", "y"), _gelu_params, same_dtype("x"), in_place=(("y", "x"),)),
    _row("gelu", ("x", "count", "y"), _gelu_params, gelu_converts, name="host_convert", priority=-1),
    _row("tanh", ("x", "count", "y"), _elementwise_params, same_dtype("x"), in_place=(("y", "x"),)),
    _SWIGLU,
    replace(
        _SWIGLU,
        name="host_convert",
        accepts=all_of(swiglu_converts, even_rows("gate", "up")),
        in_place=(),
        strided=frozenset({"gate", "up"}),
        priority=-1,
    ),
    _row("add", ("a", "b", "count", "y"), _elementwise_params, same_dtype("a", "b"), in_place=(("y", "a"), ("y", "b"))),
    _row("mul", ("a", "b", "count", "y"), _elementwise_params, same_dtype("a", "b"), in_place=(("y", "a"), ("y", "b"))),
    _row("scale", ("x", "count", "y"), _scale_params, same_dtype("x"), in_place=(("y", "x"),)),
    _row("fill", ("x", "count", "y"), _fill_params, same_dtype("x"), in_place=(("y", "x"),)),
    _row("cast", ("x", "count", "y"), _two_dtype_params, cast_accepts),
    _ADD_BIAS,
    all_rows_twin(_ADD_BIAS, add_bias_dtypes),
)
