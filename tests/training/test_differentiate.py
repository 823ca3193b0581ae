"""Reverse-mode differentiation as a pass: what it adds, what it leaves alone, what goes in place, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Graph
from ostinato.ir.interp import interpret
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.verify import verify
from ostinato.passes.differentiate import differentiate


def start() -> tuple[GraphBuilder, Tensor, Tensor]:
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType((3, 4), DType.F32))
    return builder, x, builder.input("w", TensorType((5, 4), DType.F32))


def gradients(graph: Graph, loss: str, names: list[str], values: dict[str, Array]) -> dict[str, Array]:
    found = differentiate(graph, loss, names)
    verify(found.graph)
    made = Graph(found.graph.name, found.graph.inputs, found.graph.nodes, tuple(found.gradients.values()))
    unread = {"w": np.zeros((5, 4), np.float32)}
    outputs = interpret(made, {**unread, **values}).outputs
    return {name: outputs[gradient] for name, gradient in found.gradients.items()}


def drawn(seed: int, *shape: int) -> Array:
    print("seed", seed)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_weight_used_three_times_is_written_once_and_added_to_in_place_twice() -> None:
    builder, x, w = start()
    y = F.linear(x, w) + F.linear(F.scale(x, 2.0), w) + F.linear(F.scale(x, -0.5), w)
    graph = builder.finish((F.reduce_sum(y, name="loss"),))
    found = differentiate(graph, "loss", ["w"])
    assert (found.added, found.in_place) == (2, 2)
    assert [node.op for node in found.graph.nodes].count("accumulate") == 2
    assert found.gradients == {"w": "grad.w"}
    at = {"x": drawn(1, 3, 4), "w": drawn(2, 5, 4)}
    expected = np.broadcast_to(2.5 * at["x"].sum(0), (5, 4))
    np.testing.assert_allclose(gradients(graph, "loss", ["w"], at)["w"], expected, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_two_values_share_is_never_overwritten() -> None:
    builder, x, _ = start()
    y = F.scale(x, 3.0, name="y")
    total = y + y  # one gradient is handed to both operands as it is
    graph = builder.finish((F.reduce_sum(total * y, name="loss"),))
    found = differentiate(graph, "loss", ["x"])
    verify(found.graph)
    at = {"x": drawn(3, 3, 4)}
    np.testing.assert_allclose(gradients(graph, "loss", ["x"], at)["x"], 36.0 * at["x"], rtol=1e-5)


def test_forward_nodes_and_outputs_stay_and_gradients_know_the_line() -> None:
    builder, x, w = start()
    graph = builder.finish((F.reduce_sum(F.linear(x, w, name="y"), name="loss"),))
    found = differentiate(graph, "loss", ["w"])
    assert found.graph.nodes[: len(graph.nodes)] == graph.nodes
    assert found.graph.outputs == ("loss",)
    lines = {node.location for node in found.graph.nodes if node.name == "grad.w"}
    assert lines == {node.location for node in graph.nodes if node.name == "y"}


def test_what_does_not_lead_to_a_wanted_value_costs_nothing() -> None:
    builder, x, w = start()
    y = F.linear(F.tanh(x), w)
    graph = builder.finish((F.reduce_sum(y, name="loss"),))
    found = differentiate(graph, "loss", ["w"])
    added = [node.op for node in found.graph.nodes[len(graph.nodes) :] if not OP[node.op].is_view]
    assert "tanh_backward" not in added
    assert added.count("matmul") == 1, "nobody wants the gradient of x"


def test_a_value_the_loss_does_not_depend_on_has_no_gradient() -> None:
    builder, x, w = start()
    graph = builder.finish((F.reduce_sum(x, name="loss"), w))
    found = differentiate(graph, "loss", ["w"])
    assert found.gradients == {}
    assert found.graph.nodes == graph.nodes


def test_both_results_of_a_fused_norm_meet_at_the_sum() -> None:
    builder, x, _ = start()
    gain = builder.input("gain", TensorType((4,), DType.F32))
    total, normed = builder.apply_many("add_rms_norm", (x, F.scale(x, 0.5), gain), {"eps": 1e-5}, ("total", "normed"))
    graph = builder.finish((F.reduce_sum(total * normed, name="loss"),))
    at = {"x": drawn(4, 3, 4), "gain": drawn(5, 4)}
    found = gradients(graph, "loss", ["x", "gain"], at)

    def loss(values: Array) -> float:
        summed = 1.5 * values.astype(np.float64)
        normed = summed / np.sqrt(np.mean(summed**2, -1, keepdims=True) + 1e-5) * at["gain"]
        return float(np.sum(summed * normed))

    for index in np.ndindex(3, 4):
        up, down = at["x"].astype(np.float64).copy(), at["x"].astype(np.float64).copy()
        up[index] += 1e-5
        down[index] -= 1e-5
        assert found["x"][index] == pytest.approx((loss(up) - loss(down)) / 2e-5, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("loss", "names", "said"),
    [
        ("nothing", ["w"], "no value %nothing"),
        ("y", ["w"], "float32 scalar"),
        ("loss", ["missing"], "no value %missing"),
        ("loss", ["ids"], "has no gradient"),
    ],
)
def test_what_cannot_be_differentiated_is_refused_by_name(loss: str, names: list[str], said: str) -> None:
    builder, x, w = start()
    ids = builder.input("ids", TensorType((2,), DType.I32))
    graph = builder.finish((F.reduce_sum(F.gather_rows(F.linear(x, w, name="y"), ids), name="loss"),))
    with pytest.raises(ConfigError, match=said):
        differentiate(graph, loss, names)


def test_an_operator_without_a_derivative_is_named_with_its_line_and_why() -> None:
    builder = GraphBuilder("g")
    logits = builder.input("logits", TensorType((2, 8), DType.F32))
    tokens = builder.input("tokens", TensorType((2, 1), DType.I32))
    bias = builder.input("bias", TensorType((2, 1), DType.F32))
    pairs = builder.input("pairs", TensorType((2,), DType.I32))
    graph = builder.finish((F.reduce_sum(F.add_at_tokens(logits, tokens, bias, pairs), name="loss"),))
    with pytest.raises(ConfigError, match=r"add_at_tokens has no derivative: .*test_differentiate\.py"):
        differentiate(graph, "loss", ["logits"])
