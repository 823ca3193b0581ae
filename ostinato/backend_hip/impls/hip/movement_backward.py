"""Rows of the gradients of movements and of the rows of a table, for GPUs."""

from __future__ import annotations

import math

from ostinato.backend_hip.impls.common import uncounted
from ostinato.backend_hip.impls.hip.common import (
    THREADS,
    Params,
    block_launch,
    by_dtypes,
    element_launch,
    readable,
    row_launch,
)
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite

__all__ = ["MOVEMENT_BACKWARD_ROWS"]

_FILE = "movement/movement_backward"
_EMBEDDING_FILE = "linear/embedding_backward"
_SHARE = 64
"""Rows of a table that a block makes, about."""


def _launch(site: CallSite) -> Launch:
    return element_launch(site.results[0].elements)


def _repeat_params(site: CallSite) -> Params:
    """Elements of the result, those of a run, and runs that are summed."""
    inner = math.prod(site.operand(0).static_shape[site.integer("axis") + 1 :])
    return (site.results[0].elements, inner, site.integer("repeats"))


def _pair_params(site: CallSite) -> Params:
    """Elements of each result, of a head of k, and of a head of a token of v."""
    _, _, time, width = site.operand(0).static_shape
    return (site.results[0].elements, time * width, width, site.integer("repeats"))


def _slice_params(site: CallSite) -> Params:
    axis, shape = site.integer("axis"), site.operand(0).static_shape
    places = (shape[axis], site.integer("start"), site.integer("step"))
    return (site.results[0].elements, site.integer("extent"), math.prod(shape[axis + 1 :]), *places)


def _table_params(site: CallSite) -> Params:
    """Tokens, rows of the table, and their width."""
    return (site.operand(1).elements, *site.results[0].static_shape)


def _table_launch(site: CallSite) -> Launch:
    return block_launch(-(-site.results[0].static_shape[0] // _SHARE), THREADS)


def _added_params(site: CallSite) -> Params:
    return (site.operand(2).elements, *site.operand(0).static_shape)


MOVEMENT_BACKWARD_ROWS = (
    readable(
        "repeat_interleave_backward",
        ("gradient", "y"),
        by_dtypes(_FILE, "repeat_interleave_backward"),
        _repeat_params,
        _launch,
        uncounted,
        exactness=Exactness.TOLERANCE,
    ),
    readable(
        "repeat_gqa_kv_bthd_backward",
        ("k_gradient", "v_gradient", "k", "v"),
        by_dtypes(_FILE, "repeat_pair_backward"),
        _pair_params,
        lambda site: element_launch(2 * site.results[0].elements),
        uncounted,
        exactness=Exactness.REFERENCE,
    ),
    readable(
        "slice_backward",
        ("gradient", "y"),
        by_dtypes(_FILE, "slice_backward"),
        _slice_params,
        _launch,
        uncounted,
        exactness=Exactness.REFERENCE,
    ),
    readable(
        "embedding_backward",
        ("gradient", "ids", "y"),
        by_dtypes(_EMBEDDING_FILE, "embedding_backward"),
        _table_params,
        _table_launch,
        uncounted,
        exactness=Exactness.TOLERANCE,
    ),
    readable(
        "embedding_backward_add",
        ("table", "gradient", "ids"),
        by_dtypes(_EMBEDDING_FILE, "embedding_backward_add"),
        _added_params,
        lambda site: row_launch(site.operand(2).elements),
        uncounted,
        exactness=Exactness.TOLERANCE,
    ),
)
