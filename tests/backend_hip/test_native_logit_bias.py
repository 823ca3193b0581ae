"""Numbers added to the logits of listed tokens: numpy's bits, in place or not, whatever stands beyond the pairs; indices out of range."""

from __future__ import annotations

import numpy as np
import pytest

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


def run(
    unit: str, logits: Array, tokens: Array, bias: Array, pairs: Array, count: int | None = None, status: int = 0
) -> Array:
    rows, vocabulary = logits.shape
    operands = [logits, tokens, bias, pairs, counter(count), poison(logits.shape, F32)]
    return launch(unit, "add_at_tokens", operands, [rows, vocabulary, tokens.shape[1]], writes=[5], status=status)[0]


def draw(rng: np.random.Generator, rows: int, vocabulary: int, width: int) -> tuple[Array, Array, Array, Array]:
    pairs = rng.integers(0, width + 1, rows).astype(np.int32)
    tokens = rng.integers(0, vocabulary, (rows, width)).astype(np.int32)
    bias = rng.standard_normal((rows, width)).astype(F32)
    bias[rng.random((rows, width)) < 0.2] = -np.inf
    past = np.arange(width) >= pairs[:, None]
    tokens[past], bias[past] = BEYOND, np.nan
    return rng.standard_normal((rows, vocabulary)).astype(F32), tokens, bias, pairs


def expected(logits: Array, tokens: Array, bias: Array, pairs: Array) -> Array:
    y = logits.copy()
    for row, size in enumerate(pairs):
        for token, value in zip(tokens[row, :size], bias[row, :size], strict=True):
            y[row, token] += value
    return y


@each_unit
@pytest.mark.parametrize(
    ("rows", "vocabulary", "width"), [(1, 1, 1), (5, 33, 70), (3, 1025, 16), (40, 9000, 4), (2, 7, 0)]
)
def test_pairs_are_added_in_order(unit: str, rows: int, vocabulary: int, width: int, rng: np.random.Generator) -> None:
    operands = draw(rng, rows, vocabulary, width)
    assert np.array_equal(bits(run(unit, *operands)), bits(expected(*operands)))
    logits = operands[0].copy()
    shared: list[Array | None] = [logits, *operands[1:], None, logits]
    (y,) = launch(unit, "add_at_tokens", shared, [rows, vocabulary, width], writes=[5])
    assert np.array_equal(bits(y), bits(expected(*operands)))


@each_unit
def test_rows_past_the_count_are_left_alone(unit: str, rng: np.random.Generator) -> None:
    operands = draw(rng, 4, 30, 6)
    operands[3][2:] = BEYOND
    y = run(unit, *operands, count=2)
    assert np.array_equal(bits(y[:2]), bits(expected(*(array[:2] for array in operands))))
    assert is_poison(y[2:])


@each_unit
def test_tokens_and_counts_out_of_range_are_reported(unit: str, rng: np.random.Generator) -> None:
    for place, value in (((0, 0), 30), ((1, 2), -1)):
        logits, tokens, bias, _ = draw(rng, 2, 30, 3)
        tokens[:], pairs = 0, np.array([3, 3], np.int32)
        tokens[place] = value
        run(unit, logits, tokens, bias, pairs, status=OUT_OF_RANGE)
    for value in (-1, 4):
        logits, tokens, bias, _ = draw(rng, 2, 30, 3)
        run(unit, logits, tokens * 0, bias, np.array([0, value], np.int32), status=OUT_OF_RANGE)
