"""Distances of arrays: what NaN, infinity, the signs of zero and rows past a count are to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.graph import Graph
from ostinato.ir.types import DType, TensorType
from ostinato.tools.compare.differences import (
    difference_of,
    first_changed,
    first_difference,
    place_of_largest,
    root_mean_square,
)

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def graph() -> Graph:
    builder = GraphBuilder("two")
    x = builder.input("x", TensorType((4,), DType.F32))
    once = builder.apply("silu", (x,), name="once")
    return builder.finish([builder.apply("silu", (once,), name="twice")])


def values(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def test_a_distance_knows_values_that_are_no_numbers() -> None:
    left = values(1.0, NAN, NAN, INF, INF, 0.0, -INF)
    right = values(3.0, NAN, 1.0, INF, -INF, -0.0, 5.0)
    assert difference_of(left, right).tolist() == [2.0, 0.0, INF, 0.0, INF, 0.0, INF]
    assert place_of_largest(difference_of(left, right)) == (2,), "the first of those that are infinite"


def test_the_size_of_values_is_that_of_the_finite_ones() -> None:
    assert root_mean_square(values(3.0, 4.0, NAN, INF)) == pytest.approx(12.5**0.5)
    assert root_mean_square(values(NAN)) == root_mean_square(np.zeros(0, np.float32)) == 0.0


def test_the_first_value_that_differs_is_named_with_its_worst_element(graph: Graph) -> None:
    left = {"once": values(1, 1, 1, 1), "twice": values(2, 2, 2, 2)}
    right = {"once": values(1, 1, 1, 1), "twice": values(2, 2.5, 4, 2)}
    found = first_difference(graph, left, right, {}, 0.0)
    assert found is not None
    assert (found.name, found.index, found.left, found.right) == ("twice", (2,), 2.0, 4.0)
    assert first_difference(graph, left, right, {}, 1.0) is None, "2 is one root mean square"
    assert first_difference(graph, left, right, {}, 0.99) is not None
    assert first_difference(graph, left, {"twice": left["twice"]}, {}, 0.0) is None, (
        "what one side lacks is no difference"
    )


def test_bits_differ_where_values_do_not(graph: Graph) -> None:
    left, right = values(1, 0.0, 1, 1), values(1, -0.0, 1, 1)
    assert first_changed(left, right) == (1,)
    found = first_difference(graph, {"once": left}, {"once": right}, {}, 0.0)
    assert found is not None
    assert found.index == (1,)
    assert first_difference(graph, {"once": left}, {"once": right}, {}, 1e-6) is None


def test_a_nan_on_one_side_is_beyond_any_tolerance(graph: Graph) -> None:
    left, right = values(1, 1, 1, 1), values(1, 1, 1, NAN)
    for a, b in ((left, right), (right, left)):
        found = first_difference(graph, {"once": a}, {"once": b}, {}, 1e6)
        assert found is not None
        assert found.index == (3,)
