"""Builders of sample operands, and what turns a sample into arrays.

A sample names types, and gives values only where random normal numbers would not do. `materialise` draws the missing ones in the form they are stored in
(block weights as the bytes of their blocks). Tests of every device use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ostinato.ir.errors import OstinatoError
from ostinato.ir.opdef import Attr, Sample, SampleOperand
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["floats", "given", "indices", "invalid", "materialise", "normal", "reals", "valid"]


def normal(shape: Sequence[int], dtype: DType = DType.F32, axes: str = "") -> SampleOperand:
    """Random normal numbers of that shape; `axes` has one letter a dimension, "_" for none."""
    return SampleOperand(TensorType(tuple(shape), dtype, _axes(axes)))


def given(data: Array, axes: str = "") -> SampleOperand:
    """These values, in their own dtype."""
    return SampleOperand(TensorType(data.shape, DType.of(data.dtype), _axes(axes)), data)


def indices(data: npt.ArrayLike, axes: str = "") -> SampleOperand:
    """int32 values."""
    return given(np.asarray(data, dtype=np.int32), axes)


def reals(data: npt.ArrayLike, axes: str = "") -> SampleOperand:
    """float32 values."""
    return given(np.asarray(data, dtype=np.float32), axes)


def floats(data: npt.ArrayLike, dtype: DType, axes: str = "") -> SampleOperand:
    """Values rounded to a float dtype."""
    return given(np.asarray(data).astype(dtype.numpy), axes)


def valid(*operands: SampleOperand | None, **attrs: Attr) -> Sample:
    return Sample(operands, attrs)


def invalid(
    error: type[OstinatoError], *operands: SampleOperand | None, attrs: Mapping[str, Attr] | None = None
) -> Sample:
    """A sample that the type rule must refuse or, for values out of range, the reference."""
    return Sample(operands, dict(attrs or {}), error)


def materialise(operand: SampleOperand, rng: np.random.Generator) -> Array:
    """The stored array: values of the type's dtype, or uint8 [..., bytes of a row of blocks] for a block dtype."""
    if operand.data is not None:
        return operand.data
    shape, dtype = operand.type.static_shape, operand.type.dtype
    if dtype.is_block:
        return _random_blocks(shape, dtype, rng)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(dtype.numpy)
    return rng.integers(0, 100, shape).astype(dtype.numpy)


def _axes(text: str) -> tuple[str, ...]:
    return tuple("" if letter == "_" else letter for letter in text)


def _random_blocks(shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> Array:
    """Blocks whose values have about the spread of normal numbers."""
    blocks = (*shape[:-1], shape[-1] // dtype.block_elements)
    largest = 127 if dtype is DType.Q8_0 else 8
    scale = (rng.uniform(1.0, 2.5, blocks) / largest).astype(np.float16)
    header = [scale]
    if dtype is DType.Q4_1:
        header.append((-scale.astype(np.float32) * rng.uniform(6.0, 9.0, blocks).astype(np.float32)).astype(np.float16))
    size = dtype.block_bytes - 2 * len(header)
    quants = rng.integers(0, 256, (*blocks, size), dtype=np.uint8)
    parts = [*(part[..., None].view(np.uint8) for part in header), quants]
    return np.concatenate(parts, axis=-1).reshape(*shape[:-1], -1 if blocks[-1] else 0)
