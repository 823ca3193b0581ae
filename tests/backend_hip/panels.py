"""Weights for kernel tests: random rows in every format, their values in double, and the packed layouts written with numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.ir.blocks import LOOKUP, dequantize
from ostinato.ir.ops.samplers import random_blocks, whole
from ostinato.ir.types import DType
from tests.backend_hip.kernel_harness import BF16, F16, F32, Array

LANES = 32
BLOCKS = tuple(dtype.value for dtype in DType if dtype.is_block)
FORMATS = ("f32", "f16", "bf16", *BLOCKS)
_FLOATS = {"f32": F32, "f16": F16, "bf16": BF16}


@dataclass(frozen=True, slots=True)
class Rows:
    """A weight as a checkpoint has it: `stored` [rows, K] floats or [rows, bytes] of blocks; `values` [rows, K] in double."""

    format: str
    stored: Array
    values: Array


@dataclass(frozen=True, slots=True)
class _Codes:
    """How a block format keeps its codes: their bits, values that share factors, and the bytes of a block that are halves and inner scales."""

    bits: int
    run: int = 32
    halves: tuple[int, ...] = (0,)
    scales: range = range(0)
    neutral: bytes = b""
    """Inner scales of 1 and minima of 0."""


_K_SCALES, _K_NEUTRAL = range(4, 16), bytes([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1])
_FORMATS = {
    "q8_0": _Codes(8),
    "q4_0": _Codes(4),
    "q4_1": _Codes(4, halves=(0, 2)),
    "q5_0": _Codes(5),
    "q5_1": _Codes(5, halves=(0, 2)),
    "iq4_nl": _Codes(4),
    "q4_k": _Codes(4, halves=(0, 2), scales=_K_SCALES, neutral=_K_NEUTRAL),
    "q5_k": _Codes(5, halves=(0, 2), scales=_K_SCALES, neutral=_K_NEUTRAL),
    "q6_k": _Codes(6, 16, halves=(208,), scales=range(192, 208), neutral=bytes([1] * 16)),
}


def whole_columns(format: str, at_least: int) -> int:
    """The next number of columns that a row of that format can have."""
    return whole(DType(format), at_least)


def random_rows(rng: np.random.Generator, format: str, rows: int, columns: int) -> Rows:
    """Normal values for floats; random codes and scales of both signs for blocks."""
    if format in _FLOATS:
        stored = rng.standard_normal((rows, columns), np.float32).astype(_FLOATS[format])
        return Rows(format, stored, stored.astype(np.float64))
    stored = random_blocks((rows, columns), DType(format), rng)
    return Rows(format, stored, dequantize(stored, DType(format)).astype(np.float64))


def to_panels(rows: Rows, *, pair: bool = False) -> Array:
    """The packed bytes of a weight whose logical rows are `rows`: panels of 32 rows, or with `pair` 16 gate rows and the same 16 up rows.

    Rows that a panel has and the weight has not are packed from zero bytes.
    """
    count = len(rows.stored)
    half, group = (count // 2, LANES // 2) if pair else (count, LANES)
    panels = -(-half // group)
    order = np.full((panels, LANES), -1, np.int64)
    for start in range(0, LANES, group):
        lanes = np.arange(panels)[:, None] * group + np.arange(group)
        order[:, start : start + group] = np.where(lanes < half, lanes + (start // group) * half, -1)
    if rows.format not in _FLOATS:
        return _block_panels(rows, order)
    padded = np.concatenate([rows.stored, np.zeros((1, rows.stored.shape[1]), rows.stored.dtype)])
    lanes_first = padded[order]  # [panels, 32, row]
    if rows.format == "bf16":
        columns = rows.stored.shape[1]
        odd = np.zeros((panels, LANES, columns % 2), rows.stored.dtype)
        pairs = np.concatenate([lanes_first, odd], axis=2).reshape(panels, LANES, -(-columns // 2), 2)
        return _bytes(pairs.transpose(0, 2, 1, 3)).reshape(-1)
    return _bytes(lanes_first.transpose(0, 2, 1)).reshape(-1)


def _block_panels(rows: Rows, order: Array) -> Array:
    """Per block: halves, inner scales, codes, each of all 32 rows before the next."""
    kind, size = _FORMATS[rows.format], DType(rows.format).block_bytes
    stored = np.concatenate([rows.stored, np.zeros((1, rows.stored.shape[1]), np.uint8)])
    blocks = stored.reshape(len(stored), stored.shape[1] // size, size)
    parts = [blocks[..., at : at + 2].copy().view(np.uint16) for at in kind.halves]
    if kind.scales:
        parts.append(blocks[..., kind.scales.start : kind.scales.stop])
    parts.append(_packed_codes(rows.format, blocks))
    lanes_last = []
    for part in parts:  # [rows, blocks, n] -> [panels, blocks, n, 32]
        placed = _bytes(part[order].transpose(0, 2, 3, 1))
        lanes_last.append(placed.reshape(len(order), blocks.shape[1], part.shape[2] * LANES * part.itemsize))
    return np.concatenate(lanes_last, axis=2).reshape(-1)


def _packed_codes(format: str, blocks: Array) -> Array:
    """int8 codes [..., values], or the uint32 words [..., values * bits / 32] that hold them run by run."""
    kind = _FORMATS[format]
    neutral = blocks.copy()
    for at, value in zip(kind.halves, (1.0, 0.0), strict=False):
        neutral[..., at : at + 2] = np.array([value], np.float16).view(np.uint8)
    if kind.scales:
        neutral[..., kind.scales.start : kind.scales.stop] = np.frombuffer(kind.neutral, np.uint8)
    values = DType(format).block_elements
    codes = dequantize(neutral, DType(format)).reshape(*blocks.shape[:2], values)
    if format == "iq4_nl":
        codes = np.searchsorted(LOOKUP, codes)
    if kind.bits == 8:
        return codes.astype(np.int8)
    bits = codes.astype(np.int64).reshape(*blocks.shape[:2], values // kind.run, kind.run) & ((1 << kind.bits) - 1)
    each, count = 32 // kind.bits, kind.run * kind.bits // 32
    last = bits[..., each * count :]
    tops = (last << np.arange(last.shape[-1]) * kind.bits).sum(axis=-1)
    spare = 32 - each * kind.bits
    words = []
    for word in range(count):
        low = (bits[..., word * each : (word + 1) * each] << np.arange(each) * kind.bits).sum(axis=-1)
        words.append(low | (tops >> word * spare & ((1 << spare) - 1)) << each * kind.bits)
    return np.stack(words, axis=-1).astype(np.uint32).reshape(*blocks.shape[:2], values * kind.bits // 32)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)
