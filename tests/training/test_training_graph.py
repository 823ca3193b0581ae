"""The graph of a whole step: parameters and mirrors, who is trained, where the optimizer stands, and the order of micro-batches and pieces of the head."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ostinato.frontend.model import Model, load
from ostinato.frontend.training import TrainingShape, trace_training
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, ShapeError
from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.interp import interpret
from ostinato.ir.types import DType
from ostinato.ir.verify import verify
from ostinato.passes.training_graph import Updates, training_graph
from ostinato.passes.training_order import in_training_order
from ostinato.training import Recipe, plan_training, trace_training_step
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return made(tmp_path_factory.mktemp("llama"), "llama")


def made(folder: Path, family: str, dtype: str = "f32") -> Model:
    config = small_config(family)
    tensors = random_model(config, seed=5)
    if dtype == "bf16":
        tensors = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    write_hf_checkpoint(folder, config, tensors)
    return load(folder)


def place(graph: Graph, name: str) -> int:
    return next(index for index, node in enumerate(graph.nodes) if any(v.name == name for v in node.results))


def named(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph.nodes if node.op == op]


def test_float32_parameters_are_their_own_masters_and_all_are_updated(model: Model) -> None:
    graph = trace_training(model, TrainingShape(2, 8), precision="f32")
    whole = training_graph(graph, Updates("adamw"))
    verify(whole.graph)
    tensors = {part.tensor for item in graph.with_role(Role.WEIGHT) for part in item.parts}
    weights = [item.value.name for item in whole.graph.with_role(Role.PARAMETER)]
    assert {part.tensor for item in whole.graph.with_role(Role.PARAMETER) for part in item.parts} == tensors
    assert dict(whole.masters) == {name: name for name in weights}
    assert whole.untouched == ()
    assert len(named(whole.graph, "adamw")) == len(weights)
    states = [item.value.name for item in whole.graph.with_role(Role.STATE)]
    assert states == ["step", *(f"{prefix}.{name}" for name in whole.gradients for prefix in ("first", "second"))]


def test_a_bf16_matrix_has_a_float32_master_of_the_same_parts_and_stays_what_is_read(tmp_path: Path) -> None:
    model = made(tmp_path, "llama", "bf16")
    whole = training_graph(trace_training(model, TrainingShape(2, 8)), Updates("adamw", DType.BF16))
    verify(whole.graph)
    inputs = whole.graph.inputs_by_name
    name = "model.layers.0.mlp.down_proj.weight"
    assert whole.masters[name] == f"master.{name}"
    assert (inputs[name].value.type.dtype, inputs[f"master.{name}"].value.type.dtype) == (DType.BF16, DType.F32)
    assert inputs[name].parts == inputs[f"master.{name}"].parts
    assert inputs[f"first.{name}"].value.type.dtype is DType.BF16
    assert whole.graph.types[whole.gradients[name]].dtype is DType.F32
    (update,) = [node for node in named(whole.graph, "adamw") if node.name == f"master.{name}.next"]
    assert update.operands[-1] == name, "the mirror is rewritten in the same launch"
    assert whole.masters["model.norm.weight"] == "model.norm.weight", "vectors are read as float32"


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_projections_of_one_input_are_one_product_forward_and_two_backward(model: Model, micro_batches: int) -> None:
    graph = trace_training_step(model, Recipe(TrainingShape(2, 8, micro_batches))).parts.graph
    layers = model.config.num_layers
    assert len(named(graph, "linear")) == micro_batches * (4 * layers + 1)
    assert len(named(graph, "matmul")) == micro_batches * 2 * (4 * layers + 1)
    assert not named(graph, "linear_split")
    joined = graph.inputs_by_name["model.layers.0.self_attn.q_proj_k_proj_v_proj.weight"]
    assert [part.tensor.split(".")[-2] for part in joined.parts] == ["q_proj", "k_proj", "v_proj"]


def test_projections_stay_apart_where_one_is_frozen_or_somebody_wants_each_gradient(model: Model) -> None:
    shape = TrainingShape(1, 8)
    single = trace_training_step(model, Recipe(shape, keep_gradients=True)).parts
    assert {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"} <= set(single.gradients)
    frozen = trace_training_step(model, Recipe(shape, frozen=("*.k_proj.*",))).parts
    assert "model.layers.0.self_attn.q_proj_v_proj.weight" in frozen.gradients
    assert "model.layers.0.mlp.gate_proj_up_proj.weight" in frozen.gradients


def test_frozen_weights_stay_weights_without_gradient_or_state(model: Model) -> None:
    whole = trace_training_step(model, Recipe(TrainingShape(1, 8), frozen=("model.embed*", "*norm.weight"))).parts
    frozen = {item.value.name for item in whole.graph.with_role(Role.WEIGHT)}
    assert frozen >= {"model.embed_tokens.weight", "model.norm.weight"}
    assert not frozen & set(whole.gradients)
    assert not named(whole.graph, "embedding_backward")
    with pytest.raises(ConfigError, match="no weight is called like encoder"):
        trace_training_step(model, Recipe(TrainingShape(1, 8), frozen=("encoder.*",)))


def test_vectors_do_not_decay_and_matrices_do(model: Model) -> None:
    whole = trace_training_step(model, Recipe(TrainingShape(1, 8))).parts
    for node in named(whole.graph, "adamw"):
        assert node.attrs["decay"] == (node.results[0].type.rank == 2)


def test_an_update_stands_as_soon_as_its_gradient_is_there_and_nobody_reads_the_parameter_any_more(
    model: Model,
) -> None:
    graph = trace_training_step(model, Recipe(TrainingShape(2, 8))).parts.graph
    for node in named(graph, "adamw"):
        parameter, gradient = node.operands[0], node.operands[1]
        assert parameter is not None
        assert gradient is not None
        readers = [place(graph, other.name) for other in graph.users[parameter] if other is not node]
        assert place(graph, node.name) > max(readers)
        assert place(graph, node.name) > place(graph, gradient)
    last_layer = place(graph, "model.layers.1.mlp.down_proj.weight.next")
    assert last_layer < place(graph, "grad.model.layers.0.mlp.down_proj.weight"), "gradients die early"


def test_clipping_waits_for_all_gradients(model: Model) -> None:
    graph = in_training_order(
        training_graph(trace_training(model, TrainingShape(2, 8)), Updates("adamw", clip=True)).graph
    )
    verify(graph)
    (factors,) = named(graph, "optimizer_factors")
    assert len(factors.operands) == 4
    assert all(place(graph, node.name) > place(graph, factors.name) for node in named(graph, "adamw"))


def test_micro_batches_go_forward_and_backward_one_after_another(model: Model) -> None:
    graph = trace_training_step(model, Recipe(TrainingShape(4, 8, micro_batches=2))).parts.graph
    verify(graph)
    at = {
        (number, backward): [
            index
            for index, node in enumerate(graph.nodes)
            if f"micro{number}." in node.name and node.name.startswith("d.") == backward
        ]
        for number in (0, 1)
        for backward in (False, True)
    }
    assert max(at[1, True]) < min(at[0, False]), "the first one starts when the other is done"
    assert max(at[1, False]) < min(at[1, True])


def test_micro_batches_need_less_memory_and_pieces_of_the_head_too(model: Model) -> None:
    def arena(shape: TrainingShape) -> int:
        return plan_training(model, Recipe(shape)).planned.plan.stats.arena_bytes

    whole = arena(TrainingShape(8, 16))
    assert arena(TrainingShape(8, 16, micro_batches=4)) < 0.7 * whole
    assert arena(TrainingShape(8, 16, chunks=4)) < whole


def test_every_dropout_has_a_place_of_its_own(model: Model) -> None:
    graph = trace_training(model, TrainingShape(2, 8), dropout=0.1)
    dropped = named(graph, "dropout")
    assert len(dropped) == 1 + 2 * model.config.num_layers
    assert len({node.attrs["place"] for node in dropped}) == len(dropped)
    assert {"seed", "counter"} <= set(graph.inputs_by_name)


@pytest.mark.parametrize(
    ("error", "numbers"),
    [(ShapeError, (3, 8, 2)), (ConfigError, (0, 8)), (BoundsError, (1, 8, 1, 9)), (ConfigError, (1, 0))],
)
def test_shapes_that_no_step_has_are_refused(error: type[Exception], numbers: tuple[int, ...]) -> None:
    with pytest.raises(error):
        TrainingShape(*numbers)


def test_what_cannot_be_trained_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(BoundsError, match="positions"):
        trace_training(model, TrainingShape(1, model.config.context_limit + 1))
    with pytest.raises(ConfigError, match="dropout"):
        trace_training(model, TrainingShape(1, 8), dropout=1.0)
    with pytest.raises(DTypeError, match="cannot be trained"):
        training_graph(trace_training(load("smollm2"), TrainingShape(1, 8)), Updates("sgd"))


def test_the_loss_is_that_of_the_whole_batch_whatever_way_it_is_shared_out(model: Model) -> None:
    seed = 3
    print("seed", seed)
    rng = np.random.default_rng(seed)
    ids, target = (rng.integers(0, model.config.vocab_size, (4, 8)).astype(np.int32) for _ in range(2))
    target[0, :5] = -100
    found = []
    for shape in (TrainingShape(4, 8), TrainingShape(4, 8, 2, 3), TrainingShape(4, 8, 4, 8)):
        graph = trace_training(model, shape, precision="f32")
        values = {"input_ids": ids, "target": target}
        for item in graph.with_role(Role.WEIGHT):
            (part,) = item.parts
            source = model.checkpoint.tensor(part.tensor)
            values[item.value.name] = model.checkpoint.map(part.tensor).view(source.dtype.numpy).reshape(source.shape)
        found.append(float(interpret(graph, values).outputs["loss"]))
    assert found[1:] == pytest.approx([found[0]] * 2, rel=1e-6)
