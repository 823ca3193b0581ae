"""Small random decoder graphs, in the form the frontend gives them, and the values to run them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value
from ostinato.ir.interp import Interpretation, interpret
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType, Extent, TensorType
from ostinato.ir.weights import WeightPart

__all__ = ["Builder", "Config", "decoder", "input_values", "run"]


@dataclass(frozen=True)
class Config:
    """Shape of a decoder. `packed` is the form over a cache with counted tokens, otherwise whole sequences."""

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    width: int = 8
    ffn: int = 48
    vocabulary: int = 50
    packed: bool = False
    tied: bool = True
    bias: bool = False
    matrix: DType = DType.F32
    query: DType | None = None
    """Dtype of the query weights, where it is not that of the others."""
    cache: DType = DType.F32
    batch: int = 2
    time: int = 5
    tokens: int = 7


@dataclass
class Builder:
    """Adds inputs and nodes by name; types come from the operators' rules."""

    name: str
    inputs: list[GraphInput] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)

    def value(
        self, name: str, shape: Sequence[Extent], axes: str = "", dtype: DType = DType.F32, role: Role = Role.INPUT
    ) -> str:
        names = tuple("" if letter == "_" else letter for letter in axes) if axes else ("",) * len(shape)
        tensor = TensorType(tuple(shape), dtype, names)
        rows = shape[0] if shape else 0
        parts = (WeightPart(name, 0, rows),) if role is Role.WEIGHT and isinstance(rows, int) else ()
        self.inputs.append(GraphInput(Value(name, tensor), role, parts=parts))
        self.types[name] = tensor
        return name

    def weight(self, name: str, shape: Sequence[int], axes: str = "", dtype: DType = DType.F32) -> str:
        return self.value(name, shape, axes, dtype, Role.WEIGHT)

    def constant(self, name: str, data: Array) -> str:
        tensor = TensorType(data.shape, DType.of(data.dtype))
        self.inputs.append(GraphInput(Value(name, tensor), Role.CONSTANT, data=data))
        self.types[name] = tensor
        return name

    def add(self, op: str, operands: Sequence[str | None], names: str | Sequence[str], **attrs: Attr) -> str:
        """Adds a node; returns the name of its first result."""
        full = OP[op].attributes(attrs)
        kept = list(operands)
        while kept and kept[-1] is None:
            kept.pop()
        types = OP[op].infer([None if name is None else self.types[name] for name in kept], full)
        results = [names] if isinstance(names, str) else list(names)
        values = tuple(Value(name, tensor) for name, tensor in zip(results, types, strict=True))
        self.nodes.append(Node(op, tuple(kept), values, Attributes(full)))
        self.types.update((value.name, value.type) for value in values)
        return values[0].name

    def graph(self, outputs: Sequence[str], extents: tuple[tuple[str, str], ...] = ()) -> Graph:
        return Graph(self.name, tuple(self.inputs), tuple(self.nodes), tuple(outputs), extents)


def decoder(config: Config) -> Graph:
    """A decoder as the frontend traces it: nothing fused, float32 activations."""
    b = Builder("step" if config.packed else "forward")
    c = config
    if c.packed:
        leading: tuple[int, ...] = (c.tokens,)
        axes = "N"
        ids = b.value("input_ids", leading, axes, DType.I32)
        for name in ("row_of_token", "position"):
            b.value(name, leading, axes, DType.I32)
        b.value("block_table", (c.batch, 2), "RW", DType.I32)
        b.value("length", (c.batch,), "R", DType.I32)
        b.value("last", (c.batch,), "R", DType.I32)
        b.value("token_count", (1,), dtype=DType.I32)
        b.value("row_count", (1,), dtype=DType.I32)
        for layer in range(c.layers):
            for cache in ("k_cache", "v_cache"):
                b.value(f"{cache}.{layer}", (2 * c.batch, c.kv_heads, 4, c.width), "PGSD", c.cache, Role.STATE)
    else:
        leading, axes = (c.batch, c.time), "BT"
        ids = b.value("input_ids", leading, axes, DType.I32)
        b.value("position", leading, axes, DType.I32)
        b.value("last", (c.batch,), "B", DType.I32)
    frequency = b.constant("inverse_frequency", (10.0 ** -np.arange(c.width // 2, dtype=np.float32)).astype(np.float32))
    embed = b.weight("embed.weight", (c.vocabulary, c.hidden), "VC", c.matrix)
    cos = b.add("rotary_table", ("position", frequency), ("cos", "sin"))
    x = b.add("embedding", (ids, embed), "hidden", axis="C")
    for layer in range(c.layers):
        x = _layer(b, c, layer, x, cos, axes)
    gain = b.weight("norm.weight", (c.hidden,), "C")
    x = b.add("rms_norm", (x, gain), "final_norm", eps=1e-5)
    x = b.add("gather_rows", (x, "last"), "last_hidden")
    head = embed if c.tied else b.weight("head.weight", (c.vocabulary, c.hidden), "VC", c.matrix)
    logits = b.add("linear", (x, head), "logits", axis="V")
    return b.graph((logits,), (("N", "token_count"), ("R", "row_count")) if c.packed else ())


def _layer(b: Builder, c: Config, layer: int, x: str, cos: str, axes: str) -> str:
    p = f"layers.{layer}"
    heads, kv = c.heads * c.width, c.kv_heads * c.width

    def project(
        name: str, source: str, rows: int, columns: int, axis: str = "", dtype: DType | None = None, bias: bool = False
    ) -> str:
        row_axis, column_axis = axis or "_", b.types[source].axes[-1] or "_"
        weight = b.weight(f"{p}.{name}.weight", (rows, columns), row_axis + column_axis, dtype or c.matrix)
        vector = b.weight(f"{p}.{name}.bias", (rows,)) if bias else None
        return b.add("linear", (source, weight, vector), f"{p}.{name}", axis=axis)

    def split(source: str, count: int, axis: str) -> str:
        shape = (*(0 for _ in axes), count, c.width)
        return b.add("reshape", (source,), f"{source}.heads", shape=shape, axes=f"{axes}{axis}D")

    norm = b.add("rms_norm", (x, b.weight(f"{p}.attn_norm.weight", (c.hidden,), "C")), f"{p}.attn_norm", eps=1e-5)
    q = split(project("q_proj", norm, heads, c.hidden, dtype=c.query, bias=c.bias), c.heads, "H")
    k = split(project("k_proj", norm, kv, c.hidden, bias=c.bias), c.kv_heads, "G")
    v = split(project("v_proj", norm, kv, c.hidden, bias=c.bias), c.kv_heads, "G")
    q = b.add("rope_split_half", (q, cos, "sin"), f"{p}.q_rotated")
    k = b.add("rope_split_half", (k, cos, "sin"), f"{p}.k_rotated")
    scale = c.width**-0.5
    if c.packed:
        where = ("row_of_token", "position", "block_table")
        stored = (f"{p}.k_stored", f"{p}.v_stored")
        b.add("kv_store", (k, v, *where, f"k_cache.{layer}", f"v_cache.{layer}"), stored)
        a = b.add("attention_packed", (q, *stored, *where, "length"), f"{p}.attention", scale=scale)
    else:
        a = b.add("attention_causal", (q, k, v), f"{p}.attention", scale=scale)
    a = b.add("reshape", (a,), f"{p}.attention.flat", shape=(*(0 for _ in axes), -1), axes=f"{axes}_")
    x = b.add("add", (x, project("o_proj", a, c.hidden, heads, "C")), f"{p}.residual")
    norm = b.add("rms_norm", (x, b.weight(f"{p}.mlp_norm.weight", (c.hidden,), "C")), f"{p}.mlp_norm", eps=1e-5)
    gate, up = project("gate_proj", norm, c.ffn, c.hidden, "F"), project("up_proj", norm, c.ffn, c.hidden, "F")
    active = b.add("swiglu", (gate, up), f"{p}.swiglu")
    return b.add("add", (x, project("down_proj", active, c.hidden, c.ffn, "C")), f"{p}.output")


def input_values(config: Config, rng: np.random.Generator) -> dict[str, Array]:
    """Values of the inputs and states of `decoder(config)`: two ragged rows when packed, the second one longer."""
    c = config
    if not c.packed:
        return {
            "input_ids": rng.integers(0, c.vocabulary, (c.batch, c.time), dtype=np.int32),
            "position": np.tile(np.arange(c.time, dtype=np.int32), (c.batch, 1)),
            "last": np.arange(1, c.batch + 1, dtype=np.int32) * c.time - 1,
        }
    assert (c.batch, c.tokens) == (2, 7), "the values below are for these sizes"
    values: dict[str, Array] = {
        "input_ids": rng.integers(0, c.vocabulary, 7, dtype=np.int32),
        "row_of_token": np.array([0, 0, 1, 1, 1, -1, -1], np.int32),
        "position": np.array([0, 1, 2, 3, 4, 0, 0], np.int32),
        "block_table": np.array([[3, 0], [1, 2]], np.int32),
        "length": np.array([2, 5], np.int32),
        "last": np.array([1, 4], np.int32),
        "token_count": np.array([5], np.int32),
        "row_count": np.array([2], np.int32),
    }
    for layer in range(c.layers):
        for cache in ("k_cache", "v_cache"):
            values[f"{cache}.{layer}"] = rng.normal(size=(4, c.kv_heads, 4, c.width)).astype(c.cache.numpy)
    return values


def tensors(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    """A checkpoint for the weights of an unfused graph, by tensor name: float32, or the raw rows of block weights."""
    found: dict[str, Array] = {}
    for item in graph.with_role(Role.WEIGHT):
        shape, dtype = item.value.type.static_shape, item.value.type.dtype
        if dtype is DType.Q8_0:
            blocks = rng.integers(-127, 128, (shape[0], shape[1] // 32, 34), dtype=np.int8).view(np.uint8)
            blocks[..., :2] = np.frombuffer(np.float16(0.003).tobytes(), np.uint8)
            found[item.value.name] = blocks.reshape(shape[0], -1)
        else:
            found[item.value.name] = rng.normal(size=shape, scale=0.2).astype(np.float32) + (
                1.0 if len(shape) == 1 else 0.0
            )
    return found


def run(graph: Graph, values: Mapping[str, Array], checkpoint: Mapping[str, Array]) -> Interpretation:
    """The reference interpreter over a graph at any phase; weights are put together from their parts."""
    weights: dict[str, Array] = {}
    for item in graph.with_role(Role.WEIGHT):
        joined = np.concatenate([checkpoint[part.tensor][part.start : part.stop] for part in item.parts])
        dtype = item.value.type.dtype
        weights[item.value.name] = joined if dtype.is_block else joined.astype(dtype.numpy)
    return interpret(graph, {**values, **weights})
