"""Fusions around gradients: what they make of the step of a small decoder, and that its gradients are the same with each of them off.

Graphs are lowered for the GPU, whose rows every fusion has, and run by the reference interpreter, which needs no device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np
import pytest

from ostinato.backend_hip.target import hip_target, host_rows_target
from ostinato.ir.graph import Graph, Role
from ostinato.ir.interp import interpret
from ostinato.ir.target import Target
from ostinato.ir.types import Array, DType
from ostinato.passes.pipeline import PipelineOptions, pipeline
from ostinato.passes.runner import run_pipeline
from ostinato.passes.training_graph import TrainingGraph, training_graph
from tests.passes.graphs import Builder, Config, decoder, input_values

GPU = hip_target("sm_90", 32)
FUSIONS = tuple(item.name for item in pipeline() if item.optional)
BACKWARD = ("fuse_saved_attention", "fuse_norm_backward", "fuse_accumulate")
SMALL = Config(hidden=32, heads=2, kv_heads=1, width=16, ffn=64, vocabulary=64, bias=True)


def step(config: Config, frozen: Collection[str] = ()) -> TrainingGraph:
    """Loss and gradients of every weight but the frozen ones; the embedding is the head too where it is tied."""
    forward = decoder(config)
    b = Builder("train", list(forward.inputs), list(forward.nodes), dict(forward.types))
    b.value("target", (config.batch,), "B", DType.I32)
    b.add("cross_entropy", ("logits", "target"), "loss")
    return training_graph(b.graph(("loss",)), None, frozen=frozen)


def values_of(graph: Graph, config: Config, rng: np.random.Generator) -> dict[str, Array]:
    values = input_values(config, rng)
    values["target"] = rng.integers(0, config.vocabulary, config.batch, dtype=np.int32)
    for item in (*graph.with_role(Role.PARAMETER), *graph.with_role(Role.WEIGHT)):
        if not item.value.name.startswith("master."):
            spread = item.value.type.static_shape[-1] ** -0.5 if item.value.type.rank > 1 else 1.0
            drawn = rng.standard_normal(item.value.type.static_shape) * spread
            values[item.value.name] = drawn.astype(item.value.type.dtype.numpy)
    return values


def lowered(whole: TrainingGraph, config: Config, off: Iterable[str] = (), target: Target = GPU) -> Graph:
    precision = "bf16" if config.matrix is DType.BF16 else "f32"
    return run_pipeline(whole.graph, target, PipelineOptions(precision=precision, disable=frozenset(off))).graph


def gradients(graph: Graph, values: dict[str, Array]) -> dict[str, Array]:
    read = {item.value.name for item in graph.inputs if item.role is not Role.CONSTANT}
    given = {name: values[name] for name in read if name in values}
    given |= {name: values[name.removeprefix("master.")].astype(np.float32) for name in read - set(given)}
    return interpret(graph, given).outputs


@pytest.mark.parametrize("off", [(), FUSIONS, *((name,) for name in FUSIONS)], ids=lambda off: "+".join(off)[:40])
def test_gradients_do_not_depend_on_fusions(off: tuple[str, ...], rng: np.random.Generator) -> None:
    whole = step(SMALL)
    values = values_of(whole.graph, SMALL, rng)
    expected = gradients(whole.graph, values)
    found = gradients(lowered(whole, SMALL, off), values)
    assert set(found) == set(expected) >= set(whole.gradients.values())
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("target", [GPU, host_rows_target()], ids=["gpu", "host"])
def test_frozen_weights_may_be_fused(target: Target, rng: np.random.Generator) -> None:
    """They are weights as ever, which may be joined, where the gradients of what is in front of them allow it."""
    names = [
        f"layers.{layer}.{name}.weight" for layer in (0, 1) for name in ("q_proj", "k_proj", "gate_proj", "up_proj")
    ]
    whole = step(SMALL, names)
    assert not set(names) & set(whole.gradients)
    values = values_of(whole.graph, SMALL, rng)
    expected = gradients(whole.graph, values)
    graph = lowered(whole, SMALL, target=target)
    joined = {item.value.name: item for item in graph.with_role(Role.WEIGHT)}
    given = {name: np.concatenate([values[part.tensor] for part in item.parts]) for name, item in joined.items()}
    found = gradients(graph, {**values, **given})
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-6, err_msg=name)


def test_gradients_of_narrow_weights_do_not_depend_on_fusions(rng: np.random.Generator) -> None:
    config = Config(hidden=32, heads=2, kv_heads=1, width=16, ffn=64, vocabulary=64, tied=False, matrix=DType.BF16)
    whole = step(config)
    values = values_of(whole.graph, config, rng)
    on, off = (gradients(lowered(whole, config, disable), values) for disable in ((), FUSIONS))
    for name, array in off.items():
        np.testing.assert_allclose(on[name], array, rtol=0.02, atol=0.02 * float(np.abs(array).max()), err_msg=name)


def test_what_a_step_becomes(rng: np.random.Generator) -> None:
    """Nothing is summed by a node of its own, attention is computed forward once, and weights stay those of the checkpoint."""
    del rng
    whole = step(SMALL)
    before = Counter(node.op for node in whole.graph.nodes)
    graph = lowered(whole, SMALL)
    after = Counter(node.op for node in graph.nodes)
    assert before["attention_log_sum"] == before["attention_causal"] == after["attention_causal_saved"] == SMALL.layers
    assert after["attention_log_sum"] == after["attention_causal"] == after["add"] == after["accumulate"] == 0
    assert after["matmul_add"] == 3 * SMALL.layers, "k and q of each layer, and gate or up"
    assert (before["embedding_backward"], after["embedding_backward"], after["embedding_backward_add"]) == (2, 1, 1)
    summed = [node for node in graph.nodes if node.op == "rms_norm_backward" and len(node.operands) == 4]
    assert len(summed) == 2 * SMALL.layers, "all but the last norm, which no stream passes by"
    names = {item.value.name for item in whole.graph.with_role(Role.PARAMETER)}
    assert {item.value.name for item in graph.with_role(Role.PARAMETER)} == names
    assert not after.keys() & {"linear_split", "linear_swiglu", "linear_group"}


@pytest.mark.parametrize("name", BACKWARD)
def test_each_can_be_left_out(name: str) -> None:
    graph = lowered(step(SMALL), SMALL, (name,))
    left = Counter(node.op for node in graph.nodes)
    assert {
        "fuse_saved_attention": left["attention_log_sum"] == SMALL.layers,
        "fuse_norm_backward": left["add"] == 2 * SMALL.layers,
        "fuse_accumulate": not left["matmul_add"] and left["add"] > 0 and left["accumulate"] > 0,
    }[name]
