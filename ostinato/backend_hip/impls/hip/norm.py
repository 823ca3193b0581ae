"""Rows of the normalisations and of softmax, for GPUs: a block a row. RMS norms of common widths have a row whose threads hold it."""

from __future__ import annotations

from dataclasses import replace

from ostinato.backend_hip.impls.common import all_of
from ostinato.backend_hip.impls.hip.common import (
    THREADS,
    Params,
    by_dtypes,
    counts_entries,
    readable,
    row_launch,
    rows_of,
)
from ostinato.backend_hip.impls.norm import (
    add_rms_norm_dtypes,
    l2_dtypes,
    layer_norm_converts,
    layer_norm_dtypes,
    rms_norm_dtypes,
    softmax_dtypes,
)
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl, Level

__all__ = ["NORM_ROWS"]

_FILE = "norm/norm"
_SOFTMAX_FILE = "reduce/reduce"
_MOST_HELD = 32


def _params(site: CallSite) -> Params:
    return rows_of(site.operand(0))


def _norm_params(site: CallSite) -> Params:
    return (*rows_of(site.operand(0)), site.real("eps"))


def _launch(site: CallSite) -> Launch:
    count, inner, _ = rows_of(site.operand(0))
    return row_launch(count * inner)


_LAYER_NORM = readable(
    "layer_norm",
    ("x", "gain", "bias", "count", "y"),
    by_dtypes(_FILE, "layer_norm", 0, result=0),
    _norm_params,
    _launch,
    all_of(layer_norm_dtypes, counts_entries(1)),
    (("y", "x"),),
)


def _held(site: CallSite) -> int:
    """Elements of a row that each thread holds: a power of two."""
    return 1 << max(0, -(-rows_of(site.operand(0))[2] // THREADS) - 1).bit_length()


def _few_held(site: CallSite) -> str | None:
    if _held(site) <= _MOST_HELD:
        return None
    return f"the last axis must have at most {_MOST_HELD * THREADS} elements, found {site.operand(0)}"


def _holding(row: Impl, result: int) -> Impl:
    """The row for widths whose elements a block's threads hold."""

    def kernel(site: CallSite) -> str:
        dtypes = (site.operand(0).dtype, site.results[result].dtype)
        return kernel_name(_FILE, f"{row.op}_held", _held(site), *(dtype.value for dtype in dtypes))

    return replace(row, name="hip_held", level=Level.TUNED, kernel=kernel, accepts=all_of(row.accepts, _few_held))


_RMS_NORM = readable(
    "rms_norm",
    ("x", "gain", "count", "y"),
    by_dtypes(_FILE, "rms_norm", 0, result=0),
    _norm_params,
    _launch,
    all_of(rms_norm_dtypes, counts_entries(1)),
)

_ADD_RMS_NORM = readable(
    "add_rms_norm",
    ("a", "b", "gain", "count", "sum", "y"),
    by_dtypes(_FILE, "add_rms_norm", 0, result=1),
    _norm_params,
    _launch,
    all_of(add_rms_norm_dtypes, counts_entries(1)),
    (("sum", "a"), ("sum", "b")),
)

NORM_ROWS = (
    _RMS_NORM,
    _holding(_RMS_NORM, 0),
    _ADD_RMS_NORM,
    _holding(_ADD_RMS_NORM, 1),
    _LAYER_NORM,
    replace(
        _LAYER_NORM,
        name="hip_convert",
        accepts=all_of(layer_norm_converts, counts_entries(1)),
        in_place=(),
        priority=-1,
    ),
    readable(
        "l2_normalize",
        ("x", "count", "y"),
        by_dtypes(_FILE, "l2_normalize", 0),
        _norm_params,
        _launch,
        all_of(l2_dtypes, counts_entries(1)),
        (("y", "x"),),
    ),
    *(
        readable(
            op,
            ("x", "count", "y"),
            by_dtypes(_SOFTMAX_FILE, op, 0),
            _params,
            _launch,
            all_of(softmax_dtypes, counts_entries(1)),
        )
        for op in ("softmax", "causal_softmax")
    ),
)
