"""Settings of the wrong type, and a forged plan with a region that no machine could address."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.ir.errors import ConfigError, PlanError
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker


@pytest.mark.parametrize(
    "given",
    [{"in_place": "no"}, {"reuse": 1}, {"reuse": None}, {"solver": ["native"]}, {"limits": None}, {"limits": 5}],
)
def test_a_setting_of_another_type_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(given))} is "):
        PlanSettings(**given)


@pytest.mark.parametrize("size", [2**63, 10**30, -1])
def test_a_region_beyond_64_bits_is_no_proven_plan(size: int) -> None:
    make = GraphMaker()
    graph = make.graph(make.unary("y", make.unary("t", make.input("x", 16))))
    program = build_program({"e": (graph, plan_entry(graph, FAKE_TARGET, name="e", ops=FAKE_OPS))})
    check_program(program, {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
    regions = tuple(
        item.model_copy(update={"bytes": size}) if item.region.kind == "arena" else item for item in program.regions
    )
    with pytest.raises(PlanError, match=f"region fake:0/arena has {size} bytes"):
        check_program(program.model_copy(update={"regions": regions}), {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
