"""Rows of the gradients along the last axis, for GPUs: of norms and of softmax, a block a row. That of the RMS norm has a row whose threads hold theirs."""

from __future__ import annotations

from dataclasses import replace

from ostinato.backend_hip.impls.common import all_of, flat, uncounted
from ostinato.backend_hip.impls.hip.common import THREADS, Params, by_dtypes, readable, row_launch
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = ["NORM_BACKWARD_ROWS"]

_FILE = "norm/norm_backward"
_MOST_HELD = 16


def _params(site: CallSite) -> Params:
    return flat(site.operand(0))


def _norm_params(site: CallSite) -> Params:
    return (*flat(site.operand(0)), site.real("eps"))


def _launch(site: CallSite) -> Launch:
    return row_launch(flat(site.operand(0))[0])


def _held(site: CallSite) -> int:
    """Elements of a row that each thread holds: a power of two."""
    return 1 << max(0, -(-flat(site.operand(0))[1] // THREADS) - 1).bit_length()


def _rms_dtypes(site: CallSite) -> tuple[str, ...]:
    """Of x, of the gradient and of its copy; one that is not there has a dtype all the same."""
    dtypes = (site.operand(1).dtype, site.results[0].dtype, DType.parse(site.text("copy") or DType.BF16.value))
    return tuple(dtype.value for dtype in dtypes)


def _rms_kernel(site: CallSite) -> str:
    return kernel_name(_FILE, "rms_norm_backward", *_rms_dtypes(site))


def _held_kernel(site: CallSite) -> str:
    return kernel_name(_FILE, "rms_norm_backward_held", _held(site), *_rms_dtypes(site))


def _few_held(site: CallSite) -> str | None:
    if _held(site) <= _MOST_HELD:
        return None
    return f"the last axis must have at most {_MOST_HELD * THREADS} elements, found {site.operand(0)}"


def _affine(op: str, *statistics: str) -> Impl:
    """The gradient of a norm with a gain, and what it hands on of each row."""
    operands = ("gradient", "x", "gain", "addend")
    return readable(
        op,
        (*operands, "x_gradient", *statistics),
        by_dtypes(_FILE, op, 1, result=0),
        _norm_params,
        _launch,
        uncounted,
        tuple(("x_gradient", operand) for operand in ("gradient", "addend", "x")),
    )


_RMS_NORM = replace(_affine("rms_norm_backward", "inverse_rms", "rounded0"), kernel=_rms_kernel)

NORM_BACKWARD_ROWS = (
    _RMS_NORM,
    replace(
        _RMS_NORM, name="hip_held", level=Level.TUNED, kernel=_held_kernel, accepts=all_of(_RMS_NORM.accepts, _few_held)
    ),
    _affine("layer_norm_backward", "mean", "inverse_deviation"),
    readable(
        "l2_normalize_backward",
        ("gradient", "x", "x_gradient"),
        by_dtypes(_FILE, "l2_normalize_backward", 1),
        _norm_params,
        _launch,
        uncounted,
        (("x_gradient", "gradient"), ("x_gradient", "x")),
    ),
    *(
        readable(
            op,
            ("gradient", "y", "x_gradient"),
            by_dtypes(_FILE, op, 1),
            _params,
            _launch,
            uncounted,
            (("x_gradient", "gradient"), ("x_gradient", "y")),
        )
        for op in ("softmax_backward", "causal_softmax_backward")
    ),
)
