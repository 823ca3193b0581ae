"""Rows of the gradients of activations, of sums of gradients, and of dropout."""

from __future__ import annotations

from ostinato.backend_hip.impls.backward import backward_row, operand_dtypes, result_dtypes
from ostinato.backend_hip.impls.common import FLOATS, all_of, even_rows, number, row_step, rows_and_width
from ostinato.backend_hip.impls.elementwise import same_dtype
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops.activation import GELU_FORMS
from ostinato.ir.ops.dropout import kept_factor, threshold
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import DType

__all__ = ["ELEMENTWISE_BACKWARD_ROWS"]

_ALL_F32 = all_of(operand_dtypes(), result_dtypes(DType.F32))


def _slope_params(site: CallSite) -> tuple[int, ...]:
    """Elements, dtypes of x and of its gradient."""
    return (site.operand(0).elements, number(site.operand(1)), number(site.results[0]))


def _gelu_params(site: CallSite) -> tuple[int, ...]:
    return (*_slope_params(site), GELU_FORMS.index(site.text("approximate")))


def _slope(op: str, of: str) -> tuple[Impl, ...]:
    operands, params = ("gradient", of, "x_gradient"), _gelu_params if op == "gelu_backward" else _slope_params
    over = (("x_gradient", "gradient"), ("x_gradient", of))
    return (
        backward_row(op, operands, params, _ALL_F32, in_place=over),
        backward_row(
            op,
            operands,
            params,
            all_of(operand_dtypes(**{of: FLOATS}), result_dtypes()),
            name="host_convert",
            priority=-1,
        ),
    )


def _swiglu_params(site: CallSite) -> tuple[int, ...]:
    """Rows, runs in each, their width, elements from one run of gate, and of up, to the next, dtypes of gate and of its gradient."""
    rows, width = rows_and_width(site.operand(0))
    last = site.operand(0).static_shape[-1] if site.operand(0).rank > 1 else 1
    sizes = (rows, width // last if last else 0, last)
    steps = tuple(step for index in (1, 2) if (step := row_step(site, index)) is not None)  # the row refuses others
    return (*sizes, *steps, number(site.operand(1)), number(site.results[0]))


def _one_dtype(site: CallSite) -> str | None:
    gate, up = site.operand(1).dtype, site.operand(2).dtype
    return None if gate is up else f"up must be {gate.value} like gate, found {up.value}"


_SWIGLU = ("gradient", "gate", "up", "gate_gradient", "up_gradient")


def _accumulate_params(site: CallSite) -> tuple[int, ...]:
    return (site.operand(0).elements, number(site.operand(1)))


def _dropout_params(site: CallSite) -> tuple[int | float, ...]:
    """Elements, dtype, the least word that stays, the place, and what is multiplied by."""
    x, rate = site.operand(0), site.real("rate")
    return (x.elements, number(x), threshold(rate), site.integer("place"), float(kept_factor(rate)))


ELEMENTWISE_BACKWARD_ROWS = (
    *_slope("silu_backward", "x"),
    *_slope("gelu_backward", "x"),
    *_slope("tanh_backward", "y"),
    backward_row(
        "swiglu_backward",
        _SWIGLU,
        _swiglu_params,
        _ALL_F32,
        in_place=tuple((to, of) for to in _SWIGLU[3:] for of in _SWIGLU[:3]),
    ),
    backward_row(
        "swiglu_backward",
        _SWIGLU,
        _swiglu_params,
        all_of(operand_dtypes(gate=FLOATS, up=FLOATS), _one_dtype, result_dtypes(), even_rows("gate", "up")),
        name="host_convert",
        strided=frozenset({"gate", "up"}),
        priority=-1,
    ),
    backward_row(
        "accumulate",
        ("x", "y"),
        _accumulate_params,
        operand_dtypes(x=FLOATS),
        exactness=Exactness.REFERENCE,
    ),
    backward_row(
        "dropout",
        ("x", "seed", "step", "y"),
        _dropout_params,
        all_of(operand_dtypes(x=FLOATS, seed=(DType.I64,), step=(DType.I32,)), same_dtype("x")),
        exactness=Exactness.REFERENCE,
        in_place=(("y", "x"),),
    ),
)
