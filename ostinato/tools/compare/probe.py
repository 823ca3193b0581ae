"""Every node's result in one mode, to find the first node at which two modes part.

Each mode hands its results over, the planned ones after each single step, before a later step may take the bytes. Rows past the valid count are cut off where
the leading axis is a counted one, since nothing is promised about them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ostinato.ir.graph import Graph
from ostinato.ir.types import Array, TensorType
from ostinato.runtime.executable import Executable
from ostinato.tools.compare.variants import in_variant

__all__ = ["Probe", "bits_equal", "first_changed", "first_difference"]


class Probe:
    """A clone of an executable in one mode (or variant) whose runs record the values of all nodes by name."""

    def __init__(self, executable: Executable, mode: str) -> None:
        self._seen: dict[str, Array] = {}
        self._executable = in_variant(executable, mode, self._record)

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs an entry and returns its node results. Caches carry over to the next run."""
        self._seen = {}
        self._executable.run(entry, inputs)
        return self._seen

    def _record(self, name: str, values: Array) -> None:
        self._seen[name] = np.array(values)


def first_difference(
    graph: Graph, left: Mapping[str, Array], right: Mapping[str, Array], counts: Mapping[str, int], tolerance: float
) -> str | None:
    """Name of the first value, in program order, that differs.

    `counts` gives the valid rows of a counted axis by its name. `tolerance` 0 compares bits; otherwise a value differs when an element is off by more
    than `tolerance` times the root mean square of the left values.
    """
    for node in graph.nodes:
        for value in node.results:
            if value.name not in left or value.name not in right:
                continue
            a, b = _valid(left[value.name], value.type, counts), _valid(right[value.name], value.type, counts)
            if not (bits_equal(a, b) if tolerance == 0 else _close(a, b, tolerance)):
                return value.name
    return None


def bits_equal(left: Array, right: Array) -> bool:
    """Equality of shape, dtype and bytes: NaN equals the same NaN, 0.0 differs from -0.0."""
    same_type = left.shape == right.shape and left.dtype == right.dtype
    return same_type and np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()


def first_changed(left: Array, right: Array) -> tuple[int, ...]:
    """The index of the first element that has other bits, of two arrays of one shape and dtype that differ."""
    a, b = (np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8).reshape(x.size, -1) for x in (left, right))
    place = int(np.argmax((a != b).any(axis=1)))
    return tuple(int(i) for i in np.unravel_index(place, left.shape))


def _close(left: Array, right: Array, tolerance: float) -> bool:
    if left.shape != right.shape:
        return False
    if left.size == 0:
        return True
    a, b = left.astype(np.float64), right.astype(np.float64)
    limit = tolerance * float(np.sqrt(np.mean(np.square(a))))
    return bool(np.all(np.abs(a - b) <= limit))


def _valid(values: Array, kind: TensorType, counts: Mapping[str, int]) -> Array:
    count = counts.get(kind.axes[0]) if kind.axes else None
    return values if count is None else values[:count]
