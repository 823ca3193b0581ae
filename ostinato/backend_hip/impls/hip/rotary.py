"""Rows of the rotary embedding and of its gradient, for GPUs. The rotations write natural order or, in a row of their own, head-major memory."""

from __future__ import annotations

import math
from dataclasses import replace

from ostinato.backend_hip.impls.common import FLOATS, all_of, first_reason, need_dtype, uncounted
from ostinato.backend_hip.impls.hip.common import (
    Params,
    by_dtypes,
    counts_entries,
    element_launch,
    entries,
    readable,
)
from ostinato.backend_hip.impls.rotary import (
    dynamic_dtypes,
    head_major,
    longrope_dtypes,
    rope_bias_dtypes,
    rope_dtypes,
    rope_head_major,
    table_dtypes,
    token_step,
    tokens_at_one_distance,
)
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.step import Launch
from ostinato.ir.target import NATURAL, CallSite, Impl
from ostinato.ir.types import DType, TensorType

__all__ = ["ROTARY_ROWS"]

_FILE = "rotary/rotary"


def _table_params(site: CallSite) -> Params:
    return (*entries(site.operand(0)), _half(site), site.real("scale"))


def _dynamic_params(site: CallSite) -> Params:
    numbers = (site.real("theta"), site.real("factor"), site.integer("original_positions"), site.real("scale"))
    return (*entries(site.operand(0)), _half(site), *numbers)


def _longrope_params(site: CallSite) -> Params:
    return (*entries(site.operand(0)), _half(site), site.integer("original_positions"), site.real("scale"))


def _half(site: CallSite) -> int:
    return site.results[0].static_shape[-1]


def _table_launch(site: CallSite) -> Launch:
    return element_launch(site.results[0].elements)


def _units(site: CallSite, half: int) -> tuple[int, int]:
    """Entries of the first axis of x [..., heads, width], and the pairs and passing elements in each."""
    first, each = entries(site.operand(0))
    width = site.operand(0).static_shape[-1]
    return (first, each // width * (width - half) if width else 0)


def _rope_params(site: CallSite) -> Params:
    """Units of work, H, D, half, where head h of token t of batch b goes: b * batch + t * token + h * head, and from one token of x to the next."""
    result, half = site.results[0], site.operand(1).static_shape[-1]
    *leading, heads, width = result.static_shape
    step = token_step(site)
    assert step is not None, "accepted before"
    if result.is_natural:
        places = (max(math.prod(leading), 1), 0, heads * width, width)
    else:
        batch, token, head, _ = result.strides
        places = (leading[-1], batch, token, head)
    return (*_units(site, half), heads, width, half, *places, step)


def _bias_launch(site: CallSite) -> Launch:
    return element_launch(site.operand(0).elements)


def _rope_launch(site: CallSite) -> Launch:
    """A thread a unit of work, or 16 bytes of them where the kernel takes as many."""
    x, half = site.operand(0), site.operand(1).static_shape[-1]
    width, run = x.static_shape[-1], 16 // x.dtype.block_bytes
    first, each = _units(site, half)
    together = run if site.node.op == "rope_split_half" and width % run == half % run == 0 else 1
    return element_launch(-(-first * each // together))


def _rope(op: str) -> tuple[Impl, ...]:
    row = readable(
        op,
        ("x", "cos", "sin", "count", "y"),
        by_dtypes(_FILE, op, 0),
        _rope_params,
        _rope_launch,
        rope_dtypes,
        (("y", "x"),),
    )
    head_major_row = replace(
        row,
        name="hip_head_major",
        accepts=all_of(rope_dtypes, rope_head_major, tokens_at_one_distance),
        result_layout=lambda site: head_major(site.results[0]),
        layouts=(("y", ("BHTD", "BGTD", NATURAL)),),
        in_place=(),
        strided=frozenset({"x"}),
        priority=-1,
    )
    return (row, head_major_row)


def _back_accepts(site: CallSite) -> str | None:
    """A gradient of float32, float32 tables, and a float result."""
    return first_reason(
        need_dtype("gradient", site.operand(0), (DType.F32,)),
        need_dtype("cos", site.operand(1), (DType.F32,)),
        need_dtype("sin", site.operand(2), (DType.F32,)),
        need_dtype("y", site.results[0], FLOATS),
    )


def _back_params(site: CallSite) -> Params:
    """Units of work, H, D, half."""
    half = site.operand(1).static_shape[-1]
    return (*_units(site, half), *site.operand(0).static_shape[-2:], half)


def _turned_back(op: str) -> Impl:
    return readable(
        op,
        ("gradient", "cos", "sin", "count", "y"),
        by_dtypes(_FILE, op, result=0),
        _back_params,
        lambda site: element_launch(math.prod(_units(site, site.operand(1).static_shape[-1]))),
        _back_accepts,
    )


_JOINT_FILE = "rotary/rope_joint"
_RUN = 4
"""Elements that a thread takes together."""


def _joint_launch(columns: TensorType) -> Launch:
    return element_launch(-(-columns.elements // _RUN))


def _joint_params(q: TensorType, k: TensorType, cos: TensorType) -> Params:
    """Rows, heads of q and of k, their width, half."""
    *leading, heads, width = q.static_shape
    return (math.prod(leading), heads, k.static_shape[-2], width, cos.static_shape[-1])


def _joint_back_kernel(site: CallSite) -> str:
    """The kernel for the dtypes of y and of its copy; one that is not there has a dtype all the same."""
    copy = site.text("copy") or DType.BF16.value
    return kernel_name(_JOINT_FILE, "rope_joint_backward", site.results[0].dtype.value, copy)


def _bias_params(site: CallSite) -> Params:
    return (*site.operand(0).static_shape, site.operand(2).static_shape[-1])


ROTARY_ROWS = (
    readable(
        "rotary_table",
        ("position", "inverse_frequency", "count", "cos", "sin"),
        by_dtypes(_FILE, "rotary_table"),
        _table_params,
        _table_launch,
        all_of(table_dtypes, counts_entries(0)),
    ),
    readable(
        "rotary_table_dynamic",
        ("position", "length", "count", "cos", "sin"),
        by_dtypes(_FILE, "rotary_table_dynamic"),
        _dynamic_params,
        _table_launch,
        all_of(dynamic_dtypes, counts_entries(0)),
    ),
    readable(
        "rotary_table_longrope",
        ("position", "length", "short", "long", "count", "cos", "sin"),
        by_dtypes(_FILE, "rotary_table_longrope"),
        _longrope_params,
        _table_launch,
        all_of(longrope_dtypes, counts_entries(0)),
    ),
    *_rope("rope_split_half"),
    *_rope("rope_interleaved"),
    readable(
        "rope_split_half_bias_bthd",
        ("x", "bias", "cos", "sin", "count", "y"),
        by_dtypes(_FILE, "rope_bias", 0, result=0),
        _bias_params,
        _bias_launch,
        rope_bias_dtypes,
    ),
    readable(
        "rope_split_half_joint",
        ("x", "cos", "sin", "q", "k", "v"),
        by_dtypes(_JOINT_FILE, "rope_joint", 0, result=0),
        lambda site: _joint_params(site.results[0], site.results[1], site.operand(1)),
        lambda site: _joint_launch(site.operand(0)),
        uncounted,
    ),
    readable(
        "rope_split_half_joint_backward",
        ("q_gradient", "k_gradient", "v_gradient", "cos", "sin", "x_gradient", "rounded0"),
        _joint_back_kernel,
        lambda site: _joint_params(site.operand(0), site.operand(1), site.operand(3)),
        lambda site: _joint_launch(site.results[0]),
        uncounted,
    ),
    _turned_back("rope_split_half_backward"),
    _turned_back("rope_interleaved_backward"),
    readable(
        "rope_split_half_bias_bthd_backward",
        ("gradient", "cos", "sin", "count", "y"),
        by_dtypes(_FILE, "rope_bias_backward", result=0),
        lambda site: (*site.operand(0).static_shape, site.operand(1).static_shape[-1]),
        _bias_launch,
        _back_accepts,
    ),
)
