"""Rows of the operators that move elements without looking at them, for GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ostinato.backend_hip.impls.common import Predicate
from ostinato.backend_hip.impls.hip.common import Params, element_launch, entries, readable, word
from ostinato.backend_hip.impls.movement import (
    MAX_COPY_RANK,
    concat_accepts,
    copy_accepts,
    gather_accepts,
    repeat_accepts,
    spread_accepts,
)
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops.movement import MAX_PARTS
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl

__all__ = ["MOVEMENT_ROWS"]

_FILE = "movement/movement"
_COPY = ("x", "count", "y")


def _copy_kernel(site: CallSite) -> str:
    return kernel_name(_FILE, "copy", word(site.operand(0).dtype))


def _copy_params(site: CallSite) -> Params:
    strides = site.strides[0]
    assert strides is not None, "the operand of contiguous is never packed"
    return _copy(site, site.operand(0).static_shape, strides)


def _repeat_params(site: CallSite) -> Params:
    """A copy of [outer, extent, repeats, inner] in which the source does not move along the repeats."""
    axis, shape = site.integer("axis"), site.operand(0).static_shape
    outer, extent, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    return _copy(site, (outer, extent, site.integer("repeats"), inner), (extent * inner, inner, 0, 1))


def _repeat_pair_kernel(site: CallSite) -> str:
    return kernel_name(_FILE, "repeat_pair", word(site.operand(0).dtype))


def _repeat_pair_params(site: CallSite) -> Params:
    """Entries, repeats, then runs of an entry and elements of a run: of a head of k, and of a head of a token of v."""
    batch, groups, time, width = site.operand(0).static_shape
    return (batch, site.integer("repeats"), groups, time * width, time * groups, width)


def _broadcast_params(site: CallSite) -> Params:
    return _copy(site, (site.results[0].elements,), (0,))


def _copy(site: CallSite, extents: Sequence[int], strides: Sequence[int]) -> Params:
    """Entries of the result, then extents and the strides of the source in elements, each of six axes."""
    padding = MAX_COPY_RANK - len(extents)
    return (*entries(site.results[0]), *extents, *[1] * padding, *strides, *[0] * padding)


def _launch(site: CallSite) -> Launch:
    return element_launch(site.results[0].elements)


def _gather_kernel(site: CallSite) -> str:
    return kernel_name(_FILE, "gather_rows", word(site.operand(0).dtype))


def _gather_params(site: CallSite) -> Params:
    source = site.operand(0)
    width = source.static_shape[-1]
    return (site.operand(1).elements, math.prod(source.static_shape[:-1]), width)


def _concat_kernel(site: CallSite) -> str:
    return kernel_name(_FILE, "concat", word(site.operand(0).dtype))


def _concat_params(site: CallSite) -> Params:
    """Entries of the result, runs of each, and the elements that each part gives to a run. Parts joined along axis 0 are one entry of one run."""
    axis, shape = site.integer("axis"), site.results[0].static_shape
    parts = (site.operand(place).static_shape[axis:] if site.has(place) else (0,) for place in range(MAX_PARTS))
    return (shape[0] if axis else 1, math.prod(shape[1:axis]), *(math.prod(part) for part in parts))


def _moving(
    op: str,
    operands: tuple[str, ...],
    kernel: Callable[[CallSite], str],
    params: Callable[[CallSite], Params],
    accepts: Predicate,
    launch: Callable[[CallSite], Launch] = _launch,
) -> Impl:
    """Elements are moved and never computed with."""
    return readable(op, operands, kernel, params, launch, accepts, exactness=Exactness.REFERENCE)


MOVEMENT_ROWS = (
    _moving("gather_rows", ("x", "index", "count", "y"), _gather_kernel, _gather_params, gather_accepts),
    replace(_moving("contiguous", _COPY, _copy_kernel, _copy_params, copy_accepts), strided=frozenset({"x"})),
    _moving("repeat_interleave", _COPY, _copy_kernel, _repeat_params, repeat_accepts),
    _moving(
        "repeat_gqa_kv_bthd",
        ("k", "v", "count", "k_repeated", "v_repeated"),
        _repeat_pair_kernel,
        _repeat_pair_params,
        spread_accepts,
        lambda site: element_launch(2 * site.results[0].elements),
    ),
    _moving("broadcast_scalar", _COPY, _copy_kernel, _broadcast_params, spread_accepts),
    _moving(
        "concat",
        (*(f"x{place}" for place in range(MAX_PARTS)), "count", "y"),
        _concat_kernel,
        _concat_params,
        concat_accepts,
    ),
)
