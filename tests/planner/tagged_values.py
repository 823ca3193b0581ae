"""What the judge of harm knows of values: which bytes of which content every element of a value is, views followed.

A view is followed by running the reference of its operator on the *numbers* of the elements, not by its stride rule, which is what planner and checker go
by. So a wrong stride rule shows as well. Values that no view looks into are never numbered: they may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.ir.graph import Graph
from ostinato.ir.opdef import OpDef
from ostinato.ir.types import TensorType

__all__ = ["ValueBytes", "bytes_of_values"]

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ValueBytes:
    """Where the elements of a value lie.

    `content` is the value whose bytes they are (itself, or what it is a view of) and `first` the byte of the content where element 0 lies: what a kernel's
    address points at. `runs` are the (first byte, bytes) that its elements cover, counted from there. `order` says how the elements follow each other: two
    values with equal order have element i at the same byte when they begin at the same address.
    """

    content: str
    first: int
    runs: tuple[tuple[int, int], ...]
    order: Any

    @property
    def span(self) -> int:
        """Bytes from the first to the last, gaps included."""
        return 0 if not self.runs else self.runs[-1][0] + self.runs[-1][1]

    @property
    def has_gaps(self) -> bool:
        return len(self.runs) > 1

    def cover(self, *, gaps: bool) -> tuple[tuple[int, int], ...]:
        """The runs, or with `gaps` one run over all of them."""
        return ((0, self.span),) if gaps and self.runs else self.runs


def bytes_of_values(graph: Graph, ops: Mapping[str, OpDef]) -> dict[str, ValueBytes]:
    """The bytes of every value of a graph with bound dimensions."""
    found = {item.value.name: _own(item.value.name, item.value.type) for item in graph.inputs}
    numbered: dict[str, Index] = {}  # value -> the byte of its content where each element lies, in the value's shape
    for node in graph.nodes:
        opdef = ops[node.op]
        for value in node.results:
            if not opdef.is_view:
                found[value.name] = _own(value.name, value.type)
                continue
            source = node.operands[0]
            assert source is not None
            if source not in numbered:
                numbered[source] = _numbers(graph.types[source])
            (seen,) = opdef.reference((numbered[source],), node.attrs, (value.type,))
            numbered[value.name] = seen
            found[value.name] = _seen(found[source].content, seen, value.type.dtype.numpy.itemsize)
    return found


def _own(name: str, tensor: TensorType) -> ValueBytes:
    """A value in bytes of its own."""
    runs = ((0, tensor.nbytes),) if tensor.nbytes else ()
    if tensor.is_packed or tensor.dtype.is_block:
        return ValueBytes(name, 0, runs, (tensor.layout, tensor.dtype, tensor.shape))
    if tensor.is_natural:
        return ValueBytes(name, 0, runs, (tensor.dtype.numpy.itemsize, tensor.elements))
    return _seen(name, _numbers(tensor), tensor.dtype.numpy.itemsize)


def _numbers(tensor: TensorType) -> Index:
    """The byte of each element of a value that owns its bytes: its axes lie in memory in the order of the letters of its layout."""
    axes = range(tensor.rank) if tensor.is_natural else [tensor.axes.index(axis) for axis in tensor.layout or ""]
    in_memory = np.arange(tensor.elements, dtype=np.int64).reshape([tensor.static_shape[axis] for axis in axes])
    return in_memory.transpose(np.argsort(list(axes))) * tensor.dtype.numpy.itemsize


def _seen(content: str, numbers: Index, itemsize: int) -> ValueBytes:
    flat = numbers.reshape(-1)
    if not flat.size:
        return ValueBytes(content, 0, (), (itemsize, 0))
    first = int(flat[0])
    relative = flat - first
    natural = np.array_equal(relative, np.arange(flat.size) * itemsize)
    bytes_of = np.sort(relative)
    assert bytes_of[0] == 0, "no view runs backwards"
    starts = np.flatnonzero(np.diff(bytes_of, prepend=-2 * itemsize) != itemsize)
    ends = np.append(starts[1:], flat.size) - 1
    runs = tuple(
        (int(bytes_of[start]), int(bytes_of[end] - bytes_of[start]) + itemsize)
        for start, end in zip(starts, ends, strict=True)
    )
    return ValueBytes(content, first, runs, (itemsize, flat.size) if natural else (itemsize, relative.tobytes()))
