"""rope_store and qkv_rope_store_<W> for every unit: the bits of the kernels that they are made of, strides, skipped and bad tokens, rows in any batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.backend_hip.kernel_harness import (
    BF16,
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
from tests.backend_hip.panels import FORMATS, Rows, random_rows, to_panels, whole_columns

EPSILON = 1e-5


@dataclass
class Tokens:
    """Where tokens stand, and caches for them: one row of the block table, or two."""

    rng: np.random.Generator
    count: int
    heads: int = 4
    shared: int = 2
    width: int = 64
    half: int = 32
    cache: np.dtype[Any] = F32
    block_size: int = 4
    row_of_token: Array = field(init=False)
    position: Array = field(init=False)
    table: Array = field(init=False)
    tables: tuple[Array, Array] = field(init=False)

    def __post_init__(self) -> None:
        rng, count = self.rng, self.count
        self.row_of_token = (np.arange(count) % 2).astype(np.int32)
        self.position = (np.arange(count) // 2).astype(np.int32)
        columns = -(-max(count, 1) // self.block_size)
        self.table = rng.permutation(2 * columns).reshape(2, columns).astype(np.int32)
        angle = rng.uniform(-3, 3, (count, self.half))
        self.tables = (np.cos(angle).astype(F32), np.sin(angle).astype(F32))

    def caches(self) -> list[Array]:
        return [poison((self.table.size, self.shared, self.block_size, self.width), self.cache) for _ in range(2)]

    @property
    def places(self) -> list[Array]:
        return [*self.tables, self.row_of_token, self.position, self.table]

    @property
    def sizes(self) -> list[int]:
        blocks = (self.table.size, self.block_size, self.table.shape[1], len(self.table))
        return [self.heads, self.shared, self.width, self.half, *blocks]

    def split(self, joint: Array) -> tuple[Array, Array, Array]:
        """q, k and v of a joint product, contiguous."""
        ends = [self.heads * self.width, (self.heads + self.shared) * self.width]
        q, k, v = np.split(joint, ends, axis=1)
        return q.copy(), k.copy(), v.copy()

    def apart(self, unit: str, joint: Array, count: int | None = None, status: int = 0) -> list[Array]:
        """By rope_split_half and kv_store."""
        q, k, v = self.split(joint)
        turned = []
        for x, heads in ((q, self.heads), (k, self.shared)):
            strides = [heads * self.width, self.width, max(self.count, 1), 0, heads * self.width]
            params = [self.count, heads, self.width, self.half, NUMBER[x.dtype], *strides]
            operands = [x, *self.tables, counter(count), poison(x.shape, x.dtype)]
            turned.append(launch(unit, "rope_split_half", operands, params, writes=[4])[0])
        operands = [turned[1], v, *self.places[2:], counter(count), *self.caches()]
        sizes = [self.count, self.shared, self.width, self.table.size, self.block_size, self.table.shape[1]]
        params = [*sizes, len(self.table), NUMBER[v.dtype], NUMBER[self.cache]]
        return [turned[0], *launch(unit, "kv_store", operands, params, writes=[6, 7], status=status)]


def store(
    unit: str, tokens: Tokens, joint: Array, *, columns: bool, count: int | None = None, status: int = 0
) -> list[Array]:
    """By rope_store: of columns of the joint product, or of three arrays, q in place."""
    width, total = tokens.width, joint.shape[1]
    dtypes = [NUMBER[joint.dtype], NUMBER[tokens.cache]]
    q, k, v = tokens.split(joint)
    strides = [tokens.heads * width, width, *[tokens.shared * width, width] * 2]
    result: Array = q
    if columns:
        ends = [0, tokens.heads * width, (tokens.heads + tokens.shared) * width]
        q, k, v = (joint.reshape(-1)[end:] for end in ends)
        strides = [total, width] * 3
        result = poison((tokens.count, tokens.heads * width), joint.dtype)
    operands = [q, k, v, *tokens.places, counter(count), result, *tokens.caches()]
    params = [tokens.count, *tokens.sizes, *dtypes, *strides]
    return launch(unit, "rope_store", operands, params, writes=[9, 10, 11], status=status)


@each_unit
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("cache", FLOATS, ids=str)
def test_rope_store_is_a_rotation_and_a_store(
    unit: str, dtype: np.dtype[Any], cache: np.dtype[Any], rng: np.random.Generator
) -> None:
    """For one float dtype throughout to the bit; else the parts round once more."""
    for width, half, count in ((64, 32, 9), (20, 10, 3), (7, 2, 5), (128, 64, 1), (64, 32, 0)):
        tokens = Tokens(rng, count, width=width, half=half, cache=cache)
        joint = rng.standard_normal((count, (tokens.heads + 2 * tokens.shared) * width)).astype(dtype)
        wanted = tokens.apart(unit, joint)
        for columns in (True, False):
            found = store(unit, tokens, joint, columns=columns)
            for index in range(3):
                if dtype == F32 or cache == dtype or index != 1:
                    assert np.array_equal(bits(found[index]), bits(wanted[index]))
                else:
                    np.testing.assert_allclose(found[1].astype(F32), wanted[1].astype(F32), rtol=2**-7, atol=2**-8)


@each_unit
def test_tokens_that_are_skipped_counted_or_outside(unit: str, rng: np.random.Generator) -> None:
    tokens = Tokens(rng, 8)
    joint = rng.standard_normal((8, 8 * 64)).astype(F32)
    tokens.row_of_token[3] = -1
    tokens.position[3] = -7  # not looked at
    for found, wanted in zip(store(unit, tokens, joint, columns=True), tokens.apart(unit, joint), strict=True):
        assert np.array_equal(bits(found), bits(wanted))
    counted = store(unit, tokens, joint, columns=True, count=5)
    for found, wanted in zip(counted, tokens.apart(unit, joint, count=5), strict=True):
        assert np.array_equal(bits(found), bits(wanted))
    assert is_poison(counted[0][5:])
    tokens.position[6] = tokens.table.shape[1] * 4
    bad = store(unit, tokens, joint, columns=True, status=OUT_OF_RANGE)
    for found, wanted in zip(bad, tokens.apart(unit, joint, status=OUT_OF_RANGE), strict=True):
        assert np.array_equal(bits(found), bits(wanted))


def project(
    unit: str,
    tokens: Tokens,
    x: Array,
    weight: Rows,
    bias: Array | None = None,
    gain: Array | None = None,
    dtype: np.dtype[Any] = F32,
    count: int | None = None,
    status: int = 0,
) -> list[Array]:
    q = poison((tokens.count, tokens.heads * tokens.width), dtype)
    room = poison(min(len(x), 8) * x.shape[1], F32)
    operands = [x, to_panels(weight), bias, gain, *tokens.places, counter(count), q, *tokens.caches(), room]
    params = [*x.shape, NUMBER[x.dtype], EPSILON, *tokens.sizes, NUMBER[dtype], NUMBER[tokens.cache]]
    name = f"qkv_rope_store_{weight.format}"
    return launch(unit, name, operands, params, writes=[10, 11, 12, 13], status=status)[:3]


def joint_product(unit: str, x: Array, weight: Rows, bias: Array | None, gain: Array | None) -> Array:
    y = poison((len(x), len(weight.values)), F32)
    room = poison(min(len(x), 8) * x.shape[1], F32)
    operands = [x, to_panels(weight), bias, None, gain, None, y, None, None, room]
    params = [*x.shape, NUMBER[x.dtype], NUMBER[F32], y.shape[1], 0, 0, EPSILON]
    return launch(unit, f"linear_{weight.format}", operands, params, writes=[6, 9])[0]


@each_unit
@pytest.mark.parametrize("format", FORMATS)
def test_projection_has_the_bits_of_its_parts(unit: str, format: str, rng: np.random.Generator) -> None:
    """Heads of whole panels, of several in common with others, and of none that blocks hold."""
    k = whole_columns(format, 70)
    for number, (count, width, half) in enumerate(
        ((1, 64, 32), (3, 128, 64), (8, 80, 20), (40, 64, 32), (140, 32, 16), (13, 48, 24), (20, 36, 18), (5, 6, 3))
    ):
        tokens = Tokens(rng, count, heads=3, shared=1, width=width, half=half)
        weight = random_rows(rng, format, 5 * width, k)
        x = rng.standard_normal((count, k)).astype(FLOATS[number % 3])
        bias = rng.standard_normal(5 * width, np.float32) if number % 2 else None
        gain = rng.standard_normal(k, np.float32) if number % 4 < 3 else None
        wanted = tokens.apart(unit, joint_product(unit, x, weight, bias, gain))
        for found, other in zip(project(unit, tokens, x, weight, bias, gain), wanted, strict=True):
            assert np.array_equal(bits(found), bits(other)), f"{count} tokens of heads of {width}"


@each_unit
@pytest.mark.parametrize("format", ["f32", "bf16", "q8_0", "q4_k"])
def test_projection_over_several_chunks(unit: str, format: str, rng: np.random.Generator) -> None:
    k = whole_columns(format, 1100)
    for count, dtype in ((2, F32), (30, BF16)):
        tokens = Tokens(rng, count, heads=6, shared=2, width=64, cache=BF16)
        weight, x = random_rows(rng, format, 640, k), rng.standard_normal((count, k)).astype(dtype)
        whole = project(unit, tokens, x, weight, dtype=dtype)
        wanted = tokens.apart(unit, joint_product(unit, x, weight, None, None))
        assert np.array_equal(bits(whole[0]), bits(wanted[0].astype(dtype)))
        for found, other in zip(whole[1:], wanted[1:], strict=True):
            assert np.array_equal(bits(found), bits(other))


@each_unit
def test_a_row_of_a_projection_has_the_same_bits_in_any_batch(unit: str, rng: np.random.Generator) -> None:
    for width, half in ((64, 32), (36, 18)):
        tokens = Tokens(rng, 30, width=width, half=half)
        weight, gain = random_rows(rng, "q4_0", 8 * width, 544), rng.standard_normal(544, np.float32)
        x = rng.standard_normal((30, 544)).astype(F32)
        whole = project(unit, tokens, x, weight, gain=gain)[0]
        for first, m in ((0, 1), (7, 3), (11, 8), (20, 10)):
            rows = slice(first, first + m)
            part = Tokens(rng, m, width=width, half=half)
            part.tables = (tokens.tables[0][rows], tokens.tables[1][rows])
            assert np.array_equal(bits(project(unit, part, x[rows], weight, gain=gain)[0]), bits(whole[rows]))


@each_unit
def test_projection_of_counted_and_bad_tokens(unit: str, rng: np.random.Generator) -> None:
    weight = random_rows(rng, "f32", 8 * 64, 40)
    for m, count in ((6, 2), (30, 13)):
        tokens = Tokens(rng, m)
        x = rng.standard_normal((m, 40)).astype(F32)
        joint = joint_product(unit, x, weight, None, None)
        tokens.row_of_token[1] = 5
        x[count:] = np.nan
        found = project(unit, tokens, x, weight, count=count, status=OUT_OF_RANGE)
        wanted = tokens.apart(unit, joint, count=count, status=OUT_OF_RANGE)
        for one, other in zip(found, wanted, strict=True):
            assert np.array_equal(bits(one), bits(other))
        assert is_poison(found[0][count:])


@each_unit
def test_refuses_what_does_not_fit(unit: str, rng: np.random.Generator) -> None:
    tokens = Tokens(rng, 2)
    weight, x = random_rows(rng, "f32", 8 * 64, 40), rng.standard_normal((2, 40)).astype(F32)
    for change in ({"half": 33}, {"heads": 5}, {"shared": 3}, {"block_size": 0}, {"width": 2048}):
        bad = Tokens(rng, 2)
        for name, value in change.items():
            setattr(bad, name, value)
        operands = [x, to_panels(weight), None, None, *tokens.places, None]
        operands += [poison((2, 4 * 64), F32), *tokens.caches(), None]
        params = [2, 40, 0, EPSILON, *bad.sizes, 0, 0]
        found = launch(unit, "qkv_rope_store_f32", operands, params, writes=[10, 11, 12], status=INVALID)
        assert all(is_poison(result) for result in found)
