"""The roofline of a profile: what each step would take at the ceilings, which of them is in its way, and how near it comes.

A step takes no less than bytes / bandwidth, and no less than operations / rate; the larger of the two is its limit, and the limit over the time is its share.
Where both are below the shortest step there is, the step is bound by being launched: fewer steps would help, and faster kernels would not. A share above 1 is a
step whose bytes came from a cache, or one that skipped rows which are not valid; bytes and operations are those of full extents.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ostinato.runtime.profile import Profile, StepTime
from ostinato.tools.profile.ceilings import Ceilings
from ostinato.tools.profile.report import Bound

__all__ = ["StepRoof", "TotalRoof", "roofline", "totals"]


@dataclass(frozen=True, slots=True)
class StepRoof:
    """A step against its ceiling. `bound` is "memory", "compute" or "launch", `limit_seconds` the least it can take, `share` that over what it took."""

    step: StepTime
    bound: Bound
    limit_seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class TotalRoof:
    """Steps with a name in common: their seconds, the least they can take, and the bound that most of their seconds have."""

    name: str
    steps: int
    seconds: float
    nbytes: int
    flops: int
    limit_seconds: float
    bound: Bound

    @property
    def share(self) -> float:
        return _share(self.limit_seconds, self.seconds)


def roofline(profile: Profile, ceilings: Ceilings) -> tuple[StepRoof, ...]:
    """Every step of a profile against the ceilings of its device."""
    return tuple(_roof(step, ceilings) for step in profile.steps)


def totals(roofs: Sequence[StepRoof], name: Callable[[StepTime], str]) -> tuple[TotalRoof, ...]:
    """Steps of the same name together, in the order in which names first come."""
    groups: dict[str, list[StepRoof]] = {}
    for roof in roofs:
        groups.setdefault(name(roof.step), []).append(roof)
    return tuple(_total(name, group) for name, group in groups.items())


def _roof(step: StepTime, ceilings: Ceilings) -> StepRoof:
    memory = step.nbytes / ceilings.bandwidth
    compute = step.flops / ceilings.flops_of(step.dtypes)
    limit = max(memory, compute)
    bound: Bound = "memory" if memory >= compute else "compute"
    if limit < ceilings.step_seconds:
        bound = "launch"
    return StepRoof(step, bound, limit, _share(limit, step.seconds))


def _total(name: str, group: Sequence[StepRoof]) -> TotalRoof:
    seconds: dict[Bound, float] = {}
    for roof in group:
        seconds[roof.bound] = seconds.get(roof.bound, 0.0) + roof.step.seconds
    return TotalRoof(
        name,
        len(group),
        sum(roof.step.seconds for roof in group),
        sum(roof.step.nbytes for roof in group),
        sum(roof.step.flops for roof in group),
        sum(roof.limit_seconds for roof in group),
        max(seconds, key=lambda bound: seconds[bound]),
    )


def _share(limit: float, seconds: float) -> float:
    """0 where nothing was measured, since a step that took no time the clock can tell has no share."""
    return limit / seconds if seconds > 0 else 0.0
