"""`--memory-limit`: every command that plans a model keeps to it, says what it cost, and names bytes and tenants where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.tools.schemas import CompareReport, CompileReport, ErrorReport, PlanReport
from tests.tools.conftest import Run

SHAPES = ("--shapes", "B=1,T=16")


def plan_of(ostinato: Run, tiny: Path, *arguments: str) -> PlanReport:
    report = ostinato("plan", str(tiny), *SHAPES, *arguments, "--json").report()
    assert isinstance(report, PlanReport)
    return report


@pytest.fixture
def limit(ostinato: Run, tiny: Path) -> int:
    """A little less than an unlimited plan takes."""
    return plan_of(ostinato, tiny).entries[0].arena_bytes - 256


def test_plan_keeps_to_the_limit_and_says_what_it_cost(ostinato: Run, tiny: Path, limit: int, tmp_path: Path) -> None:
    saved = str(tmp_path / "plan.json")
    (entry,) = plan_of(ostinato, tiny, "--memory-limit", f"{limit}", "--output", saved).entries
    assert entry.arena_bytes <= limit
    assert entry.recomputed > 0
    assert 0 < entry.extra_work < 0.1
    assert plan_of(ostinato, tiny).entries[0].recomputed == 0
    assert (
        f"{entry.recomputed}, {entry.extra_work:.2%}"
        in ostinato("plan", str(tiny), *SHAPES, "--memory-limit", str(limit)).out
    )
    assert plan_of(ostinato, tiny, "--memory-limit", f"{limit}", "--check", saved).entries == (entry,)
    stale = ostinato("plan", str(tiny), *SHAPES, "--check", saved)
    assert stale.code == 1
    assert "option memory_limit" in stale.err


def test_compile_dumps_the_graph_before_and_after(ostinato: Run, tiny: Path, limit: int, tmp_path: Path) -> None:
    arguments = (*SHAPES, "--memory-limit", str(limit), "--dump", str(tmp_path / "stages"))
    report = ostinato("compile", str(tiny), *arguments, "--json").report()
    assert isinstance(report, CompileReport)
    graphs = {Path(file).name: Path(file).read_text() for file in report.files if file.endswith(".graph")}
    (before,) = (text for name, text in graphs.items() if name.endswith(".original.graph"))
    (after,) = (text for name, text in graphs.items() if not name.endswith(".original.graph"))
    assert '~1"' in after
    assert '~1"' not in before


def test_compare_and_run_take_it(ostinato: Run, tiny: Path, limit: int) -> None:
    report = ostinato("compare", str(tiny), "--replays", "1", "--memory-limit", "1G", "--json").report()
    assert isinstance(report, CompareReport)
    assert report.ok
    asked = ("run", str(tiny), "--prompt", "x", "--max-tokens", "2", "--temperature", "0")
    assert ostinato(*asked, "--memory-limit", "1G").out == ostinato(*asked).out


@pytest.mark.parametrize("command", ["plan", "compile", "run", "bench", "compare"])
def test_a_limit_that_nothing_keeps_is_an_error_with_bytes_and_tenants(ostinato: Run, tiny: Path, command: str) -> None:
    more = {"run": ("--prompt", "x"), "plan": SHAPES, "compile": SHAPES}.get(command, ())
    result = ostinato(command, str(tiny), *more, "--memory-limit", "1K", "--json")
    report = result.report()
    assert isinstance(report, ErrorReport)
    assert (result.code, report.code) == (2, "capacity")
    assert "memory_limit is 1024 bytes of arena" in report.message
    assert "bytes are missing" in report.message
    assert "ostinato/frontend/" in report.message


def test_sizes_that_are_none_are_refused(ostinato: Run, tiny: Path) -> None:
    for text in ("lots", "12 parsecs", ""):
        result = ostinato("plan", str(tiny), *SHAPES, "--memory-limit", text)
        assert result.code == 2
        assert "expected a number of bytes" in result.err
    result = ostinato("plan", "problem.csv", "--memory-limit", "1G")
    assert "does not take --memory-limit" in result.err
