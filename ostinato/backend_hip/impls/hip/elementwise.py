"""Rows of the operators on elements, for GPUs. Results may take an operand's bytes where both have elements of one size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ostinato.backend_hip.impls.common import Predicate, all_of, even_rows
from ostinato.backend_hip.impls.elementwise import (
    ROUNDED_ONCE,
    add_bias_dtypes,
    cast_accepts,
    gelu_converts,
    same_dtype,
    swiglu_converts,
    swiglu_params,
)
from ostinato.backend_hip.impls.hip.common import Params, by_dtypes, element_launch, entries, readable
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl

__all__ = ["ELEMENTWISE_ROWS"]

_FILE = "elementwise/elementwise"


def _params(site: CallSite) -> Params:
    return entries(site.operand(0))


def _with(attr: str) -> Callable[[CallSite], Params]:
    """The parameters of a kernel that takes a number too."""
    return lambda site: (*entries(site.operand(0)), site.real(attr))


def _bias_params(site: CallSite) -> Params:
    x = site.operand(0)
    return (*entries(x), x.static_shape[-1])


def _launch(site: CallSite) -> Launch:
    return element_launch(site.operand(0).elements)


_RUN = 8
"""Elements that a thread takes together."""


def _launch_runs(site: CallSite) -> Launch:
    return element_launch(-(-site.operand(0).elements // _RUN))


def _gelu(site: CallSite) -> str:
    form = "gelu_tanh" if site.text("approximate") == "tanh" else "gelu"
    return kernel_name(_FILE, form, site.operand(0).dtype.value, site.results[0].dtype.value)


def _one(op: str, function: str, params: Callable[[CallSite], Params] = _params) -> Impl:
    """An operator on the elements of x that keeps their dtype."""
    kernel = by_dtypes(_FILE, function, 0)
    places = (("y", "x"),)
    return readable(op, ("x", "count", "y"), kernel, params, _launch, same_dtype("x"), places, _exactness(op))


def _exactness(op: str) -> Exactness:
    return Exactness.REFERENCE if op in ROUNDED_ONCE else Exactness.ROW_INVARIANT


def _two(op: str, function: str) -> Impl:
    """An operator on the elements of a and b that keeps their dtype."""
    kernel, places = by_dtypes(_FILE, function, 0), (("y", "a"), ("y", "b"))
    accepts = same_dtype("a", "b")
    return readable(op, ("a", "b", "count", "y"), kernel, _params, _launch, accepts, places, _exactness(op))


def _converting(row: Impl, accepts: Predicate) -> Impl:
    """The row for results of another dtype, which cannot lie on an operand."""
    return replace(row, name="hip_convert", accepts=accepts, in_place=(), priority=-1)


def _of_columns(row: Impl, accepts: Predicate) -> Impl:
    """The row for results of another dtype, or of columns of one joint product."""
    operands = ("gate", "up")
    return replace(_converting(row, all_of(accepts, even_rows(*operands))), strided=frozenset(operands))


_GELU = readable("gelu", ("x", "count", "y"), _gelu, _params, _launch, same_dtype("x"), (("y", "x"),))
_SWIGLU = readable(
    "swiglu",
    ("gate", "up", "count", "y"),
    by_dtypes(_FILE, "swiglu", 0, result=0),
    swiglu_params,
    _launch_runs,
    same_dtype("gate", "up"),
    (("y", "gate"), ("y", "up")),
)

ELEMENTWISE_ROWS = (
    _one("silu", "silu"),
    _GELU,
    _converting(_GELU, gelu_converts),
    _one("tanh", "hyperbolic_tangent"),
    _SWIGLU,
    _of_columns(_SWIGLU, swiglu_converts),
    _two("add", "add"),
    _two("mul", "multiply"),
    _one("scale", "scale", _with("factor")),
    _one("fill", "fill", _with("value")),
    readable(
        "cast",
        ("x", "count", "y"),
        by_dtypes(_FILE, "cast", 0, result=0),
        _params,
        _launch,
        cast_accepts,
        exactness=_exactness("cast"),
    ),
    readable(
        "add_bias",
        ("x", "bias", "count", "y"),
        by_dtypes(_FILE, "add_bias", 0),
        _bias_params,
        _launch,
        add_bias_dtypes,
        (("y", "x"),),
        _exactness("add_bias"),
    ),
)
