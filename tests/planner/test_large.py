"""Problems of thousands of buffers: placed at once, within a few percent of the bound after little work, and to the same rules as small ones."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest

from benchmarks.planner.generators import FAMILIES, guillotine, inference, random_intervals, training
from ostinato.planner.problem import Buffer, Problem, lower_bound, violations
from ostinato.planner.solvers import Limits, Outcome, Status, solve

AT_ONCE = Limits(nodes=0)


def ratio(outcome: Outcome, problem: Problem) -> float:
    assert violations(problem, outcome.solution) == ()
    assert outcome.bound.height >= lower_bound(problem).height
    return outcome.solution.height / lower_bound(problem).height


def aligned(problem: Problem, rng: random.Random) -> Problem:
    """The same lives with sizes that are no multiples of anything, some alignments above 1 among them."""
    return Problem(
        tuple(
            replace(buffer, size=max(1, buffer.size - rng.randrange(64)), alignment=rng.choice((1, 16, 64, 96)))
            for buffer in problem.buffers
        )
    )


def pinned(problem: Problem, rng: random.Random, share: float) -> Problem:
    """The same problem with that share of the buffers fixed where a solution has them, far from the ground for the most part."""
    offsets = solve(problem, "native", AT_ONCE).solution.offsets
    return Problem(
        tuple(
            replace(buffer, offset=offset) if rng.random() < share else buffer
            for buffer, offset in zip(problem.buffers, offsets, strict=True)
        )
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_twenty_thousand_buffers_need_no_search_for_a_solution(family: str, seed: int) -> None:
    problem = FAMILIES[family](20_000, seed)
    outcome = solve(problem, "native", AT_ONCE)
    assert ratio(outcome, problem) < (1.6 if family == "guillotine" else 1.25)
    assert outcome.nodes == 0


def test_transformer_lifetimes_and_random_intervals_come_within_one_percent(seed: int) -> None:
    for problem in (inference(10_000, seed), training(10_000, seed), random_intervals(10_000, seed)):
        assert ratio(solve(problem, "native", Limits(nodes=80_000)), problem) < 1.01


def test_local_search_lowers_what_it_is_given_and_more_of_it_is_never_worse(seed: int) -> None:
    problem = guillotine(4_000, seed)
    ratios = [ratio(solve(problem, "native", Limits(nodes=nodes)), problem) for nodes in (0, 20_000, 100_000)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] - ratios[2] > 0.03


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_nodes_and_seed_give_the_same_outcome(threads: int) -> None:
    problem = random_intervals(5_000, 3)
    first = solve(problem, "native", Limits(nodes=20_000, seed=7))
    assert solve(problem, "native", Limits(nodes=20_000, seed=7, threads=threads)) == first
    assert first.nodes == 20_000 or first.status is Status.OPTIMAL
    assert solve(problem, "native", Limits(nodes=20_000, seed=8)).solution != first.solution


def test_alignments_paddings_and_fixed_offsets_are_respected(seed: int) -> None:
    rng = random.Random(seed)
    for share in (0.0, 0.02, 0.3):
        problem = pinned(aligned(random_intervals(4_000, seed), rng), rng, share)
        outcome = solve(problem, "native", Limits(nodes=20_000))
        assert violations(problem, outcome.solution) == ()
        assert outcome.solution.height <= solve(problem, "native", AT_ONCE).solution.height


def test_local_search_gives_up_a_target_that_obstacles_leave_no_room_for() -> None:
    """Every step has a fixed wall whose lower side just holds a buffer that is as large as what is free above: below the best, one of them has no place."""
    steps = 4_000
    walls = [Buffer(f"wall{step}", 2 * step, 2 * step + 2, 10, offset=7) for step in range(steps)]
    loose = [Buffer(f"loose{step}", 2 * step, 2 * step + 2, 8) for step in range(steps)]
    problem = Problem((*walls, *loose))
    outcome = solve(problem, "native", Limits(nodes=3_000))
    assert violations(problem, outcome.solution) == ()
    assert (outcome.solution.height, outcome.bound.height) == (25, 18)
    assert (outcome.status, outcome.nodes) == (Status.FEASIBLE, 3_000)


def test_buffers_that_all_live_together_are_never_listed_in_pairs() -> None:
    count = 30_000
    problem = Problem(tuple(Buffer(str(i), i, 2 * count - i, 1 + i % 7) for i in range(count)))
    outcome = solve(problem, "native", Limits(nodes=1_000))
    assert (ratio(outcome, problem), outcome.status) == (1.0, Status.OPTIMAL)


def test_a_large_solve_ends_when_it_is_told_to(seed: int) -> None:
    problem = guillotine(20_000, seed)
    event = threading.Event()
    timer = threading.Timer(0.3, event.set)
    timer.start()
    outcome = solve(problem, "native", Limits(seconds=600), event)
    timer.join()
    assert outcome.status is Status.TIMEOUT
    assert violations(problem, outcome.solution) == ()
