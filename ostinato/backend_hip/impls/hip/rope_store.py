"""Rows of what stands between projections and attention, for GPUs: the rotation of q and k with the store of k and v, alone and behind the joint product.

Alone it is what a prefill has behind its vendor's product, and reads q, k and v as columns of it, 16 bytes at a time where they lie so.
"""

from __future__ import annotations

from dataclasses import replace

from ostinato.backend_hip.impls.common import all_of
from ostinato.backend_hip.impls.hip.common import (
    THREADS,
    Params,
    block_launch,
    by_dtypes,
    counts_entries,
    element_launch,
    readable,
)
from ostinato.backend_hip.impls.rope_store import head_strides, places_params, qkv_accepts, rope_store_accepts
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite

__all__ = ["ROPE_STORE_ROWS"]

_RUN = 8
"""Elements that a thread takes together."""
_PLACES = ("cos", "sin", "row_of_token", "position", "block_table")
_RESULTS = ("count", "q_rotated", "k_cache_out", "v_cache_out")


def _places(site: CallSite, first: int) -> Params:
    *places, table_width, table_rows = places_params(site, first)
    return (*places, table_rows, table_width)


def _store_params(site: CallSite) -> Params:
    return (site.results[0].static_shape[0], *_places(site, 3), *head_strides(site))


def _store_launch(site: CallSite) -> Launch:
    """A thread a run of pairs, of elements that pass, or of v."""
    tokens = site.results[0].static_shape[0]
    heads, shared, width, half, *_ = places_params(site, 3)
    runs = width % _RUN == half % _RUN == 0
    return element_launch(tokens * ((heads + shared) * (width - half) + shared * width) // (_RUN if runs else 1))


def _qkv_kernel(site: CallSite) -> str:
    dtypes = (site.operand(0), site.operand(1), site.results[0], site.results[1])
    return kernel_name("linear/qkv_rope_store", "qkv_rope_store", *(tensor.dtype.value for tensor in dtypes))


def _qkv_params(site: CallSite) -> Params:
    return (*site.operand(0).static_shape, *_places(site, 2), site.real("eps"))


def _qkv_launch(site: CallSite) -> Launch:
    """A block a head, tokens along the second axis."""
    heads, shared, *_ = places_params(site, 2)
    return block_launch(heads + 2 * shared, THREADS, rows=site.operand(0).static_shape[0])


_STORE = replace(
    readable(
        "rope_store",
        ("q", "k", "v", *_PLACES, *_RESULTS),
        by_dtypes("rotary/rope_store", "rope_store", 0, result=1),
        _store_params,
        _store_launch,
        all_of(rope_store_accepts, counts_entries(0)),
        (("q_rotated", "q"),),
    ),
    strided=frozenset({"k", "v"}),
)

ROPE_STORE_ROWS = (
    _STORE,
    replace(
        _STORE,
        name="hip_columns",
        strided=frozenset({"q", "k", "v"}),
        in_place=(),
        priority=-1,
    ),
    readable(
        "qkv_rope_store",
        ("x", "weight", *_PLACES, "bias", "gain", *_RESULTS),
        _qkv_kernel,
        _qkv_params,
        _qkv_launch,
        all_of(qkv_accepts, counts_entries(0)),
    ),
)
