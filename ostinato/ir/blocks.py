"""Values of the block dtypes: what the bytes of the quantised formats mean.

These are the blocks of GGUF files, so a quantised checkpoint is read as it lies. A block is 32 values along the last axis, or 256 for the K formats:

| dtype | bytes of a block, in order | value |
| --- | --- | --- |
| q8_0 | half d, int8 q[32] | d q |
| q4_0, q5_0 | half d, (5 bits: uint32 h), uint8 q[16] | d (q - 8), d (q - 16) |
| q4_1, q5_1 | half d, half m, (5 bits: uint32 h), uint8 q[16] | d q + m |
| iq4_nl | half d, uint8 q[16] | d LOOKUP[q] |
| q4_k, q5_k | half d, half m, uint8 s[12], (5 bits: uint8 h[32]), uint8 q[128] | (d s) q - (m t), s and t six bits a group of 32 |
| q6_k | uint8 q[128], uint8 h[64], int8 s[16], half d | (d s) (q - 32), s a group of 16 |

Four bits of a value are half a byte of q, a fifth and sixth lie in h. Blocks of 32 keep values 0..15 in the low and 16..31 in the high halves. K formats go
by groups of 32 values; two of them (q6_k: two of a half of 128) share bytes. Every product and sum is rounded once in float32, in the order written above,
which makes the values bit-equal to those of the `gguf` package. Quantising is not done here: checkpoints bring their blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ostinato.ir.errors import DTypeError, ShapeError
from ostinato.ir.types import Array, DType

__all__ = ["block_parts", "dequantize"]

LOOKUP = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""The numbers that the codes of iq4_nl stand for."""


_CODES_AT = {DType.Q4_1: 4, DType.Q5_1: 4, DType.Q4_K: 16, DType.Q5_K: 16}
"""Where codes begin in a block that has minima; those of a block lie behind its scales, at bytes 2 and 3."""


def block_parts(blocks: Array, dtype: DType) -> tuple[Array, Array] | None:
    """The float32 products of scale and code, and the float32 minima, whose sums are the values of blocks; None for a dtype without minima."""
    if dtype not in _CODES_AT:
        return None
    apart = [blocks.reshape(-1, dtype.block_bytes).copy() for _ in range(2)]
    apart[0][:, 2:4] = 0
    apart[1][:, _CODES_AT[dtype] :] = 0
    scaled, minima = (dequantize(part.reshape(blocks.shape), dtype) for part in apart)
    return scaled, minima


def dequantize(blocks: Array, dtype: DType) -> Array:
    """The float32 values [..., K] of `blocks`: uint8 [..., K / block elements * block bytes] in the order of the file.

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
    values = _VALUES[dtype](np.ascontiguousarray(blocks).reshape(-1, size))
    return values.reshape(*blocks.shape[:-1], blocks.shape[-1] // size * dtype.block_elements)


def _half(units: Array, offset: int) -> Array:
    """The half-precision number at that byte of each block, [blocks, 1]."""
    return np.ascontiguousarray(units[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _parts(packed: Array, bits: int) -> Array:
    """The parts of `bits` bits of uint8 [..., n], lowest first: [..., 8 / bits * n]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = packed[..., None, :] >> shifts & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))


def _codes_of_32(units: Array, offset: int) -> Array:
    """Codes of blocks of 32, whose fifth bits, if any, lie before the others."""
    low = _parts(units[:, -16:], 4)
    if units.shape[1] - offset == 16:
        return low.astype(np.float32)
    high = np.unpackbits(units[:, offset : offset + 4], axis=1, bitorder="little")
    codes: Array = low | high << 4
    return codes.astype(np.float32)


def _q8_0(units: Array) -> Array:
    return _half(units, 0) * units[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(units: Array) -> Array:
    return _half(units, 0) * (_codes_of_32(units, 2) - np.float32(8))


def _q5_0(units: Array) -> Array:
    return _half(units, 0) * (_codes_of_32(units, 2) - np.float32(16))


def _with_minimum(units: Array) -> Array:
    return _half(units, 0) * _codes_of_32(units, 4) + _half(units, 2)


def _iq4_nl(units: Array) -> Array:
    return _half(units, 0) * LOOKUP[_parts(units[:, 2:], 4)]


def _k_with_minimum(units: Array) -> Array:
    first, second, both = (units[:, start : start + 4] for start in (4, 8, 12))
    scale = np.concatenate([first & 63, both & 15 | first >> 2 & 48], axis=1).astype(np.float32)
    minimum = np.concatenate([second & 63, both >> 4 | second >> 2 & 48], axis=1).astype(np.float32)
    codes = _parts(units[:, -128:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    if units.shape[1] > 144:
        codes = codes | _parts(units[:, 16:48], 1).reshape(-1, 8, 32) << 4
    d, m = _half(units, 0) * scale, _half(units, 2) * minimum
    return d[:, :, None] * codes.astype(np.float32) - m[:, :, None]


def _q6_k(units: Array) -> Array:
    low = _parts(units[:, :128].reshape(-1, 2, 64), 4)
    high = _parts(units[:, 128:192].reshape(-1, 2, 32), 2)
    codes: Array = (low | high << 4).reshape(-1, 16, 16).astype(np.float32) - np.float32(32)
    scale = _half(units, 208) * units[:, 192:208].view(np.int8).astype(np.float32)
    return scale[:, :, None] * codes


_VALUES: dict[DType, Callable[[Array], Array]] = {
    DType.Q8_0: _q8_0,
    DType.Q4_0: _q4_0,
    DType.Q4_1: _with_minimum,
    DType.Q5_0: _q5_0,
    DType.Q5_1: _with_minimum,
    DType.IQ4_NL: _iq4_nl,
    DType.Q4_K: _k_with_minimum,
    DType.Q5_K: _k_with_minimum,
    DType.Q6_K: _q6_k,
}
