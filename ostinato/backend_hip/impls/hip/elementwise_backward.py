"""Rows of the gradients of operators on elements, of casts of columns, of dropout, and of sums in place, for GPUs. Results may lie on operands of their size: a
thread reads all of its elements before it writes any of them."""

from __future__ import annotations

import math
from dataclasses import replace

from ostinato.backend_hip.impls.common import (
    FLOATS,
    all_of,
    even_rows,
    first_reason,
    flat,
    need_dtype,
    row_step,
    uncounted,
)
from ostinato.backend_hip.impls.hip.common import Params, by_dtypes, element_launch, readable
from ostinato.backend_hip.impls.rotary import token_step, tokens_at_one_distance
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops.dropout import kept_factor, threshold
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl

__all__ = ["ELEMENTWISE_BACKWARD_ROWS", "RUN", "run_launch"]

_FILE = "elementwise/elementwise_backward"
RUN = 4
"""Elements that a thread takes together."""


def run_launch(site: CallSite) -> Launch:
    """A thread a run of the first operand."""
    return element_launch(-(-site.operand(0).elements // RUN))


def _params(site: CallSite) -> Params:
    return (site.operand(0).elements,)


def _one(op: str, value: str) -> Impl:
    """The gradient of an operator on the elements of a value."""
    return readable(
        op,
        ("gradient", value, "x_gradient"),
        by_dtypes(_FILE, op, 1, result=0),
        _params,
        run_launch,
        uncounted,
        (("x_gradient", "gradient"), ("x_gradient", value)),
    )


def _gelu(site: CallSite) -> str:
    form = "gelu_tanh_backward" if site.text("approximate") == "tanh" else "gelu_backward"
    return kernel_name(_FILE, form, site.operand(1).dtype.value, site.results[0].dtype.value)


_ROWS_OF_PRODUCT = ("gate", "up")


def _swiglu_params(site: CallSite) -> Params:
    """Rows, their width, and elements from one row of gate, and of up, to the next; a vector is a column of single elements, as `row_step` has it."""
    gate = site.operand(1)
    rows, width = flat(gate) if gate.rank > 1 else (gate.elements, 1)
    return (rows, width, *(step for index in (1, 2) if (step := row_step(site, index)) is not None))


def _columns_params(site: CallSite) -> Params:
    """Tokens, the elements of the heads of each, and from those of one to those of the next."""
    *tokens, heads, width = site.operand(0).static_shape
    step = token_step(site)
    assert step is not None, "accepted before"
    return (math.prod(tokens), heads * width, step)


def _columns_accept(site: CallSite) -> str | None:
    """Floats of heads [..., H, D], each token's in one run."""
    x = site.operand(0)
    return first_reason(
        need_dtype("x", x, FLOATS),
        need_dtype("y", site.results[0], FLOATS),
        f"x must have heads [..., H, D], found {x}" if x.rank < 2 else tokens_at_one_distance(site),
    )


def _dropout_params(site: CallSite) -> Params:
    rate = site.real("rate")
    return (site.operand(0).elements, threshold(rate), site.integer("place"), float(kept_factor(rate)))


_SWIGLU = ("gradient", *_ROWS_OF_PRODUCT)
_swiglu_accepts = all_of(uncounted, even_rows(*_ROWS_OF_PRODUCT))

ELEMENTWISE_BACKWARD_ROWS = (
    _one("silu_backward", "x"),
    replace(_one("gelu_backward", "x"), kernel=_gelu),
    _one("tanh_backward", "y"),
    replace(
        readable(
            "swiglu_backward",
            (*_SWIGLU, "gate_gradient", "up_gradient"),
            by_dtypes(_FILE, "swiglu_backward", 1, result=0),
            _swiglu_params,
            run_launch,
            _swiglu_accepts,
            tuple((result, operand) for result in ("gate_gradient", "up_gradient") for operand in _SWIGLU),
        ),
        strided=frozenset(_ROWS_OF_PRODUCT),
    ),
    replace(
        readable(
            "swiglu_joint_backward",
            (*_SWIGLU, "x_gradient"),
            by_dtypes(_FILE, "swiglu_joint_backward", 1, result=0),
            _swiglu_params,
            run_launch,
            _swiglu_accepts,
        ),
        strided=frozenset(_ROWS_OF_PRODUCT),
    ),
    replace(
        readable(
            "cast",
            ("x", "y"),
            by_dtypes(_FILE, "cast_columns", 0, result=0),
            _columns_params,
            run_launch,
            all_of(uncounted, _columns_accept),
            exactness=Exactness.REFERENCE,
        ),
        name="hip_columns",
        strided=frozenset({"x"}),
        priority=-1,
    ),
    readable(
        "dropout",
        ("x", "seed", "step", "y"),
        by_dtypes(_FILE, "dropout", 0),
        _dropout_params,
        run_launch,
        uncounted,
        (("y", "x"),),
        Exactness.REFERENCE,
    ),
    readable(
        "accumulate",
        ("a", "x"),
        by_dtypes(_FILE, "accumulate"),
        _params,
        run_launch,
        uncounted,
        exactness=Exactness.REFERENCE,
    ),
)
