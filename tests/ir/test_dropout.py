"""Dropout: the share that stays, one mask for both directions, another one for every step, place and seed, and the words that decide."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.ir.ops import OP
from ostinato.ir.ops.dropout import kept_factor, threshold
from ostinato.ir.random import philox4x32
from ostinato.ir.types import Array, DType, TensorType
from tests.ir.derivative_calls import gradients


def dropped(x: Array, *, seed: int = 5, step: int = 1, rate: float = 0.25, place: int = 0) -> Array:
    operands = (x, np.array([seed], np.int64), np.array([step], np.int32))
    attrs = {"rate": rate, "place": place}
    types = [TensorType(array.shape, DType.of(array.dtype)) for array in operands]
    return OP["dropout"].reference(operands, attrs, OP["dropout"].infer(types, attrs))[0]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_mean_stays(rate: float) -> None:
    y = dropped(np.ones((400, 500), np.float32), rate=rate)
    assert set(np.unique(y)) == {0.0, kept_factor(rate)}
    spread = np.sqrt(rate * (1 - rate) / y.size)
    assert abs(np.mean(y != 0) - (1 - rate)) < 5 * spread
    assert abs(np.mean(y) - 1) < 5 * spread / (1 - rate)


def test_nothing_is_dropped_at_rate_zero(rng: np.random.Generator) -> None:
    x = rng.standard_normal((7, 33)).astype(np.float32)
    np.testing.assert_array_equal(dropped(x, rate=0.0), x)


def test_masks_differ_by_step_place_and_seed() -> None:
    """And are independent: two of them agree as often as chance has it."""
    ones = np.ones(40000, np.float32)
    masks = [
        dropped(ones, rate=0.5, seed=seed, step=step, place=place) != 0
        for seed in (0, 1, 2**32)
        for step in (0, 1, 2)
        for place in (0, 1)
    ]
    for index, mask in enumerate(masks):
        for other in masks[:index]:
            assert abs(np.mean(mask == other) - 0.5) < 5 * 0.5 / np.sqrt(ones.size)


def test_masks_repeat_themselves() -> None:
    ones = np.ones((31, 17), np.float32)
    np.testing.assert_array_equal(dropped(ones, seed=-3, step=9, place=4), dropped(ones, seed=-3, step=9, place=4))


def test_the_mask_is_that_of_the_place_in_logical_order() -> None:
    """Whatever the shape, and however many elements follow."""
    whole = dropped(np.ones(1003, np.float32))
    np.testing.assert_array_equal(dropped(np.ones((17, 59), np.float32)).reshape(-1), whole)
    np.testing.assert_array_equal(dropped(np.ones(10, np.float32)), whole[:10])


def test_both_directions_drop_the_same(rng: np.random.Generator) -> None:
    x, upplace = (rng.standard_normal((7, 33)).astype(np.float32) for _ in range(2))
    operands = (x, np.array([5], np.int64), np.array([3], np.int32))
    found = gradients("dropout", operands, {"rate": 0.25, "place": 6}, {0: upplace})[0]
    np.testing.assert_array_equal(found, dropped(upplace, step=3, place=6))
    np.testing.assert_array_equal(found == 0, dropped(x, step=3, place=6) == 0)


def test_words_are_those_of_philox() -> None:
    seed, step, place, index = -(2**40) + 3, 77, 9, 41
    key = np.array([seed], np.int64).view(np.uint32)
    word = int(philox4x32(np.array([index // 4, 0, step, place], np.uint32), key)[index % 4])
    rate = (
        word + 0.5
    ) / 2**32  # the smallest rate at which the element would stay, were the rate any higher it would not
    ones = np.ones(index + 1, np.float32)
    assert threshold(rate) == word
    assert dropped(ones, seed=seed, step=step, place=place, rate=rate)[index] != 0
    above = float(np.nextafter(rate + 2**-34, 1))
    assert dropped(ones, seed=seed, step=step, place=place, rate=above)[index] == 0


def test_what_is_dropped_is_zero_whatever_it_was() -> None:
    y = dropped(np.full(1000, np.nan, np.float32), rate=0.5)
    np.testing.assert_array_equal(np.isnan(y), dropped(np.ones(1000, np.float32), rate=0.5) != 0)
    assert not np.signbit(y[~np.isnan(y)]).any()
