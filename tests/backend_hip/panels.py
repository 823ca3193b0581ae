"""Weights for kernel tests: random rows in every format, their values in double, and the packed layouts written with numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.ir.blocks import dequantize
from ostinato.ir.types import DType
from tests.backend_hip.kernel_harness import BF16, F16, F32, Array

LANES = 32
BLOCK = 32
FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")
BLOCKS = ("q8_0", "q4_0", "q4_1")
_FLOATS = {"f32": F32, "f16": F16, "bf16": BF16}
_HALVES = {"q8_0": 1, "q4_0": 1, "q4_1": 2}  # half-precision numbers at the head of a block
_QUANTS = {"q8_0": 32, "q4_0": 16, "q4_1": 16}  # bytes of quants in a block


@dataclass(frozen=True, slots=True)
class Rows:
    """A weight as a checkpoint has it: `stored` [rows, K] floats or [rows, bytes] of blocks; `values` [rows, K] in double."""

    format: str
    stored: Array
    values: Array


def random_rows(rng: np.random.Generator, format: str, rows: int, columns: int) -> Rows:
    """Normal values for floats; random quants and scales of both signs for blocks."""
    if format in _FLOATS:
        stored = rng.standard_normal((rows, columns), np.float32).astype(_FLOATS[format])
        return Rows(format, stored, stored.astype(np.float64))
    blocks = columns // BLOCK
    halves, quants = _HALVES[format], _QUANTS[format]
    head = (rng.standard_normal((rows, blocks, halves)) * 0.1).astype(np.float16).view(np.uint8)
    body = rng.integers(0, 256, (rows, blocks, quants), np.uint8)
    stored = np.concatenate([head.reshape(rows, blocks, 2 * halves), body], axis=2).reshape(
        rows, blocks * (2 * halves + quants)
    )
    values = dequantize(stored, DType(format)).astype(np.float64).reshape(rows, columns)
    return Rows(format, stored, values)


def to_panels(rows: Rows, *, pair: bool = False) -> Array:
    """The packed bytes of a weight whose logical rows are `rows`: panels of 32 rows, or with `pair` 16 gate rows and the same 16 up rows."""
    count, columns = rows.values.shape
    stored = rows.stored
    half, group = (count // 2, LANES // 2) if pair else (count, LANES)
    panels = -(-half // group)
    order = np.full((panels, LANES), -1, np.int64)
    for start in range(0, LANES, group):
        lanes = np.arange(panels)[:, None] * group + np.arange(group)
        order[:, start : start + group] = np.where(lanes < half, lanes + (start // group) * half, -1)
    padded = np.concatenate([stored, np.zeros((1, stored.shape[1]), stored.dtype)])
    lanes_first = padded[order]  # [panels, 32, row]
    if rows.format == "bf16":
        odd = np.zeros((panels, LANES, columns % 2), stored.dtype)
        pairs = np.concatenate([lanes_first, odd], axis=2).reshape(panels, LANES, -(-columns // 2), 2)
        packed = pairs.transpose(0, 2, 1, 3)
    elif rows.format in _FLOATS:
        packed = lanes_first.transpose(0, 2, 1)
    else:
        blocks = columns // BLOCK
        split = 2 * _HALVES[rows.format]
        parts = lanes_first.reshape(panels, LANES, blocks, split + _QUANTS[rows.format])
        head = parts[..., :split].reshape(panels, LANES, blocks, split // 2, 2).transpose(0, 2, 3, 1, 4)
        body = parts[..., split:].transpose(0, 2, 3, 1)
        packed = np.concatenate(
            [
                part.reshape(panels, blocks, LANES * (part.size // max(1, panels * blocks * LANES)))
                for part in (head, body)
            ],
            axis=2,
        )
    return np.ascontiguousarray(packed).reshape(-1).view(np.uint8)
