"""Rows of the normalisations and of softmax, for GPUs: a block a row."""

from __future__ import annotations

from dataclasses import replace

from ostinato.backend_hip.impls.common import all_of
from ostinato.backend_hip.impls.hip.common import Params, by_dtypes, counts_entries, readable, row_launch, rows_of
from ostinato.backend_hip.impls.norm import (
    add_rms_norm_dtypes,
    l2_dtypes,
    layer_norm_converts,
    layer_norm_dtypes,
    rms_norm_dtypes,
    softmax_dtypes,
)
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite

__all__ = ["NORM_ROWS"]

_FILE = "norm/norm"
_SOFTMAX_FILE = "reduce/reduce"


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

NORM_ROWS = (
    readable(
        "rms_norm",
        ("x", "gain", "count", "y"),
        by_dtypes(_FILE, "rms_norm", 0, result=0),
        _norm_params,
        _launch,
        all_of(rms_norm_dtypes, counts_entries(1)),
    ),
    readable(
        "add_rms_norm",
        ("a", "b", "gain", "count", "sum", "y"),
        by_dtypes(_FILE, "add_rms_norm", 0, result=1),
        _norm_params,
        _launch,
        all_of(add_rms_norm_dtypes, counts_entries(1)),
        (("sum", "a"), ("sum", "b")),
    ),
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
