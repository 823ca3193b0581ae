"""The portfolio: always right, never below the bound, the same every time, and at the bound where that is easy."""

from __future__ import annotations

import random
from itertools import permutations

from ostinato.planner.problem import Buffer, Problem, align_up, lower_bound, violations
from ostinato.planner.solvers import Status
from ostinato.planner.solvers.best_fit import ORDERS, Fit, best_fit
from tests.planner.test_problem import random_problem


def transformer(layers: int, width: int = 4096, unit: int = 256) -> Problem:
    """Lifetimes of a decoder: a residual that lives through each half layer, short projections, one wide activation."""
    buffers: list[Buffer] = []
    step = 0
    for layer in range(layers):
        for name, size, life in (
            ("norm", width, 1),
            ("q", width, 4),
            ("k", width // 4, 3),
            ("v", width // 4, 2),
            ("attention", width, 1),
            ("residual", width, 4),
            ("gate_up", 2 * 4 * width, 1),
            ("activated", 4 * width, 1),
        ):
            buffers.append(Buffer(f"{name}.{layer}", step, step + 1 + life, align_up(size, unit), unit))
            step += 1
    return Problem(tuple(buffers))


def slow_best(problem: Problem) -> int:
    """The best height over all orders of lowest fit: optimal for a handful of buffers."""
    best = sum(align_up(b.size, b.alignment) for b in problem.buffers)
    for order in permutations(problem.buffers):
        placed: list[tuple[Buffer, int]] = []
        for buffer in order:
            free = 0
            for end, start in sorted((o + b.size, o) for b, o in placed if b.overlaps(buffer)):
                if start < free + buffer.size and free < end:
                    free = align_up(end, buffer.alignment)
            placed.append((buffer, free))
        best = min(best, max(o + b.size for b, o in placed))
    return best


def test_solutions_are_right_and_never_below_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        problem = random_problem(rng, rng.randint(0, 25), alignments=rng.choice([(1,), (8,), (1, 4, 16)]))
        outcome = best_fit(problem)
        assert violations(problem, outcome.solution) == ()
        assert outcome.solution.height >= outcome.bound.height == lower_bound(problem).height
        assert (outcome.status is Status.OPTIMAL) == (outcome.solution.height == outcome.bound.height)
        assert best_fit(problem) == outcome


def test_small_problems_are_solved_nearly_always(seed: int) -> None:
    rng = random.Random(seed)
    worse = 0
    for _ in range(60):
        problem = random_problem(rng, 5)
        worse += best_fit(problem).solution.height > slow_best(problem)
    assert worse <= 3


def test_fixed_offsets_are_kept_and_others_go_around_them(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        problem = random_problem(rng, 12, fixed=True)
        found = violations(problem, best_fit(problem).solution)
        fixed = {buffer.id for buffer in problem.buffers if buffer.offset is not None}
        # colliding fixed offsets are the problem's own fault
        assert all(sum(f"{name} [" in text for name in fixed) == 2 for text in found), found


def test_transformer_lifetimes_reach_the_bound() -> None:
    outcome = best_fit(transformer(250))
    assert len(transformer(250).buffers) == 2000
    assert outcome.status is Status.OPTIMAL
    assert outcome.gap == 0.0


def test_a_capacity_below_the_bound_is_infeasible() -> None:
    buffers = (Buffer("a", 0, 2, 8), Buffer("b", 1, 3, 8))
    assert best_fit(Problem(buffers, 16)).status is Status.OPTIMAL
    assert best_fit(Problem(buffers, 15)).status is Status.INFEASIBLE


def test_a_capacity_that_was_not_reached_is_said(seed: int) -> None:
    rng = random.Random(seed)
    statuses = set()
    for _ in range(200):
        problem = random_problem(rng, 20)
        outcome = best_fit(problem)
        tight = best_fit(Problem(problem.buffers, outcome.bound.height))
        statuses.add(tight.status)
        assert tight.solution == outcome.solution
    assert statuses == {Status.OPTIMAL, Status.OVER_CAPACITY}


def test_offsets_past_two_to_the_32() -> None:
    buffers = tuple(Buffer(f"b{i}", 0, 1, 2**33 + i, 256) for i in range(4))
    outcome = best_fit(Problem(buffers))
    assert violations(Problem(buffers), outcome.solution) == ()
    assert outcome.solution.height > 2**34


def test_nothing_and_empty_buffers() -> None:
    assert best_fit(Problem(())).solution.height == 0
    outcome = best_fit(Problem((Buffer("a", 0, 1, 0), Buffer("b", 0, 1, 0, 8))))
    assert (outcome.solution.height, outcome.status, outcome.gap) == (0, Status.OPTIMAL, 0.0)


def test_dense_problems_are_bounded_and_deterministic(seed: int) -> None:
    rng = random.Random(seed)
    buffers = []
    for index in range(1500):
        lower = rng.randrange(3000)
        buffers.append(Buffer(str(index), lower, lower + rng.randint(1, 1500), rng.randint(1, 1 << 20)))
    first = best_fit(Problem(tuple(buffers)))
    assert violations(Problem(tuple(buffers)), first.solution) == ()
    assert first == best_fit(Problem(tuple(buffers)))


def test_the_portfolio_is_eight_orders_by_two_fits() -> None:
    assert (len(ORDERS), len(Fit)) == (8, 2)
