"""Rows of the end of a training step: squares of the gradients, the numbers of a step, and the updates in place."""

from __future__ import annotations

from ostinato.backend_hip.impls.backward import backward_row, operand_dtypes
from ostinato.backend_hip.impls.common import all_of, number, uncounted
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops import OP
from ostinato.ir.ops.optimizer import SCHEDULES
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import DType

__all__ = ["OPTIMIZER_ROWS"]

_HALVES = (DType.F16, DType.BF16)
_MOMENTS = (DType.F32, DType.BF16)
_SQUARE_RUN = 4096
"""Values whose sum of squares, a double, is one entry of the workspace."""


def _mirror(site: CallSite) -> int:
    """The dtype of the mirror; that of bf16, which nobody looks at, where there is none."""
    place = OP[site.node.op].place("mirror")
    return number(site.operand(place)) if site.has(place) else DType.BF16.number


def _adamw_params(site: CallSite) -> tuple[int, ...]:
    """Elements, whether weights decay, dtypes of the moments and of the mirror."""
    place = OP[site.node.op].place
    moments = (number(site.operand(place(name))) for name in ("first", "second"))
    return (site.operand(0).elements, int(site.boolean("decay")), *moments, _mirror(site))


def _sgd_params(site: CallSite) -> tuple[int, ...]:
    return (site.operand(0).elements, int(site.boolean("decay")), _mirror(site))


def _momentum_params(site: CallSite) -> tuple[int, ...]:
    flags = (int(site.boolean("decay")), int(site.boolean("nesterov")))
    return (site.operand(0).elements, *flags, _mirror(site))


def _squares(op: str, operand: int, result: str) -> Impl:
    return backward_row(
        op,
        ("x", "workspace", result),
        lambda site: (site.operand(operand).elements,),
        all_of(operand_dtypes(), uncounted),
        exactness=Exactness.TOLERANCE,
        workspace=lambda site: -(-site.operand(operand).elements // _SQUARE_RUN) * DType.F64.block_bytes,
    )


def _update(op: str, *updated: str) -> Impl:
    params = {"adamw": _adamw_params, "sgd": _sgd_params, "sgd_momentum": _momentum_params}[op]
    return backward_row(
        op,
        ("gradient", "factors", *(f"{name}_out" for name in ("parameter", *updated)), "mirror"),
        params,
        operand_dtypes(mirror=_HALVES, first=_MOMENTS, second=_MOMENTS),
    )


OPTIMIZER_ROWS = (
    _squares("square_sum", 0, "y"),
    _squares("square_sum_add", 1, "y"),
    backward_row(
        "optimizer_factors",
        ("settings", "loss", "square_sum", "step_out", "factors"),
        lambda site: (SCHEDULES.index(site.text("schedule")),),
        operand_dtypes(step=(DType.I32,)),
        exactness=Exactness.TOLERANCE,
    ),
    _update("adamw", "first", "second"),
    _update("sgd"),
    _update("sgd_momentum", "velocity"),
)
