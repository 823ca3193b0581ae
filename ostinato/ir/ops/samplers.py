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

__all__ = ["floats", "given", "indices", "invalid", "materialise", "normal", "random_blocks", "reals", "valid", "whole"]


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


def whole(dtype: DType, extent: int) -> int:
    """The next extent that a last axis of that dtype may have: a multiple of its block."""
    return -(-extent // dtype.block_elements) * dtype.block_elements


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
        return random_blocks(shape, dtype, rng)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(dtype.numpy)
    return rng.integers(0, 100, shape).astype(dtype.numpy)


def _axes(text: str) -> tuple[str, ...]:
    return tuple("" if letter == "_" else letter for letter in text)


_CODE_RANGE = {
    DType.Q8_0: 127,
    DType.Q4_0: 8,
    DType.Q4_1: 8,
    DType.Q5_0: 16,
    DType.Q5_1: 16,
    DType.IQ4_NL: 127,
    DType.Q4_K: 8,
    DType.Q5_K: 16,
    DType.Q6_K: 32,
}
"""The largest magnitude of a code around its middle."""
_INNER_SCALE = {DType.Q4_K: 64, DType.Q5_K: 64, DType.Q6_K: 64}
"""What random integers that scale a group within a block are divided by."""


def random_blocks(shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> Array:
    """Random blocks for values of `shape`, as uint8 [..., bytes of a row]: any codes and inner scales, values of about the spread of normal numbers.

    The last extent fills whole blocks. Scales have both signs.
    """
    blocks = (*shape[:-1], shape[-1] // dtype.block_elements)
    raw = rng.integers(0, 256, (*blocks, dtype.block_bytes), dtype=np.uint8)
    middle, inner = _CODE_RANGE[dtype], _INNER_SCALE.get(dtype, 1)
    scale = rng.uniform(1.0, 2.5, blocks) * rng.choice([-1.0, 1.0], blocks) / (middle * inner)
    at = 208 if dtype is DType.Q6_K else 0
    raw[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    if dtype in (DType.Q4_1, DType.Q5_1, DType.Q4_K, DType.Q5_K):  # a minimum that puts the values around zero
        sign = -1.0 if inner == 1 else 1.0
        minimum = sign * scale * middle * rng.uniform(0.75, 1.1, blocks)
        raw[..., 2:4] = minimum.astype(np.float16)[..., None].view(np.uint8)
    return raw.reshape(*blocks[:-1], blocks[-1] * dtype.block_bytes)
