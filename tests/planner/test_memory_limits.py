"""Limits of memory as a whole: more bytes are never worse than fewer, and what is refused without a search could not have been found by one."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from ostinato.ir.errors import CapacityError
from ostinato.ir.graph import Graph
from ostinato.planner.recompute.cut import Bounds
from ostinato.planner.recompute.fit import fit_entry
from ostinato.planner.recompute.ladder import Ladder
from ostinato.planner.recompute.trace import Trace
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET
from tests.planner.recompute_cases import graph_with_late_readers, random_step, small_model


def work_within(graph: Graph, limit: int | None, order: str) -> tuple[int, float] | str:
    """The bytes and the extra work of the plan within a limit, or the error."""
    settings = PlanSettings(order=order, memory_limit=limit)
    try:
        _, plan = fit_entry(graph, FAKE_TARGET, name="e", settings=settings, ops=FAKE_OPS)
    except CapacityError as error:
        return str(error)
    return plan.stats.arena_bytes, plan.stats.extra_work


@pytest.mark.parametrize("order", ["program", "search"])
def test_a_higher_limit_is_kept_too_and_costs_no_more(seed: int, order: str) -> None:
    kept = refused = again = 0
    for number in range(10):
        rng = random.Random(f"{seed}.{number}")
        graph = random_step(rng) if number % 2 else graph_with_late_readers(rng, rng.randint(8, 16))
        whole = work_within(graph, None, order)
        assert not isinstance(whole, str)
        limits = sorted({rng.randint(whole[0] // 2, whole[0]) for _ in range(16)})
        before = float("inf")
        for limit in limits:
            found = work_within(graph, limit, order)
            if isinstance(found, str):
                assert before == float("inf"), f"graph {number}: {limit} bytes are refused, fewer were kept"
                refused += 1
                continue
            assert found[0] <= limit
            assert found[1] <= before, f"graph {number}: {limit} bytes cost more than fewer"
            kept, again, before = kept + 1, again + (found[1] > 0), found[1]
    print(kept, refused, again)
    assert min(kept, refused, again) > 8


def test_the_limit_that_a_refusal_names_is_kept(seed: int) -> None:
    lower = 0
    for number in range(30):
        rng = random.Random(f"{seed}.{number}")
        graph = graph_with_late_readers(rng, rng.randint(6, 16))
        whole = work_within(graph, None, "search")
        assert not isinstance(whole, str)
        if not whole[0]:
            continue
        refusal = work_within(graph, rng.randrange(8), "search")
        assert isinstance(refusal, str)
        told = re.search(r"raise memory_limit to (\d+)", refusal)
        assert told is not None, refusal
        found = work_within(graph, int(told[1]), "search")
        assert not isinstance(found, str), found
        lower += int(told[1]) < whole[0]
    assert lower > 3


def test_no_script_goes_below_the_bounds(seed: int) -> None:
    """Against all scripts of up to three clones: bytes, and work within their bytes."""
    tight = worked = 0
    for number in range(24):
        rng = random.Random(f"{seed}.{number}")
        model = small_model(random_step(rng) if number % 2 else graph_with_late_readers(rng, rng.randint(4, 7)))
        whole = Trace(model, model.nothing)
        bounds = Bounds(model, whole.place)
        steps = range(len(model.turns))
        places = [(place, turn) for place in steps for turn in range(place) if model.turns[turn].may_run(place)]
        chosen = [runs for count in range(3) for runs in itertools.combinations(places, count)]
        chosen += [tuple(sorted(rng.sample(places, 3))) for _ in range(200) if len(places) > 2]
        least = whole.peak
        for runs in chosen:
            script = tuple(tuple(turn for place, turn in runs if place == at) for at in steps)
            peak = Trace(model, script).peak
            least = min(least, peak)
            assert peak >= bounds.least, (number, script)
            assert model.cost(script) >= bounds.work(peak), (number, script)
            worked += bounds.work(peak) > 0
        tight += least == bounds.least
    print(tight, worked)
    assert tight > 5
    assert worked > 30


def test_the_scripts_of_a_budget_keep_to_it_and_fall_no_lower_than_the_least(seed: int) -> None:
    scripts = 0
    for number in range(20):
        rng = random.Random(f"{seed}.{number}")
        model = small_model(random_step(rng))
        ladder = Ladder(model)
        assert list(ladder.budgets) == sorted(set(ladder.budgets), reverse=True)
        for budget in ladder.budgets:
            assert ladder.least <= budget < Trace(model, model.nothing).peak
            costs = [model.cost(script) for script in ladder.scripts(budget)]
            assert costs == sorted(costs)
            assert all(cost >= ladder.work(budget) for cost in costs)
            assert all(Trace(model, script).peak <= budget for script in ladder.scripts(budget))
            scripts += len(costs)
    assert scripts > 20
