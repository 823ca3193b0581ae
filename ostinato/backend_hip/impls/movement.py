"""Rows of the operators that move elements without looking at them: gathers, joins, materialised views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ostinato.backend_hip.impls.common import HOST, Predicate, fixed, need_dtype, number
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops.movement import MAX_PARTS
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType, TensorType

__all__ = [
    "MAX_COPY_RANK",
    "MOVEMENT_ROWS",
    "concat_accepts",
    "copy_accepts",
    "gather_accepts",
    "repeat_accepts",
    "spread_accepts",
]

MAX_COPY_RANK = 6


def copy_accepts(site: CallSite) -> str | None:
    """Elements with strides, of no more axes than the kernels copy."""
    source = site.operand(0)
    if source.dtype.is_block:
        return f"block dtype {source.dtype.value} has no strides"
    if source.rank > MAX_COPY_RANK:
        return f"the kernel copies at most {MAX_COPY_RANK} axes, found {source.rank}"
    return None


def _copy_params(site: CallSite) -> tuple[int, ...]:
    source, strides = site.operand(0), site.strides[0]
    assert strides is not None, "the operand of contiguous is never packed"
    return _copy(source, source.static_shape, strides)


def _copy(source: TensorType, extents: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Element size, rank, then extents of the result and strides of the source in elements, each padded to six."""
    padding = [0] * (MAX_COPY_RANK - len(extents))
    return (source.dtype.block_bytes, len(extents), *extents, *(1 for _ in padding), *strides, *padding)


def spread_accepts(site: CallSite) -> str | None:
    """Elements of one size."""
    if site.operand(0).dtype.is_block:
        return f"block dtype {site.operand(0).dtype.value} has no elements of one size"
    return None


def repeat_accepts(site: CallSite) -> str | None:
    """Elements of one size, repeated along an axis that no count is of."""
    if site.counted and site.integer("axis") == 0:
        return "the valid-rows count is of axis 0, which is the axis that is repeated"
    return spread_accepts(site)


def _repeat_params(site: CallSite) -> tuple[int, ...]:
    """A copy of [outer, extent, repeats, inner] in which the source does not move along the repeats."""
    source, axis = site.operand(0), site.integer("axis")
    shape = source.static_shape
    outer, extent, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    return _copy(source, (outer, extent, site.integer("repeats"), inner), (extent * inner, inner, 0, 1))


def _repeat_pair_params(site: CallSite) -> tuple[int, ...]:
    """Element size, entries, repeats, then runs of an entry and elements of a run: of a head of k, and of a head of a token of v."""
    key = site.operand(0)
    batch, groups, time, width = key.static_shape
    return (key.dtype.block_bytes, batch, site.integer("repeats"), groups, time * width, time * groups, width)


def _broadcast_params(site: CallSite) -> tuple[int, ...]:
    return _copy(site.operand(0), (site.results[0].elements,), (0,))


def gather_accepts(site: CallSite) -> str | None:
    """Rows of elements at int32 places."""
    source = site.operand(0)
    if source.dtype.is_block:
        return f"block dtype {source.dtype.value} has no rows of elements"
    return need_dtype("index", site.operand(1), (DType.I32,)) or need_dtype("y", site.results[0], (source.dtype,))


def _gather_params(site: CallSite) -> tuple[int, ...]:
    source = site.operand(0)
    width = source.static_shape[-1]
    rows = source.elements // width if width else 0
    return (site.operand(1).elements, rows, width, number(source))


def concat_accepts(site: CallSite) -> str | None:
    """Runs of elements, joined along an axis that no count is of."""
    if site.operand(0).dtype.is_block:
        return f"block dtype {site.operand(0).dtype.value} has no runs of elements"
    if site.counted and site.integer("axis") == 0:
        return "the valid-rows count is of axis 0, which is the axis that is joined"
    return None


def _concat_params(site: CallSite) -> tuple[int, ...]:
    """Rows of work, runs a row, and the bytes that each part gives to a run. Parts joined along axis 0 are one row of one run."""
    axis, shape = site.integer("axis"), site.results[0].static_shape
    runs = [
        site.operand(place).dtype.nbytes(math.prod(site.operand(place).static_shape[axis:])) if site.has(place) else 0
        for place in range(MAX_PARTS)
    ]
    return (shape[0] if axis else 1, math.prod(shape[1:axis]), *runs)


def _spread(op: str, params: Callable[[CallSite], tuple[int, ...]], accepts: Predicate) -> Impl:
    """An operator that is the strided copy, with strides of its own."""
    return Impl(
        op, "host", Level.TUNED, HOST, ("x", "y"), fixed("copy"), params, accepts, exactness=Exactness.REFERENCE
    )


MOVEMENT_ROWS = (
    Impl(
        op="gather_rows",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.REFERENCE,
        operands=("x", "index", "count", "y"),
        kernel=fixed("gather_rows"),
        params=_gather_params,
        accepts=gather_accepts,
    ),
    Impl(
        op="contiguous",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.REFERENCE,
        operands=("x", "y"),
        kernel=fixed("copy"),
        params=_copy_params,
        accepts=copy_accepts,
        strided=frozenset({"x"}),
    ),
    _spread("repeat_interleave", _repeat_params, repeat_accepts),
    Impl(
        op="repeat_gqa_kv_bthd",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.REFERENCE,
        operands=("k", "v", "count", "k_repeated", "v_repeated"),
        kernel=fixed("repeat_pair"),
        params=_repeat_pair_params,
        accepts=spread_accepts,
    ),
    _spread("broadcast_scalar", _broadcast_params, spread_accepts),
    Impl(
        op="concat",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.REFERENCE,
        operands=(*(f"x{place}" for place in range(MAX_PARTS)), "count", "y"),
        kernel=fixed("concat"),
        params=_concat_params,
        accepts=concat_accepts,
    ),
)
