"""The whole pipeline: what it makes of a decoder, that no pass changes results, that any optional pass may be off, and what it reports."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.backend_hip.target import host_target
from ostinato.ir.graph import Graph, Role
from ostinato.ir.text import print_graph
from ostinato.ir.types import Array, DType
from ostinato.ir.verify import verify
from ostinato.passes.pipeline import PASSES, PipelineOptions, pipeline
from ostinato.passes.runner import run_pipeline
from tests.passes.graphs import Config, decoder, input_values, run, tensors

OPTIONAL = tuple(item.name for item in pipeline() if item.optional)
CONFIGS = {
    "dense": Config(),
    "packed": Config(packed=True),
    "biases": Config(bias=True, layers=1),
    "untied": Config(tied=False, layers=1, packed=True),
    "blocks": Config(matrix=DType.Q8_0, layers=1, width=16, heads=2, kv_heads=1, ffn=64),
    "mixed": Config(query=DType.Q8_0, layers=1, packed=True),
}


def count(graph: Graph, op: str) -> int:
    return sum(node.op == op for node in graph.nodes)


def close(actual: Array, expected: Array, limit: float) -> None:
    """`limit` is relative to the standard deviation of the expected values."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=limit * float(np.std(expected)))


@pytest.mark.parametrize(
    "disabled", [(), *((name,) for name in OPTIONAL), OPTIONAL], ids=lambda names: "+".join(names) or "all on"
)
@pytest.mark.parametrize("name", CONFIGS)
def test_results_do_not_depend_on_the_passes(name: str, disabled: tuple[str, ...], rng: np.random.Generator) -> None:
    graph = decoder(CONFIGS[name])
    values, checkpoint = input_values(CONFIGS[name], rng), tensors(graph, rng)
    lowered = run_pipeline(graph, host_target(), PipelineOptions(disable=frozenset(disabled))).graph
    before, after = run(graph, values, checkpoint), run(lowered, values, checkpoint)
    assert list(after.outputs) == ["logits"]
    close(after.outputs["logits"], before.outputs["logits"], 1e-5)
    for cache, expected in before.state.items():
        close(after.state[cache], expected, 1e-5)


@pytest.mark.parametrize(
    "disabled", [(), *((name,) for name in OPTIONAL)], ids=lambda names: "+".join(names) or "all on"
)
def test_bf16_results_stay_near_f32_with_any_pass_off(disabled: tuple[str, ...], rng: np.random.Generator) -> None:
    config = Config(matrix=DType.BF16, packed=True, cache=DType.BF16)
    graph = decoder(config)
    values, checkpoint = input_values(config, rng), tensors(graph, rng)
    lowered = run_pipeline(graph, host_target(), PipelineOptions("bf16", frozenset(disabled))).graph
    close(run(lowered, values, checkpoint).outputs["logits"], run(graph, values, checkpoint).outputs["logits"], 0.05)


def test_a_dense_decoder_becomes_fused_nodes_without_a_strided_copy() -> None:
    config = Config(layers=3)
    graph = run_pipeline(decoder(config), host_target()).graph
    assert (count(graph, "linear_split"), count(graph, "linear_swiglu"), count(graph, "linear")) == (3, 3, 7)
    assert (count(graph, "add"), count(graph, "rms_norm")) == (0, 1), "the last norm has its rows picked behind it"
    assert count(graph, "contiguous") == 0
    assert graph.types["layers.0.q_rotated"].layout == "BHTD"
    assert graph.types["layers.0.k_rotated"].layout == "BGTD"
    assert graph.types["layers.0.v_proj.heads"].layout == "BTGD"
    assert graph.types["embed.weight"].layout == "panel32"
    names = {item.value.name for item in graph.with_role(Role.WEIGHT)}
    assert {
        "layers.2.q_proj_k_proj_v_proj.weight",
        "layers.2.gate_proj_up_proj.weight",
        "layers.2.o_proj.weight",
    } <= names
    assert not any(name.endswith((".q_proj.weight", ".up_proj.weight")) for name in names)


def test_an_untied_embedding_is_read_by_rows() -> None:
    graph = run_pipeline(decoder(Config(tied=False, layers=1)), host_target()).graph
    assert graph.types["embed.weight"].is_natural
    assert graph.types["head.weight"].layout == "panel32"


def test_mixed_weight_dtypes_are_fused_among_equals_only() -> None:
    graph = run_pipeline(decoder(CONFIGS["mixed"]), host_target()).graph
    assert count(graph, "linear_split") == 1
    assert graph.producers["layers.0.q_proj"].op == "linear"
    assert graph.types["layers.0.k_proj_v_proj.weight"].dtype is DType.F32
    assert graph.types["layers.0.q_proj.weight"].dtype is DType.Q8_0


@pytest.mark.parametrize("name", CONFIGS)
def test_the_result_passes_every_gate_and_survives_text_and_a_second_run(name: str) -> None:
    target = host_target()
    graph = run_pipeline(decoder(CONFIGS[name]), target).graph
    verify(graph, target=target, phase="selected")
    assert print_graph(run_pipeline(graph, target).graph) == print_graph(graph)


def test_two_runs_give_the_same_text() -> None:
    first, second = (run_pipeline(decoder(Config()), host_target(), texts=True) for _ in range(2))
    assert [stage.text for stage in first.stages] == [stage.text for stage in second.stages]
    assert dict(first.options) == dict(second.options)


def test_the_report_tells_stages_decisions_and_differences() -> None:
    left_out = ("fuse_swiglu", "fuse_residual", "fuse_norm")
    options = PipelineOptions(disable=frozenset(left_out))
    report = run_pipeline(decoder(Config(layers=1)), host_target(), options, texts=True)
    assert [stage.name for stage in report.stages] == [
        "input",
        *(item.name for item in pipeline() if item.name not in left_out),
    ]
    fusion = next(stage for stage in report.stages if stage.name == "fuse_add_norm")
    assert (fusion.nodes_before - fusion.nodes_after, fusion.changed) == (2, True)
    assert "+  %hidden" not in report.diff("fuse_add_norm")
    assert "add_rms_norm" in report.diff("fuse_add_norm")
    assert report.options["precision"] == "precision{policy=f32}"
    assert "fuse_swiglu" not in report.options
    worked = {node.name for node in report.graph.nodes if node.impl is not None}
    assert set(report.decisions) == worked
    rotated = report.decisions["layers.0.q_rotated"]
    assert rotated.row == "host_head_major"
    assert any(found.row == "host" and "natural layout" in found.text for found in rotated.rejected)


def test_passes_are_known_by_name() -> None:
    assert set(PASSES) >= {item.name for item in pipeline()} | {"dead_code", "precision{policy=bf16}"}
