"""What stands for a program on the command line: the same names for every command that takes several kinds, each read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.ir.step import Region
from ostinato.tools.diff.report import DiffReport
from ostinato.tools.named import kind_of
from ostinato.tools.schemas import ErrorReport, ExplainReport, PlanReport, ViewReport
from ostinato.tools.train.report import TrainPlanReport
from tests.tools.conftest import Result, Run
from tests.tools.test_every_command import CONFIG

SHAPES = ("--shapes", "B=1,T=8")


@pytest.fixture
def training(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def refusal(result: Result) -> ErrorReport:
    report = result.report()
    assert isinstance(report, ErrorReport)
    assert result.code == 2
    return report


def test_a_training_run_is_planned_like_a_model(ostinato: Run, training: Path) -> None:
    report = ostinato("plan", str(training), "--output", str(training.with_name("plan.json")), "--json").report()
    dry = ostinato("train", str(training), "--dry-run", "--json").report()
    assert isinstance(report, PlanReport)
    assert isinstance(dry, TrainPlanReport)
    assert [entry.name for entry in report.entries] == ["train"]
    assert report.regions[str(Region("host:0", "arena"))] == dry.memory.arena
    same = ostinato("diff", str(training), str(training.with_name("plan.json")), "--json").report()
    assert isinstance(same, DiffReport)
    assert not same.differs
    assert "--shapes" in refusal(ostinato("plan", str(training), *SHAPES, "--json")).message


def test_nodes_and_bytes_of_a_training_run_are_explained(ostinato: Run, training: Path) -> None:
    rows = ostinato("explain", str(training), "logits", "--json").report()
    assert isinstance(rows, ExplainReport)
    assert rows.entry == "train"
    assert any("logits" in node.name for node in rows.nodes)
    peak = ostinato("explain", str(training), "--peak", "--json").report()
    assert isinstance(peak, ExplainReport)
    assert peak.peak is not None
    mode = ostinato("explain", str(training), "--mode", "eager", "--device", "cpu", "--json").report()
    assert isinstance(mode, ExplainReport)
    assert mode.mode is not None
    for option in (("--memory-limit", "1M", "--peak"), ("--dims", "N=8,R=1"), ("--entry", "train")):
        assert option[0] in refusal(ostinato("explain", str(training), *option, "--json")).message


def test_before_takes_what_diff_takes(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    dump, graph, plan = tmp_path / "dump", tmp_path / "step.graph", tmp_path / "plan.json"
    assert ostinato("passes", str(tiny), "--dims", "N=8,R=1", "--dump", str(dump)).code == 0
    graph.write_text(ostinato("trace", str(tiny)).out, encoding="utf-8")
    assert ostinato("plan", str(tiny), *SHAPES, "--output", str(plan)).code == 0
    page = tmp_path / "report.html"
    given = (str(tiny), *SHAPES, "--output", str(page), "--json")
    for before in (f"{tiny},policy=strict", str(dump), str(graph)):
        report = ostinato("view", *given, "--before", before).report()
        assert isinstance(report, ViewReport)
        assert '"only_before"' in page.read_text(encoding="utf-8")
    assert "cannot be drawn" in refusal(ostinato("view", *given, "--before", str(plan))).message
    assert "is no option of a model" in refusal(ostinato("view", *given, "--before", f"{tiny},polcy=strict")).message


def test_a_dump_and_a_graph_as_text_are_looked_at(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    dump, graph = tmp_path / "dump", tmp_path / "step.graph"
    assert ostinato("compile", str(tiny), *SHAPES, "--device", "cpu", "--dump", str(dump)).code == 0
    graph.write_text(ostinato("trace", str(tiny)).out, encoding="utf-8")
    for name, entry in ((dump, "prefill[N=8,R=1]"), (graph, "step")):
        report = ostinato("view", str(name), "--output", str(tmp_path / "report.html"), "--json").report()
        assert isinstance(report, ViewReport)
        assert [item.name for item in report.entries] == [entry]
        assert "--shapes" in refusal(ostinato("view", str(name), *SHAPES, "--json")).message
    graph.write_text(graph.read_text(encoding="utf-8").replace("return %", "return %no."), encoding="utf-8")
    wrong = ostinato("view", str(graph), "--output", str(tmp_path / "report.html"), "--json")
    assert (wrong.code, "V14" in wrong.out) == (1, True)


@pytest.mark.parametrize("target", ["sm_9", "gfx", "hots"])
def test_a_target_that_is_none_is_refused_with_those_there_are(
    ostinato: Run, tiny: Path, training: Path, target: str
) -> None:
    for command in (("plan", str(tiny), *SHAPES), ("train", str(training), "--dry-run"), ("plan", str(training))):
        error = refusal(ostinato(*command, "--target", target, "--json"))
        assert error.message == f"there is no target {target!r}"
        assert "host, sm_70" in (error.hint or "")
        assert "gfx942" in (error.hint or "")


def test_kinds_are_told_by_names_and_contents(tiny: Path, training: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    kinds = {str(tiny): "model", str(training): "training run", "smollm2,T=8": "model"}
    kinds |= {str(tmp_path / "plan.json"): "file", str(tmp_path / "empty"): "folder"}
    assert {name: kind_of(name) for name in kinds} == kinds


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".toml", "x/" * 3000, "a\0b.ost", "a\0b.graph", "\0"])
def test_names_that_no_system_can_hold_are_refused_and_not_looked_into(
    name: str, ostinato: Run, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    for command in (("diff", name, name), ("view", name, "--output", str(page))):
        assert refusal(ostinato(*command, "--json")).hint
    assert not page.exists()


@pytest.mark.parametrize("pattern", ["x" * 300, "x" * 300 + "/*.txt", "a**b", "[", "nowhere/*"])
def test_data_that_no_file_is_called_like_are_refused(pattern: str, ostinato: Run, training: Path) -> None:
    training.write_text(CONFIG.replace('stdlib = "20kB"', f'files = ["{pattern}"]'), encoding="utf-8")
    assert "there is no file" in refusal(ostinato("train", str(training), "--json")).message


def test_a_model_whose_path_no_system_can_hold_is_refused(ostinato: Run, training: Path) -> None:
    training.write_text(f'[model]\npath = "{"x" * 5000}"\n{CONFIG[CONFIG.index("[data]") :]}', encoding="utf-8")
    for command in (("train", "--dry-run"), ("plan",), ("evidence", "tune")):
        assert "cannot be read" in refusal(ostinato(*command, str(training), "--json")).message
