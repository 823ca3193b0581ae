"""Random small graphs over the pure operators, with the weights and inputs to run them on.

A graph grows node by node: an operator is drawn, then operands that suit it among the values made so far, whose shapes are few so that values meet. Views,
several results, constants and weights shared by readers, and outputs that are inputs, views, constants or named twice are all drawn on purpose.
Numbers stay near one by construction (fresh weights are scaled by their width), so that a tolerance can tell rounding from a wrong byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.graph import Graph
from ostinato.ir.ops.samplers import materialise, normal
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import WeightPart

__all__ = ["Case", "MemorySource", "counted_case", "random_case"]

_WIDTHS = (1, 3, 8, 32, 64)
_ROWS = (1, 2, 5)
_HALVES = (DType.F16, DType.BF16)
_MATRICES = (DType.F32, DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_1)


@dataclass(frozen=True)
class MemorySource:
    """Weights in memory, as a program reads them: arrays of plain dtypes, uint8 rows of blocks."""

    arrays: dict[str, tuple[Array, DType, tuple[int, ...]]] = field(default_factory=dict)

    def dtype(self, tensor: str) -> DType:
        return self.arrays[tensor][1]

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.arrays[tensor][2]

    def row_order(self, tensor: str) -> Array | None:
        del tensor
        return None

    def map(self, tensor: str) -> Array:
        return np.ascontiguousarray(self.arrays[tensor][0]).reshape(-1).view(np.uint8)

    def release(self, tensor: str) -> None:
        del tensor


@dataclass(frozen=True)
class Case:
    """A graph, its weights by name, and two sets of inputs. `halves`: some value is f16 or bf16; `valid`: rows of axis N that count."""

    graph: Graph
    source: MemorySource
    inputs: tuple[dict[str, Array], dict[str, Array]]
    halves: bool
    valid: int | None = None


class _Growth:
    """The graph so far. Each `_op_*` method adds one node, or nothing where no operands suit it."""

    def __init__(self, rng: np.random.Generator, valid: int | None = None) -> None:
        self.rng = rng
        self.valid = valid
        self.builder = GraphBuilder("random")
        self.source = MemorySource()
        self.inputs: dict[str, Callable[[np.random.Generator], Array]] = {}
        self.values: list[Tensor] = []
        self.constants: list[Tensor] = []
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

    # operators

    def op_binary(self) -> None:
        if (a := self.any()) is not None:
            op = ("add", "add", "mul", "swiglu")[self.rng.integers(4)]
            y = self.builder.apply(op, (a, self.like(a)))
            if op == "add":  # sums of sums would grow
                y = self.builder.apply("scale", (y,), {"factor": 0.5})
            self.keep(y)

    def op_unary(self) -> None:
        if (x := self.any()) is None:
            return
        op = ("silu", "scale", "softmax", "contiguous", "cast")[self.rng.integers(5)]
        if op == "softmax" and not x.shape:
            return
        attrs: dict[str, dict[str, float | str]] = {
            "scale": {"factor": (0.5, -1.0, 1.0, 0.25)[self.rng.integers(4)]},
            "cast": {"dtype": ("f32", "f16", "bf16", "f32")[self.rng.integers(4)]},
        }
        self.keep(self.builder.apply(op, (x,), attrs.get(op)))

    def op_reshape(self) -> None:
        if (x := self.any()) is None:
            return
        total = x.type.elements
        splits = [(total,), (1, total), (total, 1)] + [
            (n, total // n) for n in (2, 3, 4, 5, 8) if total and total % n == 0
        ]
        splits += [(2, 2, total // 4)] if total and total % 4 == 0 else []
        shape = splits[self.rng.integers(len(splits))]
        if self.valid is not None:
            inner = total // x.type.static_shape[0]
            shape = ((0, inner), (0, 1, inner))[self.rng.integers(2)]
        if total:
            x = x if self._is_dense(x) else self.builder.apply("contiguous", (x,))
            self.keep(self.builder.apply("reshape", (x,), {"shape": shape, "axes": "_" * len(shape)}))

    def op_transpose(self) -> None:
        if (x := self.any(lambda value: len(value.shape) >= 2)) is not None:
            kept = () if self.valid is None else (0,)
            moved = [axis for axis in range(len(x.shape)) if axis not in kept]
            order = (*kept, *(int(axis) for axis in self.rng.permutation(moved)))
            self.keep(self.builder.apply("transpose", (x,), {"order": order}))

    def op_slice(self) -> None:
        first = 0 if self.valid is None else 1
        x = self.any(lambda value: len(value.shape) > first)
        if x is None:
            return
        shape = x.type.static_shape
        axis = int(self.rng.integers(first, len(shape)))
        start = int(self.rng.integers(0, shape[axis] + 1)) if shape[axis] else 0
        stop = int(self.rng.integers(start, shape[axis] + 1))
        attrs = {"axis": axis, "start": start, "stop": stop, "step": self.pick((1, 1, 1, 2, 3))}
        if stop > start:
            self.keep(self.builder.apply("slice", (x,), attrs))

    def op_norm(self) -> None:
        if (x := self.any(lambda value: bool(value.shape))) is None:
            return
        gain = self.vector(x.type.static_shape[-1])
        if self.rng.random() < 0.5:
            self.keep(self.builder.apply("rms_norm", (x, gain), {"eps": 1e-2}))
        else:
            total, y = self.builder.apply_many("add_rms_norm", (x, self.like(x), gain), {"eps": 1e-2})
            self.keep(self.builder.apply("scale", (total,), {"factor": 0.5}), y)

    def op_linear(self) -> None:
        x = self.any(lambda value: bool(value.shape))
        if x is None:
            return
        columns = x.type.static_shape[-1]
        kind = int(self.rng.integers(3))
        if kind == 0:
            rows = self.pick(_WIDTHS)
            bias = self.vector(rows) if self.rng.random() < 0.4 else None
            self.keep(self.builder.apply("linear", (x, self.weight(rows, columns, x), bias)))
        elif kind == 1:
            sizes = tuple(self.pick(_WIDTHS) for _ in range(int(self.rng.integers(1, 4))))
            bias = self.vector(sum(sizes)) if self.rng.random() < 0.4 else None
            made = self.builder.apply_many(
                "linear_split", (x, self.weight(sum(sizes), columns, x), bias), {"sizes": sizes}
            )
            self.keep(*made)
        else:
            weight = self.weight(2 * self.pick(_WIDTHS), columns, x, paired=True)
            self.keep(self.builder.apply("linear_swiglu", (x, weight)))

    def op_decoder_pattern(self) -> None:
        """What the fusions look for: projections of one x, a gated feed-forward, a norm after an addition."""
        x = self.any(lambda value: bool(value.shape))
        if x is None:
            return
        columns = x.type.static_shape[-1]
        total = self.builder.apply("add", (x, self.like(x)))
        normed = self.builder.apply("rms_norm", (total, self.vector(columns)), {"eps": 1e-2})
        made = [
            self.builder.apply("linear", (normed, self.weight(self.pick(_WIDTHS), columns, normed))) for _ in range(3)
        ]
        width = self.pick(_WIDTHS)
        gate, up = (self.builder.apply("linear", (normed, self.weight(width, columns, normed))) for _ in range(2))
        made.append(self.builder.apply("swiglu", (gate, up)))
        kept = [value for value in (*made, normed, gate, up) if self.rng.random() < 0.6]
        self.keep(*kept, self.builder.apply("scale", (total,), {"factor": 0.5}))

    def op_gather(self) -> None:
        x = self.any(lambda value: len(value.shape) >= 2 and value.type.elements > 0)
        if x is not None:
            rows = x.type.elements // x.type.static_shape[-1]
            if self.valid is not None:
                rows = rows // x.type.static_shape[0] * self.valid
            self.keep(self.builder.apply("gather_rows", (x, self.indices((self.pick(_ROWS),), rows, -1))))

    def op_embedding(self) -> None:
        rows, width = self.pick((3, 33)), self.pick(_WIDTHS)
        shape = ((self.pick(_ROWS),), (2, 3))[self.rng.integers(2)]
        self.keep(self.builder.apply("embedding", (self.indices(shape, rows), self.weight(rows, width))))

    def op_attention(self) -> None:
        batch, time, kv_heads, width = self.pick((1, 2)), self.pick((1, 3, 5)), self.pick((1, 2)), self.pick((2, 8))
        heads = kv_heads * self.pick((1, 3))
        position = self.indices((batch, time), 50)
        frequency = self.builder.constant(self.name("frequency"), 10.0 ** -np.arange(width // 2, dtype=np.float32))
        cos, sin = self.builder.apply_many("rotary_table", (position, frequency))
        q, k, v = (self._projected((batch, time, n, width)) for n in (heads, kv_heads, kv_heads))
        q, k = (self.builder.apply("rope_split_half", (x, cos, sin)) for x in (q, k))
        self.keep(q, cos, self.builder.apply("attention_causal", (q, k, v), {"scale": width**-0.5}))

    def op_attention_packed(self) -> None:
        tokens, rows, kv_heads, width = self.pick(_ROWS), self.pick((1, 3)), self.pick((1, 2)), self.pick((2, 8))
        blocks, block_size, table_width = 4, self.pick((1, 4)), self.pick((1, 2))
        q = self._projected((tokens, kv_heads * self.pick((1, 3)), width))
        k_cache, v_cache = (self._projected((blocks, kv_heads, block_size, width)) for _ in range(2))
        operands = (
            q if self._is_dense(q) else self.builder.apply("contiguous", (q,)),
            k_cache,
            v_cache,
            self.indices((tokens,), rows, -1),
            self.indices((tokens,), block_size * table_width),
            self.indices((rows, table_width), blocks),
            self.indices((rows,), block_size * table_width + 1),
        )
        self.keep(self.builder.apply("attention_packed", operands, {"scale": width**-0.5}))

    def _projected(self, shape: tuple[int, ...]) -> Tensor:
        found = self.any(lambda value: value.shape == shape and value.dtype is DType.F32)
        return self.input(shape) if found is None else found

    def op_loss(self) -> None:
        x = self.any(lambda value: bool(value.shape) and value.dtype is DType.F32 and value.type.elements > 0)
        if x is not None:
            *leading, classes = x.type.static_shape
            self.keep(self.builder.apply("cross_entropy", (x, self.indices(tuple(leading), classes))))

    def _is_dense(self, value: Tensor) -> bool:
        """Whether a reshape may look into it: no view of it was taken by transpose or slice."""
        return not value.name.startswith(("transpose", "slice", "reshape"))


_COUNTED = (
    "op_binary",
    "op_unary",
    "op_reshape",
    "op_transpose",
    "op_slice",
    "op_norm",
    "op_linear",
    "op_decoder_pattern",
)


def counted_case(seed: int) -> Case:
    """A graph over an axis N of which only some leading rows are valid; its inputs are NaN past them. Gathered rows end it."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 7))
    growth = _Growth(rng, int(rng.integers(0, rows + 1)))
    count = growth.builder.input("count", TensorType((1,), DType.I32))
    growth.inputs["count"] = lambda _: np.array([growth.valid], np.int32)
    growth.builder.extent("N", count)
    width = growth.pick(_WIDTHS)
    growth.values += [growth.input((rows, width)), growth.input((rows, width)), growth.input((rows, 2, width))]
    for _ in range(int(rng.integers(3, 14))):
        getattr(growth, _COUNTED[rng.integers(len(_COUNTED))])()
    outputs = [growth.values[rng.integers(len(growth.values))] for _ in range(3)]
    if growth.valid:
        growth.op_gather()
        outputs.append(growth.values[-1])
    graph = growth.builder.finish(outputs)
    first, second = ({name: make(rng) for name, make in growth.inputs.items()} for _ in range(2))
    return Case(graph, growth.source, (first, second), growth.halves, growth.valid)


def random_case(seed: int) -> Case:
    """The graph of a seed: the same one for the same seed, wherever it runs."""
    rng = np.random.default_rng(seed)
    growth = _Growth(rng)
    width = growth.pick(_WIDTHS)
    for shape in ((growth.pick(_ROWS), width), (growth.pick(_ROWS), width), (2, growth.pick(_ROWS), width), (width,)):
        growth.values.append(growth.input(shape, (DType.F32, DType.F32, DType.F32, DType.BF16)[rng.integers(4)]))
    operators = [getattr(growth, name) for name in sorted(dir(growth)) if name.startswith("op_")]
    for _ in range(int(rng.integers(3, 18))):
        operators[rng.integers(len(operators))]()
    offered = growth.values + growth.constants
    if rng.random() < 0.3:
        floats = growth.any(lambda value: bool(value.shape) and value.dtype is DType.F32 and value.type.elements > 0)
        if floats is not None and floats.name.startswith("input"):  # exact: a tie cannot fall on either side
            offered = [*offered, growth.builder.apply("argmax", (floats,))]
    outputs = [offered[rng.integers(len(offered))] for _ in range(int(rng.integers(1, 6)))] + [offered[-1]]
    graph = growth.builder.finish(outputs)
    first, second = ({name: make(rng) for name, make in growth.inputs.items()} for _ in range(2))
    return Case(graph, growth.source, (first, second), growth.halves)
