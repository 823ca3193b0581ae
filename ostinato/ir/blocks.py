"""Values of the block dtypes: what the bytes of q8_0, q4_0 and q4_1 mean.

A block is 32 values along the last axis: a half-precision scale d (q4_1: also a minimum m), then the integers. q8_0 stores 32 signed bytes (value d*q), q4_0
and q4_1 store 16 bytes whose low nibbles are values 0..15 and whose high nibbles are values 16..31 (d*(q-8), and d*q+m). These are the blocks of GGUF files,
so a quantised checkpoint is read as it lies. Every value is exact or rounded once in float32. Quantising is not done here: checkpoints bring their blocks.
"""

from __future__ import annotations

import numpy as np

from ostinato.ir.errors import DTypeError, ShapeError
from ostinato.ir.types import Array, DType

__all__ = ["dequantize"]


def dequantize(blocks: Array, dtype: DType) -> Array:
    """The float32 values [..., K] of `blocks`: uint8 [..., K/32 * bytes a block] in the order of the file.

    Raises `DTypeError` for another element type or a dtype without blocks, `ShapeError` when the last axis does not hold whole blocks.
    """
    if not dtype.is_block or blocks.dtype != np.uint8:
        raise DTypeError(
            f"expected uint8 bytes of a block dtype, found {blocks.dtype} bytes of {dtype.value}",
            hint="view the raw bytes as uint8",
        )
    size = dtype.block_bytes
    if blocks.ndim == 0 or blocks.shape[-1] % size:
        raise ShapeError(
            f"expected a last axis of whole {size}-byte blocks of {dtype.value}, found shape {list(blocks.shape)}"
        )
    lead = blocks.shape[:-1]
    units = np.ascontiguousarray(blocks).reshape(-1, size)
    scale = _half(units, 0)
    if dtype is DType.Q8_0:
        values = scale * units[:, 2:].view(np.int8).astype(np.float32)
    elif dtype is DType.Q4_0:
        values = scale * (_nibbles(units[:, 2:]) - np.float32(8))
    else:
        values = scale * _nibbles(units[:, 4:]) + _half(units, 2)
    return values.reshape(*lead, blocks.shape[-1] // size * dtype.block_elements)


def _half(units: Array, offset: int) -> Array:
    return np.ascontiguousarray(units[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Array) -> Array:
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
