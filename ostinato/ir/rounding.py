"""From stored values to the ones references compute on, and back: widened exactly on the way in, rounded once on the way out.

Every oracle goes through these two functions, so that there is one meaning of "the reference, in this dtype".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ostinato.ir.blocks import dequantize
from ostinato.ir.types import Array, DType

__all__ = ["multiply", "plain_arithmetic", "round_to", "widen", "working"]

_WORKING: ContextVar[type[np.float64 | np.float32]] = ContextVar("working", default=np.float64)
_ORDER: ContextVar[int | None] = ContextVar("order", default=None)
_FEW = 1 << 10
"""Values of a plain product whose terms are all made before they are summed."""


def working() -> type[np.float64 | np.float32]:
    """What references compute in: float64, and float32 within `plain_arithmetic`. What a contract says is float64 is so in both."""
    return _WORKING.get()


def multiply(a: Array, b: Array) -> Array:
    """a [..., M, K] or [K] times b [..., K, N]: as numpy has it; within `plain_arithmetic` term by term in its order, each product and sum rounded."""
    if working() is np.float64:
        found: Array = a @ b
        return found
    if a.ndim == 1:
        return multiply(a[None], b)[..., 0, :]
    a, b = a.astype(np.float32), b.astype(np.float32)
    if (order := _ORDER.get()) is not None:
        terms = np.random.default_rng(order).permutation(a.shape[-1])
        a, b = a[..., terms], b[..., terms, :]
    y = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), dtype=np.float32)
    if 0 < y.size <= _FEW and a.shape[-1]:
        products = a[..., :, None, :] * b.swapaxes(-1, -2)[..., None, :, :]
        return np.ascontiguousarray(np.add.accumulate(products, axis=-1)[..., -1])
    for k in range(a.shape[-1]):
        y += a[..., :, k, None] * b[..., k, None, :]
    return y


@contextmanager
def plain_arithmetic(order: int | None = None) -> Iterator[None]:
    """References called within are plain compositions in float32, the precision that kernels compute in: how far they are from the oracle is how far a kernel
    may be, twice over. Products are summed in ascending order, or in an order of chance that the number `order` stands for."""
    tokens = _WORKING.set(np.float32), _ORDER.set(order)
    try:
        yield
    finally:
        _WORKING.reset(tokens[0])
        _ORDER.reset(tokens[1])


def widen(array: Array, dtype: DType) -> Array:
    """A stored array of `dtype` as references see it: float32 for f16, bf16 and blocks (uint8 bytes, or float32 already dequantised), unchanged otherwise."""
    if dtype.is_block:
        return array if array.dtype == np.float32 else dequantize(array, dtype)
    return array.astype(np.float32) if dtype in (DType.F16, DType.BF16) else array


def round_to(array: Array, dtype: DType) -> Array:
    """Floats rounded once, to nearest even, to a float dtype; integers converted. (The plain float64 -> bfloat16 conversion goes through float32 and
    rounds twice.)"""
    if dtype is not DType.BF16 or array.dtype != np.float64:
        with np.errstate(over="ignore"):
            return array.astype(dtype.numpy)
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    # rounding to odd: where float32 could not hold the value, its last bit is set, so that the second rounding sees no false tie
    bits = single.view(np.uint32)
    exact = single.astype(np.float64)
    inexact = np.isfinite(array) & np.isfinite(single) & (exact != array)
    too_far = inexact & (np.abs(exact) > np.abs(array))
    truncated = np.where(too_far, bits - np.uint32(1), bits)
    return np.where(inexact, truncated | np.uint32(1), bits).astype(np.uint32).view(np.float32).astype(dtype.numpy)
