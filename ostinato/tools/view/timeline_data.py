"""What a step takes, as plain data of a page: measured where there is a profile of the entry, and nothing else.

A page draws steps that were not measured by what the operator table says of them, their bytes or their operations, which are columns of the plan; it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostinato.ir.errors import ConfigError
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.profile import Profile
from ostinato.tools.profile.ceilings import Ceilings
from ostinato.tools.profile.roofline import roofline

__all__ = ["profile_data"]


def profile_data(profile: Profile, plan: EntryPlan, ceilings: Ceilings | None = None) -> dict[str, Any]:
    """The measured times of an entry's steps, in seconds, by position; -1 for a step that was not measured. With `ceilings` the page says of each
    step how near it comes to what its device can do.

    Raises `ConfigError` for a profile of other steps than the plan's.
    """
    seconds, best = [-1.0] * len(plan.steps), [-1.0] * len(plan.steps)
    for step in profile.steps:
        planned = plan.steps[step.position].node if 0 <= step.position < len(plan.steps) else None
        if planned != step.node:
            raise ConfigError(
                f"the profile has %{step.node} at position {step.position}, the plan of {plan.name} has {planned or 'no step'} there",
                hint="profile the executable that is viewed",
            )
        seconds[step.position], best[step.position] = step.seconds, step.best
    roofs = [] if ceilings is None else roofline(profile, ceilings)
    share, bound = [-1.0] * len(plan.steps), [""] * len(plan.steps)
    for roof in roofs:
        share[roof.step.position], bound[roof.step.position] = roof.share, roof.bound
    return {
        "device": profile.device,
        "mode": profile.mode,
        "runs": profile.runs,
        "method": profile.method,
        "notes": list(profile.notes),
        "whole": profile.whole_seconds,
        "sum": profile.sum_seconds,
        "overhead": profile.overhead_seconds,
        "seconds": _short(seconds),
        "best": _short(best),
        "share": _short(share) if roofs else None,
        "bound": bound if roofs else None,
    }


def _short(values: Sequence[float]) -> list[float]:
    """No more digits than a clock has."""
    return [float(f"{value:.5g}") for value in values]
