"""What random graphs grow from: named values of few shapes, weights, constants and inputs with the arrays that go with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.ops.samplers import materialise, normal
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import WeightPart
from ostinato.runtime.device import WeightSource

__all__ = ["ROWS", "WIDTHS", "Growth", "MemorySource"]

WIDTHS = (1, 3, 8, 32, 64)
ROWS = (1, 2, 5)
_HALVES = (DType.F16, DType.BF16)
_SMALL_BLOCKS = tuple(dtype for dtype in DType if dtype.is_block and dtype.block_elements in WIDTHS)
_MATRICES = (DType.F32, DType.F32, DType.F32, DType.F16, DType.BF16, *_SMALL_BLOCKS)


@dataclass(frozen=True)
class MemorySource(WeightSource):
    """Weights in memory, as a program reads them: arrays of plain dtypes, uint8 rows of blocks."""

    arrays: dict[str, tuple[Array, DType, tuple[int, ...]]] = field(default_factory=dict)

    def dtype(self, tensor: str) -> DType:
        return self.arrays[tensor][1]

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.arrays[tensor][2]

    def map(self, tensor: str) -> Array:
        return np.ascontiguousarray(self.arrays[tensor][0]).reshape(-1).view(np.uint8)


class Growth:
    """The graph so far. Subclasses have the operators: each `op_*` method adds one node or a few, or nothing where no operands suit it."""

    def __init__(self, rng: np.random.Generator, valid: int | None = None) -> None:
        self.rng = rng
        self.valid = valid
        self.builder = GraphBuilder("random")
        self.source = MemorySource()
        self.inputs: dict[str, Callable[[np.random.Generator], Array]] = {}
        self.values: list[Tensor] = []
        self.constants: list[Tensor] = []
        self.ends: list[Tensor] = []  # results that become outputs and nobody's operands
        self.halves = False
        self.paired: set[str] = (
            set()
        )  # gate/up weights: packed in their own way, so they cannot be shared with other readers
        self._count = 0

    # what nodes are made of

    def pick(self, options: Sequence[int]) -> int:
        return options[int(self.rng.integers(len(options)))]

    def name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def input(self, shape: tuple[int, ...], dtype: DType = DType.F32) -> Tensor:
        name = self.name("input")
        valid = self.valid

        def draw(rng: np.random.Generator) -> Array:
            values = rng.standard_normal(shape).astype(dtype.numpy)
            if valid is not None:
                values[valid:] = np.nan  # poison: no valid row may come to depend on it
            return values

        self.inputs[name] = draw
        self.halves |= dtype in _HALVES
        axes = () if valid is None else ("N", *[""] * (len(shape) - 1))
        return self.builder.input(name, TensorType(shape, dtype, axes))

    def indices(self, shape: tuple[int, ...], high: int, low: int = 0) -> Tensor:
        name = self.name("index")
        self.inputs[name] = lambda rng: rng.integers(low, high, shape, dtype=np.int32)
        return self.builder.input(name, TensorType(shape, DType.I32))

    def weight(self, rows: int, columns: int, reader: Tensor | None = None, *, paired: bool = False) -> Tensor:
        """A matrix of any dtype that its width and `reader` allow; one in three times a matrix of that shape that is there already."""
        refused = {DType.F16: DType.BF16, DType.BF16: DType.F16}.get(DType.F32 if reader is None else reader.dtype)
        known = [
            name
            for name, (_, dtype, shape) in self.source.arrays.items()
            if shape == (rows, columns) and dtype is not refused and name not in self.paired and self.rng.random() < 0.3
        ]
        if known and not paired:
            return self.declare(known[0])
        dtype = _MATRICES[self.rng.integers(len(_MATRICES))]
        dtype = DType.F32 if dtype is refused else dtype
        if columns % dtype.block_elements:
            dtype = DType.F32
        array = materialise(normal((rows, columns), dtype), self.rng)
        if not dtype.is_block:
            array = (array.astype(np.float32) / np.sqrt(columns)).astype(dtype.numpy)
        name = self.name("weight")
        if paired:
            self.paired.add(name)
        self.source.arrays[name] = (array, dtype, (rows, columns))
        return self.declare(name)

    def vector(self, size: int) -> Tensor:
        """A gain or a bias: a weight or a constant, sometimes shared."""
        if self.rng.random() < 0.5:
            shared = [value for value in self.constants if value.shape == (size,)]
            if shared and self.rng.random() < 0.5:
                return shared[0]
            self.constants.append(
                self.builder.constant(self.name("constant"), self.rng.uniform(0.5, 1.5, size).astype(np.float32))
            )
            return self.constants[-1]
        name = self.name("vector")
        dtype = (DType.F32, DType.F16, DType.BF16)[self.rng.integers(3)]
        self.source.arrays[name] = (self.rng.uniform(0.5, 1.5, size).astype(dtype.numpy), dtype, (size,))
        return self.builder.weight(name, TensorType((size,), DType.F32), (WeightPart(name, 0, size),))

    def declare(self, name: str) -> Tensor:
        _, dtype, shape = self.source.arrays[name]
        return self.builder.weight(name, TensorType(shape, dtype), (WeightPart(name, 0, shape[0]),))

    def any(self, suits: Callable[[Tensor], bool] = lambda value: True) -> Tensor | None:
        found = [value for value in self.values if value.dtype.is_float and suits(value)]
        return found[int(self.rng.integers(len(found)))] if found else None

    def like(self, value: Tensor) -> Tensor:
        """A value of the same shape and dtype, often the same one."""
        found = self.any(lambda other: other.shape == value.shape and other.dtype is value.dtype)
        return value if found is None else found

    def keep(self, *made: Tensor) -> None:
        self.values += made
        self.halves |= any(value.dtype in _HALVES for value in made)

    def float32_of(self, shape: tuple[int, ...]) -> Tensor:
        """A float32 value of that shape, a new input if there is none."""
        found = self.any(lambda value: value.shape == shape and value.dtype is DType.F32)
        return self.input(shape) if found is None else found

    def is_dense(self, value: Tensor) -> bool:
        """Whether a reshape may look into it: no view of it was taken by transpose or slice."""
        return not value.name.startswith(("transpose", "slice", "reshape"))

    def dense(self, value: Tensor) -> Tensor:
        """The value, or a copy of the view that it is."""
        return value if self.is_dense(value) else self.builder.apply("contiguous", (value,))
