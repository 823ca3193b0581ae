"""What a solve is given beside the problem, and what it gives back."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ostinato.planner.problem import Bound, Problem, Solution

__all__ = ["NO_LIMITS", "Limits", "Outcome", "Status", "StopTest", "status_of"]

StopTest: TypeAlias = Callable[[], bool]
"""Asked now and then whether to end with what there is."""


class Status(enum.Enum):
    """What is known of a solution.

    `OPTIMAL`: nothing is lower. `FEASIBLE`: the search ended by its own account (its node limit) before it proved that. `TIMEOUT`: time ran out, or the
    caller stopped it. `OVER_CAPACITY`: the same as `FEASIBLE`, and the lowest solution found exceeds the capacity. `INFEASIBLE`: no solution is within the
    capacity, proven.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    TIMEOUT = "timeout"
    OVER_CAPACITY = "over_capacity"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a solve may spend: search nodes, seconds (None: no limit; both None is a solver's own default), threads.

    With a limit on nodes alone the same problem, limits and seed give the same outcome; with a limit on seconds they need not.
    """

    nodes: int | None = None
    seconds: float | None = None
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        numbers: tuple[tuple[str, object], ...] = (
            ("nodes", self.nodes),
            ("threads", self.threads),
            ("seed", self.seed),
        )
        for name, value in numbers:
            if not isinstance(value, int | None) or isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}, expected an integer")
        if self.nodes is not None and self.nodes < 0:
            raise ValueError(f"node limit {self.nodes} is negative")
        if self.seconds is not None and not self.seconds >= 0:
            raise ValueError(f"time limit {self.seconds} s; expected 0 or more")
        if self.threads < 1:
            raise ValueError(f"{self.threads} threads; expected at least 1")


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A solution (the lowest found, even when over capacity), its bound, and the run that found it, such as "best_fit/size/lowest".

    `bound` is the peak of the load, or higher where a search proved that nothing lower exists; `nodes` counts search nodes.
    """

    solution: Solution
    bound: Bound
    solver: str
    status: Status
    nodes: int = 0

    @property
    def gap(self) -> float:
        """height / bound - 1; 0 when both are 0."""
        return self.solution.height / self.bound.height - 1 if self.bound.height else 0.0


def status_of(problem: Problem, height: int, bound: int, *, stopped: bool = False) -> Status:
    """What is known once the lowest solution found has `height` and nothing is lower than `bound`; `stopped` by time or by the caller."""
    if problem.capacity is not None and bound > problem.capacity:
        return Status.INFEASIBLE
    if height <= bound:
        return Status.OPTIMAL
    if stopped:
        return Status.TIMEOUT
    if problem.capacity is not None and height > problem.capacity:
        return Status.OVER_CAPACITY
    return Status.FEASIBLE
