"""What a front door was asked for, as the part of an artifact that compiles it again."""

from __future__ import annotations

from typing import Any

from ostinato.frontend.family import Family
from ostinato.frontend.models import FAMILIES
from ostinato.ir.precision import PrecisionPolicy
from ostinato.passes.pipeline import PipelineOptions, describe
from ostinato.passes.policy import POLICIES
from ostinato.planner.settings import PlanSettings
from ostinato.runtime.options import Route
from ostinato.saving.manifest import Kind, Request

__all__ = ["request_of"]


def request_of(
    kind: Kind,
    family: Family,
    precision: str | PrecisionPolicy,
    mode: str,
    options: PipelineOptions,
    settings: PlanSettings,
    route: Route,
    **more: Any,
) -> Request:
    """The request of a program with these options and settings; `more` are the arguments of the front door that are not among them."""
    unsaid = [] if family in FAMILIES else [f"a family of your own: {family.name}"]
    unsaid += [f"a pass of your own behind {stage}: {describe(item)}" for stage, item in options.passes]
    policy = options.choice.policy
    if POLICIES.get(policy.name) != policy:
        unsaid.append(f"a policy of your own: {policy}")
    if options.choice.limits:
        unsaid.append(f"highest levels: {options.choice}")
    return Request(
        kind=kind,
        precision=str(precision),
        mode=mode,
        capture=route.capture,
        memory_limit=settings.memory_limit,
        reuse=settings.reuse,
        levels=dict(options.choice.forced),
        disable=tuple(sorted(options.disable)),
        policy=policy.name,
        unsaid=tuple(unsaid),
        **more,
    )
