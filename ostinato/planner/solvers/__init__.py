"""Solvers of the placement problem: functions from `Problem`, `Limits` and a test whether to stop to `Outcome`. One line here adds a solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event

from ostinato.planner.problem import Problem, ProblemError, fixed_collisions
from ostinato.planner.solvers.best_fit import best_fit
from ostinato.planner.solvers.exact import exact
from ostinato.planner.solvers.native import native
from ostinato.planner.solvers.outcome import NO_LIMITS, Limits, Outcome, Status, StopTest

__all__ = ["NO_LIMITS", "SOLVERS", "Limits", "Outcome", "Status", "solve"]

SOLVERS: Mapping[str, Callable[[Problem, Limits, StopTest | None], Outcome]] = {
    "native": native,
    "best_fit": best_fit,
    "exact": exact,
}


def solve(
    problem: Problem, solver: str = "native", limits: Limits = NO_LIMITS, stop: StopTest | Event | None = None
) -> Outcome:
    """Places the buffers of `problem` as low as `limits` allow; `stop`, asked about every 50 ms, ends it early with the best there is.

    Without a limit on seconds and a stop the outcome depends on the other arguments alone. Raises `KeyError` for an unknown solver and `ProblemError` for
    numbers that the solver cannot hold, and for fixed offsets that collide: no placement is right then, let alone optimal.
    """
    if solver not in SOLVERS:
        raise KeyError(f"solver is {solver!r}, use one of {', '.join(SOLVERS)}")
    if wrong := fixed_collisions(problem):
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ProblemError(f"fixed offsets collide: {wrong[0]}{more}", field="offset")
    return SOLVERS[solver](problem, limits, stop.is_set if isinstance(stop, Event) else stop)
