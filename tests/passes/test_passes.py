"""What passes refuse, and the cases that no golden file shows well."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from ostinato.backend_hip.target import host_target
from ostinato.ir.decision import Against
from ostinato.ir.errors import BackendError, ConfigError, DTypeError, LayoutError, PlanError, VerificationError
from ostinato.ir.graph import Graph, Role, Value
from ostinato.ir.target import Level, Target
from ostinato.ir.types import Dim, DType
from ostinato.passes.assign_layout import AssignLayout
from ostinato.passes.canonicalize import Canonicalize
from ostinato.passes.choice import RowChoice
from ostinato.passes.cse import Cse
from ostinato.passes.fold_constants import FoldConstants
from ostinato.passes.fuse_add_norm import FuseAddNorm
from ostinato.passes.fuse_qkv import FuseQkv
from ostinato.passes.fuse_swiglu import FuseSwiglu
from ostinato.passes.gate import Gate
from ostinato.passes.pipeline import PipelineOptions, pipeline
from ostinato.passes.precision import Precision
from ostinato.passes.rewrite import joined_name
from ostinato.passes.runner import run_passes, run_pipeline
from ostinato.passes.select_impl import SelectImpl
from tests.passes.graphs import Builder, Config, decoder

HOST = host_target()
BARE = Target("bare", (), "none:0")


def lowered(graph: Graph, choice: RowChoice | None = None) -> Graph:
    return run_pipeline(graph, HOST, PipelineOptions(choice=choice or RowChoice())).graph


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


# runner


def test_only_optional_passes_can_be_disabled() -> None:
    with pytest.raises(ConfigError, match=r"'precision', 'typo'.*\n.*fuse_qkv"):
        run_pipeline(decoder(Config(layers=1)), HOST, PipelineOptions(disable=frozenset({"precision", "typo"})))


def test_a_pass_runs_only_after_what_it_requires() -> None:
    graph = decoder(Config(layers=1))
    with pytest.raises(PlanError, match=r"select_impl requires .*laid_out"):
        run_passes(graph, HOST, (SelectImpl(),))
    symbolic = Builder("symbolic")
    symbolic.value("x", (Dim("N", 1, 8), 4))
    symbolic.add("silu", ("x",), "y")
    with pytest.raises(PlanError, match=r"sink_casts requires.*bound.*\n.*bind the graph"):
        run_pipeline(symbolic.graph(("y",)), HOST)


def test_a_broken_graph_is_reported_with_the_pass_that_made_it() -> None:
    @dataclass(frozen=True)
    class Breaks:
        name: ClassVar[str] = "breaks"
        requires: ClassVar[tuple[str, ...]] = ()
        ensures: ClassVar[tuple[str, ...]] = ()
        optional: ClassVar[bool] = False

        def apply(self, graph: Graph, target: Target) -> Graph:
            first = graph.nodes[0]
            wrong = tuple(Value(value.name, value.type.with_dtype(DType.F16)) for value in first.results)
            return Graph(graph.name, graph.inputs, (replace(first, results=wrong), *graph.nodes[1:]), graph.outputs)

    builder = Builder("g")
    builder.value("x", (2, 4))
    builder.add("silu", ("x",), "y")
    with pytest.raises(VerificationError, match=r"after pass breaks: [^%]*V09 %y") as caught:
        run_passes(builder.graph(("y",)), HOST, (Breaks(),))
    assert caught.value.violations


def test_early_passes_work_on_symbolic_graphs() -> None:
    builder = Builder("symbolic")
    builder.value("x", (Dim("N", 1, 8), 32), "NC")
    for name in ("q", "k"):
        builder.add("linear", ("x", builder.weight(f"{name}.weight", (16, 32), "_C")), name)
    builder.add("add", ("q", "k"), "s")
    builder.add("rms_norm", ("s", builder.weight("gain", (16,))), "y", eps=1e-5)
    early = pipeline()[: ["bound" in item.requires for item in pipeline()].index(True)]
    graph = run_passes(builder.graph(("y",)), HOST, early).graph
    assert ops(graph) == ["linear", "linear", "add", "rms_norm"]
    assert ops(lowered(graph.bind({"N": 3}))) == ["linear_split", "add_rms_norm"]


@pytest.mark.parametrize("item", [p for p in pipeline() if not isinstance(p, Gate)], ids=lambda p: p.name)
def test_chains_of_twenty_thousand_nodes(item: Canonicalize) -> None:
    builder = Builder("chain")
    builder.value("x0", (2, 32))
    gain = builder.weight("gain", (32,))
    weight = builder.weight("weight", (32, 32))
    nodes = 20_000
    for i in range(nodes):
        source, result = f"x{i}", f"x{i + 1}"
        match i % 6:
            case 0:
                builder.add("reshape", (source,), result, shape=(2, 32))
            case 1:
                builder.add("add", (source, source), result)
            case 2:
                builder.add("rms_norm", (source, gain), result, eps=1e-5)
            case 3:
                builder.add("cast", (source,), result, dtype="f32")
            case 4:
                builder.add("linear", (source, weight), result)
            case _:
                builder.add("transpose", (source,), result, order=(0, 1))
    graph = builder.graph((f"x{nodes}",))
    if isinstance(item, SelectImpl):
        graph = AssignLayout().apply(graph, HOST)
    item.apply(graph, HOST)


# canonicalize, cse, fold_constants


def cache_step(builder: Builder) -> tuple[str, ...]:
    """Inputs of a kv_store of one token; returns its operands."""
    builder.value("k", (1, 1, 4), "NGD")
    builder.value("row", (1,), "N", DType.I32)
    builder.value("position", (1,), "N", DType.I32)
    builder.value("table", (1, 1), "RW", DType.I32)
    for name in ("k_cache", "v_cache"):
        builder.value(name, (1, 1, 8, 4), "PGSD", role=Role.STATE)
    return ("k", "k", "row", "position", "table", "k_cache", "v_cache")


def test_a_copy_of_bytes_that_are_overwritten_stays() -> None:
    builder = Builder("g")
    operands = cache_step(builder)
    builder.add("contiguous", ("k_cache",), "before")
    builder.add("contiguous", ("k_cache",), "before_too")
    builder.add("kv_store", operands, ("k_out", "v_out"))
    builder.add("add", ("before", "before_too"), "y")
    graph = Cse().apply(Canonicalize().apply(builder.graph(("y",)), BARE), BARE)
    assert ops(graph) == ["contiguous", "kv_store", "add"]


def test_random_and_state_nodes_are_never_merged() -> None:
    builder = Builder("g")
    operands = cache_step(builder)
    builder.add("kv_store", operands, ("k1", "v1"))
    builder.add("kv_store", (*operands[:5], "k1", "v1"), ("k2", "v2"))
    builder.value("logits", (1, 9), "RV")
    for name, dtype in (
        ("t", DType.F32),
        ("top_k", DType.I32),
        ("p", DType.F32),
        ("m", DType.F32),
        ("seed", DType.I64),
        ("i", DType.I32),
    ):
        builder.value(name, (1,), "R", dtype)
    for name in ("a", "b"):
        builder.add("sample", ("logits", "t", "top_k", "p", "m", "seed", "i"), name)
    graph = builder.graph(("a", "b"))
    assert Cse().apply(graph, BARE) is graph
    assert len(run_passes(graph, BARE, (Canonicalize(), Cse())).graph.nodes) == 4


def test_work_on_weights_alone_is_refused_unless_allowed() -> None:
    builder = Builder("g")
    builder.value("x", (2, 4))
    builder.weight("w", (4, 4))
    builder.add("tanh", ("w",), "wt")
    builder.add("linear", ("x", "wt"), "y")
    graph = builder.graph(("y",))
    with pytest.raises(LayoutError, match=r"wt: 1 nodes of @g compute on weights alone[^%]*%wt = tanh") as caught:
        FoldConstants().apply(graph, BARE)
    assert "allow" in (caught.value.hint or "")
    assert FoldConstants(allow=frozenset({"wt"})).apply(graph, BARE) is graph


def test_large_constants_are_not_computed_ahead() -> None:
    builder = Builder("g")
    builder.value("x", (64,))
    builder.constant("c", np.ones(64, np.float32))
    builder.add("silu", ("c",), "s")
    builder.add("add", ("x", "s"), "y")
    graph = builder.graph(("y",))
    assert FoldConstants(most_bytes=255).apply(graph, BARE) is graph
    assert ops(FoldConstants(most_bytes=256).apply(graph, BARE)) == ["add"]


# precision


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown precision 'fp4'\n.*f32, bf16"):
        Precision("fp4")


def test_a_policy_that_does_not_fit_names_the_node() -> None:
    builder = Builder("g")
    builder.value("x", (2, 4), dtype=DType.BF16)
    builder.weight("gain", (4,))
    builder.add("rms_norm", ("x", "gain"), "n", eps=1e-5)
    builder.add("add", ("x", "n"), "y")
    with pytest.raises(DTypeError, match=r"^y: add") as caught:
        Precision("f32").apply(builder.graph(("y",)), BARE)
    assert caught.value.node == "y"


def test_an_encoder_block_narrows_what_only_projections_read() -> None:
    """The activation writes bf16 itself; the norm, which the next addition reads too, stays f32 behind a cast."""
    builder = Builder("g")
    builder.value("h", (2, 32))
    builder.weight("gain", (32,))
    builder.weight("bias", (32,))
    builder.add("layer_norm", ("h", "gain", "bias"), "n", eps=1e-12)
    builder.add("linear", ("n", builder.weight("w1", (64, 32), dtype=DType.BF16)), "u")
    builder.add("gelu", ("u",), "g")
    builder.add("linear", ("g", builder.weight("w2", (32, 64), dtype=DType.BF16)), "d")
    builder.add("add", ("n", "d"), "y")
    graph = Precision("bf16").apply(builder.graph(("y",)), BARE)
    assert ops(graph) == ["layer_norm", "cast", "linear", "gelu", "linear", "add"]
    assert {name: graph.types[name].dtype.value for name in ("n", "u", "g", "d", "y")} == {
        "n": "f32",
        "u": "f32",
        "g": "bf16",
        "d": "f32",
        "y": "f32",
    }


# fusion


@pytest.mark.parametrize("item", [FuseAddNorm(), FuseSwiglu(), FuseQkv()], ids=lambda p: p.name)
def test_nothing_is_fused_for_a_target_without_the_fused_row(item: FuseAddNorm) -> None:
    graph = decoder(Config(layers=1))
    assert item.apply(graph, BARE) is graph


def test_many_projections_of_one_input_are_fused_in_threes() -> None:
    builder = Builder("g")
    builder.value("x", (2, 8))
    names = tuple("abcdefg")
    for name in names:
        builder.add("linear", ("x", builder.weight(f"{name}.weight", (4, 8))), name)
    graph = FuseQkv().apply(builder.graph(names), HOST)
    assert [[value.name for value in node.results] for node in graph.nodes] == [["a", "b", "c"], ["d", "e", "f"], ["g"]]


def test_weights_used_elsewhere_are_not_stored_twice() -> None:
    builder = Builder("g")
    builder.value("x", (2, 8))
    builder.weight("up", (4, 8))
    builder.add("linear", ("x", builder.weight("gate", (4, 8))), "g")
    builder.add("linear", ("x", "up"), "u")
    builder.add("swiglu", ("g", "u"), "s")
    builder.add("linear", ("x", "up"), "again")
    graph = builder.graph(("s", "again"))
    assert FuseSwiglu().apply(graph, HOST) is graph


def test_joined_names_say_what_was_joined() -> None:
    assert joined_name(["a.q.weight", "a.k.weight"]) == "a.q_k.weight"
    assert joined_name(["wq", "wk", "wv"]) == "wq_wk_wv"
    assert joined_name(["a.q", "a.q"]) == "a.q.joined"
    assert joined_name(["x", "x.y"]) == "x.y"


# layout, selection, gate


def test_a_weight_whose_readers_want_different_layouts_is_an_error() -> None:
    builder = Builder("g")
    builder.value("x", (2, 8))
    builder.weight("w", (8, 8))
    builder.add("linear", ("x", "w"), "a")
    builder.add("linear_swiglu", ("x", "w"), "b")
    with pytest.raises(LayoutError, match=r"w: no layout.*%a takes panel32 or row; %b takes panel32_pair"):
        AssignLayout().apply(builder.graph(("a", "b")), HOST)


def test_nodes_without_a_row_are_reported_together_with_all_reasons() -> None:
    builder = Builder("g")
    builder.value("x", (2, 8), dtype=DType.F64)
    builder.value("z", (2, 8), dtype=DType.F32)
    builder.constant("c", np.zeros((2, 8), np.int32))
    builder.add("contiguous", ("c",), "whole")
    builder.add("cast", ("c",), "i", dtype="i64")
    builder.add("cast", ("x",), "f", dtype="f16")
    builder.add("softmax", ("z",), "s")
    graph = builder.graph(("i", "f", "s"))
    rows = tuple(row for row in HOST.rows if row.op not in ("softmax", "cast"))
    refusing = tuple(replace(row, accepts=lambda site: "needs a Tuesday") for row in HOST.rows_for("cast"))
    target = Target("host", (*rows, *refusing), HOST.device)
    with pytest.raises(BackendError) as caught:
        run_pipeline(graph, target, PipelineOptions(disable=frozenset({"fold_constants"})))
    text = str(caught.value)
    assert "3 nodes of @g" in text
    assert "%i = cast\n    host: needs a Tuesday" in text
    assert "host has no row for softmax" in text


def test_rows_are_forced_by_operator_or_node() -> None:
    graph = decoder(Config(layers=1))
    choice = RowChoice(forced=(("rope_split_half", "host"), ("layers.0.attn_norm", "host_all_rows")))
    report = run_pipeline(graph, HOST, PipelineOptions(choice=choice))
    impls = {node.name: node.impl for node in report.graph.nodes}
    assert (impls["layers.0.q_rotated"], impls["layers.0.attn_norm"], impls["hidden"]) == (
        "host",
        "host_all_rows",
        "host",
    )
    assert report.graph.types["layers.0.q_rotated"].is_natural
    left_out = report.decisions["layers.0.q_rotated"].against("host_head_major")
    assert left_out is not None
    assert (left_out.reason, left_out.text) == (Against.FORCED, "row host is forced")
    assert (
        report.options["select_impl"] == "select_impl{choice=[rope_split_half@host, layers.0.attn_norm@host_all_rows]}"
    )
    with pytest.raises(
        ConfigError,
        match=r"host has no row 'fast' of linear.*\n.*rows of linear: host \(tuned\), host_all_rows \(tuned\)",
    ):
        lowered(graph, RowChoice(forced=(("linear", "fast"),)))
    choice = RowChoice(forced=(("rope_split_half", "host_head_major"),))
    apart = PipelineOptions(disable=frozenset({"fuse_rope_store"}), choice=choice)
    with pytest.raises(BackendError, match="host_head_major: head-major results need four named axes"):
        run_pipeline(decoder(Config(layers=1, packed=True)), HOST, apart)


def test_higher_levels_come_first_until_a_limit_is_set() -> None:
    builder = Builder("g")
    builder.value("x", (2, 8))
    builder.add("silu", ("x",), "y")
    tuned = HOST.rows_for("silu")[0]
    readable = replace(tuned, name="simple", level=Level.READABLE, priority=9)
    oracle = replace(tuned, name="oracle", level=Level.REFERENCE, priority=99)
    target = Target("host", (readable, oracle, tuned), HOST.device)
    graph = builder.graph(("y",))
    report = run_pipeline(graph, target)
    assert report.graph.nodes[0].impl == "host"
    assert [(found.row, found.reason, found.text) for found in report.decisions["y"].rejected] == [
        ("simple", Against.ORDER, "host comes first"),
        ("oracle", Against.ORDER, "host comes first"),
    ]
    limited = run_pipeline(graph, target, PipelineOptions(choice=RowChoice(limits=(("*", Level.READABLE),))))
    assert limited.graph.nodes[0].impl == "simple"
    found = limited.decisions["y"].against("host")
    assert found is not None
    assert (found.reason, found.text) == (Against.FORCED, "level tuned is above the level allowed")


def test_the_gate_reports_everything_at_once() -> None:
    graph = lowered(decoder(Config(layers=1)))
    nodes = {node.name: node for node in graph.nodes}
    linear = nodes["layers.0.residual"]
    changed = {
        "layers.0.residual": replace(linear, impl=None),
        "layers.0.attention.flat": replace(nodes["layers.0.attention.flat"], impl="host"),
        "layers.0.q_rotated": replace(nodes["layers.0.q_rotated"], impl="host"),
    }
    broken = replace(graph, nodes=tuple(changed.get(node.name, node) for node in graph.nodes))
    doubled = Target("host", (*HOST.rows, *HOST.rows_for("attention_causal")), HOST.device)
    with pytest.raises(BackendError) as caught:
        Gate().apply(broken, doubled)
    text = str(caught.value)
    assert "%layers.0.residual = linear must have exactly one implementation on host, found no row" in text
    assert "view %layers.0.attention.flat names row host" in text
    assert "rope_split_half@host: y is" in text
    assert "@BHTD, the row declares the natural layout only" in text
    assert "found 2 rows called host" in text
