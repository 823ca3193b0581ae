"""Rows of the gradients of movements: tables of rows, repeats, slices, means over rows, and rotations."""

from __future__ import annotations

import math

from ostinato.backend_hip.impls.backward import backward_row, operand_dtypes, result_dtypes
from ostinato.backend_hip.impls.common import all_of, flat, number, uncounted
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import DType

__all__ = ["MOVEMENT_BACKWARD_ROWS"]

_IDS = all_of(operand_dtypes(ids=(DType.I32,)), uncounted)


def _embedding_params(site: CallSite) -> tuple[int, ...]:
    """Tokens, width, rows of the table."""
    return (*flat(site.operand(0)), site.integer("rows"))


def _embedding_add_params(site: CallSite) -> tuple[int, ...]:
    return (*flat(site.operand(1)), site.operand(0).static_shape[0])


def _repeat_params(site: CallSite) -> tuple[int, ...]:
    """One gradient, repeats, results and elements of each; none of a second one."""
    shape, axis, repeats = site.operand(0).static_shape, site.integer("axis"), site.integer("repeats")
    return (1, repeats, math.prod(shape[:axis]) * (shape[axis] // repeats), math.prod(shape[axis + 1 :]), 0, 0)


def _repeat_pair_params(site: CallSite) -> tuple[int, ...]:
    """Two gradients: heads of a sequence, and heads of a token."""
    batch, heads, time, width = site.operand(0).static_shape
    repeats = site.integer("repeats")
    groups = heads // repeats
    return (2, repeats, batch * groups, time * width, batch * time * groups, width)


def _slice_params(site: CallSite) -> tuple[int, ...]:
    """Runs before the axis, elements along it, elements behind it, the extent that it had, start and step."""
    shape, axis = site.operand(0).static_shape, site.integer("axis")
    sizes = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    return (*sizes, *(site.integer(name) for name in ("extent", "start", "step")))


def _axis_uncounted(site: CallSite) -> str | None:
    """A count that is not of the axis whose extent changes, which has fewer or more rows in the gradient."""
    return uncounted(site) if site.integer("axis") == 0 else None


def _mean_params(site: CallSite) -> tuple[int, ...]:
    return (*site.operand(0).static_shape, site.integer("rows"))


def _rope(op: str, *, neighbours: bool) -> tuple[Impl, ...]:
    """A rotation back in the order of the forward one; a gradient of float32 may lie over the one it is made of."""

    def params(site: CallSite) -> tuple[int, ...]:
        """Sequences (one, of all tokens), tokens, heads, width, half, steps of the gradient, pairing, dtype of the result."""
        *leading, heads, width = site.operand(0).static_shape
        sizes = (1, math.prod(leading), heads, width, site.operand(1).static_shape[-1])
        return (*sizes, 0, heads * width, width, int(neighbours), number(site.results[0]))

    operands = ("gradient", "cos", "sin", "y")
    in_place = backward_row(
        op,
        operands,
        params,
        all_of(operand_dtypes(), result_dtypes(DType.F32)),
        kernel="rope_backward",
        in_place=(("y", "gradient"),),
    )
    convert = backward_row(
        op,
        operands,
        params,
        all_of(operand_dtypes(), result_dtypes()),
        name="host_convert",
        kernel="rope_backward",
        priority=-1,
    )
    return (in_place, convert)


def _rope_bthd_params(site: CallSite) -> tuple[int, ...]:
    batch, heads, time, width = site.operand(0).static_shape
    sizes = (batch, time, heads, width, site.operand(1).static_shape[-1])
    return (*sizes, heads * time * width, width, time * width, 0, number(site.results[0]))


MOVEMENT_BACKWARD_ROWS = (
    backward_row(
        "embedding_backward",
        ("gradient", "ids", "y"),
        _embedding_params,
        _IDS,
        exactness=Exactness.TOLERANCE,
    ),
    backward_row(
        "embedding_backward_add",
        ("gradient", "ids", "y"),
        _embedding_add_params,
        _IDS,
        exactness=Exactness.TOLERANCE,
    ),
    backward_row(
        "repeat_interleave_backward",
        ("gradient", "-", "y", "-"),
        _repeat_params,
        all_of(operand_dtypes(), _axis_uncounted),
        kernel="sum_repeats",
        exactness=Exactness.TOLERANCE,
    ),
    backward_row(
        "repeat_gqa_kv_bthd_backward",
        ("k_gradient", "v_gradient", "k", "v"),
        _repeat_pair_params,
        operand_dtypes(),
        kernel="sum_repeats",
        exactness=Exactness.REFERENCE,
    ),
    backward_row(
        "slice_backward",
        ("gradient", "y"),
        _slice_params,
        all_of(operand_dtypes(), _axis_uncounted),
        exactness=Exactness.REFERENCE,
    ),
    backward_row(
        "masked_mean_backward",
        ("gradient", "start", "length", "x_gradient"),
        _mean_params,
        all_of(operand_dtypes(start=(DType.I32,), length=(DType.I32,)), uncounted),
        exactness=Exactness.TOLERANCE,
    ),
    *_rope("rope_split_half_backward", neighbours=False),
    *_rope("rope_interleaved_backward", neighbours=True),
    backward_row(
        "rope_split_half_bias_bthd_backward",
        ("gradient", "cos", "sin", "y"),
        _rope_bthd_params,
        all_of(operand_dtypes(), result_dtypes()),
        kernel="rope_backward",
    ),
)
