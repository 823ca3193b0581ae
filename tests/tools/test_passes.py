"""`ostinato passes` and `ostinato explain`, and `--policy` of the commands that compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.ir.text import parse_graph
from ostinato.tools.schemas import ErrorReport, ExplainReport, PassesReport, PlanReport, Report
from tests.tools.conftest import Run

DIMS = ("--dims", "N=8,R=1")


def passes(report: Report) -> PassesReport:
    assert isinstance(report, PassesReport)
    return report


def test_the_text_after_every_stage_is_written_in_order(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    report = passes(ostinato("passes", tiny, *DIMS, "--dump", tmp_path / "stages", "--json").report())
    names = [Path(file).name for file in report.files]
    assert names == [f"{number:02d}_{row.name}.graph" for number, row in enumerate(report.rows)]
    assert (names[0], names[-1]) == ("00_input.graph", f"{len(names) - 1:02d}_gate.graph")
    graphs = [parse_graph(Path(file).read_text(encoding="utf-8")) for file in report.files]
    assert [len(graph.nodes) for graph in graphs] == [row.nodes_after for row in report.rows]
    assert all(node.impl or not node.op.startswith("linear") for node in graphs[-1].nodes)
    assert report.seconds == pytest.approx(sum(row.seconds for row in report.rows))


def test_what_a_stage_changed_is_printed(ostinato: Run, tiny: Path) -> None:
    one = passes(ostinato("passes", tiny, *DIMS, "--diff", "fuse_swiglu", "--json").report())
    assert one.diff is not None
    assert "+  %layers.0.ffn.activated" in one.diff
    assert "linear_swiglu" in one.diff
    wide = passes(ostinato("passes", tiny, *DIMS, "--diff", "input:fuse_swiglu", "--json").report())
    assert wide.diff is not None
    assert wide.diff.splitlines()[:2] == ["--- input", "+++ fuse_swiglu"]
    assert one.diff.splitlines()[2:3] != []
    text = ostinato("passes", tiny, *DIMS, "--diff", "fuse_swiglu").out
    assert "+++ fuse_swiglu" in text
    assert "passes of step for host" in text
    assert " ms" in text
    assert "no difference" in ostinato("passes", tiny, *DIMS, "--diff", "gate").out


def test_passes_are_left_out_and_cut_short(ostinato: Run, tiny: Path) -> None:
    report = passes(ostinato("passes", tiny, *DIMS, "--stop-after", "cse", "--json").report())
    assert report.rows[-1].name == "cse"
    report = passes(
        ostinato("passes", tiny, *DIMS, "--disable", "fuse_swiglu", "--disable", "fuse_qkv", "--json").report()
    )
    assert not {"fuse_swiglu", "fuse_qkv"} & {row.name for row in report.rows}
    assert "policy=strict" not in report.options["precision"]
    strict = passes(ostinato("passes", tiny, *DIMS, "--policy", "strict", "--target", "sm_90", "--json").report())
    assert strict.options["select_impl"].endswith("strict}")
    assert strict.target == "sm_90"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stop-after", "csx"), "there is no stage 'csx' to stop after"),
        (("--diff", "csx"), "there is no stage 'csx' to compare"),
        (("--diff", "gate:cse"), "there is no stage 'gate' in front of 'cse'"),
        (("--diff", "input"), "there is no stage 'input' to compare"),
        (("--disable", "gate"), "cannot be disabled"),
        (("--policy", "exact"), "policy is 'exact'"),
        (("--target", "sm90"), "there is no target 'sm90'"),
    ],
)
def test_what_cannot_be_asked_of_passes(ostinato: Run, tiny: Path, arguments: tuple[str, ...], message: str) -> None:
    result = ostinato("passes", tiny, *DIMS, *arguments)
    assert result.code == 2
    assert message in " ".join(result.err.split())
    assert isinstance(ostinato("passes", tiny, *DIMS, *arguments, "--json").report(), ErrorReport)


def test_explain_finds_nodes_by_what_they_were(ostinato: Run, tiny: Path) -> None:
    report = ostinato("explain", tiny, "layers.0.ffn.gate", *DIMS, "--json").report()
    assert isinstance(report, ExplainReport)
    (node,) = report.nodes
    assert (node.op, node.name) == ("linear_swiglu", "layers.0.ffn.activated")
    assert node.row == "host"
    assert node.location is not None
    assert node.location.partition(":")[0].endswith(".py")
    assert any("%layers.0.ffn.up = linear" in origin for origin in node.made_of)
    assert {found.row: found.reason for found in node.rejected}["reference"] == "order"
    text = ostinato("explain", tiny, "layers.0.ffn.gate", *DIMS).out
    assert "runs linear_swiglu@host (tuned)" in text
    assert "made of %layers.0.ffn.gate = linear at" in text
    assert "not reference (reference): order: host comes first" in text


def test_explain_says_what_a_policy_left_out(ostinato: Run, tiny: Path) -> None:
    report = ostinato("explain", tiny, "logits", *DIMS, "--policy", "strict", "--json").report()
    assert isinstance(report, ExplainReport)
    assert {found.reason for found in report.nodes[-1].rejected} == {"policy"}
    result = ostinato("explain", tiny, "logitz", *DIMS)
    assert result.code == 2
    assert "names that are like it: logits" in " ".join(result.err.split())


def test_plans_are_made_under_a_policy(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    shapes = ("--shapes", "B=1,T=4")
    report = ostinato("plan", tiny, *shapes, "--policy", "strict", "--output", saved, "--json").report()
    assert isinstance(report, PlanReport)
    assert ostinato("plan", tiny, *shapes, "--policy", "strict", "--check", saved).code == 0
    stale = ostinato("plan", tiny, *shapes, "--check", saved)
    assert stale.code == 1
    assert "strict" in stale.err
