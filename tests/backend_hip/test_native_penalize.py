"""Penalties of tokens already seen: bit for bit the operator's reference, whatever stands beyond the lengths; indices out of range."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ostinato.ir.ops import OP
from ostinato.ir.types import DType, TensorType
from tests.backend_hip.kernel_harness import (
    F32,
    OUT_OF_RANGE,
    Array,
    bits,
    counter,
    each_unit,
    is_poison,
    launch,
    poison,
)

BEYOND = 2**31 - 1


@dataclass(frozen=True)
class Rows:
    """Operands in the kernel's order."""

    logits: Array
    tokens: Array
    prompt_length: Array
    length: Array
    repetition: Array
    presence: Array
    frequency: Array

    def arrays(self) -> list[Array]:
        return [getattr(self, name) for name in self.__dataclass_fields__]


def draw(rng: np.random.Generator, rows: int, vocabulary: int, width: int) -> Rows:
    length = rng.integers(0, width + 1, rows).astype(np.int32)
    tokens = rng.integers(0, vocabulary, (rows, width)).astype(np.int32)
    tokens[np.arange(width) >= length[:, None]] = BEYOND
    return Rows(
        (rng.standard_normal((rows, vocabulary)) * 4).astype(F32),
        tokens,
        rng.integers(0, length + 1).astype(np.int32),
        length,
        rng.uniform(0.5, 2, rows).astype(F32),
        rng.uniform(-2, 2, rows).astype(F32),
        rng.uniform(-2, 2, rows).astype(F32),
    )


def penalize(unit: str, rows: Rows, count: int | None = None, status: int = 0) -> Array:
    shape = rows.logits.shape
    workspace = np.full(shape, BEYOND, np.int32)
    operands = [*rows.arrays(), counter(count), poison(shape, F32), workspace]
    params = [*shape, rows.tokens.shape[1]]
    host = launch(unit, "penalize", operands, params, writes=[8, 9], status=status)
    return host[0]


def reference(rows: Rows) -> Array:
    arrays = rows.arrays()
    types = [TensorType(array.shape, DType.of(array.dtype)) for array in arrays]
    return OP["penalize"].reference(arrays, {}, OP["penalize"].infer(types, {}))[0]


@each_unit
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 33, 50), (3, 5, 300), (2, 50_000, 700), (40, 100, 1)], ids=str)
def test_rows_have_the_bits_of_the_reference(unit: str, shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    rows = draw(rng, *shape)
    assert np.array_equal(bits(penalize(unit, rows)), bits(reference(rows)))


@each_unit
def test_each_penalty_alone_and_all_together_by_hand(unit: str) -> None:
    """Token 0 stands in the prompt only, 1 in both, 2 was generated twice, 3 never."""
    tokens = np.array([[0, 1, 1, 2, 2, BEYOND]], np.int32)
    base = Rows(
        np.array([[2.0, -2.0, 1.0, 1.0]], F32),
        tokens,
        np.array([2], np.int32),
        np.array([5], np.int32),
        *(np.array([value], F32) for value in (1.0, 0.0, 0.0)),
    )
    assert np.array_equal(penalize(unit, base), base.logits)
    repeated = replace(base, repetition=np.array([2.0], F32))
    assert np.array_equal(penalize(unit, repeated), [[1.0, -4.0, 0.5, 1.0]])
    present = replace(base, presence=np.array([0.5], F32))
    assert np.array_equal(penalize(unit, present), [[2.0, -2.5, 0.5, 1.0]])
    frequent = replace(base, frequency=np.array([0.25], F32))
    assert np.array_equal(penalize(unit, frequent), [[2.0, -2.25, 0.5, 1.0]])
    everything = replace(repeated, presence=present.presence, frequency=frequent.frequency)
    assert np.array_equal(penalize(unit, everything), [[1.0, -4.75, -0.5, 1.0]])


@each_unit
def test_neutral_rows_are_copies_and_read_nothing(unit: str, rng: np.random.Generator) -> None:
    rows = draw(rng, 3, 20, 6)
    neutral = replace(
        rows,
        tokens=np.full((3, 6), -1, np.int32),
        length=np.array([99, -1, 3], np.int32),
        repetition=np.ones(3, F32),
        presence=np.zeros(3, F32),
        frequency=np.array([0.0, -0.0, 0.0], F32),
    )
    assert np.array_equal(bits(penalize(unit, neutral)), bits(rows.logits))


@each_unit
def test_counts_and_rows_in_place(unit: str, rng: np.random.Generator) -> None:
    rows = draw(rng, 5, 40, 30)
    whole = penalize(unit, rows)
    y = penalize(unit, rows, count=2)
    assert np.array_equal(bits(y[:2]), bits(whole[:2]))
    assert is_poison(y[2:])
    operands = [*rows.arrays(), None, rows.logits, np.zeros((5, 40), np.int32)]
    over = launch(unit, "penalize", operands, [5, 40, 30], writes=[8, 9])[0]
    assert np.array_equal(bits(over), bits(whole))


@each_unit
@pytest.mark.parametrize("mistake", ["token", "negative token", "length", "prompt", "negative prompt"])
def test_what_is_out_of_range_is_reported_and_its_row_copied(unit: str, mistake: str, rng: np.random.Generator) -> None:
    rows = draw(rng, 2, 20, 6)
    good = replace(rows, length=np.full(2, 5, np.int32), prompt_length=np.full(2, 2, np.int32))
    good = replace(good, tokens=rng.integers(0, 20, (2, 6)).astype(np.int32))
    bad = replace(good, **{name: getattr(good, name).copy() for name in ("tokens", "length", "prompt_length")})
    if "token" in mistake:
        bad.tokens[1, 4] = -1 if "negative" in mistake else 20
    elif mistake == "length":
        bad.length[1] = 7
    else:
        bad.prompt_length[1] = -1 if "negative" in mistake else 6
    y = penalize(unit, bad, status=OUT_OF_RANGE)
    assert np.array_equal(bits(y[0]), bits(penalize(unit, good)[0]))
    assert np.array_equal(bits(y[1]), bits(rows.logits[1]))
