"""Rows of losses in parts and of their gradients. A gradient of float32 logits may lie over them: an element is read before it is written."""

from __future__ import annotations

from ostinato.backend_hip.impls.backward import backward_row, operand_dtypes, result_dtypes
from ostinato.backend_hip.impls.common import all_of, flat, number, uncounted
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import DType

__all__ = ["LOSS_ROWS"]

_LOGITS_AND_TARGET = all_of(operand_dtypes(target=(DType.I32,)), uncounted)


def _gradient_params(site: CallSite) -> tuple[int, ...]:
    """Rows, width, dtype of the result."""
    return (*flat(site.operand(1)), number(site.results[0]))


def _backward(op: str, *operands: str, exactness: Exactness = Exactness.ROW_INVARIANT) -> tuple[Impl, ...]:
    names = (*operands, "logits_gradient")
    return (
        backward_row(
            op,
            names,
            _gradient_params,
            all_of(_LOGITS_AND_TARGET, result_dtypes(DType.F32)),
            exactness=exactness,
            in_place=(("logits_gradient", "logits"),),
        ),
        backward_row(
            op,
            names,
            _gradient_params,
            all_of(_LOGITS_AND_TARGET, result_dtypes()),
            name="host_convert",
            exactness=exactness,
            priority=-1,
        ),
    )


LOSS_ROWS = (
    backward_row(
        "token_cross_entropy",
        ("logits", "target", "y", "log_sum"),
        lambda site: flat(site.operand(0)),
        _LOGITS_AND_TARGET,
    ),
    *_backward("token_cross_entropy_backward", "gradient", "logits", "target", "log_sum"),
    *_backward("cross_entropy_backward", "gradient", "logits", "target", exactness=Exactness.TOLERANCE),
    backward_row(
        "target_mean",
        ("x", "target", "y"),
        lambda site: (site.operand(0).elements,),
        _LOGITS_AND_TARGET,
        exactness=Exactness.TOLERANCE,
    ),
    backward_row(
        "target_mean_backward",
        ("gradient", "target", "x_gradient"),
        lambda site: (site.operand(1).elements,),
        _LOGITS_AND_TARGET,
        exactness=Exactness.TOLERANCE,
    ),
)
