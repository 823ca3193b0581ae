"""Rows of the gradients of the products of attention one by one, for GPUs: in tiles as those of kernels/matmul/matmul.hip, over operands in their order."""

from __future__ import annotations

from collections.abc import Callable

from ostinato.backend_hip.impls.common import FLOATS, Predicate, first_reason, need_dtype
from ostinato.backend_hip.impls.hip.common import THREADS, Params, by_dtypes, element_launch, readable
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import DType

__all__ = ["ATTENTION_PART_BACKWARD_ROWS"]

_FILE = "matmul/matmul"
_TILE = 16


def _dtypes(gradient: int, *others: tuple[int, str]) -> Predicate:
    """A gradient of float32, other operands of one float dtype."""

    def accepts(site: CallSite) -> str | None:
        dtype = site.operand(others[0][0]).dtype
        return first_reason(
            need_dtype("gradient", site.operand(gradient), (DType.F32,)),
            need_dtype(others[0][1], site.operand(others[0][0]), FLOATS),
            *(need_dtype(name, site.operand(index), (dtype,)) for index, name in others),
        )

    return accepts


Sizes = tuple[int, int, int, int, int, int]
"""Batches, heads, heads that share keys, queries, keys, head width."""


def _of_probability(site: CallSite) -> Sizes:
    batches, time, heads, width = site.operand(0).static_shape
    _, keys, groups, _ = site.operand(1).static_shape
    return (batches, heads, heads // groups, time, keys, width)


def _of_value(site: CallSite) -> Sizes:
    batches, heads, time, keys = site.operand(0).static_shape
    return (batches, heads, heads // site.integer("groups"), time, keys, site.operand(1).static_shape[3])


def _of_scores(site: CallSite) -> Sizes:
    batches, heads, time, width = site.operand(1).static_shape
    _, groups, keys, _ = site.operand(2).static_shape
    return (batches, heads, heads // groups, time, keys, width)


def _row(
    op: str,
    operands: tuple[str, ...],
    kernel: Callable[[CallSite], str],
    sizes: Callable[[CallSite], Sizes],
    accepts: Predicate,
) -> Impl:
    def params(site: CallSite) -> Params:
        return (*sizes(site), *((site.real("scale"),) if "scale" in site.node.attrs else ()))

    def launch(site: CallSite) -> Launch:
        """A block a tile of the largest product, matrices along the second axis."""
        batches, heads, _, *extents = sizes(site)
        time, keys, width = (-(-extent // _TILE) for extent in extents)
        return element_launch(max(time * keys, time * width, keys * width) * THREADS, rows=batches * heads)

    return readable(op, operands, kernel, params, launch, accepts)


ATTENTION_PART_BACKWARD_ROWS = (
    _row(
        "attention_scores_gqa_backward",
        ("gradient", "q", "k", "count", "q_gradient", "k_gradient"),
        by_dtypes(_FILE, "scores_backward", 1),
        _of_scores,
        _dtypes(0, (1, "q"), (2, "k")),
    ),
    _row(
        "attention_probability_gradient_bthd",
        ("gradient", "v", "count", "y"),
        by_dtypes(_FILE, "probability_gradient", 1),
        _of_probability,
        _dtypes(0, (1, "v")),
    ),
    _row(
        "attention_value_gradient_bthd",
        ("p", "gradient", "count", "y"),
        by_dtypes(_FILE, "value_gradient", 0),
        _of_value,
        _dtypes(1, (0, "p")),
    ),
)
