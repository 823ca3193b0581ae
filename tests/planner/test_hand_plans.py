"""The four regions that the reference engine plans by hand: never above its formulas, and below by what dies early, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.planner.regions import MODELS, REGIONS, Model, Region, plan_region
from ostinato.planner.settings import PlanSettings

# what is live at the peak of each region, with in-place reuse: the formula that a hand could have found
ALIVE: dict[str, Callable[[Model], int]] = {
    "FP32 FFN": lambda m: 2 * 4 * m.rows * m.inner,  # gate and up; activated takes gate's bytes
    "BF16 FFN": lambda m: 2 * m.rows * m.hidden + 2 * 2 * m.rows * m.inner,  # and the cast input, dead behind up
    "BF16 QKV": lambda m: (
        2 * m.rows * m.hidden + 4 * m.rows * (m.hidden + 2 * m.kv)
    ),  # no fallback, results while attention reads
    "attention core": lambda m: (
        2 * 4 * m.heads * m.rows * m.width + 4 * m.heads * m.rows**2
    ),  # the context takes what queries and keys had
}
# megabytes as published
PUBLISHED = {
    "FP32 FFN": (29.88, 55.05),
    "BF16 FFN": (18.61, 33.82),
    "BF16 QKV": (4.46, 7.86),
    "attention core": (20.19, 22.02),
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("region", REGIONS, ids=lambda region: region.name)
def test_a_region_takes_what_is_live_and_less_than_the_hand_plan(region: Region, model: Model) -> None:
    hand = region.hand(model)
    assert round(hand / 1e6, 2) == PUBLISHED[region.name][MODELS.index(model)]
    plan = plan_region(region.graph(model))
    assert plan.stats.arena_bytes == plan.stats.lower_bound == ALIVE[region.name](model) < hand
    assert plan.stats.status == "optimal"
    assert plan.stats.strided_copies == plan.stats.copies == 0


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("region", REGIONS, ids=lambda region: region.name)
def test_fusion_never_needs_more_and_in_place_reuse_never_hurts(region: Region, model: Model) -> None:
    plain = plan_region(region.graph(model)).stats
    assert plan_region(region.fused(model)).stats.arena_bytes <= plain.arena_bytes
    without = plan_region(region.graph(model), PlanSettings(in_place=False)).stats
    assert without.arena_bytes == without.lower_bound >= plain.arena_bytes
    assert without.in_place == 0
