"""Random small graphs over the pure operators, with the weights and inputs to run them on.

A graph grows node by node: an operator is drawn, then operands that suit it among the values made so far, whose shapes are few so that values meet. Views,
several results, constants and weights shared by readers, and outputs that are inputs, views, constants or named twice are all drawn on purpose.
Numbers stay near one by construction (fresh weights are scaled by their width), so that a tolerance can tell rounding from a wrong byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.frontend.trace import Tensor
from ostinato.ir.graph import Graph
from ostinato.ir.opdef import Attr
from ostinato.ir.types import Array, DType, TensorType
from tests.fuzz.contract_operators import ContractOperators
from tests.fuzz.growth import ROWS, WIDTHS, MemorySource
from tests.fuzz.sampled import SampledOperators

__all__ = ["Case", "MemorySource", "counted_case", "random_case"]


@dataclass(frozen=True)
class Case:
    """A graph, its weights by name, and two sets of inputs. `halves`: some value is f16 or bf16; `valid`: rows of axis N that count."""

    graph: Graph
    source: MemorySource
    inputs: tuple[dict[str, Array], dict[str, Array]]
    halves: bool
    valid: int | None = None


class _Growth(ContractOperators, SampledOperators):
    """The operators of models, beside those of the contract."""

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
            x = self.dense(x)
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
            rows = self.pick(WIDTHS)
            bias = self.vector(rows) if self.rng.random() < 0.4 else None
            self.keep(self.builder.apply("linear", (x, self.weight(rows, columns, x), bias)))
        elif kind == 1:
            sizes = tuple(self.pick(WIDTHS) for _ in range(int(self.rng.integers(1, 4))))
            bias = self.vector(sum(sizes)) if self.rng.random() < 0.4 else None
            made = self.builder.apply_many(
                "linear_split", (x, self.weight(sum(sizes), columns, x), bias), {"sizes": sizes}
            )
            self.keep(*made)
        else:
            weight = self.weight(2 * self.pick(WIDTHS), columns, x, paired=True)
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
            self.builder.apply("linear", (normed, self.weight(self.pick(WIDTHS), columns, normed))) for _ in range(3)
        ]
        width = self.pick(WIDTHS)
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
            self.keep(self.builder.apply("gather_rows", (x, self.indices((self.pick(ROWS),), rows, -1))))

    def op_embedding(self) -> None:
        rows, width = self.pick((3, 33)), self.pick(WIDTHS)
        shape = ((self.pick(ROWS),), (2, 3))[self.rng.integers(2)]
        self.keep(self.builder.apply("embedding", (self.indices(shape, rows), self.weight(rows, width))))

    def op_attention(self) -> None:
        batch, time, kv_heads, width = self.pick((1, 2)), self.pick((1, 3, 5)), self.pick((1, 2)), self.pick((4, 8))
        heads = kv_heads * self.pick((1, 3))
        cos, sin = self._rotary_tables((batch, time), width)
        q, k, v = (self.float32_of((batch, time, n, width)) for n in (heads, kv_heads, kv_heads))
        rope = ("rope_split_half", "rope_interleaved")[self.rng.integers(2)]
        q, k = (self.builder.apply(rope, (x, cos, sin)) for x in (q, k))
        self.keep(q, cos, self.builder.apply("attention_causal", (q, k, v), {"scale": width**-0.5}))

    def _rotary_tables(self, shape: tuple[int, ...], width: int) -> tuple[Tensor, Tensor]:
        position, kind = self.indices(shape, 50), int(self.rng.integers(3))
        attrs: dict[str, Attr] = {"original_positions": 32}
        if kind == 0:
            attrs |= {"theta": 1e4, "width": width, "factor": 2.0}
            made = self.builder.apply_many("rotary_table_dynamic", (position, self.indices(shape, 60)), attrs)
        else:
            names = [self.name("frequency") for _ in range(kind)]
            frequencies = [
                self.builder.constant(name, 10.0 ** -np.arange(width // 2, dtype=np.float32)) for name in names
            ]
            if kind == 1:
                made = self.builder.apply_many("rotary_table", (position, *frequencies))
            else:
                operands = (position, self.indices(shape, 60), *frequencies)
                made = self.builder.apply_many("rotary_table_longrope", operands, attrs)
        cos, sin = made
        return cos, sin

    def op_attention_bidirectional(self) -> None:
        tokens, rows, kv_heads, width = self.pick(ROWS), self.pick((1, 3)), self.pick((1, 2)), self.pick((2, 8))
        q, k, v = (
            self.dense(self.float32_of((tokens, n, width))) for n in (kv_heads * self.pick((1, 3)), kv_heads, kv_heads)
        )
        half = tokens // 2
        places = (self.indices((tokens,), rows, -1), self.indices((rows,), half + 1))
        operands = (q, k, v, *places, self.indices((rows,), tokens - half + 1))
        self.keep(self.builder.apply("attention_bidirectional", operands, {"scale": width**-0.5}))

    def op_attention_packed(self) -> None:
        tokens, rows, kv_heads, width = self.pick(ROWS), self.pick((1, 3)), self.pick((1, 2)), self.pick((2, 8))
        blocks, block_size, table_width = 4, self.pick((1, 4)), self.pick((1, 2))
        q = self.float32_of((tokens, kv_heads * self.pick((1, 3)), width))
        k_cache, v_cache = (self.float32_of((blocks, kv_heads, block_size, width)) for _ in range(2))
        operands = (
            self.dense(q),
            k_cache,
            v_cache,
            self.indices((tokens,), rows, -1),
            self.indices((tokens,), block_size * table_width),
            self.indices((rows, table_width), blocks),
            self.indices((rows,), block_size * table_width + 1),
        )
        self.keep(self.builder.apply("attention_packed", operands, {"scale": width**-0.5}))

    def op_loss(self) -> None:
        x = self.any(lambda value: bool(value.shape) and value.dtype is DType.F32 and value.type.elements > 0)
        if x is not None:
            *leading, classes = x.type.static_shape
            self.keep(self.builder.apply("cross_entropy", (x, self.indices(tuple(leading), classes))))


_COUNTED = (
    "op_binary",
    "op_unary",
    "op_reshape",
    "op_transpose",
    "op_slice",
    "op_norm",
    "op_linear",
    "op_decoder_pattern",
    "op_activation",
    "op_row",
    "op_joined",
    "op_scores",
)


def counted_case(seed: int) -> Case:
    """A graph over an axis N of which only some leading rows are valid; its inputs are NaN past them. Gathered rows end it."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 7))
    growth = _Growth(rng, int(rng.integers(0, rows + 1)))
    count = growth.builder.input("count", TensorType((1,), DType.I32))
    growth.inputs["count"] = lambda _: np.array([growth.valid], np.int32)
    growth.builder.extent("N", count)
    width = growth.pick(WIDTHS)
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
    width = growth.pick(WIDTHS)
    for shape in ((growth.pick(ROWS), width), (growth.pick(ROWS), width), (2, growth.pick(ROWS), width), (width,)):
        growth.values.append(growth.input(shape, (DType.F32, DType.F32, DType.F32, DType.BF16)[rng.integers(4)]))
    operators = [getattr(growth, name) for name in sorted(dir(growth)) if name.startswith("op_")]
    for _ in range(int(rng.integers(3, 18))):
        operators[rng.integers(len(operators))]()
    for number in (2 * seed, 2 * seed + 1):
        growth.sampled(number)
    offered = growth.values + growth.constants
    if rng.random() < 0.3:
        floats = growth.any(lambda value: bool(value.shape) and value.dtype is DType.F32 and value.type.elements > 0)
        if floats is not None and floats.name.startswith("input"):  # exact: a tie cannot fall on either side
            offered = [*offered, growth.builder.apply("argmax", (floats,))]
    outputs = [offered[rng.integers(len(offered))] for _ in range(int(rng.integers(1, 6)))] + [offered[-1]]
    outputs += growth.ends
    graph = growth.builder.finish(outputs)
    first, second = ({name: make(rng) for name, make in growth.inputs.items()} for _ in range(2))
    return Case(graph, growth.source, (first, second), growth.halves)
