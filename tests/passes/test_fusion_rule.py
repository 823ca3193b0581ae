"""The rule of fusion: levels are never lost, nodes that a rule by hand names stay, sets of projections do not get into each other's way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ostinato.backend_hip.target import hip_target, host_rows_target
from ostinato.ir.graph import Graph, Role
from ostinato.ir.target import CallSite, Impl, Level, Target
from ostinato.ir.types import DType
from ostinato.passes.choice import RowChoice
from ostinato.passes.fuse_products import FuseNorm, FuseResidual
from ostinato.passes.fuse_qkv import FuseQkv
from ostinato.passes.levels import Levels
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.rewrite import new_node
from ostinato.passes.runner import run_pipeline
from tests.passes.graphs import Builder, Config, decoder, input_values, run, tensors

HOST = host_rows_target()
GPU = hip_target("sm_90", 32)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def only_plain(site: CallSite) -> str | None:
    """A vendor's product: nothing is fused with it."""
    return "plain products only" if site.has(3) or site.has(4) else None


def with_vendor(rows: Sequence[Impl] = HOST.rows) -> Target:
    """The host and a vendor whose library multiplies plainly."""
    linear = next(row for row in rows if row.op == "linear")
    vendor = replace(linear, name="planted", level=Level.VENDOR, accepts=only_plain)
    return Target("host", (vendor, *rows), HOST.device)


def block(norm: bool = True) -> Builder:
    b = Builder("block")
    b.value("h", (3, 32), "NC")
    b.value("x", (3, 64), "NF")
    b.add("linear", ("x", b.weight("down", (32, 64), "CF")), "d", axis="C")
    b.add("add", ("h", "d"), "s")
    if norm:
        b.add("rms_norm", ("s", b.weight("gain", (32,), "C")), "n", eps=1e-5)
        b.add("linear", ("n", b.weight("up", (64, 32), "FC")), "u", axis="F")
    return b


def test_a_vendors_product_is_not_given_up_for_a_fusion() -> None:
    graph = block().graph(("s", "u"))
    fused = run_pipeline(graph, HOST).graph
    assert [(node.op, node.impl) for node in fused.nodes] == [("linear", "host"), ("linear", "host")]
    kept = run_pipeline(graph, with_vendor()).graph
    assert [(node.op, node.impl) for node in kept.nodes] == [
        ("linear", "planted"),
        ("add_rms_norm", "host"),
        ("linear", "planted"),
    ]


def test_a_limit_of_levels_changes_what_is_fused() -> None:
    """The vendor's row is there and may not be used: nothing is lost any more."""
    choice = RowChoice(limits=(("*", Level.TUNED),))
    graph = run_pipeline(block().graph(("s", "u")), with_vendor(), PipelineOptions(choice=choice)).graph
    assert ops(graph) == ["linear", "linear"]


@pytest.mark.parametrize("name", ["d", "n"])
def test_a_node_that_is_named_by_hand_stays(name: str) -> None:
    graph = block().graph(("s", "u"))
    level = {"d": "host", "n": "host_all_rows"}[name]
    lowered = run_pipeline(graph, HOST, PipelineOptions(choice=RowChoice(forced=((name, level),)))).graph
    assert lowered.producers[name].impl == level


def test_levels_are_those_of_strided_operands_too() -> None:
    b = Builder("g")
    b.value("joint", (20, 64), "NF")
    for name, start in (("gate", 0), ("up", 32)):
        b.add("slice", ("joint",), name, axis=1, start=start, stop=start + 32, step=1)
    b.add("swiglu", ("gate", "up"), "y")
    b.add("silu", ("gate",), "z")
    graph = b.graph(("y", "z"))
    levels = Levels(graph, HOST, RowChoice())
    views, (swiglu, silu) = graph.nodes[:2], graph.nodes[2:]
    assert levels.of(swiglu, views=views) is levels.of(swiglu) is Level.TUNED
    assert levels.of(silu, views=views[:1]) is None
    assert levels.of(silu) is Level.TUNED


def test_a_fused_node_without_a_row_is_no_fusion() -> None:
    rows = tuple(row for row in HOST.rows if row.op != "linear")
    graph = block().graph(("s", "u"))
    bare = Target("host", rows, HOST.device)
    for item in (FuseResidual(), FuseNorm()):
        assert item.apply(graph, bare) is graph
    node = new_node("linear", ("x", "down"), graph.producers["d"].results, {"axis": "C"}, None)
    assert Levels(graph, bare, RowChoice()).of(node) is None


# several sets of projections


def test_sets_of_projections_neither_clear_nor_shadow_each_other(rng: np.random.Generator) -> None:
    """Two sets of one x (four projections: three and one), one of another x, and one of mixed precision, in turns."""
    b = Builder("sets")
    b.value("x", (3, 32), "NC")
    b.value("y", (3, 32), "NC")
    outputs = []
    for step in range(4):
        for source in ("x", "y"):
            half = source == "y" and step % 2 == 1
            weight = b.weight(f"{source}{step}.weight", (8 + step, 32), "_C", DType.Q8_0 if half else DType.F32)
            outputs.append(b.add("linear", (source, weight), f"{source}{step}"))
    graph = b.graph(outputs)
    fused = FuseQkv().apply(graph, HOST)
    found = {node.results[0].name: [value.name for value in node.results] for node in fused.nodes}
    assert found == {"x0": ["x0", "x1", "x2"], "x3": ["x3"], "y0": ["y0", "y2"], "y1": ["y1", "y3"]}
    parts = [part.tensor for item in fused.with_role(Role.WEIGHT) for part in item.parts]
    assert sorted(parts) == sorted(item.value.name for item in graph.with_role(Role.WEIGHT))
    checkpoint = tensors(graph, rng)
    values = {name: rng.standard_normal((3, 32)).astype(np.float32) for name in ("x", "y")}
    expected, actual = run(graph, values, checkpoint).outputs, run(fused, values, checkpoint).outputs
    for name in outputs:
        np.testing.assert_array_equal(actual[name], expected[name])


@pytest.mark.parametrize("query", [None, DType.Q8_0])
def test_a_set_of_mixed_precision_stays_apart(query: DType | None) -> None:
    """Its store is fused, its projection is not: every part of it has rows of its own."""
    graph = run_pipeline(decoder(Config(layers=1, packed=True, query=query)), HOST).graph
    mixed = [node.op for node in graph.nodes if "rope_store" in node.op or node.op == "linear_split"]
    assert mixed == (["qkv_rope_store"] if query is None else ["linear_split", "rope_store"])


# a decode step and a prefill


@pytest.mark.parametrize(("target", "dtype"), [(GPU, DType.BF16), (HOST, DType.F32)], ids=["gpu", "host"])
def test_a_decode_step_is_five_launches_a_layer(target: Target, dtype: DType) -> None:
    sizes = Config(layers=2, packed=True, hidden=64, heads=4, kv_heads=2, width=16, ffn=64, tokens=4)
    config = replace(sizes, matrix=dtype, cache=dtype)
    graph = run_pipeline(decoder(config), target, PipelineOptions(dtype.value)).graph
    layer = [node.op for node in graph.nodes if node.name.startswith("layers.1.") and node.impl is not None]
    assert layer == ["qkv_rope_store", "attention_packed", "linear", "linear_swiglu", "linear"]


def test_a_step_and_its_fusions_give_what_the_graph_gives(rng: np.random.Generator) -> None:
    config = Config(packed=True, bias=True)
    graph = decoder(config)
    values, checkpoint = input_values(config, rng), tensors(graph, rng)
    before, after = (run(g, values, checkpoint) for g in (graph, run_pipeline(graph, HOST).graph))
    spread = float(np.std(before.outputs["logits"]))
    np.testing.assert_allclose(after.outputs["logits"], before.outputs["logits"], rtol=0, atol=1e-5 * spread)
    for name, cache in before.state.items():
        np.testing.assert_allclose(after.state[name], cache, rtol=0, atol=1e-5)
