"""pack_<W>, copy_rows and embedding_<W> against numpy: layouts byte for byte, conversions rounded to nearest even, indices checked."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.ir.blocks import dequantize
from ostinato.ir.types import DType
from tests.backend_hip.kernel_harness import (
    BF16,
    F16,
    F32,
    FLOATS,
    INVALID,
    NUMBER,
    OUT_OF_RANGE,
    Array,
    bits,
    counter,
    each_unit,
    is_poison,
    launch,
    poison,
)
from tests.backend_hip.panels import BLOCKS, FORMATS, LANES, Rows, random_rows, to_panels, whole_columns

DTYPES = _native.dtype_numbers()
FLOAT_FORMATS = {"f32": F32, "f16": F16, "bf16": BF16}
SHAPES = [(1, 32), (31, 64), (32, 96), (33, 32), (70, 160)]
ODD_SHAPES = [*SHAPES, (5, 1), (34, 7), (64, 65), (40, 131)]

each_format = pytest.mark.parametrize("format", FORMATS)


def shapes_of(format: str) -> list[tuple[int, int]]:
    return [(rows, whole_columns(format, columns)) for rows, columns in (SHAPES if format in BLOCKS else ODD_SHAPES)]


def packed_size(format: str, rows: int, columns: int, pair: bool) -> int:
    return to_panels(random_rows(np.random.default_rng(0), format, rows, columns), pair=pair).size


def pack(
    unit: str,
    rows: Rows,
    format: str,
    index: Array,
    destination: Array,
    first: int,
    total: int,
    layout: int,
    status: int = 0,
) -> Array:
    columns = rows.values.shape[1]
    params = [DTYPES[rows.format], columns, len(index), first, total, layout]
    return launch(
        unit, f"pack_{format}", [rows.stored, index, destination], params, writes=[2], status=status, threads=(1, 3)
    )[0]


@each_unit
@each_format
@pytest.mark.parametrize("pair", [False, True], ids=["panel32", "panel32_pair"])
def test_packs_whole_weights(unit: str, format: str, pair: bool, rng: np.random.Generator) -> None:
    for rows, columns in shapes_of(format):
        count = 2 * rows if pair else rows
        weight = random_rows(rng, format, count, columns)
        order = rng.permutation(count)
        destination = np.full(packed_size(format, count, columns, pair), 0xEE, np.uint8)
        result = pack(unit, weight, format, order, destination, 0, count, 2 if pair else 1)
        expected = to_panels(Rows(format, weight.stored[order], weight.values[order]), pair=pair)
        assert np.array_equal(result, expected), (rows, columns)


@each_unit
@each_format
def test_parts_leave_other_rows_alone(unit: str, format: str, rng: np.random.Generator) -> None:
    weight = random_rows(rng, format, 75, whole_columns(format, 64))
    whole = to_panels(weight)
    destination = np.full(whole.size, 0xEE, np.uint8)
    for first, last in [(40, 75), (0, 7), (7, 40)]:
        rows = np.arange(first, last)
        destination = pack(unit, weight, format, rows, destination, first, 75, 1)
    assert np.array_equal(destination, whole)
    alone = pack(unit, weight, format, np.arange(33, 35), np.full(whole.size, 0xEE, np.uint8), 33, 75, 1)
    touched = alone != 0xEE
    size = whole.size // 3
    assert not touched[:size].any()
    assert not touched[2 * size :].any()


@each_unit
def test_pair_halves_from_two_tensors(unit: str, rng: np.random.Generator) -> None:
    gate, up = random_rows(rng, "bf16", 41, 33), random_rows(rng, "bf16", 41, 33)
    both = Rows("bf16", np.concatenate([gate.stored, up.stored]), np.concatenate([gate.values, up.values]))
    destination = np.full(to_panels(both, pair=True).size, 0xEE, np.uint8)
    destination = pack(unit, gate, "bf16", np.arange(41), destination, 0, 82, 2)
    destination = pack(unit, up, "bf16", np.arange(41), destination, 41, 82, 2)
    assert np.array_equal(destination, to_panels(both, pair=True))


@each_unit
@pytest.mark.parametrize("format", FLOAT_FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_converts_while_packing(unit: str, format: str, source: str, rng: np.random.Generator) -> None:
    weight = random_rows(rng, source, 37, whole_columns(source, 96))
    converted = weight.values.astype(np.float32).astype(FLOAT_FORMATS[format])
    expected = to_panels(Rows(format, converted, weight.values))
    result = pack(unit, weight, format, np.arange(37), np.zeros(expected.size, np.uint8), 0, 37, 1)
    assert np.array_equal(result, expected)


@each_unit
@pytest.mark.parametrize("format", FLOAT_FORMATS)
def test_converts_special_values(unit: str, format: str) -> None:
    values = np.array(
        [
            [
                0.0,
                -0.0,
                np.inf,
                -np.inf,
                65504,
                65519.99,
                65520,
                3e38,
                6e-8,
                2.98e-8,
                2.9e-8,
                1e-40,
                -6.1e-5,
                1 + 2**-8,
                1 + 3 * 2**-8,
            ]
        ],
        np.float32,
    )
    halfway = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 2**-14 - 2**-26, 2**-24 * 1.5, 2**-24 * 2.5]], np.float32)
    values = np.concatenate([values, halfway], axis=1)
    dtype = FLOAT_FORMATS[format]
    rows = Rows("f32", values, values.astype(np.float64))
    with np.errstate(over="ignore"):
        expected = values.astype(dtype)
    result = launch(
        unit,
        f"pack_{format}",
        [rows.stored, np.zeros(1, np.int64), np.zeros((1, values.size), dtype)],
        [0, values.size, 1, 0, 1, 0],
        writes=[2],
    )
    assert np.array_equal(bits(result[0]), bits(expected))
    nan = np.full((1, 5), np.nan, np.float32)
    result = launch(
        unit, f"pack_{format}", [nan, np.zeros(1, np.int64), np.zeros((1, 5), dtype)], [0, 5, 1, 0, 1, 0], writes=[2]
    )
    assert np.isnan(result[0].astype(np.float32)).all()


@each_unit
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_every_half_widens_exactly(unit: str, dtype: np.dtype[np.generic]) -> None:
    every = np.arange(65536, dtype=np.uint16).view(dtype).reshape(1, -1)
    result = launch(
        unit,
        "copy_rows",
        [every, np.zeros(1, np.int64), np.zeros((1, 65536), F32)],
        [NUMBER[dtype], NUMBER[F32], 65536, 1, 0],
        writes=[2],
    )[0]
    expected = every.astype(np.float32)
    numbers = ~np.isnan(expected)
    assert np.array_equal(bits(result[numbers]), bits(expected[numbers]))
    assert np.isnan(result[~numbers]).all()


@each_unit
@each_format
def test_row_layout(unit: str, format: str, rng: np.random.Generator) -> None:
    weight = random_rows(rng, format, 9, whole_columns(format, 64))
    order = np.array([8, 0, 3, 3])
    destination = np.full((6, *weight.stored.shape[1:]), 0, weight.stored.dtype)
    result = pack(unit, weight, format, order, destination, 1, 6, 0)
    assert np.array_equal(bits(result[1:5]), bits(weight.stored[order]))
    assert not bits(result[[0, 5]]).any()


@each_unit
def test_row_index_outside_of_the_source(unit: str, rng: np.random.Generator) -> None:
    weight = random_rows(rng, "f32", 4, 8)
    for bad in (-1, 4, 2**62, -(2**62)):
        index = np.array([0, bad, 2])
        result = pack(unit, weight, "f32", index, np.ones(8 * LANES * 4, np.uint8), 0, 3, 1, status=OUT_OF_RANGE)
        fixed = weight.stored[[0, 0, 2]]
        fixed[1] = 0
        assert np.array_equal(result, to_panels(Rows("f32", fixed, fixed)))


@each_unit
def test_refuses_what_does_not_fit(unit: str, rng: np.random.Generator) -> None:
    weight = random_rows(rng, "f32", 4, 32)
    blocks = random_rows(rng, "q8_0", 4, 32)
    enough = np.zeros(32 * LANES * 4, np.uint8)
    index = np.arange(4)
    pack(unit, weight, "q8_0", index, enough, 0, 4, 1, status=INVALID)  # floats are not quantised here
    pack(unit, blocks, "q4_0", index, enough, 0, 4, 1, status=INVALID)
    pack(unit, weight, "f32", index, enough[:-1], 0, 4, 1, status=INVALID)
    pack(unit, weight, "f32", index, enough, 1, 4, 1, status=INVALID)  # one row too many
    pack(unit, weight, "f32", index, enough, 0, 4, 3, status=INVALID)
    pack(
        unit, random_rows(rng, "f32", 3, 32), "f32", np.arange(3), enough, 0, 3, 2, status=INVALID
    )  # pairs need an even number


@each_unit
def test_nothing_to_pack(unit: str, rng: np.random.Generator) -> None:
    empty = random_rows(rng, "f32", 0, 5)
    assert pack(unit, empty, "f32", np.arange(0), np.zeros(0, np.uint8), 0, 0, 1).size == 0
    no_columns = random_rows(rng, "bf16", 3, 0)
    assert pack(unit, no_columns, "bf16", np.arange(3), np.zeros(0, np.uint8), 0, 3, 1).size == 0


@each_unit
@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_copy_rows(unit: str, source: str, dtype: np.dtype[np.generic], rng: np.random.Generator) -> None:
    columns = whole_columns(source, 96)
    weight = random_rows(rng, source, 5, columns)
    destination = np.zeros((4, columns), dtype)
    index = np.array([4, 0])
    params = [DTYPES[source], NUMBER[dtype], columns, 2, 1]
    result = launch(unit, "copy_rows", [weight.stored, index, destination], params, writes=[2])[0]
    expected = destination.copy()
    expected[1:3] = weight.values[index].astype(np.float32).astype(dtype)
    assert np.array_equal(bits(result), bits(expected))


def embed(
    unit: str, ids: Array, weight: Rows, layout: int, dtype: np.dtype[np.generic], count: int | None, status: int
) -> Array:
    vocabulary, width = weight.values.shape
    table = weight.stored if layout == 0 else to_panels(weight)
    params = [len(ids), vocabulary, width, NUMBER[dtype], layout]
    operands = [ids, table, counter(count), poison((len(ids), width), dtype)]
    return launch(unit, f"embedding_{weight.format}", operands, params, writes=[3], status=status)[0]


@each_unit
@each_format
@pytest.mark.parametrize("layout", [0, 1], ids=["row", "panel32"])
def test_embedding(unit: str, format: str, layout: int, rng: np.random.Generator) -> None:
    for vocabulary, width in shapes_of(format):
        weight = random_rows(rng, format, vocabulary, width)
        ids = rng.integers(0, vocabulary, 7, np.int32)
        for dtype in FLOATS:
            for count in (None, 3):
                result = embed(unit, ids, weight, layout, dtype, count, 0)
                valid = 7 if count is None else count
                expected = weight.values[ids[:valid]].astype(np.float32).astype(dtype)
                assert np.array_equal(result[:valid].astype(np.float32), expected.astype(np.float32))
                assert is_poison(result[valid:])


@each_unit
@pytest.mark.parametrize("format", BLOCKS)
@pytest.mark.parametrize("layout", [0, 1], ids=["row", "panel32"])
def test_embedding_of_any_bytes(unit: str, format: str, layout: int, rng: np.random.Generator) -> None:
    """Random bytes hold scales that are subnormal, huge, infinite and NaN."""
    dtype = DType(format)
    stored = rng.integers(0, 256, (40, 8 * dtype.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        values = dequantize(stored, dtype)
    ids = np.arange(40, dtype=np.int32)
    result = embed(unit, ids, Rows(format, stored, values.astype(np.float64)), layout, F32, None, 0)
    numbers = ~np.isnan(values)
    assert np.array_equal(np.isnan(result), ~numbers)
    assert np.array_equal(bits(result[numbers]), bits(values[numbers]))


@each_unit
@pytest.mark.parametrize("layout", [0, 1], ids=["row", "panel32"])
def test_embedding_of_an_unknown_id(unit: str, layout: int, rng: np.random.Generator) -> None:
    weight = random_rows(rng, "q4_0", 40, 64)
    ids = np.array([3, 40, -1, 39, 2**31 - 1], np.int32)
    result = embed(unit, ids, weight, layout, F32, None, OUT_OF_RANGE)
    expected = weight.values[[3, 0, 0, 39, 0]]
    expected[[1, 2, 4]] = 0
    assert np.array_equal(result, expected)
    # ids past the count are never looked at
    assert is_poison(embed(unit, ids, weight, layout, F32, 1, 0)[1:])
