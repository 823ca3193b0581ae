"""The reference interpreter: rounding at the edges, state, counted rows, memory, and what it refuses."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.ir.errors import BackendError, BoundsError, DTypeError, InputError, OstinatoError, ShapeError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value
from ostinato.ir.interp import interpret
from ostinato.ir.opdef import Attr, OpDef
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import random_blocks
from ostinato.ir.rounding import round_to
from ostinato.ir.text import parse_graph
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.verify import verify

BF16 = np.dtype(ml_dtypes.bfloat16)


def test_bf16_is_widened_before_and_rounded_once_after_a_reference(rng: np.random.Generator) -> None:
    graph = parse_graph(
        """graph @g {
  input %x: bf16[3,64]
  weight %w: bf16[5,64]
  %y: bf16[3,5] = linear(%x, %w)
  %z: f32[3,5] = linear(%x, %w) {dtype="f32"}
  return %y, %z
}"""
    )
    verify(graph)
    x, w = (rng.standard_normal(shape).astype(BF16) for shape in ((3, 64), (5, 64)))
    outputs = interpret(graph, {"x": x, "w": w}).outputs
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert outputs["y"].dtype == BF16
    np.testing.assert_array_equal(outputs["y"], round_to(exact, DType.BF16))
    np.testing.assert_allclose(outputs["z"], exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.is_block])
def test_block_weights_as_raw_rows_or_as_float32(dtype: DType, rng: np.random.Generator) -> None:
    columns = 2 * dtype.block_elements
    graph = parse_graph(
        f"graph @g {{\n  input %x: f32[3,{columns}]\n  weight %w: {dtype.value}[5,{columns}]@panel32\n  %y: f32[3,5] = linear(%x, %w)\n  return %y\n}}"
    )
    verify(graph)
    raw = random_blocks((5, columns), dtype, rng)
    plain = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[dtype.value.upper()])
    x = rng.standard_normal((3, columns)).astype(np.float32)
    widened: dict[str, Array] = {}
    y = interpret(graph, {"x": x, "w": raw}, widened=widened).outputs["y"]
    np.testing.assert_allclose(y, x.astype(np.float64) @ plain.astype(np.float64).T, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(widened["w"], plain)
    np.testing.assert_array_equal(y, interpret(graph, {"x": x, "w": plain}).outputs["y"])


def test_weights_are_widened_once_for_many_runs(rng: np.random.Generator) -> None:
    graph = parse_graph(
        "graph @g {\n  input %x: f32[1,8]\n  weight %w: f16[4,8]\n  %y: f32[1,4] = linear(%x, %w)\n  return %y\n}"
    )
    values: dict[str, Array] = {
        "x": rng.standard_normal((1, 8)).astype(np.float32),
        "w": rng.standard_normal((4, 8)).astype(np.float16),
    }
    widened: dict[str, Array] = {}
    first = interpret(graph, values, widened=widened).outputs["y"]
    kept = widened["w"]
    np.testing.assert_array_equal(interpret(graph, values, widened=widened).outputs["y"], first)
    assert widened["w"] is kept
    widened["w"] = kept[:2]
    with pytest.raises(ShapeError, match="widened weight"):
        interpret(graph, values, widened=widened)


STEP = """graph @step {
  input %k: f32[N:4,G:1,D:2]
  input %row: i32[N:4]
  input %position: i32[N:4]
  input %table: i32[R:2,W:1]
  input %count: i32[1]
  state %kc: f16[P:2,G:1,S:4,D:2]
  state %vc: f16[P:2,G:1,S:4,D:2]
  constant %two: f32[N:4,G:1,D:2] = hex:DATA
  extent N = %count
  %v: f32[N:4,G:1,D:2] = mul(%k, %two)
  %k1: f16[P:2,G:1,S:4,D:2], %v1: f16[P:2,G:1,S:4,D:2] = kv_store(%k, %v, %row, %position, %table, %kc, %vc)
  %y: f16[P:2,G:1,S:4,D:2] = silu(%v1)
  return %v, %y
}""".replace("DATA", np.full(8, 2, np.float32).tobytes().hex())


def step_values(rng: np.random.Generator, count: int) -> dict[str, Array]:
    return {
        "k": rng.standard_normal((4, 1, 2)).astype(np.float32),
        "row": np.array([0, 0, 1, 1], np.int32),
        "position": np.array([0, 1, 0, 3], np.int32),
        "table": np.array([[1], [0]], np.int32),
        "count": np.array([count], np.int32),
        "kc": np.zeros((2, 1, 4, 2), np.float16),
        "vc": np.zeros((2, 1, 4, 2), np.float16),
    }


def test_state_comes_back_by_input_name_and_the_caller_keeps_his_arrays(rng: np.random.Generator) -> None:
    graph = parse_graph(STEP)
    verify(graph)
    values = step_values(rng, 4)
    found = interpret(graph, values)
    k = values["k"].astype(np.float16)[:, 0]
    assert not values["kc"].any()
    assert list(found.state) == ["kc", "vc"]
    for row, position, token in ((1, 0, 0), (1, 1, 1), (0, 0, 2), (0, 3, 3)):
        np.testing.assert_array_equal(found.state["kc"][row, 0, position], k[token])
        np.testing.assert_array_equal(
            found.state["vc"][row, 0, position], (values["k"] * 2).astype(np.float16)[token, 0]
        )
    again = interpret(graph, {**values, **found.state})
    np.testing.assert_array_equal(again.state["kc"], found.state["kc"])


ADVANCE = """graph @advance {
  input %token: i32[R:3]
  carried input %ids: i32[N:3]
  carried input %position: i32[N:3]
  carried input %length: i32[R:3]
  carried input %index: i32[R:3]
  carried input %history: i32[R:3,4]
  carried input %seen: i32[R:3]
  input %rows: i32[1]
  extent R = %rows
  RESULTS = advance(%token, %ids, %position, %length, %index, %history, %seen) {context=4}
  return %b
}""".replace("RESULTS", "%a: i32[N:3], %b: i32[N:3], %c: i32[R:3], %d: i32[R:3], %e: i32[R:3,4], %f: i32[R:3]")


def test_carried_inputs_come_back_by_name_with_what_lies_behind_the_valid_rows() -> None:
    graph = parse_graph(ADVANCE)
    verify(graph)
    values = {
        "token": [7, 8, 9],
        "ids": [1, 2, 3],
        "position": [0, 3, 1],
        "length": [1, 4, 2],
        "index": [5, 5, 5],
        "history": [[1, 0, 0, 0], [6, 6, 6, 2], [4, 3, 0, 0]],
        "seen": [1, 4, 2],
        "rows": [2],
    }
    found = interpret(graph, {name: np.array(value, np.int32) for name, value in values.items()})
    assert found.state == {}
    assert {name: array.tolist() for name, array in found.carried.items()} == {
        "ids": [7, 2, 3],
        "position": [1, 3, 1],
        "length": [2, 4, 2],
        "index": [6, 5, 5],
        "history": [[1, 7, 0, 0], [6, 6, 6, 2], [4, 3, 0, 0]],
        "seen": [2, 4, 2],
    }
    assert found.outputs["b"].tolist() == [1, 3, 1]


def test_rows_past_the_count_do_nothing_whatever_they_hold(rng: np.random.Generator) -> None:
    graph = parse_graph(STEP)
    values = step_values(rng, 2)
    clean = interpret(graph, values)
    poisoned = {**values, "k": values["k"].copy(), "row": values["row"].copy(), "position": values["position"].copy()}
    poisoned["k"][2:] = np.nan
    poisoned["row"][2:] = 10_000
    poisoned["position"][2:] = -7
    found = interpret(graph, poisoned)
    for name in ("kc", "vc"):
        np.testing.assert_array_equal(found.state[name], clean.state[name])
    np.testing.assert_array_equal(found.outputs["v"], clean.outputs["v"])
    assert not found.outputs["v"][2:].any()
    assert found.outputs["v"][:2].all()
    assert not interpret(graph, {**poisoned, "count": np.array([0], np.int32)}).state["kc"].any()


@pytest.mark.parametrize("count", [-1, 5])
def test_counts_outside_their_axis_are_refused(count: int, rng: np.random.Generator) -> None:
    with pytest.raises(BoundsError, match=f"{count} rows of axis N"):
        interpret(parse_graph(STEP), step_values(rng, count))


SILU = parse_graph("graph @g {\n  input %x: f32[2,3]\n  %y: f32[2,3] = silu(%x)\n  return %y\n}")


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({}, InputError, "lacks values for ['x']"),
        ({"x": np.zeros((2, 3), np.float32), "z": np.zeros(1)}, InputError, "has no inputs ['z']"),
        ({"x": [[0.0] * 3] * 2}, InputError, "expected a numpy array, found list"),
        ({"x": np.zeros((2, 3), np.float64)}, DTypeError, "expected dtype float32, found float64"),
        ({"x": np.zeros((2, 3), ">f4")}, DTypeError, "expected dtype float32, found >f4"),
        ({"x": np.zeros((3, 2), np.float32)}, ShapeError, "expected shape [2, 3], found [3, 2]"),
    ],
)
def test_inputs_are_checked(values: Mapping[str, Array], kind: type[OstinatoError], message: str) -> None:
    with pytest.raises(kind) as caught:
        interpret(SILU, values)
    assert message in str(caught.value)


def test_raw_blocks_are_checked() -> None:
    graph = parse_graph(
        "graph @g {\n  input %i: i32[1]\n  weight %w: q8_0[2,32]\n  %y: f32[1,32] = embedding(%i, %w)\n  return %y\n}"
    )
    index = np.zeros(1, np.int32)
    assert interpret(graph, {"i": index, "w": np.zeros((2, 34), np.uint8)}).outputs["y"].shape == (1, 32)
    with pytest.raises(ShapeError, match=r"expected shape \[2, 34\], found \[2, 32\]"):
        interpret(graph, {"i": index, "w": np.zeros((2, 32), np.uint8)})
    with pytest.raises(DTypeError, match="expected dtype uint8"):
        interpret(graph, {"i": index, "w": np.zeros((2, 34), np.int8)})


def test_symbolic_graphs_are_refused() -> None:
    graph = parse_graph("graph @g(dims T in [1, 4]) {\n  input %x: f32[T:T]\n  %y: f32[T:T] = silu(%x)\n  return %y\n}")
    with pytest.raises(ShapeError, match="dimensions T of @g are not bound"):
        interpret(graph, {"x": np.zeros(2, np.float32)})
    assert interpret(graph.bind({"T": 2}), {"x": np.zeros(2, np.float32)}).outputs["y"].shape == (2,)


def test_a_chain_of_20000_nodes_keeps_few_values() -> None:
    x = TensorType((4,), DType.F32)
    nodes = [Node("add", (f"v{i}", "v0"), (Value(f"v{i + 1}", x),)) for i in range(20_000)]
    graph = Graph("chain", (GraphInput(Value("v0", x), Role.INPUT),), tuple(nodes), ("v20000",))
    alive, most = 0, 0

    def forget() -> None:
        nonlocal alive
        alive -= 1

    def observe(name: str, array: Array) -> None:
        nonlocal alive, most
        assert not array.flags.writeable
        weakref.finalize(array, forget)
        alive += 1
        most = max(most, alive)

    start = np.ones(4, np.float32)
    found = interpret(graph, {"v0": start}, observe=observe)
    np.testing.assert_array_equal(found.outputs["v20000"], np.full(4, 20_001, np.float32))
    assert most <= 3


def test_every_result_is_observed_in_program_order(rng: np.random.Generator) -> None:
    seen: list[str] = []
    interpret(parse_graph(STEP), step_values(rng, 3), observe=lambda name, array: seen.append(name))
    assert seen == ["v", "k1", "v1", "y"]


def test_inputs_can_be_outputs_and_unused() -> None:
    graph = parse_graph("graph @g {\n  input %x: f32[2]\n  state %s: f32[3]\n  return %x\n}")
    x, s = np.ones(2, np.float32), np.ones(3, np.float32)
    found = interpret(graph, {"x": x, "s": s})
    np.testing.assert_array_equal(found.outputs["x"], x)
    np.testing.assert_array_equal(found.state["s"], s)


Reference = tuple[Array, ...]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((np.zeros((3, 2), np.float32),), "of shape [3, 2]"),
        ((np.zeros((2, 3), np.int64),), "int64 values that f32[2,3] cannot hold"),
        ((), "gave 0 results, expected 1"),
        (None, "gave a value of NoneType, expected 1, in a tuple"),
        (np.zeros((2, 3), np.float32), "gave a value of ndarray, expected 1, in a tuple"),
    ],
)
def test_references_that_break_their_types_are_named(result: Any, message: str) -> None:
    def reference(operands: Sequence[Array | None], attrs: Mapping[str, Attr], types: Sequence[TensorType]) -> Any:
        return result

    broken: Mapping[str, OpDef] = {"silu": replace(OP["silu"], reference=reference)}
    with pytest.raises(BackendError) as caught:
        interpret(SILU, {"x": np.zeros((2, 3), np.float32)}, ops=broken)
    assert message in str(caught.value)


def test_integers_are_converted_only_where_they_fit() -> None:
    value = np.array([2**31], np.int64)

    def reference(
        operands: Sequence[Array | None], attrs: Mapping[str, Attr], types: Sequence[TensorType]
    ) -> Reference:
        return (value,)

    graph = Graph("g", (), (Node("silu", (), (Value("y", TensorType((1,), DType.I32)),), Attributes()),), ("y",))
    ops = {"silu": replace(OP["silu"], reference=reference)}
    with pytest.raises(BackendError, match="cannot hold"):
        interpret(graph, {}, ops=ops)
    value[0] = -(2**31)
    assert interpret(graph, {}, ops=ops).outputs["y"].dtype == np.int32


def test_references_cannot_change_their_operands() -> None:
    def reference(
        operands: Sequence[Array | None], attrs: Mapping[str, Attr], types: Sequence[TensorType]
    ) -> Reference:
        assert operands[0] is not None
        operands[0][0] = 1
        return (operands[0],)

    with pytest.raises(ValueError, match="read-only"):
        interpret(SILU, {"x": np.zeros((2, 3), np.float32)}, ops={"silu": replace(OP["silu"], reference=reference)})


@given(
    st.lists(st.floats(width=64, allow_nan=True), min_size=1, max_size=8),
    st.sampled_from([DType.BF16, DType.F16, DType.F32]),
)
def test_rounding_is_to_the_nearest_value_and_even_on_ties(values: list[float], dtype: DType) -> None:
    array = np.array(values, np.float64)
    check_nearest(array, dtype)
    # values a hair beside the middle between two neighbours, where rounding twice goes wrong
    with np.errstate(over="ignore", invalid="ignore"):
        low = array.astype(dtype.numpy).astype(np.float64)
        high = np.nextafter(array.astype(dtype.numpy), np.array(np.inf, dtype.numpy)).astype(np.float64)
        middle = low / 2 + high / 2
        check_nearest(np.concatenate([middle, np.nextafter(middle, -np.inf), np.nextafter(middle, np.inf)]), dtype)


def check_nearest(array: Array, dtype: DType) -> None:
    finite = array[np.isfinite(array)]
    rounded = round_to(finite, dtype)
    assert rounded.dtype == dtype.numpy
    kept = np.isfinite(rounded.astype(np.float64))
    finite, rounded = finite[kept], rounded[kept]
    for neighbour in (np.inf, -np.inf):
        other = np.nextafter(rounded, np.array(neighbour, dtype.numpy))
        here, there = np.abs(rounded.astype(np.float64) - finite), np.abs(other.astype(np.float64) - finite)
        assert (here <= there).all()
        even = rounded.view(np.uint16 if dtype is not DType.F32 else np.uint32) % 2 == 0
        assert (even | (here < there)).all()
