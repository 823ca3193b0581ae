"""Solvers of the placement problem: functions from `Problem` and `Limits` to `Outcome`. One line here adds a solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ostinato.planner.problem import Problem
from ostinato.planner.solvers.best_fit import best_fit
from ostinato.planner.solvers.outcome import NO_LIMITS, Limits, Outcome, Status

__all__ = ["NO_LIMITS", "SOLVERS", "Limits", "Outcome", "Status", "solve"]

SOLVERS: Mapping[str, Callable[[Problem, Limits], Outcome]] = {"best_fit": best_fit}


def solve(problem: Problem, solver: str = "best_fit", limits: Limits = NO_LIMITS) -> Outcome:
    """Places the buffers of `problem`; raises `KeyError` for an unknown solver. Without a limit on seconds the outcome depends on the arguments alone."""
    return SOLVERS[solver](problem, limits)
