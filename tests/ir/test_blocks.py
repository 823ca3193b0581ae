"""Block dtypes mean what the GGUF reader says they mean, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ostinato.ir.blocks import block_parts, dequantize
from ostinato.ir.errors import DTypeError, ShapeError
from ostinato.ir.ops.samplers import random_blocks
from ostinato.ir.types import Array, DType

BLOCKS = [dtype for dtype in DType if dtype.is_block]
QUANTISABLE = {
    DType.Q8_0: 0.02,
    DType.Q4_0: 0.5,
    DType.Q4_1: 0.5,
    DType.Q5_0: 0.25,
    DType.Q5_1: 0.25,
}
"""Those that the package can quantise to, with the error allowed on normal numbers."""
HALVES = {DType.Q4_1: (0, 2), DType.Q5_1: (0, 2), DType.Q4_K: (0, 2), DType.Q5_K: (0, 2), DType.Q6_K: (208,)}
"""Where the half-precision numbers of a block lie, if not at 0."""
EXTREME = np.array([0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 1.0, 65504.0, -65504.0, np.inf, -np.inf, np.nan], np.float16)


def kind_of(dtype: DType) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[dtype.value.upper()]


def assert_like_the_gguf_reader(raw: Array, dtype: DType) -> None:
    with np.errstate(all="ignore"):
        found = dequantize(raw, dtype)
        expected = gguf.quants.dequantize(raw, kind_of(dtype))
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(found), ~numbers)
    assert np.array_equal(found[numbers].view(np.uint32), expected[numbers].view(np.uint32))


@pytest.mark.parametrize("dtype", BLOCKS)
def test_block_sizes_are_those_of_the_format(dtype: DType) -> None:
    assert gguf.GGML_QUANT_SIZES[kind_of(dtype)] == (dtype.block_elements, dtype.block_bytes)


@pytest.mark.parametrize("dtype", BLOCKS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (2, 3, 2), (0, 1), (4, 0)])
def test_any_bytes_give_the_values_of_the_gguf_reader(
    dtype: DType, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    elements = (*shape[:-1], shape[-1] * dtype.block_elements)
    raw = rng.integers(0, 256, (*shape[:-1], shape[-1] * dtype.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        found = dequantize(raw, dtype)
    assert found.dtype == np.float32
    assert found.shape == elements
    if raw.size:
        assert_like_the_gguf_reader(raw, dtype)


@pytest.mark.parametrize("dtype", BLOCKS)
def test_extreme_scales_give_the_values_of_the_gguf_reader(dtype: DType, rng: np.random.Generator) -> None:
    """Zero and subnormal scales, the largest, infinities and NaN, in every pair with every kind of quants and inner scales."""
    places = HALVES.get(dtype, (0,))
    pairs = np.array([(first, second) for first in EXTREME for second in EXTREME])
    for body in (np.zeros, np.ones, None):
        count = len(pairs)
        raw = rng.integers(0, 256, (count, dtype.block_bytes), dtype=np.uint8)
        if body is not None:
            raw[:] = body((), np.uint8) * 255
        for place, column in zip(places, pairs.T, strict=False):
            raw[:, place : place + 2] = np.ascontiguousarray(column)[:, None].view(np.uint8)
        assert_like_the_gguf_reader(raw, dtype)


@pytest.mark.parametrize("dtype", QUANTISABLE)
def test_quantised_numbers_come_back_close(dtype: DType, rng: np.random.Generator) -> None:
    values = rng.standard_normal((5, 256)).astype(np.float32)
    back = dequantize(gguf.quants.quantize(values, kind_of(dtype)), dtype)
    assert np.abs(back - values).max() < QUANTISABLE[dtype]


def test_strided_bytes_are_read_in_logical_order(rng: np.random.Generator) -> None:
    for dtype in BLOCKS:
        raw = rng.integers(0, 60, (4, 2 * dtype.block_bytes), dtype=np.uint8)
        np.testing.assert_array_equal(dequantize(raw[::2], dtype), dequantize(raw[::2].copy(), dtype))


@pytest.mark.parametrize("dtype", BLOCKS)
def test_scaled_codes_and_minima_make_the_values(dtype: DType, rng: np.random.Generator) -> None:
    raw = random_blocks((3, 2 * dtype.block_elements), dtype, rng)
    parts = block_parts(raw, dtype)
    assert (parts is not None) == (dtype in (DType.Q4_1, DType.Q5_1, DType.Q4_K, DType.Q5_K))
    if parts is not None:
        scaled, minima = parts
        assert (scaled + minima).tobytes() == dequantize(raw, dtype).tobytes()
        groups = minima.reshape(-1, 32)
        assert (groups == groups[:, :1]).all()
        assert np.abs(minima).max() > 0
        assert len(np.unique(scaled)) > 50


def test_what_is_no_block_is_refused() -> None:
    with pytest.raises(DTypeError):
        dequantize(np.zeros(34, np.int8), DType.Q8_0)
    with pytest.raises(DTypeError):
        dequantize(np.zeros(34, np.uint8), DType.F32)
    with pytest.raises(ShapeError):
        dequantize(np.zeros((), np.uint8), DType.Q8_0)
    for dtype in BLOCKS:
        with pytest.raises(ShapeError, match=f"whole {dtype.block_bytes}-byte blocks of {dtype.value}"):
            dequantize(np.zeros(dtype.block_bytes + 1, np.uint8), dtype)
