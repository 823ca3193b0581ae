"""Rows of the gradients of the normalisations and of softmax, and of the sums over rows that gains and biases get."""

from __future__ import annotations

from collections.abc import Callable

from ostinato.backend_hip.impls.backward import backward_row, operand_dtypes, result_dtypes
from ostinato.backend_hip.impls.common import FLOATS, all_of, flat, number, uncounted
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import DType

__all__ = ["NORM_BACKWARD_ROWS"]

_F32 = all_of(operand_dtypes(), result_dtypes(DType.F32))
_CONVERTING = all_of(operand_dtypes(x=FLOATS), result_dtypes())


def _norm_params(site: CallSite) -> tuple[int | float, ...]:
    """Rows, width, epsilon, dtypes of x and of its gradient."""
    return (*flat(site.operand(0)), site.real("eps"), number(site.operand(1)), number(site.results[0]))


def _rms_params(site: CallSite) -> tuple[int | float, ...]:
    """The same, and the dtype of the copy, any where there is none."""
    return (*_norm_params(site), DType.parse(site.text("copy") or DType.BF16.value).number)


def _softmax_params(site: CallSite) -> tuple[int, ...]:
    return (*flat(site.operand(0)), number(site.operand(1)), number(site.results[0]))


def _gain_params(site: CallSite) -> tuple[int, ...]:
    return (*flat(site.operand(0)), number(site.operand(1)))


def _norm(op: str, *more: str, params: Callable[[CallSite], tuple[int | float, ...]]) -> tuple[Impl, ...]:
    """A gradient in float32 from float32 may lie over each of the tensors that it is made of; another dtype has places of another size."""
    operands = ("gradient", "x", "gain", "addend", "x_gradient", *more)
    over = (("x_gradient", "gradient"), ("x_gradient", "x"), ("x_gradient", "addend"))
    return (
        backward_row(op, operands, params, _F32, in_place=over),
        backward_row(op, operands, params, _CONVERTING, name="host_convert", priority=-1),
    )


NORM_BACKWARD_ROWS = (
    *_norm("rms_norm_backward", "inverse_rms", "rounded0", params=_rms_params),
    *_norm("layer_norm_backward", "mean", "inverse_deviation", params=_norm_params),
    backward_row(
        "l2_normalize_backward",
        ("gradient", "x", "x_gradient"),
        _norm_params,
        operand_dtypes(x=FLOATS),
        in_place=(("x_gradient", "gradient"),),
    ),
    *(
        backward_row(
            op,
            ("gradient", "y", "x_gradient"),
            _softmax_params,
            operand_dtypes(y=FLOATS),
            in_place=(("x_gradient", "gradient"),),
        )
        for op in ("softmax_backward", "causal_softmax_backward")
    ),
    backward_row(
        "rms_norm_gain_gradient",
        ("gradient", "x", "inverse_rms", "y"),
        _gain_params,
        all_of(operand_dtypes(x=FLOATS), uncounted),
        exactness=Exactness.TOLERANCE,
    ),
    backward_row(
        "layer_norm_gain_gradient",
        ("gradient", "x", "mean", "inverse_deviation", "y"),
        _gain_params,
        all_of(operand_dtypes(x=FLOATS), uncounted),
        exactness=Exactness.TOLERANCE,
    ),
    backward_row(
        "bias_gradient",
        ("gradient", "y"),
        lambda site: flat(site.operand(0)),
        all_of(operand_dtypes(), uncounted),
        exactness=Exactness.TOLERANCE,
    ),
)
