"""A GEMM step by numpy: what its parameters say, read on their own, over bytes of this process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.ir.types import Array, DType

__all__ = ["multiply"]

_DTYPES = {dtype.number: dtype.numpy for dtype in DType if dtype.is_float}


def multiply(params: Sequence[int | float], operands: Sequence[Array | None]) -> None:
    """d = alpha op(a) op(b) + beta c, plus the bias along the rows of d; `operands` are the bytes of a, b, bias, c, d and the workspace."""
    p = GemmParams(*params)  # type: ignore[arg-type]
    a, b, bias, c, d, _ = operands
    left = _matrices(a, p.a_type, (p.k, p.m) if p.transpose_a else (p.m, p.k), p.a_leading, p.a_stride, p.batches)
    right = _matrices(b, p.b_type, (p.n, p.k) if p.transpose_b else (p.k, p.n), p.b_leading, p.b_stride, p.batches)
    left = left.swapaxes(1, 2) if p.transpose_a else left
    right = right.swapaxes(1, 2) if p.transpose_b else right
    product = p.alpha * (left.astype(np.float64) @ right.astype(np.float64))
    if p.beta:
        product += p.beta * _matrices(c, p.c_type, (p.m, p.n), p.c_leading, p.c_stride, p.batches).astype(np.float64)
    if p.bias_type != NO_BIAS:
        assert bias is not None
        product += bias.view(_DTYPES[p.bias_type])[: p.m].astype(np.float64)[:, None]
    _matrices(d, p.d_type, (p.m, p.n), p.d_leading, p.d_stride, p.batches)[...] = product


def _matrices(
    memory: Array | None, dtype: int, shape: tuple[int, int], leading: int, stride: int, batches: int
) -> Array:
    """Column-major matrices over bytes, which hold all of them."""
    assert memory is not None
    values = memory.view(_DTYPES[dtype])
    assert (batches - 1) * stride + (shape[1] - 1) * leading + shape[0] <= values.size
    steps = [step * values.itemsize for step in (stride, 1, leading)]
    return np.lib.stride_tricks.as_strided(values, (batches, *shape), steps)
