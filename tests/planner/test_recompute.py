"""Plans within a limit of memory: what is computed again, that it is right wherever bytes are shared, and what is said when nothing fits.

Every plan is proven by the checker and, on tagged bytes, by the judge that shares nothing with it.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ostinato.ir.errors import CapacityError
from ostinato.ir.graph import Graph, Location, Role
from ostinato.ir.text import graph_hash, parse_graph, print_graph
from ostinato.planner.check import check_program
from ostinato.planner.plan import EntryPlan
from ostinato.planner.plan_text import print_entry
from ostinato.planner.program import build_program
from ostinato.planner.recompute.fit import fit_entry
from ostinato.planner.recompute.model import RecomputeModel
from ostinato.planner.recompute.trace import Trace
from ostinato.planner.saved import program_from_json, program_to_json
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker
from tests.planner.mutation_cases import random_graph
from tests.planner.recompute_cases import (
    SIZE,
    block,
    graph_with_late_readers,
    kept_across,
    random_step,
    small_model,
)
from tests.planner.tagged import Judge


def fit(graph: Graph, limit: int | None = None, order: str = "program") -> tuple[Graph, EntryPlan]:
    """A plan within a limit, proven twice."""
    settings = PlanSettings(order=order, memory_limit=limit)
    planned, plan = fit_entry(graph, FAKE_TARGET, name="e", settings=settings, ops=FAKE_OPS)
    program = build_program({"e": (planned, plan)})
    report = check_program(program, {"e": planned}, FAKE_TARGET, sources={"e": graph}, ops=FAKE_OPS)["e"]
    assert not Judge(planned, FAKE_TARGET, FAKE_OPS).is_harmful(program, program.entries["e"])
    assert report.clones == len(plan.clones)
    assert limit is None or plan.stats.arena_bytes <= limit
    return planned, plan


def again(plan: EntryPlan) -> dict[str, str]:
    """The steps that compute a value again -> what they compute."""
    return {step.node: plan.clones[step.node] for step in plan.steps if step.node in plan.clones}


# what is computed again


def test_nothing_is_computed_again_without_a_limit_or_within_it() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    graph = kept_across(make, make.unary("kept", x), x)
    planned, plan = fit(graph)
    assert planned is graph
    assert (plan.clones, plan.source_hash, plan.stats.recomputed) == ({}, plan.graph_hash, 0)
    same, roomy = fit(graph, plan.stats.arena_bytes)
    assert same is graph
    assert roomy == plan.model_copy(update={"options": {**plan.options, "memory_limit": str(plan.stats.arena_bytes)}})


def test_a_cheap_value_that_lives_across_a_block_is_computed_again_before_its_reader() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    graph = kept_across(make, make.unary("kept", x), x)
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    assert plan.clones == {"kept~1": "kept"}
    names = [node.name for node in planned.nodes]
    assert names.index("kept~1") == names.index("y") - 1
    assert planned.producers["y"].operands == ("b2", "kept~1")
    assert (plan.stats.recomputed, plan.stats.launches) == (1, unlimited.stats.launches + 1)
    assert 0 < plan.stats.extra_work < 0.15
    assert plan.source_hash == graph_hash(graph) != plan.graph_hash == graph_hash(planned)


def test_the_cheaper_of_two_values_is_computed_again() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    dear = make.unary("dear", make.input("z", 8 * SIZE), size=SIZE)
    cheap = make.unary("cheap", x)
    graph = make.graph(make.binary("y", make.binary("w", block(make, x), cheap), dear))
    _, unlimited = fit(graph)
    _, plan = fit(graph, unlimited.stats.lower_bound - SIZE)
    assert set(again(plan).values()) == {"cheap"}


def test_a_small_source_is_kept_and_a_large_result_computed_again() -> None:
    """`wide` is made from `narrow`, which nobody else reads: keeping the narrow one across the block is what a minimum cut finds."""
    make = GraphMaker()
    x = make.input("x", 8 * SIZE)
    narrow = make.unary("narrow", x, size=8)
    wide = make.unary("wide", narrow, size=SIZE)
    graph = make.graph(make.binary("y", block(make, make.input("z", SIZE)), wide))
    _, unlimited = fit(graph)
    _, plan = fit(graph, unlimited.stats.lower_bound - SIZE + 8)
    assert again(plan) == {"wide~1": "wide"}
    assert any("narrow" in slot.values and slot.last > 5 for slot in plan.slots)


def test_a_chain_is_computed_again_from_what_is_there() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    graph = kept_across(make, make.unary("c", make.unary("b", make.unary("a", x))), x)
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    assert again(plan) == {"a~1": "a", "b~1": "b", "c~1": "c"}
    assert planned.producers["b~1"].operands == ("a~1",)


def test_activations_kept_for_a_backward_pass_fit_in_a_fraction() -> None:
    """A chain of 24 forward steps, each read again by its backward step: 25 values live at the peak, eight are enough."""
    make = GraphMaker()
    forward = [make.input("x", SIZE)]
    for index in range(24):
        forward.append(make.unary(f"h{index}", forward[-1]))
    gradient = make.unary("loss", forward[-1])
    for index in reversed(range(24)):
        gradient = make.binary(f"g{index}", gradient, forward[index + 1], "in_place_a")
    graph = make.graph(make.unary("out", gradient))
    _, unlimited = fit(graph)
    assert unlimited.stats.arena_bytes == 25 * SIZE
    _, plan = fit(graph, 8 * SIZE)
    assert plan.stats.recomputed <= 24  # a forward pass at most


# wherever bytes are shared


def test_views_of_a_value_look_into_the_clone_that_is_there() -> None:
    make = GraphMaker()
    kept = make.unary("kept", make.input("x", SIZE))
    part = make.part("part", make.part("half", kept, 0, SIZE // 2), 8, 24)
    x = block(make, make.unary("early", part, size=SIZE))
    graph = make.graph(make.binary("late", make.unary("from_part", part, size=SIZE), x))
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    assert plan.clones == {"kept~1": "kept", "half~1": "half", "part~1": "part"}
    assert again(plan) == {"kept~1": "kept"}
    assert planned.producers["early"].operands == ("part",)
    assert planned.producers["from_part"].operands == ("part~1",)
    assert (planned.producers["part~1"].operands, planned.producers["half~1"].operands) == (("half~1",), ("kept~1",))


def test_all_results_of_a_step_are_made_again_and_the_needed_ones_read() -> None:
    make = GraphMaker()
    x, z = make.input("x", SIZE), make.input("z", SIZE)
    first, second = make.pair(("first", "second"), x, z)
    middle = block(make, make.unary("early", first))
    graph = make.graph(make.unary("out", make.binary("y", middle, second)))
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    assert plan.clones == {"first~1": "first"}
    assert [value.name for value in planned.producers["second~1"].results] == ["first~1", "second~1"]
    assert planned.producers["y"].operands == ("b2", "second~1")


def test_a_value_that_is_an_output_too_keeps_its_place_there() -> None:
    """`kept` lies in the output's bytes, which are not of the arena; `copied` is copied to the output and read again much later."""
    make = GraphMaker()
    x = make.input("x", SIZE)
    kept, copied = make.unary("kept", x), make.unary("copied", x)
    y = make.binary("y", make.binary("w", block(make, x), kept), copied)
    graph = make.graph(make.unary("out", y), kept, make.part("corner", copied, 0, 8))
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    assert again(plan) == {"copied~1": "copied"}
    assert planned.producers["w"].operands == ("b2", "kept")
    assert planned.outputs == graph.outputs


def test_an_operand_that_a_result_takes_over_is_made_again_for_its_later_reader() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    a = make.unary("a", x)
    b = make.unary("b", a, "in_place")
    graph = make.graph(make.unary("out", make.binary("y", block(make, b, steps=1), a)))
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    assert again(plan) == {"a~1": "a"}
    assert plan.stats.in_place == unlimited.stats.in_place + 1  # `b` now lies in the bytes of `a`
    assert planned.producers["b"].operands == ("a",)


def test_a_workspace_counts_where_its_step_runs_again() -> None:
    """At the late reader there is no room for the workspace of `kept`, so the next cheapest is taken, though it costs more."""
    make = GraphMaker()
    x = make.input("x", 24)
    kept = make.unary("kept", x, "work")
    other = make.unary("other", make.input("z", 48), size=24)
    graph = make.graph(make.binary("y", make.binary("w", block(make, x, size=24), kept), other))
    _, unlimited = fit(graph)
    assert unlimited.stats.arena_bytes == 5 * 24
    _, plan = fit(graph, 4 * 24)
    assert plan.stats.arena_bytes == 4 * 24
    assert set(again(plan).values()) <= {"kept", "other"}


def test_weights_constants_and_inputs_are_read_again_where_they_are() -> None:
    make = GraphMaker()
    x = make.input("x", 16)
    table = make.binary("table", make.weight("w", 16), make.constant("c", bytes(range(16))))
    graph = kept_across(make, make.binary("kept", table, x), x)
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - 16)
    assert again(plan) == {"table~1": "table", "kept~1": "kept"}
    assert planned.producers["table~1"].operands == ("w", "c")


def test_counted_rows_stay_counted() -> None:
    make = GraphMaker()
    count, x = make.count("n", "N"), make.input("x", SIZE, axis="N")
    graph = kept_across(make, make.unary("kept", x), x)
    _, unlimited = fit(graph)
    _, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    (step,) = (step for step in plan.steps if step.node == "kept~1")
    assert [operand.value for operand in step.operands if operand is not None] == ["x", count, "kept~1"]


# what must not run twice


@pytest.mark.parametrize("kind", ["ordered", "state", "reads state that is updated"])
def test_effects_and_state_that_changes_are_never_run_twice(kind: str) -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    state = make.input("s", SIZE, Role.STATE)
    if kind == "ordered":
        kept = make.ordered("kept", x)
    elif kind == "state":
        kept = make.unary("kept", make.update("updated", state, x))
        state = make.update("again", "updated", x)
    else:
        kept = make.unary("kept", state)
        make.update("updated", state, x)
    graph = kept_across(make, kept, x)
    _, unlimited = fit(graph)
    with pytest.raises(CapacityError, match="%kept: 64 bytes, read next by %y"):
        fit(graph, unlimited.stats.arena_bytes - SIZE)


def test_state_that_was_updated_before_and_stays_is_read_again() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    updated = make.update("updated", make.input("s", SIZE, Role.STATE), x)
    graph = kept_across(make, make.unary("kept", updated), x)
    _, unlimited = fit(graph)
    _, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    assert again(plan) == {"kept~1": "kept"}


def _trained(make: GraphMaker, early: bool) -> Graph:
    """Two layers and back: the activation of the first layer is read once more by its gradient, before (or behind) the update of the parameter that made it."""
    x = make.input("x", SIZE)
    p = make.parameter("p", SIZE)
    kept = make.binary("kept", x, p)
    y = block(make, make.unary("start", x))
    if early:
        make.update("p1", p, y)
    gradient = make.binary("gradient", y, kept)
    if not early:
        make.update("p1", p, gradient)
    return make.graph(make.unary("out", gradient))


def test_a_parameter_is_read_again_until_it_is_updated() -> None:
    graph = _trained(GraphMaker(), early=False)
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    assert again(plan) == {"kept~1": "kept"}
    order = [step.node for step in plan.steps]
    assert order.index("kept~1") < order.index("gradient") < order.index("p1")
    assert [node.name for node in planned.nodes][-4:] == ["kept~1", "gradient", "p1", "out"]


def test_a_parameter_is_not_read_again_behind_its_update() -> None:
    """The reader comes later than the update: what the old parameter made has to stay, or the update to wait for the clone."""
    graph = _trained(GraphMaker(), early=True)
    _, unlimited = fit(graph, order="program")
    with pytest.raises(CapacityError, match="%kept: 64 bytes"):
        fit(graph, unlimited.stats.arena_bytes - SIZE, "program")


@pytest.mark.parametrize("order", ["program", "search"])
def test_steps_that_update_what_clones_read_are_proven(seed: int, order: str) -> None:
    again_at_least_once = 0
    for number in range(6):
        graph = random_step(random.Random(f"{seed}.{number}"))
        _, unlimited = fit(graph, order=order)
        try:
            _, plan = fit(graph, unlimited.stats.arena_bytes * 3 // 4, order)
        except CapacityError:
            continue
        again_at_least_once += bool(plan.clones)
    assert again_at_least_once


def test_without_reuse_nothing_fits_that_did_not() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    graph = kept_across(make, make.unary("kept", x), x)
    settings = PlanSettings(reuse=False, memory_limit=8 * SIZE)
    with pytest.raises(CapacityError, match="plans tried that run steps twice: 0;"):
        fit_entry(graph, FAKE_TARGET, name="e", settings=settings, ops=FAKE_OPS)


# what a limit that nothing keeps is told


def test_an_impossible_limit_names_bytes_and_tenants_with_their_lines() -> None:
    make = GraphMaker("model")
    x = make.input("x", SIZE)
    graph = kept_across(make, make.ordered("kept", x), x)
    lines = {node.name: Location("model.py", 10 + index) for index, node in enumerate(graph.nodes)}
    graph = replace(graph, nodes=tuple(replace(node, location=lines[node.name]) for node in graph.nodes))
    settings = PlanSettings(order="program", memory_limit=200)
    with pytest.raises(CapacityError) as caught:
        fit_entry(graph, FAKE_TARGET, name="prefill", settings=settings, ops=FAKE_OPS)
    error = caught.value
    assert (error.node, error.code, isinstance(error, OverflowError)) == ("prefill", "capacity", True)
    text = str(error)
    for line in (
        "prefill: memory_limit is 200 bytes of arena, the smallest that a plan was found for is 256: 56 bytes are missing",
        "    %kept: 64 bytes (model.py:10), read next by %y (model.py:20)",
        "  hint: raise memory_limit to 256, or compile smaller buckets",
    ):
        assert line in text.splitlines(), text
    assert "  at its peak, step " in text
    assert "= binary, model.py:" in text


def test_a_step_that_needs_more_than_the_limit_by_itself_is_named() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    graph = kept_across(make, make.unary("kept", x), x)
    with pytest.raises(CapacityError) as caught:
        fit(graph, 100)
    text = str(caught.value)
    assert "takes 192 bytes by itself, operands included: no plan needs less" in text
    assert "this one needs 192 bytes or more" in text


def test_many_tenants_are_summed_up() -> None:
    make = GraphMaker()
    values = [make.ordered(f"v{index}", make.input(f"x{index}", 8 + 8 * index)) for index in range(20)]
    for index, value in enumerate(values):
        make.unary(f"r{index}", value)
    graph = make.graph(*(f"r{index}" for index in range(20)))
    with pytest.raises(CapacityError, match=r"%v19: 160 bytes, (.|\n)* 288 bytes of 8 smaller ones"):
        fit(graph, 1000)


# plans as values


def test_the_same_graph_and_limit_give_the_same_plan() -> None:
    rng = random.Random(8)
    graph = random_graph(rng, 14)
    _, unlimited = fit(graph)
    limit = unlimited.stats.arena_bytes - 8
    first, second = fit(graph, limit), fit(graph, limit)
    assert first == second
    assert first[1].hash == second[1].hash


def test_the_plan_does_not_depend_on_the_process() -> None:
    """Two processes with other hashes of strings give the same bytes."""
    source = (
        "from tests.planner.test_recompute import *\n"
        "graph = graph_with_late_readers(random.Random(3), 12)\n"
        "print(fit(graph, fit(graph)[1].stats.arena_bytes - 8)[1].hash)\n"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", source],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(hashes) == 1
    assert len(next(iter(hashes))) == 65


def test_text_and_json_carry_the_clones() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    graph = kept_across(make, make.unary("kept", x), x)
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    text = print_entry(plan).splitlines()
    assert f"graph={plan.graph_hash}  source={plan.source_hash}" in text[0]
    assert "clone %kept~1  of %kept" in text
    assert "clone" not in print_entry(unlimited)
    program = build_program({"e": (planned, plan)})
    assert program_from_json(program_to_json(program, {"e": planned})) == program
    assert parse_graph(print_graph(planned)) == planned
    other = program.entries["e"].model_copy(update={"clones": {"kept~1": "b0"}})
    assert other.hash != program.entries["e"].hash


def test_names_that_look_like_clones_are_left_alone() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    kept = make.unary("kept", make.unary("kept~1", x))
    graph = kept_across(make, kept, x)
    _, unlimited = fit(graph)
    planned, plan = fit(graph, unlimited.stats.arena_bytes - SIZE)
    assert plan.clones == {"kept~2": "kept", "kept~1~1": "kept~1"}
    assert planned.producers["kept~2"].operands == ("kept~1~1",)


# random graphs


@pytest.mark.parametrize("order", ["program", "search"])
def test_random_graphs_fit_or_say_why(seed: int, order: str) -> None:
    """Any limit: a plan within it that checker and judge accept (`fit`), or the error. The model counts what liveness counts."""
    found = {"fits": 0, "again": 0, "error": 0}
    for number in range(120):
        rng = random.Random(f"{seed}.{number}")
        graph = graph_with_late_readers(rng, rng.randint(4, 12))
        _, unlimited = fit(graph, order=order)
        if order == "program":
            assert Trace(small_model(graph), small_model(graph).nothing).peak == unlimited.stats.lower_bound
        limit = rng.randrange(unlimited.stats.arena_bytes // 2, unlimited.stats.arena_bytes + 8)
        try:
            planned, plan = fit(graph, limit, order)
        except CapacityError:
            found["error"] += 1
            continue
        found["again" if plan.clones else "fits"] += 1
        if order == "program" and plan.clones:
            model = small_model(planned)
            assert Trace(model, model.nothing).peak == plan.stats.lower_bound
    assert min(found.values()) >= 5, found


def cheapest(model: RecomputeModel, budget: int) -> int | None:
    """The least work of any script within a budget, by trying all of up to four clones."""
    places = [
        (place, turn) for place in range(len(model.turns)) for turn in range(place) if model.turns[turn].may_run(place)
    ]
    best: int | None = None
    for count in range(5):
        for runs in itertools.combinations(places, count):
            script = tuple(tuple(t for p, t in runs if p == place) for place in range(len(model.turns)))
            cost = model.cost(script)
            if (best is None or cost < best) and Trace(model, script).peak <= budget:
                best = cost
    return best


def test_costs_are_near_the_least_there_is(seed: int) -> None:
    """Against every script of up to four clones on small graphs, halfway between the hungriest step and the peak."""
    ours = least = 0
    for number in range(60):
        rng = random.Random(f"{seed}.{number}")
        graph = random_graph(rng, rng.randint(4, 8))
        model = small_model(graph)
        _, unlimited = fit(graph)
        limit = (model.floor()[0] + unlimited.stats.lower_bound) // 2 // 8 * 8
        if limit >= unlimited.stats.lower_bound or (best := cheapest(model, limit)) is None:
            continue
        try:
            _, plan = fit(graph, limit)
        except CapacityError:
            continue
        work: Mapping[str, int] = {turn.node.name: turn.work for turn in model.turns}
        ours += sum(work[original] for original in again(plan).values())
        least += best
    assert 0 < least <= ours <= 1.1 * least


def test_a_clone_that_the_budget_can_do_without_is_taken_out() -> None:
    make = GraphMaker()
    x = make.input("x", SIZE)
    values = [make.unary(f"k{index}", x) for index in range(6)]
    y = block(make, x)
    for index, value in enumerate(values):
        y = make.binary(f"y{index}", y, value)
    graph = make.graph(make.unary("out", y))
    _, unlimited = fit(graph)
    for fewer in range(1, 6):
        _, plan = fit(graph, unlimited.stats.arena_bytes - fewer * SIZE)
        assert plan.stats.recomputed == fewer


def test_a_graph_without_steps_fits_in_nothing() -> None:
    make = GraphMaker()
    graph = make.graph(make.input("x", 8))
    assert fit(graph, 0)[1].stats.arena_bytes == 0
    assert small_model(graph).nothing == ()
