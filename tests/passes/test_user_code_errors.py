"""What functions of a user's own raise while their graph is compiled: one typed error that says whose, at which node and line, with the original behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.evidence.classes import class_calls
from ostinato.backend_hip.target import hip_target, host_rows_target
from ostinato.backend_hip.user_rows import user_rows
from ostinato.extending import Extents
from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.graph import Graph
from ostinato.ir.interp import interpret
from ostinato.ir.target import Target
from ostinato.ir.text import parse_graph
from ostinato.ir.types import DType, TensorType
from ostinato.ir.verify import verify
from ostinato.ir.views import ViewTable, call_site
from ostinato.passes.differentiate import differentiate
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import run_pipeline
from ostinato.planner.lower import plan_entry
from tests.hip.test_extend import BEND, ON_GPUS, SOURCE

GRAPH = "graph @g {\n  input %x: f32[3,4]\n  %y: f32[3,4] = bend(%x) {knee=2.0}\n  return %y\n}\n"
HERE = r"\n  at \S*test_user_code_errors\.py:\d+"


def fails(*given: Any) -> Any:
    return 1 // len(given[7:])


def is_wrong(*given: Any) -> Any:
    del given
    return {"no": "value that anybody wants"}


def plan(target: Target) -> None:
    plan_entry(run_pipeline(parse_graph(GRAPH), target).graph, target, name="main")


def first(error: BaseException) -> BaseException:
    """What an error goes back to."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def extended(fields: dict[str, Any], row: dict[str, Any]) -> ost.Extension:
    rows = [] if "view" in fields else [replace(ON_GPUS, **row)]
    return ost.extend(operators=[replace(BEND, **fields)], rows=rows, kernels={"mine/bend": SOURCE})


def compiled(fields: dict[str, Any], row: dict[str, Any]) -> None:
    with extended(fields, row):
        plan(host_rows_target() if "view" in fields else hip_target("sm_90", 32))


@pytest.mark.parametrize("name", ["accepts", "kernel", "params", "workspace", "launch"])
def test_a_function_of_a_row_that_raises_is_told_with_its_row_node_and_line(name: str) -> None:
    with pytest.raises(
        ost.UserCodeError, match=rf"^y: {name} of row bend@hip raised ZeroDivisionError.*{HERE}"
    ) as caught:
        compiled({}, {name: fails})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ost.UserCodeError, match=rf"^y: {name} of row bend@hip gave {{'no'.*, expected .*{HERE}"):
        compiled({}, {name: is_wrong})


@pytest.mark.parametrize("name", ["view", "sizes", "cost"])
@pytest.mark.parametrize(("function", "told"), [(fails, "raised ZeroDivisionError"), (is_wrong, "gave {'no'")])
def test_a_function_of_an_operator_that_raises_is_told_with_its_operator_node_and_line(
    name: str, function: Any, told: str
) -> None:
    with pytest.raises(ost.OstinatoError, match=rf"y: {name} of operator bend {told}.*{HERE}") as caught:
        compiled({name: function}, {"extents": Extents(rows=(0, 64))})
    assert isinstance(first(caught.value), ZeroDivisionError if function is fails else ost.UserCodeError)


def test_a_type_rule_that_raises_is_told_with_the_line_that_asked_for_the_operator() -> None:
    with extended({"infer": fails}, {}):
        builder = GraphBuilder("g")
        x = builder.input("x", TensorType((3, 4), DType.F32))
        with pytest.raises(
            ost.UserCodeError, match=rf"^infer of operator bend raised Zero.*{HERE}\n  in bend\(.*{HERE}"
        ) as caught:
            builder.apply("bend", (x,), {"knee": 2.0})
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(
            ost.VerificationError, match=rf"V07 %y: infer of operator bend raised Zero.*{HERE}"
        ) as found:
            verify(parse_graph(GRAPH))
    assert isinstance(first(found.value), ZeroDivisionError)


def test_a_reference_that_raises_is_told_with_its_node() -> None:
    with (
        extended({"reference": fails}, {}),
        pytest.raises(ost.UserCodeError, match=rf"^y: reference of operator bend.*{HERE}"),
    ):
        interpret(parse_graph(GRAPH), {"x": np.zeros((3, 4), np.float32)})


def test_a_derivative_that_raises_is_told_with_its_node() -> None:
    with extended({"derivative": fails}, {}):
        builder = GraphBuilder("g")
        x = builder.input("x", TensorType((3, 4), DType.F32))
        y = builder.apply("bend", (x,), {"knee": 2.0}, "y")
        graph = builder.finish((F.reduce_sum(y, name="loss"),))
        with pytest.raises(ost.UserCodeError, match=rf"^y: derivative of operator bend.*{HERE}"):
            differentiate(graph, "loss", ["x"])


@pytest.mark.parametrize("name", ["samples", "infer"])
def test_a_mistake_in_an_operators_own_functions_is_no_failure_of_the_row_that_is_validated(name: str) -> None:
    def samples(rng: np.random.Generator) -> Iterator[Any]:
        yield from BEND.samples(rng)
        fails()

    with ost.extend(operators=[BEND], rows=[ON_GPUS], kernels={"mine/bend": SOURCE}):
        graph = parse_graph(GRAPH)
        site = call_site(graph, graph.nodes[0], ViewTable(graph))
    with extended({name: samples if name == "samples" else fails}, {}):
        (row,) = user_rows()
        with pytest.raises(ost.UserCodeError, match=rf"{name} of operator bend raised Zero.*{HERE}"):
            class_calls(row, site, np.random.default_rng(1))


@dataclass(frozen=True)
class Raises:
    name: ClassVar[str] = "raises"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        return replace(graph, name=graph.producers["nobody"].op)


def test_what_a_pass_raises_names_the_pass_and_its_line() -> None:
    graph = parse_graph("graph @g {\n  input %x: f32[3]\n  %y: f32[3] = silu(%x)\n  return %y\n}\n")
    options = PipelineOptions().extended(passes=[("cse", Raises())])
    with pytest.raises(ost.UserCodeError, match=rf"^pass raises raised KeyError\('nobody'\){HERE}") as caught:
        run_pipeline(graph, host_rows_target(), options)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_ours_that_a_rule_raises_passes_as_it_is() -> None:
    def refuses(*given: Any) -> Any:
        raise ost.ShapeError("not this one")

    with pytest.raises(ost.VerificationError, match="V07 %y: not this one\n"):
        compiled({"infer": refuses}, {})


def test_rows_are_told_apart_by_the_names_of_their_functions_as_before() -> None:
    with extended({}, {}) as extension:
        (row,) = user_rows()
        held = replace(hip_target("sm_90", 32), rows=(row,))
        assert held.rows_hash == replace(held, rows=extension.rows).rows_hash
