"""Tracing: names, scopes, locations, errors that point at model code, and what a traced model looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.model import trace_forward, trace_step
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.graph import Role
from ostinato.ir.text import parse_graph, print_graph
from ostinato.ir.types import DType, TensorType
from ostinato.ir.verify import verify
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint


def builder_with(*shapes: tuple[int, ...]) -> tuple[GraphBuilder, list[Any]]:
    builder = GraphBuilder("test")
    return builder, [builder.input(f"x{i}", TensorType(shape, DType.F32)) for i, shape in enumerate(shapes)]


def test_names_follow_scopes_and_stay_unique() -> None:
    builder, (x,) = builder_with((2, 4))
    with builder.scope("layers.0"):
        a = x + x
        with builder.scope("attn"):
            b = a * x
        c = a + b
    graph = builder.finish([c])
    assert [node.name for node in graph.nodes] == ["layers.0.add", "layers.0.attn.mul", "layers.0.add_1"]
    verify(graph)


def test_a_name_that_looks_like_a_suffix_does_not_collide() -> None:
    builder, (x,) = builder_with((2, 2))
    names = [builder.apply("add", (x, x), name=name).name for name in ("y", "y_1", "y", "y", "y_1")]
    assert len(set(names)) == 5


def test_every_node_knows_the_line_of_user_code() -> None:
    builder, (x,) = builder_with((2, 4))
    y = x + x
    location = builder.finish([y]).nodes[0].location
    assert location is not None
    assert location.file.endswith("test_trace.py")
    assert "y = x + x" in Path(__file__).read_text().splitlines()[location.line - 1]


def test_an_illegal_operand_is_an_error_at_the_line_that_made_it() -> None:
    _, (x, y) = builder_with((2, 4), (2, 5))
    with pytest.raises(
        ost.ShapeError,
        match=r"in add\(Tensor\(%x0: f32\[2,4\]\), Tensor\(%x1: f32\[2,5\]\)\)\n  at .*test_trace.py:\d+",
    ):
        x + y


def test_a_tensor_has_no_truth_value_while_tracing() -> None:
    _, (x,) = builder_with((1,))
    with pytest.raises(ost.LifecycleError, match="not known while tracing"):
        bool(x)


def test_tensors_of_two_graphs_do_not_mix() -> None:
    (_, (x,)), (_, (y,)) = builder_with((1,)), builder_with((1,))
    with pytest.raises(ost.LifecycleError, match="belongs to another graph"):
        x + y


def test_an_operator_that_there_is_not_and_operands_that_are_none_are_refused_with_the_line() -> None:
    builder, (x,) = builder_with((2, 3))
    with pytest.raises(ost.ConfigError, match=r"no operator 'nope'\n  at .*test_trace.py"):
        builder.apply("nope", (x,))
    with pytest.raises(ost.ConfigError, match=r"add is given 1, expected tensors of the graph\n  at .*test_trace.py"):
        builder.apply("add", (x, 1))  # type: ignore[arg-type]
    assert builder.finish([x]).nodes == ()


def test_a_finished_builder_takes_nothing_more() -> None:
    builder, (x,) = builder_with((1,))
    builder.finish([x])
    with pytest.raises(ost.LifecycleError, match="is finished"):
        builder.apply("add", (x, x))


def test_a_chain_of_20000_operators_traces_verifies_and_prints() -> None:
    builder, (x,) = builder_with((2,))
    y = x
    for _ in range(20_000):
        y = F.swiglu(y, x)
    graph = builder.finish([y])
    assert len(graph.nodes) == 20_000
    verify(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    folder = tmp_path_factory.mktemp(request.param)
    config = small_config(request.param, tie_word_embeddings=True)
    write_hf_checkpoint(folder, config, random_model(config, 1))
    return ost.load(str(folder))


def test_both_entries_verify_and_round_trip(model: ost.Model) -> None:
    for graph in (
        trace_forward(model),
        trace_forward(model, logits="all"),
        trace_step(model, ost.CacheShape(2, 16, 1), sampling=True),
    ):
        verify(graph)
        assert parse_graph(print_graph(graph)) == graph


def test_a_tied_head_is_one_weight_with_two_readers(model: ost.Model) -> None:
    graph = trace_forward(model)
    readers = [node.op for node in graph.users["model.embed_tokens.weight"]]
    assert readers == ["embedding", "linear"]
    assert len([item for item in graph.with_role(Role.WEIGHT) if "embed" in item.value.name]) == 1


def test_bf16_precision_changes_matrices_and_cache_only(model: ost.Model) -> None:
    graph = trace_step(model, ost.CacheShape(1, 16, 1), precision="bf16")
    for item in graph.inputs:
        if item.role is Role.WEIGHT:
            assert item.value.type.dtype is (DType.BF16 if item.value.type.rank == 2 else DType.F32)
        if item.role is Role.STATE:
            assert item.value.type.dtype is DType.BF16


def test_a_dense_forward_equals_the_packed_one(model: ost.Model, rng: np.random.Generator) -> None:
    ids = rng.integers(0, 96, (2, 6), dtype=np.int32)
    packed = ost.compile(model, buckets={"B": [2], "T": [6]}, context=16)(input_ids=ids)["logits"]
    dense = ost.trace(model).lower(dims={"B": 2, "T": 6}).plan().load()
    inputs = {
        "input_ids": ids,
        "position": np.tile(np.arange(6, dtype=np.int32), (2, 1)),
        "last": np.array([5, 11], np.int32),
    }
    np.testing.assert_allclose(dense.run(None, inputs)["logits"], packed, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"drop": "model.norm.weight"}, ost.WeightsError, "the checkpoint does not have it"),
        ({"add": "model.layers.0.self_attn.q_norm.weight"}, ost.WeightsError, "1 tensors that llama does not use"),
        ({"reshape": "model.layers.1.mlp.up_proj.weight"}, ost.WeightsError, "expected shape"),
    ],
)
def test_weights_must_fit_the_family_exactly(
    change: dict[str, str], error: type[Exception], text: str, tmp_path: Path
) -> None:
    config = small_config("llama")
    tensors = random_model(config, 1)
    (kind, name), *_ = change.items()
    if kind == "drop":
        del tensors[name]
    elif kind == "add":
        tensors[name] = np.ones(16, np.float32)
    else:
        tensors[name] = tensors[name][:-1]
    write_hf_checkpoint(tmp_path, config, tensors)
    with pytest.raises(error, match=text):
        ost.trace(str(tmp_path))
