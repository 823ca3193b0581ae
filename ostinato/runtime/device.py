"""What the runtime asks of a device.

Structural protocols: a backend satisfies them without importing this file. Addresses are integers; a device owns the memory it hands out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy.typing as npt

from ostinato.ir.step import Launch as LaunchShape
from ostinato.ir.step import StepKind
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["Buffer", "Device", "Launch", "PackSource", "ResolvedStep", "Table", "WeightSource"]


class Buffer(Protocol):
    """Memory of a device, valid until `free` or until the last reference is gone."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def view(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A writable numpy array over the bytes at `offset`; keeps the buffer alive."""
        ...

    def free(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ResolvedStep:
    """A step with addresses: what a device turns into one entry of its step table. An absent operand is (0, 0); `launch` is the shape of a GPU's."""

    node: str
    kind: StepKind
    kernel: str
    operands: tuple[tuple[int, int], ...]
    params: tuple[int | float, ...]
    lane: int = 0
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    launch: LaunchShape | None = None


class Table(Protocol):
    """A loaded step table."""

    def run(self, first: int = 0, count: int = -1) -> None:
        """Runs steps [first, first + count) (-1: to the end) in one native call, without the GIL; raises typed errors that name the node."""
        ...


class Launch(Protocol):
    """One kernel with its parameters, run on operands that may differ from call to call. Threads may share it."""

    def run(self, operands: tuple[tuple[int, int], ...]) -> None:
        """One native call, without the GIL, that allocates nothing; raises typed errors that name the node. An absent operand is (0, 0)."""
        ...


@dataclass(frozen=True, slots=True)
class PackSource:
    """Rows for a weight: `row_index` int64 gives the source row of each logical row; `data` uint8 holds row-major source rows of `dtype`."""

    data: Array
    dtype: DType
    row_index: Array


class Device(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def launches(self) -> int:
        """How many launches ran so far."""
        ...

    def allocate(self, nbytes: int, alignment: int = 256) -> Buffer:
        """Zeroed memory; raises `CapacityError` with the bytes asked for when there is none."""
        ...

    def make_table(self, steps: Sequence[ResolvedStep]) -> Table: ...
    def make_launch(self, node: str, kernel: str, params: Sequence[int | float]) -> Launch: ...
    def pack(self, tensor_type: TensorType, address: int, source: PackSource, first_row: int) -> None:
        """Writes `source` as logical rows [first_row, first_row + len(row_index)) of the weight at `address`, in its dtype and layout.

        A vector is a column of rows of one element. Float dtypes convert into one another, blocks dequantise; floats never become blocks (`DTypeError`).
        """
        ...

    def unpack(self, tensor_type: TensorType, address: int) -> Array:
        """The logical values of the weight at `address` as float32: what `pack` wrote, blocks dequantised."""
        ...


class WeightSource(Protocol):
    """Where weights come from: a checkpoint, seen by name."""

    def dtype(self, tensor: str) -> DType: ...
    def shape(self, tensor: str) -> tuple[int, ...]: ...
    def row_order(self, tensor: str) -> Array | None:
        """Source row of every logical row (int64), or None for the identity."""
        ...

    def shift(self, tensor: str) -> float:
        """What is added to every stored value, in float32; 0 for nothing."""
        ...

    def map(self, tensor: str) -> Array:
        """The stored bytes, uint8 [nbytes], read-only, not copied."""
        ...

    def release(self, tensor: str) -> None:
        """The bytes have been used: resident pages may go."""
        ...
