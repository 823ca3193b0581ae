"""Block dtypes mean what the GGUF reader says they mean, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ostinato.ir.blocks import dequantize
from ostinato.ir.errors import DTypeError, ShapeError
from ostinato.ir.types import DType

BLOCKS = [DType.Q8_0, DType.Q4_0, DType.Q4_1]


def kind_of(dtype: DType) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[dtype.value.upper()]


@pytest.mark.parametrize("dtype", BLOCKS)
def test_block_sizes_are_those_of_the_format(dtype: DType) -> None:
    assert gguf.GGML_QUANT_SIZES[kind_of(dtype)] == (dtype.block_elements, dtype.block_bytes)


@pytest.mark.parametrize("dtype", BLOCKS)
@pytest.mark.parametrize("shape", [(1, 32), (7, 96), (2, 3, 64), (0, 32), (4, 0)])
def test_any_bytes_give_the_values_of_the_gguf_reader(
    dtype: DType, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    raw = rng.integers(0, 256, (*shape[:-1], dtype.nbytes(shape[-1])), dtype=np.uint8)
    found = dequantize(raw, dtype)
    assert found.dtype == np.float32
    assert found.shape == shape
    if raw.size:
        # random bytes hold infinite and NaN scales as well
        with np.errstate(all="ignore"):
            expected = gguf.quants.dequantize(raw, kind_of(dtype))
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found)[expected == 0], np.signbit(expected)[expected == 0])


@pytest.mark.parametrize("dtype", BLOCKS)
def test_quantised_numbers_come_back_close(dtype: DType, rng: np.random.Generator) -> None:
    values = rng.standard_normal((5, 256)).astype(np.float32)
    back = dequantize(gguf.quants.quantize(values, kind_of(dtype)), dtype)
    assert np.abs(back - values).max() < (0.02 if dtype is DType.Q8_0 else 0.5)


def test_strided_bytes_are_read_in_logical_order(rng: np.random.Generator) -> None:
    raw = rng.integers(0, 60, (4, 2 * 34), dtype=np.uint8)
    np.testing.assert_array_equal(dequantize(raw[::2], DType.Q8_0), dequantize(raw[::2].copy(), DType.Q8_0))


def test_what_is_no_block_is_refused() -> None:
    with pytest.raises(DTypeError):
        dequantize(np.zeros(34, np.int8), DType.Q8_0)
    with pytest.raises(DTypeError):
        dequantize(np.zeros(34, np.uint8), DType.F32)
    with pytest.raises(ShapeError):
        dequantize(np.zeros(33, np.uint8), DType.Q8_0)
    with pytest.raises(ShapeError):
        dequantize(np.zeros((), np.uint8), DType.Q8_0)
