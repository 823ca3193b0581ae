"""Where a vendor's library serves the parts of a fused projection, they are separate products over one weight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from ostinato.backend_hip.target import hip_target, host_target
from ostinato.ir.graph import Graph, Role
from ostinato.ir.interp import interpret
from ostinato.ir.target import Target
from ostinato.ir.types import Array, DType
from ostinato.passes.choice import RowChoice
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import run_pipeline
from ostinato.passes.unfuse_products import UnfuseProducts
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from tests.passes.graphs import Builder, Config, decoder

GPU = hip_target("gfx942", 64)
WIDE = Config(layers=1, hidden=64, heads=8, kv_heads=8, width=8, ffn=64, batch=4, time=4, bias=True)
FEW = Config(layers=1, hidden=64, heads=8, kv_heads=8, width=8, ffn=64, batch=2, time=4, bias=True)


def products(graph: Graph) -> list[tuple[str, str]]:
    """Operator and row of every projection."""
    return [(node.op, node.impl or "") for node in graph.nodes if node.op.startswith("linear")]


def lowered(config: Config, target: Target = GPU, **levels: str) -> Graph:
    choice = RowChoice().and_forced(levels or None)
    return run_pipeline(decoder(config), target, PipelineOptions(choice=choice)).graph


def test_many_rows_go_to_the_vendor() -> None:
    """q, k and v as one, of which rotations and attention read columns, and gate and up as one, of which SwiGLU does."""
    graph = lowered(WIDE)
    assert products(graph) == [("linear", "hip_vendor")] * 4 + [("linear", "hip_few_rows")]
    joint = graph.producers["layers.0.swiglu.gate_up"]
    assert joint.operands[1:] == ("layers.0.gate_proj_up_proj.weight",)
    assert [node.op for node in graph.users[joint.name]] == ["slice", "slice"]
    joint = graph.producers["layers.0.q_proj_k_proj_v_proj"]
    assert [node.op for node in graph.users[joint.name]] == ["slice", "slice", "slice"]
    assert "contiguous" not in [node.op for node in graph.nodes]
    few = [op for op, _ in products(lowered(FEW))]
    assert few == ["linear_split", "linear", "linear_swiglu", "linear", "linear"]


@pytest.mark.parametrize(
    ("target", "levels"),
    [
        (host_target(), {}),
        (hip_target("gfx942", 64, vendor=False), {}),
        (hip_target("gfx1100", 32), {}),
        (GPU, {"linear": "readable"}),
    ],
    ids=["host", "no library", "no row", "forced"],
)
def test_without_a_row_of_a_higher_level_they_stay_fused(target: Target, levels: Mapping[str, str]) -> None:
    assert {"linear_split", "linear_swiglu"} <= {op for op, _ in products(lowered(WIDE, target, **levels))}


def test_the_pass_can_be_left_out() -> None:
    options = PipelineOptions(disable=frozenset({"unfuse_products"}))
    assert "linear_swiglu" in [op for op, _ in products(run_pipeline(decoder(WIDE), GPU, options).graph)]


def test_entries_of_many_and_of_few_rows_share_one_weight() -> None:
    graphs = {"prefill": lowered(WIDE), "decode": lowered(FEW)}
    assert [item.value for item in graphs["prefill"].with_role(Role.WEIGHT)] == [
        item.value for item in graphs["decode"].with_role(Role.WEIGHT)
    ]
    program = build_program({name: (graph, plan_entry(graph, GPU, name=name)) for name, graph in graphs.items()})
    check_program(program, graphs, GPU)
    assert len(program.weights) == len(graphs["decode"].with_role(Role.WEIGHT))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_parts_give_what_the_whole_gives(dtype: str, rng: np.random.Generator) -> None:
    b = Builder("whole")
    b.value("x", (12, 16), "NC", DType.BF16)
    b.weight("w", (64, 16), "_C", DType.BF16)
    b.weight("u", (48, 16), "_C", DType.BF16)
    b.weight("bias", (64,))
    split = ("q", "k", "v")
    b.add("linear_split", ("x", "w", "bias"), split, sizes=(32, 24, 8), dtype="f32", axes="HGG")
    b.add("linear_swiglu", ("x", "u"), "y", dtype=dtype, axis="F")
    graph = b.graph((*split, "y"))
    parts = UnfuseProducts().apply(graph, GPU)
    assert [node.op for node in parts.nodes].count("linear") == 4
    assert parts.outputs == graph.outputs
    assert [parts.types[name] for name in parts.outputs] == [graph.types[name] for name in graph.outputs]
    values: dict[str, Array] = {
        item.value.name: rng.standard_normal(item.value.type.static_shape).astype(item.value.type.dtype.numpy)
        for item in graph.inputs
    }
    expected, found = (interpret(g, values).outputs for g in (graph, parts))
    for name in split:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["y"].astype(np.float32), expected["y"].astype(np.float32), rtol=1e-2, atol=1e-5)


def test_blocks_and_empty_parts_stay_whole() -> None:
    b = Builder("whole")
    b.value("x", (12, 64), "NC")
    b.weight("w", (64, 64), "_C", DType.Q8_0)
    b.weight("u", (64, 64), "_C")
    b.add("linear_swiglu", ("x", "w"), "y")
    b.add("linear_split", ("x", "u"), ("q", "k"), sizes=(64, 0))
    graph = b.graph(("y", "q", "k"))
    assert UnfuseProducts().apply(graph, GPU) is graph
