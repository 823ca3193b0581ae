"""The checker against graphs and rows that a sound plan cannot come from: what the planner would refuse must not be proven either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Role, Value
from ostinato.ir.step import ByteRange, Region
from ostinato.ir.target import Impl
from ostinato.ir.types import Dim, DType, TensorType
from ostinato.planner.plan import RegionSize
from tests.planner.bench_plans import Bench, one_lane
from tests.planner.fakes import GraphMaker, fake_range

GOOD = one_lane()
Spoiled = tuple[Bench, str]


def with_graph(change: Callable[[Graph], Graph]) -> Bench:
    return replace(GOOD, graphs={**GOOD.graphs, "main": change(GOOD.graphs["main"])})


def with_rows(identity: str, change: Callable[[Impl], Impl]) -> Bench:
    rows = tuple(change(row) if row.identity == identity else row for row in GOOD.target.rows)
    return replace(GOOD, target=replace(GOOD.target, rows=rows))


def bind_no_dimension() -> Spoiled:
    tensor = TensorType((Dim("T", 1, 8),), DType.U8)

    def change(graph: Graph) -> Graph:
        inputs = tuple(
            GraphInput(Value("x", tensor), Role.INPUT) if item.value.name == "x" else item for item in graph.inputs
        )
        return replace(graph, inputs=inputs)

    return with_graph(change), "the graph cannot be replayed: dimension T is not bound"


def use_an_operator_of_no_table() -> Spoiled:
    return (
        with_graph(lambda g: replace(g, nodes=(*g.nodes[:-1], replace(g.nodes[-1], op="mystery")))),
        "operators ['mystery'] are not in the table",
    )


def return_a_strided_view() -> Spoiled:
    def change(graph: Graph) -> Graph:
        nodes = tuple(
            replace(node, attrs=Attributes({"start": 8, "step": 2})) if node.name == "p" else node
            for node in graph.nodes
        )
        return replace(graph, nodes=nodes)

    return with_graph(change), "output 2 %p is a strided view"


def copy_a_value_of_no_graph() -> Spoiled:
    return GOOD.with_step("copy of p", node="nobody"), "%nobody is no value of the graph"


def name_an_operand_that_the_operator_lacks() -> Spoiled:
    return (
        with_rows("pair@plain", lambda row: replace(row, operands=("a", "b", "sum", "other"))),
        "names other, which pair does not have",
    )


def leave_a_result_out() -> Spoiled:
    return (
        with_rows("pair@plain", lambda row: replace(row, operands=("a", "b", "sum"))),
        "takes no y, but the node has %normed",
    )


def leave_an_operand_out_that_another_names_too() -> Spoiled:
    """One value twice: naming it once is not enough."""
    make = GraphMaker()
    x = make.input("x", 8)
    good = one_lane(main=make.graph(make.binary("y", x, x)))
    rows = tuple(
        replace(row, operands=("a", "-", "count", "y")) if row.identity == "binary@plain" else row
        for row in good.target.rows
    )
    return replace(good, target=replace(good.target, rows=rows)), "takes no b, but the node has %x"


def need_workspace_without_an_operand() -> Spoiled:
    return (
        with_rows("pair@plain", lambda row: replace(row, workspace=lambda site: 8)),
        "needs 8 bytes of workspace and has no operand for it",
    )


def update_at_two_places() -> Spoiled:
    make = GraphMaker()
    s1 = make.update("s1", make.input("s", 16, Role.STATE), make.input("x", 8), "both")
    make.input("t", 16, Role.STATE)
    good = one_lane(main=make.graph(make.unary("y", s1)))
    good.check()
    return good.with_operand("s1", 2, range=fake_range("state", 16, 16)), "%s1 must be one range"


def update_a_state_with_itself() -> Spoiled:
    make = GraphMaker()
    state = make.input("s", 16, Role.STATE)
    bad = one_lane(main=make.graph(make.unary("y", make.update("s1", state, state))))
    return bad, "writes %s at fake:0/state[0:16] over %s at fake:0/state[0:16], which it also reads"


MUTATIONS: tuple[Callable[[], Spoiled], ...] = tuple(
    item for item in list(globals().values()) if getattr(item, "__annotations__", {}).get("return") == "Spoiled"
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_is_refused(mutation: Callable[[], Spoiled]) -> None:
    spoiled, words = mutation()
    with pytest.raises(PlanError) as caught:
        spoiled.check()
    assert words in str(caught.value), str(caught.value)


def test_a_copy_may_read_another_device() -> None:
    """The one kind of step of this version whose operands may lie elsewhere."""
    make = GraphMaker("main")
    w = make.weight("w", 16)
    good = one_lane(main=make.graph(make.unary("y", make.input("x", 8)), w))
    there = ByteRange(Region("fake:1", "weights"), 0, 16)
    (slot,) = good.program.weights
    regions = (*good.program.regions, RegionSize(region=there.region, bytes=16))
    moved = good.with_program(regions=regions, weights=(replace(slot, range=there),))
    moved.with_operand("copy of w", 0, range=there).check()
    with pytest.raises(PlanError, match=r"reads %w at fake:0/weights\[0:16\]"):
        moved.check()
