"""Safetensors files written: the header of a published one-page format, then the bytes of the tensors, one after the other and as they lie in memory.

The header is a pure function of names, types and shapes, in order. A file that we wrote ourselves is therefore read by comparing its first bytes with the
header that it must have; files of others are read by `frontend/checkpoints/safetensors_file.py`. Nothing is joined in memory: tensors are written block by
block.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.ir.errors import DTypeError
from ostinato.ir.types import Array, DType

__all__ = ["BLOCK_BYTES", "TensorSpec", "file_blocks", "header_of", "specs_of"]

BLOCK_BYTES = 1 << 23
"""Bytes that are handed out at a time."""
_NAMES = {
    DType.F64: "F64",
    DType.F32: "F32",
    DType.F16: "F16",
    DType.BF16: "BF16",
    DType.I64: "I64",
    DType.I32: "I32",
    DType.I8: "I8",
    DType.U8: "U8",
    DType.BOOL: "BOOL",
}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Element type and shape of one tensor."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(math.prod(self.shape))

    def __str__(self) -> str:
        return f"{self.dtype.value}{list(self.shape)}"


def specs_of(tensors: Mapping[str, Array]) -> dict[str, TensorSpec]:
    """What the tensors are. Raises `DTypeError` for an element type that has no counterpart."""
    return {name: TensorSpec(DType.of(array.dtype), tuple(array.shape)) for name, array in tensors.items()}


def header_of(specs: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """The first bytes of a file of these tensors, in this order: length, JSON, and blanks up to the next 8 bytes. Raises `DTypeError` for block types."""
    table: dict[str, object] = {} if not metadata else {"__metadata__": dict(metadata)}
    start = 0
    for name, spec in specs.items():
        if spec.dtype not in _NAMES:
            raise DTypeError(f"safetensors has no {spec.dtype.value}", node=name, hint="dequantise it first")
        end = start + spec.nbytes
        table[name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(table, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def file_blocks(
    tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> Iterator[memoryview | bytes]:
    """The bytes of a file of these tensors, block by block; arrays that are not C-contiguous are copied one by one."""
    yield header_of(specs_of(tensors), metadata)
    for array in tensors.values():
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, flat.size, BLOCK_BYTES):
            yield flat[start : start + BLOCK_BYTES].data
