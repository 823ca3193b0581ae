"""Rows that end a step: penalties, argmax, sampling, the inputs of the next step, and the loss."""

from __future__ import annotations

from ostinato.backend_hip.impls.common import (
    HOST,
    all_of,
    all_rows_twin,
    first_reason,
    fixed,
    flat,
    foldable_count,
    need_dtype,
)
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = [
    "ADVANCE_OPERANDS",
    "PENALIZE_OPERANDS",
    "SAMPLE_OPERANDS",
    "SELECTION_ROWS",
    "add_at_tokens_accepts",
    "advance_accepts",
    "advance_params",
    "argmax_dtype",
    "loss_accepts",
    "penalize_accepts",
    "sample_accepts",
]

SAMPLE_OPERANDS = (
    ("temperature", DType.F32),
    ("top_k", DType.I32),
    ("top_p", DType.F32),
    ("min_p", DType.F32),
    ("seed", DType.I64),
    ("index", DType.I32),
)
_SAMPLE_BYTES_A_LOGIT = 8
PENALIZE_OPERANDS = (
    ("tokens", DType.I32),
    ("prompt_length", DType.I32),
    ("length", DType.I32),
    ("repetition", DType.F32),
    ("presence", DType.F32),
    ("frequency", DType.F32),
)
_PENALIZE_BYTES_A_LOGIT = 4
ADVANCE_OPERANDS = (
    "token",
    "input_ids",
    "position",
    "length",
    "sample_index",
    "history",
    "history_length",
    "rotary_length",
)
_LOSS_BYTES_A_ROW = 8


def argmax_dtype(site: CallSite) -> str | None:
    """float32 values."""
    return need_dtype("x", site.operand(0), (DType.F32,))


def _flat_params(site: CallSite) -> tuple[int, ...]:
    return flat(site.operand(0))


def sample_accepts(site: CallSite) -> str | None:
    """float32 logits with settings of their dtypes."""
    return first_reason(
        need_dtype("logits", site.operand(0), (DType.F32,)),
        *(need_dtype(name, site.operand(index), (dtype,)) for index, (name, dtype) in enumerate(SAMPLE_OPERANDS, 1)),
    )


def _sample_workspace(site: CallSite) -> int:
    return site.operand(0).elements * _SAMPLE_BYTES_A_LOGIT


def _bias_params(site: CallSite) -> tuple[int, ...]:
    return (*flat(site.operand(0)), site.operand(1).static_shape[1])


def add_at_tokens_accepts(site: CallSite) -> str | None:
    """float32 logits and numbers at int32 tokens."""
    return first_reason(
        need_dtype("logits", site.operand(0), (DType.F32,)),
        need_dtype("tokens", site.operand(1), (DType.I32,)),
        need_dtype("bias", site.operand(2), (DType.F32,)),
        need_dtype("pairs", site.operand(3), (DType.I32,)),
    )


def penalize_accepts(site: CallSite) -> str | None:
    """float32 logits with tokens, lengths and penalties of their dtypes."""
    return first_reason(
        need_dtype("logits", site.operand(0), (DType.F32,)),
        *(need_dtype(name, site.operand(index), (dtype,)) for index, (name, dtype) in enumerate(PENALIZE_OPERANDS, 1)),
    )


def _penalize_params(site: CallSite) -> tuple[int, ...]:
    return (*site.operand(0).static_shape, site.operand(1).static_shape[1])


def _penalize_workspace(site: CallSite) -> int:
    return site.operand(0).elements * _PENALIZE_BYTES_A_LOGIT


def advance_accepts(site: CallSite) -> str | None:
    """int32 operands."""
    present = [(name, index) for index, name in enumerate(ADVANCE_OPERANDS) if site.has(index)]
    return first_reason(*(need_dtype(name, site.operand(index), (DType.I32,)) for name, index in present))


def advance_params(site: CallSite) -> tuple[int, ...]:
    """Rows, tokens that a history has room for, and positions of the context."""
    return (*site.operand(5).static_shape, site.integer("context"))


def loss_accepts(site: CallSite) -> str | None:
    """float32 logits, int32 targets, and no count."""
    counted = "the kernel has no valid-rows count; rows to leave out have target -100" if site.counted else None
    return (
        need_dtype("logits", site.operand(0), (DType.F32,))
        or need_dtype("target", site.operand(1), (DType.I32,))
        or counted
    )


def _loss_workspace(site: CallSite) -> int:
    return flat(site.operand(0))[0] * _LOSS_BYTES_A_ROW


_ARGMAX = Impl(
    op="argmax",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.REFERENCE,
    operands=("x", "count", "y"),
    kernel=fixed("argmax"),
    params=_flat_params,
    accepts=all_of(argmax_dtype, foldable_count()),
)

SELECTION_ROWS = (
    Impl(
        op="penalize",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=("logits", *(name for name, _ in PENALIZE_OPERANDS), "count", "y", "workspace"),
        kernel=fixed("penalize"),
        params=_penalize_params,
        accepts=penalize_accepts,
        workspace=_penalize_workspace,
        in_place=(("y", "logits"),),
    ),
    _ARGMAX,
    all_rows_twin(_ARGMAX, argmax_dtype),
    Impl(
        op="sample",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=("logits", "temperature", "top_k", "top_p", "min_p", "seed", "index", "count", "token", "workspace"),
        kernel=fixed("sample"),
        params=_flat_params,
        accepts=sample_accepts,
        workspace=_sample_workspace,
    ),
    Impl(
        op="add_at_tokens",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=("logits", "tokens", "bias", "pairs", "count", "y"),
        kernel=fixed("add_at_tokens"),
        params=_bias_params,
        accepts=add_at_tokens_accepts,
        in_place=(("y", "logits"),),
    ),
    Impl(
        op="advance",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.REFERENCE,
        operands=(*ADVANCE_OPERANDS, "count"),
        kernel=fixed("advance"),
        params=advance_params,
        accepts=advance_accepts,
    ),
    Impl(
        op="cross_entropy",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        operands=("logits", "target", "workspace", "y"),
        kernel=fixed("cross_entropy"),
        params=_flat_params,
        accepts=loss_accepts,
        workspace=_loss_workspace,
    ),
)
