"""Rows of the normalisations and of softmax, which work along the last axis."""

from __future__ import annotations

from ostinato.backend_hip.impls.common import (
    FLOATS,
    HOST,
    all_of,
    all_rows_twin,
    fixed,
    flat,
    foldable_count,
    need_dtype,
    number,
)
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = ["NORM_ROWS"]


def _rms_norm_dtypes(site: CallSite) -> str | None:
    return (
        need_dtype("x", site.operand(0), FLOATS)
        or need_dtype("gain", site.operand(1), (DType.F32,))
        or need_dtype("y", site.results[0], FLOATS)
    )


def _rms_norm_params(site: CallSite) -> tuple[int | float, ...]:
    rows, width = flat(site.operand(0))
    return (rows, width, site.real("eps"), number(site.operand(0)), number(site.results[0]))


def _add_rms_norm_dtypes(site: CallSite) -> str | None:
    total, normalised = site.results
    return (
        need_dtype("a", site.operand(0), FLOATS)
        or need_dtype("b", site.operand(1), (site.operand(0).dtype,))
        or need_dtype("gain", site.operand(2), (DType.F32,))
        or need_dtype("sum", total, (site.operand(0).dtype,))
        or need_dtype("y", normalised, FLOATS)
    )


def _add_rms_norm_params(site: CallSite) -> tuple[int | float, ...]:
    rows, width = flat(site.operand(0))
    return (rows, width, site.real("eps"), number(site.operand(0)), number(site.results[1]))


def _softmax_dtypes(site: CallSite) -> str | None:
    return need_dtype("x", site.operand(0), FLOATS) or need_dtype("y", site.results[0], FLOATS)


def _softmax_params(site: CallSite) -> tuple[int, ...]:
    rows, width = flat(site.operand(0))
    return (rows, width, number(site.operand(0)), number(site.results[0]))


_RMS_NORM = Impl(
    op="rms_norm",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    operands=("x", "gain", "count", "y"),
    kernel=fixed("rms_norm"),
    params=_rms_norm_params,
    accepts=all_of(_rms_norm_dtypes, foldable_count()),
)

_ADD_RMS_NORM = Impl(
    op="add_rms_norm",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    operands=("a", "b", "gain", "count", "sum", "y"),
    kernel=fixed("add_rms_norm"),
    params=_add_rms_norm_params,
    accepts=all_of(_add_rms_norm_dtypes, foldable_count()),
    in_place=(("sum", "a"), ("sum", "b")),
)

_SOFTMAX = Impl(
    op="softmax",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    operands=("x", "count", "y"),
    kernel=fixed("softmax"),
    params=_softmax_params,
    accepts=all_of(_softmax_dtypes, foldable_count()),
)

NORM_ROWS = (
    _RMS_NORM,
    all_rows_twin(_RMS_NORM, _rms_norm_dtypes),
    _ADD_RMS_NORM,
    all_rows_twin(_ADD_RMS_NORM, _add_rms_norm_dtypes),
    _SOFTMAX,
    all_rows_twin(_SOFTMAX, _softmax_dtypes),
)
