"""The model of operator order against what it stands for: lifetimes, and the orders that the checker proves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Role
from ostinato.ir.opdef import Effect
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry, prepare
from ostinato.planner.order_model import order_model
from ostinato.planner.problem import lower_bound
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import ALIGNMENT, FAKE_OPS, FAKE_TARGET, GraphMaker
from tests.planner.mutation_cases import random_graph
from tests.planner.orders import model_of, names_of, random_order, schedule_of

GRAPHS = 150


def prove(graph: Graph, order: list[int]) -> None:
    """Plans the graph in that order and checks the plan."""
    plan = plan_entry(graph, FAKE_TARGET, name="e", schedule=schedule_of(graph, order), ops=FAKE_OPS)
    check_program(build_program({"e": (graph, plan)}), {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)


@pytest.mark.parametrize("in_place", [True, False])
def test_bytes_of_an_order_are_those_that_its_lifetimes_give(seed: int, in_place: bool) -> None:
    settings = PlanSettings(in_place=in_place)
    for number in range(GRAPHS):
        rng = random.Random(f"{seed}.{number}")
        graph = random_graph(rng, rng.randint(1, 25))
        model = model_of(graph, in_place=in_place)
        for order in (list(range(len(model.before))), random_order(rng, model)):
            prepared = prepare(graph, FAKE_TARGET, schedule=schedule_of(graph, order), settings=settings, ops=FAKE_OPS)
            assert model.peak(order) == lower_bound(prepared.problem).height, f"{seed}.{number}"


def test_every_order_that_keeps_the_dependences_is_proven(seed: int) -> None:
    for number in range(GRAPHS):
        rng = random.Random(f"{seed}.{number}")
        graph = random_graph(rng, rng.randint(1, 25))
        prove(graph, random_order(rng, model_of(graph)))


def test_every_dependence_is_needed(seed: int) -> None:
    """Two neighbours of an order that depend on each other, exchanged, make a plan that is refused."""
    refused = 0
    for number in range(GRAPHS):
        rng = random.Random(f"{seed}.{number}")
        graph = random_graph(rng, rng.randint(2, 12))
        model = model_of(graph)
        order = random_order(rng, model)
        tied = [place for place in range(1, len(order)) if order[place - 1] in model.before[order[place]]]
        bytes_moved = [place for place in tied if not _moves_nothing(graph, order[place - 1], order[place])]
        for place in bytes_moved[:3]:
            wrong = [*order[: place - 1], order[place], order[place - 1], *order[place + 1 :]]
            with pytest.raises(PlanError):
                prove(graph, wrong)
            refused += 1
    assert refused > GRAPHS


def _moves_nothing(graph: Graph, first: int, second: int) -> bool:
    """Whether the two share values without bytes only, so that their order cannot be seen."""
    one, other = (turn.node for turn in schedule_of(graph, (first, second)))
    if one.op == other.op == "ordered":
        return False
    return not any(graph.types[value.name].nbytes for value in one.results)


def test_ordered_effects_stay_in_the_programs_order() -> None:
    make = GraphMaker()
    x = make.input("x", 64)
    first = make.ordered("first", make.unary("large", x))
    second = make.ordered("second", make.unary("small", x, size=8))
    graph = make.graph(make.unary("y", first), make.unary("z", second))
    model = model_of(graph)
    steps = names_of(graph, range(len(model.before)))
    assert steps.index("first") in model.before[steps.index("second")]


def test_effects_that_operands_do_not_show_keep_the_programs_order() -> None:
    """A state effect without a declared update is such a one; a random operator is a function of its operands, its key among them."""
    make = GraphMaker()
    x = make.input("x", 8)
    graph = make.graph(make.unary("a", x), make.ordered("b", x), make.unary("c", x))
    for effect, before in ((Effect.STATE, ((), (0,), (1,))), (Effect.RANDOM, ((), (), ()))):
        ops = {**FAKE_OPS, "unary": replace(FAKE_OPS["unary"], effect=effect)}
        prepared = prepare(graph, FAKE_TARGET, ops=ops)
        model = order_model(graph, ops, prepared.storages, prepared.calls, alignment=ALIGNMENT, in_place=True)
        assert model.before == before


def test_an_update_comes_after_the_readers_of_what_it_overwrites_and_before_those_of_its_result() -> None:
    make = GraphMaker()
    state, x = make.input("s", 32, Role.STATE), make.input("x", 8)
    make.unary("early", state)
    make.unary("early_part", make.part("head", state, 0, 8))
    updated = make.update("updated", state, x)
    make.unary("late", updated)
    twice = make.update("twice", updated, x)
    graph = make.graph("early", "early_part", "late", make.unary("last", twice))
    model = model_of(graph)
    steps = names_of(graph, range(len(model.before)))
    needs = {name: {steps[other] for other in needed} for name, needed in zip(steps, model.before, strict=True)}
    assert needs["updated"] == {"early", "early_part"}
    assert needs["late"] == {"updated"}
    assert needs["twice"] == {"updated", "late"}
    assert needs["last"] == {"twice"}


def test_updates_of_disjoint_parts_may_change_places() -> None:
    make = GraphMaker()
    state, x = make.input("s", 32, Role.STATE), make.input("x", 8)
    parts = [make.part(f"p{start}", state, start, start + 16) for start in (0, 16)]
    one, two = (make.update(f"u{part}", part, x) for part in parts)
    graph = make.graph(make.binary("y", one, None), make.binary("z", two, None))
    model = model_of(graph)
    assert model.before == ((), (), (0,), (1,))
    prove(graph, [1, 0, 2, 3])


def test_what_is_no_part_of_the_arena_costs_nothing() -> None:
    make = GraphMaker()
    x, w = make.input("x", 64), make.weight("w", 64)
    t = make.binary("t", x, w)
    y = make.unary("y", t)
    empty = make.unary("empty", make.input("none", 0))
    graph = make.graph(y, x, empty, make.part("head", t, 0, 8))  # the copies need no bytes beside t
    model = model_of(graph)
    assert model.sizes == (64,)
    assert model.profile(range(3)) == ([64, 64, 0], [0, 64, 0, 0])
