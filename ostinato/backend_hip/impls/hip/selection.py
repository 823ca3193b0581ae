"""Rows that end a step, for GPUs: penalties, argmax, sampling, the inputs of the next step, and the loss."""

from __future__ import annotations

from dataclasses import replace

from ostinato.backend_hip.impls.common import all_of
from ostinato.backend_hip.impls.hip.common import (
    ALL_THREADS,
    THREADS,
    Params,
    block_launch,
    by_dtypes,
    counts_entries,
    element_launch,
    one_block,
    readable,
    row_launch,
    rows_of,
)
from ostinato.backend_hip.impls.selection import (
    ADVANCE_OPERANDS,
    PENALIZE_OPERANDS,
    SAMPLE_OPERANDS,
    add_at_tokens_accepts,
    advance_accepts,
    advance_params,
    argmax_dtype,
    loss_accepts,
    penalize_accepts,
    sample_accepts,
)
from ostinato.ir.evidence import Exactness
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


_PART = 1024
"""Logits of a row that a block changes."""


def _parts_launch(site: CallSite) -> Launch:
    """Blocks that share a row, and rows along the second axis."""
    rows, width = site.operand(0).static_shape
    return block_launch(-(-width // _PART), THREADS, rows)


def _words_launch(site: CallSite) -> Launch:
    """A block of all threads a row."""
    count, inner, _ = rows_of(site.operand(0))
    return row_launch(count * inner, ALL_THREADS)


def _rows_launch(site: CallSite) -> Launch:
    """A thread a row."""
    return element_launch(site.operand(0).elements)


_SHARE = 8192
"""Values of a row that a block takes."""
_SHARING_BLOCKS = 512
"""Of all rows together, that fill a device."""
_SHARING_THREADS = 512


def _shared_blocks(site: CallSite) -> int:
    """Blocks that share a row."""
    count, inner, width = rows_of(site.operand(0))
    return max(1, min(-(-width // _SHARE), _SHARING_BLOCKS // max(1, count * inner)))


def _shared_launch(site: CallSite) -> Launch:
    count, inner, _ = rows_of(site.operand(0))
    return block_launch(_shared_blocks(site), _SHARING_THREADS, count * inner)


def _shared_workspace(site: CallSite) -> int:
    count, inner, _ = rows_of(site.operand(0))
    return 8 * count * inner * _shared_blocks(site)


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


_SLICE = 8192
"""Logits that a block samples from together."""
_SLICE_BYTES = 2048 * 8
"""Of the histogram of a slice."""
_SAMPLING_BLOCKS = 128
"""Of all rows together, that fill a device."""
_SAMPLING_THREADS = 512


def _slices(site: CallSite) -> int:
    return -(-site.operand(0).static_shape[1] // _SLICE)


def _sample_workspace(site: CallSite) -> int:
    """Of each row: its values, a histogram a slice, a number a slice."""
    rows, width = site.operand(0).static_shape
    slices = _slices(site)
    return rows * (-(-width // 4) * 16 + slices * _SLICE_BYTES + -(-slices // 2) * 16)


def _sample_launch(site: CallSite) -> Launch:
    """Blocks that share a row, and rows along the second axis; more rows than blocks have one each, as there are no tickets for all."""
    rows = site.operand(0).static_shape[0]
    return block_launch(min(_slices(site), _SAMPLING_BLOCKS // max(1, rows)), _SAMPLING_THREADS, rows)


_SAMPLE = replace(
    readable(
        "sample",
        ("logits", *(name for name, _ in SAMPLE_OPERANDS), "count", "token", "workspace"),
        by_dtypes("selection/sample", "sample"),
        _row_params,
        _launch,
        sample_accepts,
    ),
    workspace=_word_a_logit,
)

_ARGMAX = readable(
    "argmax",
    ("x", "count", "y"),
    by_dtypes(_FILE, "argmax"),
    _argmax_params,
    _launch,
    all_of(argmax_dtype, counts_entries(1)),
    exactness=Exactness.REFERENCE,
)

SELECTION_ROWS = (
    replace(
        readable(
            "penalize",
            ("logits", *(name for name, _ in PENALIZE_OPERANDS), "count", "y", "workspace"),
            by_dtypes(_PENALIZE_FILE, "penalize"),
            _list_params,
            _parts_launch,
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
        _ARGMAX,
        name="hip_blocks",
        level=Level.TUNED,
        operands=(*_ARGMAX.operands, "workspace"),
        kernel=by_dtypes(_FILE, "argmax_blocks"),
        launch=_shared_launch,
        workspace=_shared_workspace,
        priority=1,
    ),
    _SAMPLE,
    replace(
        _SAMPLE,
        name="hip_blocks",
        level=Level.TUNED,
        kernel=by_dtypes("selection/sample_blocks", "sample_blocks"),
        launch=_sample_launch,
        workspace=_sample_workspace,
    ),
    readable(
        "add_at_tokens",
        ("logits", "tokens", "bias", "pairs", "count", "y"),
        by_dtypes(_PENALIZE_FILE, "add_at_tokens"),
        _list_params,
        _parts_launch,
        add_at_tokens_accepts,
        (("y", "logits"),),
    ),
    readable(
        "advance",
        (*ADVANCE_OPERANDS, "count"),
        by_dtypes("selection/advance", "advance"),
        advance_params,
        _rows_launch,
        advance_accepts,
        exactness=Exactness.REFERENCE,
    ),
    readable(
        "cross_entropy",
        ("logits", "target", "y"),
        by_dtypes(_FILE, "cross_entropy"),
        _loss_params,
        one_block,
        loss_accepts,
        exactness=Exactness.TOLERANCE,
    ),
)
