"""Rows that end a step, for GPUs: penalties, argmax, sampling and the loss."""

from __future__ import annotations

from dataclasses import replace

from ostinato.backend_hip.impls.common import all_of
from ostinato.backend_hip.impls.hip.common import (
    ALL_THREADS,
    Params,
    by_dtypes,
    counts_entries,
    one_block,
    readable,
    row_launch,
    rows_of,
)
from ostinato.backend_hip.impls.selection import (
    PENALIZE_OPERANDS,
    SAMPLE_OPERANDS,
    add_at_tokens_accepts,
    argmax_dtype,
    loss_accepts,
    penalize_accepts,
    sample_accepts,
)
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Level
from ostinato.ir.types import DType

__all__ = ["SELECTION_ROWS"]

_FILE = "selection/selection"
_PENALIZE_FILE = "selection/penalize"


def _argmax_params(site: CallSite) -> Params:
    return rows_of(site.operand(0))


def _launch(site: CallSite) -> Launch:
    count, inner, _ = rows_of(site.operand(0))
    return row_launch(count * inner)


def _words_launch(site: CallSite) -> Launch:
    """A block of all threads a row."""
    count, inner, _ = rows_of(site.operand(0))
    return row_launch(count * inner, ALL_THREADS)


def _loss_params(site: CallSite) -> Params:
    count, inner, width = rows_of(site.operand(0))
    return (count * inner, width)


def _row_params(site: CallSite) -> Params:
    return site.operand(0).static_shape


def _list_params(site: CallSite) -> Params:
    """Rows, vocabulary, and tokens that a row has room for."""
    return (*site.operand(0).static_shape, site.operand(1).static_shape[1])


def _word_a_logit(site: CallSite) -> int:
    return DType.F32.nbytes(site.operand(0).elements)


_ARGMAX = readable(
    "argmax",
    ("x", "count", "y"),
    by_dtypes(_FILE, "argmax"),
    _argmax_params,
    _launch,
    all_of(argmax_dtype, counts_entries(1)),
)

SELECTION_ROWS = (
    replace(
        readable(
            "penalize",
            ("logits", *(name for name, _ in PENALIZE_OPERANDS), "count", "y", "workspace"),
            by_dtypes(_PENALIZE_FILE, "penalize"),
            _list_params,
            _launch,
            penalize_accepts,
            (("y", "logits"),),
        ),
        workspace=_word_a_logit,
    ),
    _ARGMAX,
    replace(
        _ARGMAX, name="hip_words", level=Level.TUNED, kernel=by_dtypes(_FILE, "argmax_words"), launch=_words_launch
    ),
    replace(
        readable(
            "sample",
            ("logits", *(name for name, _ in SAMPLE_OPERANDS), "count", "token", "workspace"),
            by_dtypes("selection/sample", "sample"),
            _row_params,
            _launch,
            sample_accepts,
        ),
        workspace=_word_a_logit,
    ),
    readable(
        "add_at_tokens",
        ("logits", "tokens", "bias", "pairs", "count", "y"),
        by_dtypes(_PENALIZE_FILE, "add_at_tokens"),
        _list_params,
        _launch,
        add_at_tokens_accepts,
        (("y", "logits"),),
    ),
    readable(
        "cross_entropy",
        ("logits", "target", "y"),
        by_dtypes(_FILE, "cross_entropy"),
        _loss_params,
        one_block,
        loss_accepts,
    ),
)
