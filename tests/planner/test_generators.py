"""The generated placement problems: as many buffers as asked for, the same every time, and of known optimum where one is promised."""

from __future__ import annotations

import pytest

from benchmarks.planner.generators import FAMILIES, UNIT, guillotine, guillotine_solution
from ostinato.planner.problem import lower_bound, violations


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_gives_the_number_of_buffers_asked_for_and_the_same_ones_for_the_same_seed(family: str) -> None:
    for count in (1, 7, 400):
        problem = FAMILIES[family](count, 3)
        assert len(problem.buffers) == count
        assert problem == FAMILIES[family](count, 3)
        assert all(buffer.size > 0 and buffer.size % UNIT == 0 for buffer in problem.buffers)
    assert FAMILIES[family](400, 3) != FAMILIES[family](400, 4)


@pytest.mark.parametrize("count", [1, 2, 50, 2000])
def test_a_cut_rectangle_is_full_at_every_moment_and_its_cuts_are_a_solution(count: int, seed: int) -> None:
    problem, solution = guillotine(count, seed), guillotine_solution(count, seed)
    assert violations(problem, solution) == ()
    assert solution.height == lower_bound(problem).height
    area = sum(buffer.size * (buffer.upper - buffer.lower) for buffer in problem.buffers)
    assert area == solution.height * max(buffer.upper for buffer in problem.buffers)
