"""Problems that no planner would make: huge numbers, everything at once, everything alike, fixed offsets that collide. Solved, or refused by name."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from ostinato.planner.problem import Buffer, Problem, ProblemError, fixed_collisions, lower_bound, violations
from ostinato.planner.solvers import SOLVERS, Limits, Status, solve

FEW = Limits(nodes=2_000)
LARGEST = 2**63 - 1


def numbered(buffers: list[Buffer], capacity: int | None = None) -> Problem:
    return Problem(tuple(replace(buffer, id=f"b{index}") for index, buffer in enumerate(buffers)), capacity)


def test_nothing_at_all() -> None:
    outcome = solve(Problem(()))
    assert (outcome.solution.offsets, outcome.solution.height, outcome.status, outcome.gap) == (
        (),
        0,
        Status.OPTIMAL,
        0.0,
    )


def test_empty_buffers_lie_anywhere_but_where_they_are_fixed() -> None:
    problem = Problem((Buffer("a", 0, 1, 0), Buffer("b", 0, 1, 0, 8, 64), Buffer("c", 0, 1, 5)))
    outcome = solve(problem)
    assert violations(problem, outcome.solution) == ()
    assert (outcome.solution.height, outcome.status) == (64, Status.OPTIMAL)


@pytest.mark.parametrize("size", [2**31, 2**32 + 1, 2**40, 2**61 - 1])
def test_sizes_and_offsets_past_32_bits(size: int) -> None:
    problem = numbered(
        [Buffer("x", 0, 2, size), Buffer("x", 1, 3, size - 1), Buffer("x", 2, 4, size), Buffer("x", 0, 4, 3)]
    )
    outcome = solve(problem)
    assert violations(problem, outcome.solution) == ()
    assert outcome.solution.height == outcome.bound.height == 2 * size + 2


def test_sizes_that_never_live_together_may_sum_to_anything() -> None:
    problem = numbered([Buffer("x", step, step + 1, 2**62 + step) for step in range(50)])
    outcome = solve(problem)
    assert (outcome.solution.height, outcome.status) == (2**62 + 49, Status.OPTIMAL)


@pytest.mark.parametrize(
    "buffers",
    [
        (Buffer("a", 3, 9, 2**62), Buffer("b", 4, 7, 2**62)),
        (Buffer("a", 3, 9, LARGEST), Buffer("b", 4, 7, 1)),
        (Buffer("a", 3, 9, LARGEST, 2**62),),
        (Buffer("a", 3, 9, 2, 2**62), Buffer("b", 3, 9, 1, 2**62), Buffer("c", 3, 9, 1, 2**62)),
        (Buffer("a", 3, 9, 2, 1, LARGEST - 1),),
        (Buffer("a", 3, 9, 2**62, 1, 2**62), Buffer("b", 4, 5, 2**62)),
        tuple(Buffer(f"b{i}", 3, 9, 2**53 + 1) for i in range(1024)),
    ],
    ids=["two", "sum", "alignment", "alignments", "fixed", "above fixed", "many"],
)
def test_a_sum_beyond_64_bits_is_refused_with_its_time(buffers: tuple[Buffer, ...]) -> None:
    with pytest.raises(ProblemError, match=r"\[3, 9\) could end above 2\^63 - 1"):
        solve(Problem((Buffer("before", 0, 3, 5), *buffers)))


@pytest.mark.parametrize(
    ("buffer", "field"),
    [
        (Buffer("x", 0, 1, 2**63), "size"),
        (Buffer("x", -(2**63) - 1, 1, 1), "lower"),
        (Buffer("x", 0, 2**63, 1), "upper"),
        (Buffer("x", 0, 1, 1, 2**64), "alignment"),
        (Buffer("x", 0, 1, 1, 1, 2**63), "offset"),
    ],
)
def test_a_number_beyond_64_bits_is_refused_by_name(buffer: Buffer, field: str) -> None:
    with pytest.raises(ProblemError, match=f"buffer x: {field} ") as caught:
        solve(Problem((Buffer("a", 0, 1, 1), buffer)))
    assert caught.value.field == field


def test_lives_as_long_as_time() -> None:
    problem = numbered(
        [
            Buffer("x", -(2**63), LARGEST, 8),
            Buffer("x", -(2**62), 2**62, 4),
            Buffer("x", 0, LARGEST, 2),
            Buffer("x", -5, 0, 2),
        ]
    )
    outcome = solve(problem)
    assert violations(problem, outcome.solution) == ()
    assert (outcome.solution.height, outcome.bound.height) == (14, 14)


def test_a_fixed_offset_of_two_to_the_62() -> None:
    problem = numbered([Buffer("x", 0, 4, 16, 1, 2**62), *(Buffer("x", i, i + 2, 1 + i) for i in range(4))])
    outcome = solve(problem)
    assert violations(problem, outcome.solution) == ()
    assert (outcome.solution.height, outcome.status) == (2**62 + 16, Status.OPTIMAL)


def test_an_absurd_capacity_is_no_capacity() -> None:
    problem = numbered([Buffer("x", 0, 2, 8), Buffer("x", 1, 3, 8)], 2**80)
    assert solve(problem).status is Status.OPTIMAL
    assert solve(replace(problem, capacity=0)).status is Status.INFEASIBLE


def test_thousands_alike() -> None:
    problem = numbered([Buffer("x", 0, 1, 7)] * 3000 + [Buffer("x", 1, 3, 70)] * 300)
    outcome = solve(problem, limits=FEW)
    assert violations(problem, outcome.solution) == ()
    assert outcome.status is Status.OPTIMAL


def test_everything_lives_at_one_moment(seed: int) -> None:
    rng = random.Random(seed)
    problem = numbered(
        [Buffer("x", -rng.randint(1, 999), rng.randint(1, 999), rng.randint(1, 10**6)) for _ in range(1500)]
    )
    outcome = solve(problem, limits=FEW)
    assert violations(problem, outcome.solution) == ()
    assert outcome.status is Status.OPTIMAL


def test_twins_do_not_multiply_the_search() -> None:
    """Eleven of a kind where ten fit: their orders are the same."""
    problem = numbered(
        [Buffer("x", 0, 2, 10)] * 6 + [Buffer("x", 1, 4, 10)] * 5 + [Buffer("x", 3, 5, 15)] * 4 + [Buffer("x", 0, 5, 7)]
    )
    outcome = solve(problem, limits=Limits(nodes=100_000))
    assert outcome.status is Status.OPTIMAL


def test_many_buffers_in_a_chain_do_not_exhaust_the_stack() -> None:
    """A search goes as deep as there are buffers."""
    problem = numbered([Buffer("x", step, step + 3, 1 + step % 7) for step in range(20_000)])
    outcome = solve(problem, limits=Limits(nodes=50_000))
    assert violations(problem, outcome.solution) == ()
    assert outcome.gap < 0.3


@pytest.mark.parametrize("solver", SOLVERS)
def test_fixed_offsets_that_collide_are_refused_and_others_kept(seed: int, solver: str) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(300):
        buffers = [
            Buffer("x", step, step + rng.randint(1, 4), rng.randrange(1, 9), 1, rng.choice((None, rng.randrange(12))))
            for step in (rng.randrange(6) for _ in range(rng.randint(1, 10)))
        ]
        problem = numbered(buffers)
        if fixed_collisions(problem):
            refused += 1
            with pytest.raises(ProblemError, match="fixed offsets collide: buffers b"):
                solve(problem, solver, FEW)
        else:
            assert violations(problem, solve(problem, solver, FEW).solution) == ()
    assert 30 < refused < 270


def test_nothing_but_fixed_offsets() -> None:
    problem = numbered([Buffer("x", 0, 2, 4, 1, 0), Buffer("x", 0, 2, 4, 1, 4), Buffer("x", 1, 3, 4, 4, 8)])
    outcome = solve(problem)
    assert outcome.solution.offsets == (0, 4, 8)
    assert (outcome.solution.height, outcome.bound.height, outcome.status) == (12, 12, Status.OPTIMAL)


def test_padding_counts_to_the_byte() -> None:
    """Only the topmost buffer need not take its padding, so who is on top decides the last bytes."""
    problem = numbered(
        [Buffer("x", 0, 2, 65, 64), Buffer("x", 0, 2, 127, 64), Buffer("x", 1, 3, 100, 64), Buffer("x", 2, 4, 1, 64)]
    )
    outcome = solve(problem)
    assert outcome.status is Status.OPTIMAL
    assert outcome.solution.height == outcome.bound.height == lower_bound(problem).height == 128 + 128 + 65


def test_arbitrary_problems_are_solved_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    scales = (1, 7, 2**20, 2**31, 2**45, 2**59, 2**62)
    refused: list[str] = []
    for _ in range(1500):
        scale, buffers = rng.choice(scales), []
        for _ in range(rng.randint(1, 12)):
            lower = rng.choice((0, rng.randrange(10), -(2**62), 2**62))
            alignment = rng.choice((1, 1, 3, 64, scale))
            fixed = rng.random() < 0.2
            offset = alignment * rng.randrange(1 + min(50, LARGEST // alignment)) if fixed else None
            size = rng.randrange(4) * scale + rng.randrange(3)
            buffers.append(Buffer("x", lower, lower + rng.choice((1, 5, 2**61)), size, alignment, offset))
        problem = numbered(buffers, rng.choice((None, scale, 5 * scale)))
        try:
            outcome = solve(problem, limits=FEW)
        except ProblemError as error:
            refused.append(str(error))
            continue
        for text in violations(problem, outcome.solution):
            assert "exceeds the capacity" in text, (problem, text)
    assert all("64 bits" in text or "2^63 - 1" in text or "fixed offsets collide" in text for text in refused)
    assert 50 < len(refused) < 1000


@pytest.mark.parametrize("limits", [{"nodes": 1.5}, {"threads": 1.5}, {"seed": 1.5}, {"threads": True}, {"seed": "1"}])
def test_limits_are_integers(limits: dict[str, Any]) -> None:
    ((name, value),) = limits.items()
    with pytest.raises(TypeError, match=f"{name} is {value!r}, expected an integer"):
        Limits(**limits)
