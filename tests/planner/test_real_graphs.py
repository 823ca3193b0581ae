"""Plans of real models, from their shapes alone: as low as their bound, and proven."""

from __future__ import annotations

import pytest

from benchmarks.planner.models import lowered_model, time_plan


@pytest.mark.parametrize("name", ["Q", "D", "L"])
def test_a_prefill_and_a_decode_step_meet_their_bound(name: str) -> None:
    for shape, lowered in lowered_model(name, ("p512", "d1")):
        plan = time_plan(lowered, 1).plan
        stats = plan.stats
        assert stats.arena_bytes == stats.lower_bound > 0, shape
        assert stats.status == "optimal"
        assert stats.copies == stats.strided_copies == 0
        assert stats.in_place > 0
        assert stats.reused > stats.steps // 2
        assert plan.peak.startswith(f"entry {shape} needs {stats.arena_bytes} bytes of arena")
