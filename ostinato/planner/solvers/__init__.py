"""Solvers of the placement problem: pure functions from `Problem` to `Outcome`. One line here adds a solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ostinato.planner.problem import Problem
from ostinato.planner.solvers.best_fit import Outcome, Status, best_fit

__all__ = ["SOLVERS", "Outcome", "Status", "solve"]

SOLVERS: Mapping[str, Callable[[Problem], Outcome]] = {"best_fit": best_fit}


def solve(problem: Problem, solver: str = "best_fit") -> Outcome:
    """Places the buffers of `problem`; raises `KeyError` for an unknown solver. The same problem always gives the same outcome."""
    return SOLVERS[solver](problem)
