"""Repeated layers of training steps: backward comes in the opposite order, micro-batches go through the layers again, and an optimizer comes last."""

from __future__ import annotations

import pytest

from ostinato.frontend.fresh import new_model
from ostinato.frontend.model import Model
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.frontend.training import TrainingShape
from ostinato.ir.graph import Graph
from ostinato.ir.types import DType, TensorType
from ostinato.runtime.training.optimizer import AdamW
from ostinato.tools.view.repeats import Repeat, find_repeats
from ostinato.training import Recipe, trace_training_step

LAYERS = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = {"model_type": "qwen2", **sizes, "num_hidden_layers": LAYERS, "max_position_embeddings": 32}
    return new_model(tmp_path_factory.mktemp("deep") / "model", {**config, "tie_word_embeddings": True}, blank=True)


@pytest.mark.parametrize(
    ("micro_batches", "clip", "frames"),
    [(1, 0.0, 2), (1, 1.0, 4), (2, 1.0, 6)],
    ids=["forward and backward", "and the norm of gradients, and the optimizer", "and two micro-batches"],
)
def test_every_pass_over_the_layers_is_one_repeat(model: Model, micro_batches: int, clip: float, frames: int) -> None:
    recipe = Recipe(TrainingShape(2, 8, micro_batches), AdamW(clip_norm=clip))
    graph = trace_training_step(model, recipe).parts.graph
    repeats = [repeat for repeat in find_repeats(graph) if repeat.hidden > 2]
    assert [repeat.count for repeat in repeats] == [LAYERS] * frames
    outside = len(graph.nodes) - sum(repeat.count * repeat.period for repeat in repeats)
    assert outside < len(graph.nodes) / 20, "all of every layer is in a repeat"


def mirrored(order: list[int], layers: int = 6) -> Graph:
    """Layers that each save a value, and a second chain that reads the saved values in some order."""
    builder = GraphBuilder("mirrored")

    def apply(op: str, *values: Tensor) -> Tensor:
        return builder.apply(op, values, {})

    x = builder.input("x", TensorType((4,), DType.F32))
    saved = []
    for _ in range(layers):
        saved.append(apply("silu", x))
        x = apply("add", x, saved[-1])
    for layer in order:
        x = apply("mul", x, saved[layer])
        x = apply("tanh", x)
    return builder.finish((x,))


@pytest.mark.parametrize(
    "order", [list(range(6)), list(range(5, -1, -1))], ids=["the same order", "the opposite order"]
)
def test_a_repeat_may_read_another_one_layer_by_layer(order: list[int]) -> None:
    assert find_repeats(mirrored(order)) == (Repeat(0, 2, 6), Repeat(12, 2, 6))


def test_layers_read_in_any_other_order_are_no_repeat() -> None:
    assert find_repeats(mirrored([0, 3, 1, 5, 2, 4])) == (Repeat(0, 2, 6),)


def test_a_turn_in_the_order_splits_the_repeat() -> None:
    first, *more = find_repeats(mirrored([0, 1, 2, 3, 2, 1]))
    assert first == Repeat(0, 2, 6)
    assert [repeat.count for repeat in more] == [4, 2]


def test_a_value_of_the_same_layer_for_all_is_the_very_same_value() -> None:
    assert find_repeats(mirrored([2] * 6)) == (Repeat(0, 2, 6), Repeat(12, 2, 6))
