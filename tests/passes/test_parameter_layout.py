"""Where weights and parameters lie: a parameter in its logical order, and nothing is fused that only a packed weight could serve; a weight packed as before."""

from __future__ import annotations

from ostinato.backend_hip.target import host_rows_target
from ostinato.ir.graph import Graph
from ostinato.ir.types import DType
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import run_pipeline
from ostinato.passes.training_graph import as_parameters
from tests.passes.graphs import Builder

HOST = host_rows_target()


def tied(tables: int = 1) -> Builder:
    """A norm in front of a head whose weight embeds the tokens too."""
    b = Builder("tied")
    weight = b.weight("embed", (96, 32), "VC")
    for number in range(tables):
        b.value(f"ids{number}", (5,), "N", DType.I32)
        b.add("embedding", (f"ids{number}", weight), f"x{number}")
    b.add("rms_norm", ("x0", b.weight("gain", (32,), "C")), "n", eps=1e-5)
    b.add("linear", ("n", weight), "y", axis="V")
    return b


def lowered(graph: Graph) -> Graph:
    return run_pipeline(graph, HOST, PipelineOptions()).graph


def rows(graph: Graph) -> list[tuple[str, str | None]]:
    return [(node.op, node.impl) for node in graph.nodes]


def test_a_parameter_lies_in_its_logical_order_and_takes_no_norm_inside() -> None:
    graph, _ = as_parameters(tied().graph(("y",)))
    found = lowered(graph)
    assert {item.value.name: item.value.type.layout for item in found.inputs}["embed"] == "VC"
    assert rows(found) == [("embedding", "host"), ("rms_norm", "host"), ("linear", "host_natural")]


def test_a_tied_weight_is_packed_however_many_readers_would_rather_have_it_in_order() -> None:
    found = lowered(tied(3).graph(("x1", "x2", "y")))
    assert {item.value.name: item.value.type.layout for item in found.inputs}["embed"] == "panel32"
    assert ("linear", "host") in rows(found)
