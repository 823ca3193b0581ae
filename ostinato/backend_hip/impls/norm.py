"""Rows of the normalisations and of softmax, which work along the last axis."""

from __future__ import annotations

from dataclasses import replace

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
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = [
    "NORM_ROWS",
    "add_rms_norm_dtypes",
    "l2_dtypes",
    "layer_norm_converts",
    "layer_norm_dtypes",
    "rms_norm_dtypes",
    "softmax_dtypes",
]


def rms_norm_dtypes(site: CallSite) -> str | None:
    """Floats in and out, a float32 gain."""
    return (
        need_dtype("x", site.operand(0), FLOATS)
        or need_dtype("gain", site.operand(1), (DType.F32,))
        or need_dtype("y", site.results[0], FLOATS)
    )


def _rms_norm_params(site: CallSite) -> tuple[int | float, ...]:
    rows, width = flat(site.operand(0))
    return (rows, width, site.real("eps"), number(site.operand(0)), number(site.results[0]))


def add_rms_norm_dtypes(site: CallSite) -> str | None:
    """Two operands and their sum of one float dtype, a float32 gain, a float norm."""
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


def layer_norm_converts(site: CallSite) -> str | None:
    """Floats in and out, of any two dtypes, with float32 gain and bias."""
    bias = need_dtype("bias", site.operand(2), (DType.F32,)) if site.has(2) else None
    return rms_norm_dtypes(site) or bias


def layer_norm_dtypes(site: CallSite) -> str | None:
    """The same with the dtype kept."""
    return layer_norm_converts(site) or need_dtype("y", site.results[0], (site.operand(0).dtype,))


def l2_dtypes(site: CallSite) -> str | None:
    """Floats, the dtype kept."""
    return need_dtype("x", site.operand(0), FLOATS) or need_dtype("y", site.results[0], (site.operand(0).dtype,))


def _l2_params(site: CallSite) -> tuple[int | float, ...]:
    rows, width = flat(site.operand(0))
    return (rows, width, site.real("eps"), number(site.operand(0)))


def softmax_dtypes(site: CallSite) -> str | None:
    """Floats in and out."""
    return need_dtype("x", site.operand(0), FLOATS) or need_dtype("y", site.results[0], FLOATS)


def _softmax_params(site: CallSite) -> tuple[int, ...]:
    rows, width = flat(site.operand(0))
    return (rows, width, number(site.operand(0)), number(site.results[0]))


_RMS_NORM = Impl(
    op="rms_norm",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "gain", "count", "y"),
    kernel=fixed("rms_norm"),
    params=_rms_norm_params,
    accepts=all_of(rms_norm_dtypes, foldable_count()),
)

_ADD_RMS_NORM = Impl(
    op="add_rms_norm",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("a", "b", "gain", "count", "sum", "y"),
    kernel=fixed("add_rms_norm"),
    params=_add_rms_norm_params,
    accepts=all_of(add_rms_norm_dtypes, foldable_count()),
    in_place=(("sum", "a"), ("sum", "b")),
)

_LAYER_NORM = Impl(
    op="layer_norm",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "gain", "bias", "count", "y"),
    kernel=fixed("layer_norm"),
    params=_rms_norm_params,
    accepts=all_of(layer_norm_dtypes, foldable_count()),
    in_place=(("y", "x"),),
)

# A result of another dtype has places of another size, so that it cannot be written over x.
_LAYER_NORM_CONVERT = replace(
    _LAYER_NORM,
    name="host_convert",
    accepts=all_of(layer_norm_converts, foldable_count()),
    in_place=(),
    priority=-2,
)

_L2_NORMALIZE = Impl(
    op="l2_normalize",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "count", "y"),
    kernel=fixed("l2_normalize"),
    params=_l2_params,
    accepts=all_of(l2_dtypes, foldable_count()),
    in_place=(("y", "x"),),
)

_SOFTMAX = Impl(
    op="softmax",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "count", "y"),
    kernel=fixed("softmax"),
    params=_softmax_params,
    accepts=all_of(softmax_dtypes, foldable_count()),
    in_place=(
        ("y", "x"),
    ),  # a row is read whole before its first element is written, and then each element just before it is
)

_CAUSAL_SOFTMAX = replace(_SOFTMAX, op="causal_softmax", kernel=fixed("causal_softmax"))

NORM_ROWS = (
    _RMS_NORM,
    all_rows_twin(_RMS_NORM, rms_norm_dtypes),
    _ADD_RMS_NORM,
    all_rows_twin(_ADD_RMS_NORM, add_rms_norm_dtypes),
    _LAYER_NORM,
    all_rows_twin(_LAYER_NORM, layer_norm_dtypes),
    _LAYER_NORM_CONVERT,
    all_rows_twin(_LAYER_NORM_CONVERT, layer_norm_converts),
    _L2_NORMALIZE,
    all_rows_twin(_L2_NORMALIZE, l2_dtypes),
    _SOFTMAX,
    all_rows_twin(_SOFTMAX, softmax_dtypes),
    _CAUSAL_SOFTMAX,
    all_rows_twin(_CAUSAL_SOFTMAX, softmax_dtypes),
)
