"""Rows of the loss of tokens, of its mean and of their gradients, for GPUs."""

from __future__ import annotations

from ostinato.backend_hip.impls.common import flat, uncounted
from ostinato.backend_hip.impls.hip.common import (
    THREADS,
    Params,
    block_launch,
    by_dtypes,
    one_block,
    readable,
    row_launch,
)
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite

__all__ = ["TOKEN_LOSS_ROWS"]

_FILE = "selection/token_loss"
_SHARE = 4096
"""Logits of a row whose gradient a block makes."""


def _params(site: CallSite) -> Params:
    return flat(site.operand(0))


def _launch(site: CallSite) -> Launch:
    return row_launch(flat(site.operand(0))[0])


def _gradient_params(site: CallSite) -> Params:
    return flat(site.operand(1))


def _gradient_launch(site: CallSite) -> Launch:
    return row_launch(flat(site.operand(1))[0])


def _shared_launch(site: CallSite) -> Launch:
    """Blocks that share a row, and rows along the second axis."""
    rows, width = flat(site.operand(1))
    return block_launch(-(-width // _SHARE), THREADS, rows)


def _tokens(site: CallSite) -> Params:
    return (site.operand(1).elements,)


TOKEN_LOSS_ROWS = (
    readable(
        "token_cross_entropy",
        ("logits", "target", "y", "log_sum"),
        by_dtypes(_FILE, "token_cross_entropy"),
        _params,
        _launch,
        uncounted,
    ),
    readable(
        "token_cross_entropy_backward",
        ("gradient", "logits", "target", "log_sum", "logits_gradient"),
        by_dtypes(_FILE, "token_cross_entropy_backward", result=0),
        _gradient_params,
        _shared_launch,
        uncounted,
        (("logits_gradient", "logits"),),
    ),
    readable(
        "cross_entropy_backward",
        ("gradient", "logits", "target", "logits_gradient"),
        by_dtypes(_FILE, "cross_entropy_backward", result=0),
        _gradient_params,
        _gradient_launch,
        uncounted,
        (("logits_gradient", "logits"),),
        Exactness.TOLERANCE,
    ),
    readable(
        "target_mean",
        ("x", "target", "y"),
        by_dtypes(_FILE, "target_mean"),
        _tokens,
        one_block,
        uncounted,
        exactness=Exactness.TOLERANCE,
    ),
    readable(
        "target_mean_backward",
        ("gradient", "target", "x_gradient"),
        by_dtypes(_FILE, "target_mean_backward"),
        _tokens,
        one_block,
        uncounted,
        exactness=Exactness.TOLERANCE,
    ),
)
