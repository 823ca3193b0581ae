"""Where the bytes of a weight come from: the weight manifest.

A weight value of a graph is an ordered list of parts, each a range of rows of a tensor under its original name. Concatenation (one projection for Q, K
and V), row reordering and packing are therefore facts of the load program and never steps, and original names stay addressable for replacement in place.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.ir.step import ByteRange
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["TRANSFORMS", "PackSource", "WeightPart", "WeightSlot", "transform_of"]

TRANSFORMS = ("none", "reorder_rows", "shift", "transpose")


def transform_of(*, reordered: bool, shift: float) -> str:
    """The transform that loading a tensor needs: its rows lie in another order, or `shift` is added to its values. No tensor needs both."""
    return "reorder_rows" if reordered else "none" if shift == 0.0 else "shift"


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Rows [start, stop) of the checkpoint tensor `tensor`.

    `transform` is "none"; "reorder_rows": the source names the file row of every logical row (GGUF stores the rows of Q and K permuted); "shift": the source
    names a number that is added to every stored value in float32 (Gemma stores its gains less 1); or "transpose": the rows are the columns of a stored matrix
    of floats, which is the graph's wish. Loading refuses a part that says otherwise than its source.
    """

    tensor: str
    start: int
    stop: int
    transform: str = "none"


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """One weight of a weights region: its value name, final type (layout included), bytes and ordered parts."""

    name: str
    type: TensorType
    range: ByteRange
    parts: tuple[WeightPart, ...]


@dataclass(frozen=True, slots=True)
class PackSource:
    """Rows for a weight: `row_index` int64 gives the source row of each logical row; `data` uint8 holds row-major source rows of `dtype`."""

    data: Array
    dtype: DType
    row_index: Array
