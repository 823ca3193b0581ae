"""A limit of memory together with guards: what the message says would do, does."""

from __future__ import annotations

import random
import re

import pytest

from ostinato.ir.errors import CapacityError
from ostinato.ir.graph import Graph
from ostinato.planner.check import check_program
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.planner.recompute.fit import fit_entry
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET
from tests.planner.recompute_cases import graph_with_late_readers


def fit(graph: Graph, guard: int, limit: int) -> EntryPlan:
    """A plan within a limit, proven."""
    settings = PlanSettings(order="program", guard=guard, memory_limit=limit)
    planned, plan = fit_entry(graph, FAKE_TARGET, name="e", settings=settings, ops=FAKE_OPS)
    program = build_program({"e": (planned, plan)})
    check_program(program, {"e": planned}, FAKE_TARGET, sources={"e": graph}, ops=FAKE_OPS)
    return plan


@pytest.mark.parametrize("guard", [0, 8, 13])
def test_the_smallest_plan_that_is_named_is_found_again_under_its_own_limit(guard: int, seed: int) -> None:
    """Guards count in what recomputation has to save: every clone brings its own."""
    with_clones = 0
    for number in range(60):
        rng = random.Random(f"{seed}.{number}")
        graph = graph_with_late_readers(rng, rng.randint(5, 16))
        try:
            fit(graph, guard, 0)
        except CapacityError as error:
            found = re.search(r"smallest that a plan was found for is (\d+)", str(error))
            assert found is not None
            smallest = fit(graph, guard, int(found.group(1)))
            assert smallest.stats.arena_bytes <= int(found.group(1))
            with_clones += bool(smallest.clones)
    assert with_clones > 3
