"""Passes of the user's own: where they stand, what is refused and that nothing is kept of it; and what became of the nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.target import host_rows_target
from ostinato.ir.graph import Attributes, Graph, Node, Value
from ostinato.ir.target import Target
from ostinato.passes.pipeline import PipelineOptions, pipeline
from ostinato.passes.runner import run_pipeline
from tests.frontend.small_families import small_model
from tests.passes.graphs import Builder, Config, decoder

HOST = host_rows_target()


@dataclass(frozen=True)
class Doubles:
    """y becomes y + y."""

    name: ClassVar[str] = "doubles"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        made = graph.producers["y"]
        half = replace(made, results=(Value("half", made.results[0].type),))
        whole = Node("add", ("half", "half"), made.results, Attributes())
        nodes = [item for node in graph.nodes for item in ((half, whole) if node is made else (node,))]
        return Graph(graph.name, graph.inputs, tuple(nodes), graph.outputs)


@dataclass(frozen=True)
class Again(Doubles):
    """The same under another name."""

    name: ClassVar[str] = "again"

    def apply(self, graph: Graph, target: Target) -> Graph:
        return graph


@dataclass(frozen=True)
class Renames(Doubles):
    """Another output: no rule of graphs is broken, but who runs it asks for y."""

    name: ClassVar[str] = "renames"

    def apply(self, graph: Graph, target: Target) -> Graph:
        made = graph.producers["y"]
        other = replace(made, results=(Value("z", made.results[0].type),))
        return Graph(graph.name, graph.inputs, (*graph.nodes[:-1], other), ("z",))


@dataclass(frozen=True)
class Breaks(Doubles):
    """A node that reads what is not there."""

    name: ClassVar[str] = "breaks"

    def apply(self, graph: Graph, target: Target) -> Graph:
        return Graph(graph.name, graph.inputs, (replace(graph.nodes[0], operands=("nobody",)),), graph.outputs)


@dataclass(frozen=True)
class Forgets(Doubles):
    """Returns nothing."""

    name: ClassVar[str] = "forgets"

    def apply(self, graph: Graph, target: Target) -> Graph:
        return None  # type: ignore[return-value]


@dataclass(frozen=True)
class Makes(Doubles):
    """The graph with other fields."""

    fields: tuple[tuple[str, Any], ...]
    name: ClassVar[str] = "makes"

    def apply(self, graph: Graph, target: Target) -> Graph:
        return replace(graph, **dict(self.fields))


@dataclass(frozen=True)
class Mutates(Doubles):
    """Changes the graph that it was given."""

    field: str
    name: ClassVar[str] = "mutates"

    def apply(self, graph: Graph, target: Target) -> Graph:
        object.__setattr__(graph, self.field, ())
        return graph


def one() -> Graph:
    builder = Builder("g")
    builder.value("x", (2, 8))
    builder.add("silu", ("x",), "y")
    return builder.graph(("y",))


def one_result() -> tuple[Value, ...]:
    return one().nodes[0].results


def with_passes(*passes: tuple[str, Any]) -> PipelineOptions:
    return PipelineOptions().extended(passes=passes)


def test_a_pass_runs_behind_its_stage_in_the_order_given() -> None:
    report = run_pipeline(one(), HOST, with_passes(("cse", Again()), ("cse", Doubles()), ("input", RunsFirst())))
    names = [stage.name for stage in report.stages]
    assert names[:2] == ["input", "first"]
    assert names[names.index("cse") + 1 :][:2] == ["again", "doubles"]
    assert [node.op for node in report.graph.nodes] == ["silu", "add"]
    assert report.options["doubles"] == "doubles"
    assert [node.name for node in run_pipeline(one(), HOST).graph.nodes] == ["y"]


@dataclass(frozen=True)
class RunsFirst(Again):
    name: ClassVar[str] = "first"


def test_an_optional_one_is_left_out_by_name() -> None:
    options = with_passes(("cse", Doubles())).extended(disable=["doubles"])
    assert [node.op for node in run_pipeline(one(), HOST, options).graph.nodes] == ["silu"]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Breaks(), r"after pass breaks: [\s\S]*V02"),
        (
            Renames(),
            r"after pass renames: interface: .*expected output 0 %y: f32\[2,8\], found output 0 %z: f32\[2,8\]",
        ),
        (Forgets(), r"after pass forgets: expected a Graph, found None"),
        (Makes((("nodes", ("a node",)),)), "after pass makes: the graph cannot be read: AttributeError"),
        (Makes((("outputs", (1,)),)), "after pass makes: the graph cannot be read: TypeError"),
        (
            Makes((("nodes", (Node("soften", ("x",), one_result(), Attributes()),)),)),
            r"after pass makes: there are no operators \['soften'\]\n.*`ost.extend`",
        ),
        (Mutates("nodes"), r"after pass mutates: [\s\S]*V"),
        (Mutates("outputs"), r"after pass mutates: interface: .*expected output 0 %y"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_broken_graph_is_refused_with_pass_and_rule_and_nothing_is_kept(item: Any, message: str) -> None:
    graph = one()
    before = run_pipeline(graph, HOST)
    with pytest.raises(ost.VerificationError, match=message):
        run_pipeline(graph, HOST, with_passes(("cse", item)))
    after = run_pipeline(graph, HOST)
    assert after.graph == before.graph
    assert after.decisions == before.decisions


def named(name: str) -> Any:
    made: Any = dataclass(frozen=True)(type("Named", (Doubles,), {"name": name}))
    return made()


def test_an_executable_runs_on_after_a_pass_was_refused(tmp_path: Path, seed: int) -> None:
    tiny_model = small_model("llama", tmp_path, seed)
    options: dict[str, Any] = {"buckets": {"B": [1], "T": [4]}, "context": 16, "device": "cpu"}
    executable = ost.compile(tiny_model, **options)
    ids = np.array([[1, 2, 3]], np.int32)
    expected = executable(ids)["logits"].tobytes()
    for make in (ost.compile, ost.LLM):
        given = options if make is ost.compile else {"context": 16, "device": "cpu"}
        with pytest.raises(ost.VerificationError, match="after pass breaks"):
            make(tiny_model, passes=[("cse", Breaks())], **given)
    assert executable(ids)["logits"].tobytes() == expected


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("cse", "passes are 'cse'"),
        ([Doubles()], r"passes have Doubles\(\)"),
        ([("cse", 3)], "the pass behind cse lacks name, requires, ensures, optional, apply: 3"),
        ([("cse", Doubles)], "the pass behind cse is no value of a dataclass"),
        ([("csx", Doubles())], r"behind 'csx', which does not exist\n.*input, canonicalize"),
        ([("select_impl", Doubles())], "behind 'select_impl', which is too late"),
        ([("cse", Doubles()), ("cse", Doubles())], "there is a pass doubles already"),
        ([("cse", named("two\nlines"))], r"the pass behind cse is called 'two\\nlines'"),
        ([("cse", named(""))], "the pass behind cse is called ''"),
    ],
    ids=str,
)
def test_what_is_no_pass_is_refused(passes: Any, message: str) -> None:
    with pytest.raises(ost.ConfigError, match=message):
        PipelineOptions().extended(passes=passes)


# what became of nodes


def test_fused_nodes_know_what_they_were_made_of() -> None:
    report = run_pipeline(decoder(Config(layers=1)), HOST, PipelineOptions().extended(disable=["fuse_norm"]))
    made = {name: sorted(origin.op for origin in decision.origins) for name, decision in report.decisions.items()}
    swiglu = next(node for node in report.graph.nodes if node.op == "linear_swiglu")
    assert made[swiglu.name] == ["linear", "linear", "swiglu"]
    for node in report.graph.nodes:
        if node.op in ("embedding", "rotary_table"):
            assert made[node.name] == []


def test_a_user_pass_is_followed_too() -> None:
    report = run_pipeline(one(), HOST, with_passes(("cse", Doubles())))
    (origin,) = report.decisions["y"].origins
    assert (origin.name, origin.op) == ("y", "silu")


def test_stages_can_be_cut_short_at_each_of_them() -> None:
    names = ["input", *(item.name for item in pipeline())]
    for name in names:
        report = run_pipeline(one(), HOST, stop_after=name)
        assert report.stages[-1].name == name
