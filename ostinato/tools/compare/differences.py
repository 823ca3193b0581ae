"""How arrays differ, said once for all tools: bits, distances in which NaN and infinity have a place, and the first value of a graph that is another one.

A distance is 0 between equal values and between two NaN, and infinite where one side alone is NaN: so the largest is always a place worth looking at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.ir.graph import Graph
from ostinato.ir.types import Array

__all__ = [
    "ValueDifference",
    "bits_equal",
    "difference_of",
    "first_changed",
    "first_difference",
    "place_of_largest",
    "root_mean_square",
]


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A value of a graph that two sides have otherwise: the element that is furthest off, and what each has there."""

    name: str
    index: tuple[int, ...]
    left: float
    right: float


def bits_equal(left: Array, right: Array) -> bool:
    """Equality of shape, dtype and bytes: NaN equals the same NaN, 0.0 differs from -0.0."""
    same_type = left.shape == right.shape and left.dtype == right.dtype
    return same_type and np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()


def first_changed(left: Array, right: Array) -> tuple[int, ...]:
    """The index of the first element that has other bits, of two arrays of one shape and dtype that differ."""
    a, b = (np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8).reshape(x.size, -1) for x in (left, right))
    return place_of_largest((a != b).any(axis=1).reshape(left.shape))


def difference_of(left: Array, right: Array) -> Array:
    """The distance of each pair of elements, in float64; of two arrays of one shape."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.abs(a - b)
    found = np.where(np.isnan(found), np.inf, found)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, found)


def place_of_largest(values: Array) -> tuple[int, ...]:
    """The index of the largest element, the first of equal ones. Of an array that has any."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))


def root_mean_square(values: Array) -> float:
    """Of the finite values; 0 where there are none."""
    wide = np.asarray(values).astype(np.float64)
    finite = wide[np.isfinite(wide)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def first_difference(
    graph: Graph, left: Mapping[str, Array], right: Mapping[str, Array], counts: Mapping[str, int], tolerance: float
) -> ValueDifference | None:
    """The first value, in program order, of those that both have in one shape, that differs.

    `counts` gives the valid rows of a counted axis by its name: nothing is promised about those past them. `tolerance` 0 compares bits; otherwise a value
    differs when an element is off by more than `tolerance` times the root mean square of the left values.
    """
    for node in graph.nodes:
        for value in node.results:
            a, b = left.get(value.name), right.get(value.name)
            if a is None or b is None or a.shape != b.shape:
                continue
            count = counts.get(value.type.axes[0]) if value.type.axes else None
            a, b = (a, b) if count is None else (a[:count], b[:count])
            if not a.size or bits_equal(a, b):
                continue
            difference = difference_of(a, b)
            if tolerance and float(difference.max()) <= tolerance * root_mean_square(a):
                continue
            # of zeros of two signs, or of two NaN, no value is another one: their bits are
            index = place_of_largest(difference) if difference.any() else first_changed(a, b)
            return ValueDifference(value.name, index, float(a[index]), float(b[index]))
    return None
