"""Plans and placement problems as files: written by one command, used by another, refused when they belong to something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.planner.problem import problem_from_csv
from ostinato.tools.schemas import ErrorReport, PlacementReport, PlanReport
from tests.tools.conftest import Run

SHAPES = ("--shapes", "B=1,T=1,16")


def test_a_saved_plan_is_proven_again_without_planning(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "plans" / "plan.json"
    made = ostinato("plan", str(tiny), *SHAPES, "--output", str(file), "--json").report()
    assert isinstance(made, PlanReport)
    assert made.files == (str(file),)
    read = ostinato("plan", str(tiny), *SHAPES, "--check", str(file), "--json").report()
    assert isinstance(read, PlanReport)
    assert (read.entries, read.regions) == (made.entries, made.regions)
    again = tmp_path / "again.json"
    text = ostinato("plan", str(tiny), *SHAPES, "--check", str(file), "--output", str(again)).out
    assert f"the plan of {file} proven" in text.replace("\n", "")
    assert again.read_text() == file.read_text()


def test_a_saved_plan_of_other_shapes_is_stale(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert ostinato("plan", str(tiny), *SHAPES, "--output", str(file)).code == 0
    result = ostinato("plan", str(tiny), "--shapes", "B=1,T=1,32", "--check", str(file), "--json")
    report = result.report()
    assert isinstance(report, ErrorReport)
    assert (result.code, report.code) == (1, "stale_artifact")
    assert "entry step[N=16,R=1]: only the plan has it" in report.message
    assert "entry step[N=32,R=1]: the plan has none" in report.message
    other = ostinato("plan", str(tiny), *SHAPES, "--dtype", "bf16", "--check", str(file))
    assert other.code == 1
    assert "option precision" in other.err.replace("\n", "")
    assert "Traceback" not in other.err


def test_a_damaged_or_missing_plan_is_refused(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert ostinato("plan", str(tiny), *SHAPES, "--check", str(file)).code == 2
    file.write_text("{}")
    assert ostinato("plan", str(tiny), *SHAPES, "--check", str(file)).code == 1


def test_the_problems_of_a_model_are_solved_as_files(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    report = ostinato("plan", str(tiny), *SHAPES, "--export-problem", str(tmp_path), "--json").report()
    assert isinstance(report, PlanReport)
    assert len(report.files) == len(report.entries) == 2
    for file, entry in zip(report.files, report.entries, strict=True):
        assert len(problem_from_csv(Path(file).read_text()).buffers) > 10
        placed = ostinato("plan", file, "--json").report()
        assert isinstance(placed, PlacementReport)
        assert (placed.height, placed.lower_bound) == (entry.arena_bytes, entry.lower_bound)


def test_a_plan_is_saved_and_loaded_in_python(tiny: Path, tmp_path: Path) -> None:
    lowered = ost.trace(str(tiny), "step").lower(dims={"N": 8, "R": 1})
    planned = lowered.plan()
    planned.save(tmp_path / "plan.json")
    loaded = lowered.load_plan(tmp_path / "plan.json")
    assert loaded.program == planned.program
    assert loaded.load().run(None, _zeros(loaded)).keys() == planned.load().run(None, _zeros(planned)).keys()
    problem = planned.problem()
    assert problem == loaded.problem()
    assert len(problem.buffers) == len(planned.plan.slots)


def test_a_plan_for_other_settings_options_or_dims_is_refused_in_python(tiny: Path, tmp_path: Path) -> None:
    traced = ost.trace(str(tiny), "step")
    lowered = traced.lower(dims={"N": 8, "R": 1})
    file = tmp_path / "plan.json"
    lowered.plan().save(file)
    with pytest.raises(ost.StaleArtifact, match="option memory_limit: the plan has absent, wanted is 1048576"):
        lowered.load_plan(file, memory_limit="1M")
    with pytest.raises(ost.StaleArtifact) as caught:
        traced.lower(dims={"N": 8, "R": 1}, disable=["fuse_qkv"]).load_plan(file)
    assert [line.partition(":")[0] for line in caught.value.differences] == [
        "entry step, graph",
        "entry step, option fuse_qkv",
    ]
    with pytest.raises(ost.StaleArtifact, match="dimension N: the plan has 8, wanted is 4"):
        traced.lower(dims={"N": 4, "R": 1}).load_plan(file)


def test_a_plan_is_never_run_unproven(tiny: Path, tmp_path: Path) -> None:
    """Hashes that fit are no proof: a wrong plan with right hashes meets the checker when it is loaded."""
    lowered = ost.trace(str(tiny), "step").lower(dims={"N": 8, "R": 1})
    planned = lowered.plan()
    entry = planned.plan
    wrong = entry.model_copy(update={"steps": (*entry.steps[1:], entry.steps[0])})
    program = planned.program.model_copy(update={"entries": {lowered.name: wrong}})
    file = tmp_path / "plan.json"
    type(planned)(planned.model, lowered, lowered.graph, program).save(file)
    assert json.loads(file.read_text())["format"] == "ostinato-plan"
    with pytest.raises(ost.PlanError, match="not proven"):
        lowered.load_plan(file)


def _zeros(planned: ost.Planned) -> dict[str, Array]:
    inputs = planned.load().runner(planned.lowered.name).inputs
    return {name: array.copy() for name, array in inputs.items()}
