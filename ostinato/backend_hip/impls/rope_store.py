"""Rows of what stands between the projections and attention: the rotation of q and k with the store of k and v, alone and behind the joint projection.

Alone it reads q, k and v wherever their heads are contiguous, mostly columns of one joint product. Behind the projection the kernel turns and stores its sums
as they are, so that nothing of q, k and v but the results is ever in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ostinato.backend_hip.impls.attention import MAX_WIDTH
from ostinato.backend_hip.impls.common import FLOATS, HOST, Predicate, all_of, first_reason, fixed, need_dtype, number
from ostinato.backend_hip.impls.linear import by_weight, linear_dtypes, norm_workspace, pairs_kept, wide_twin
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import ANY, CallSite, Extents, Impl, Level
from ostinato.ir.types import DType

__all__ = ["ROPE_STORE_ROWS", "head_strides", "places_params", "qkv_accepts", "rope_store_accepts"]

_MAX_COLUMNS = 65536
_MOST_ROWS = 64
"""Up to so many tokens one step is faster than two by a hundredth or two; with some hundred it is as fast, or slower by as much. Measured."""
_PLACES = ("cos", "sin", "row_of_token", "position", "block_table", "count", "q_rotated", "k_cache_out", "v_cache_out")


def _places_dtypes(first: int) -> Predicate:
    """float32 tables, int32 places, and caches of one float dtype, from operand `first` on."""

    def accepts(site: CallSite) -> str | None:
        cache = site.operand(first + 5)
        return first_reason(
            *(need_dtype(name, site.operand(first + i), (DType.F32,)) for i, name in enumerate(("cos", "sin"))),
            *(
                need_dtype(name, site.operand(first + i), (DType.I32,))
                for i, name in enumerate(("row_of_token", "position", "block_table"), 2)
            ),
            need_dtype("k_cache", cache, FLOATS),
            need_dtype("v_cache", site.operand(first + 6), (cache.dtype,)),
        )

    return accepts


def _whole_heads(site: CallSite) -> str | None:
    """q, k and v of one float dtype whose heads are contiguous."""
    for index, name in enumerate("qkv"):
        tensor, strides = site.operand(index), site.strides[index]
        reason = need_dtype(name, tensor, FLOATS if index == 0 else (site.operand(0).dtype,))
        if reason is None and (strides is None or (strides[-1] != 1 and tensor.shape[-1] != 1)):
            reason = f"{name} must be contiguous along the head width, found strides {list(strides or ())}"
        if reason is not None:
            return reason
    return need_dtype("q_rotated", site.results[0], (site.operand(0).dtype,))


rope_store_accepts = all_of(_whole_heads, _places_dtypes(3))
"""q, k and v of one float dtype whose heads are contiguous, float32 tables, int32 places, and caches of one float dtype."""


def _narrow_heads(site: CallSite) -> str | None:
    width, columns = site.results[0].static_shape[-1], site.operand(1).static_shape[1]
    if width > MAX_WIDTH:
        return f"the head width must be at most {MAX_WIDTH}, found {width}"
    return (
        f"the kernel takes at most {_MAX_COLUMNS} weight columns, found {columns}" if columns > _MAX_COLUMNS else None
    )


qkv_accepts = all_of(linear_dtypes, _places_dtypes(2), _narrow_heads)
"""What `linear_split` takes, float32 tables, int32 places, caches of one float dtype, and heads that fit."""


def places_params(site: CallSite, first: int) -> tuple[int, ...]:
    """Heads of q and of k, head width, pairs that are turned, then blocks, block size, width and rows of the block table; `first` is the operand cos."""
    _, heads, width = site.results[0].static_shape
    blocks, shared, block_size, _ = site.operand(first + 5).static_shape
    rows, table_width = site.operand(first + 4).static_shape
    return (heads, shared, width, site.operand(first).static_shape[-1], blocks, block_size, table_width, rows)


def head_strides(site: CallSite) -> Iterator[int]:
    """Elements from one token, and from one head, of q, k and v to the next."""
    for seen in site.strides[:3]:
        assert seen is not None, "operands of floats are never packed"
        yield from seen[:2]


def _store_params(site: CallSite) -> tuple[int, ...]:
    dtypes = (number(site.results[0]), number(site.results[1]))
    return (site.results[0].static_shape[0], *places_params(site, 3), *dtypes, *head_strides(site))


def _qkv_params(site: CallSite) -> tuple[int | float, ...]:
    rows, columns = site.operand(0).static_shape
    dtypes = (number(site.results[0]), number(site.results[1]))
    return (rows, columns, number(site.operand(0)), site.real("eps"), *places_params(site, 2), *dtypes)


# q may be turned where it lies unless it is part of something larger, which the second row is for.
_STORE = Impl(
    op="rope_store",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("q", "k", "v", *_PLACES),
    kernel=fixed("rope_store"),
    params=_store_params,
    accepts=rope_store_accepts,
    strided=frozenset({"k", "v"}),
    in_place=(("q_rotated", "q"),),
)

_QKV = Impl(
    op="qkv_rope_store",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "weight", "bias", "gain", *_PLACES, "workspace"),
    kernel=by_weight("qkv_rope_store"),
    params=_qkv_params,
    accepts=all_of(qkv_accepts, pairs_kept),
    layouts=(("weight", ("panel32",)),),
    workspace=norm_workspace,
    extents=Extents(rows=(0, _MOST_ROWS)),
)

ROPE_STORE_ROWS = (
    _STORE,
    replace(_STORE, name="host_columns", strided=frozenset({"q", "k", "v"}), in_place=(), priority=-1),
    _QKV,
    replace(wide_twin(_QKV, qkv_accepts), extents=ANY),
)
