"""What a comparison gives: numbers side by side, other processes, and the three forms that it is written in."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.tools.compare.command import compare_command
from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.page import comparison_page
from ostinato.tools.compare.report import CompareReport, Mismatch
from ostinato.tools.compare.show import comparison_markdown, sections
from ostinato.tools.compare.sides import Side
from tests.tools.conftest import Run


@pytest.fixture(scope="module")
def report(tiny: Path) -> CompareReport:
    return compare(str(tiny), ("reference", "eager", "planned", "policy=strict"), tokens=8, replays=2, threads=1)


def test_what_sides_take_is_counted(report: CompareReport) -> None:
    sides = {side.name: side for side in report.sides}
    assert sides["reference"].counts is None
    eager, planned = sides["eager"].counts, sides["planned"].counts
    assert eager is not None
    assert planned is not None
    assert eager.launches == eager.submissions == planned.launches == planned.steps - planned.copies
    assert planned.submissions == report.steps
    assert planned.graph_nodes == 0, "nothing is captured on a CPU"
    assert (planned.allocations, planned.allocated_bytes) == (0, 0)
    assert eager.allocations > eager.launches / 2
    assert planned.arena_bytes < planned.device_bytes
    assert planned.weight_bytes == eager.weight_bytes > 0
    assert sides["planned"].break_even is not None
    assert sides["planned"].break_even.against == "eager"
    assert sides["policy=strict"].break_even is None, "nobody else runs that program"
    assert sides["planned"].program == sides["eager"].program != sides["policy=strict"].program
    assert sides["planned"].digest == sides["eager"].digest != sides["policy=strict"].digest


def test_every_program_has_its_table_of_operators(report: CompareReport) -> None:
    assert [table.side for table in report.operators] == ["planned", "policy=strict"]
    exact = {row.op: row for row in report.operators[1].rows}
    assert exact["linear"].row == "reference"
    assert (exact["linear"].max, exact["linear"].ulp) == (0, 0)
    fast = {row.op: row for row in report.operators[0].rows}
    assert 0 < fast["linear"].rms <= fast["linear"].max
    assert fast["linear"].worst.file is not None
    assert fast["linear"].worst.line is not None


def test_fresh_processes_give_the_same_bits(tiny: Path) -> None:
    report = compare(str(tiny), ("reference", "planned", "disable=*"), processes=1, tokens=4, replays=1, edges=False)
    assert report.ok, str(report)
    assert [(item.side, item.process, item.equal) for item in report.processes] == [
        ("planned", 1, True),
        ("disable=*", 1, True),
    ]


def test_what_another_process_cannot_have_is_refused(tiny: Path) -> None:
    executable = ost.compile(str(tiny), buckets={"B": [1], "T": [4]}, context=8)
    with pytest.raises(ost.ConfigError, match="cannot have this executable"):
        compare(executable, ("planned",), processes=1)
    with pytest.raises(ost.ConfigError, match="cannot be told of this side"):
        compare(str(tiny), ("planned", Side("mine", mode="eager")), processes=1, tokens=4, operators=False)
    with pytest.raises(ost.ConfigError, match="cannot have device"):
        compare(str(tiny), ("planned",), device=executable.device, processes=1, tokens=4, operators=False)


def test_json_has_every_number_and_reads_back(report: CompareReport) -> None:
    found = CompareReport.model_validate_json(report.model_dump_json(), strict=True)
    assert found == report
    mismatch = Mismatch(output="y", step=0, index=(0,), left=float("nan"), right=1.0, difference=float("inf"))
    text = mismatch.model_dump_json()
    assert json.loads(text)["left"] == "NaN", "JSON has no NaN"
    assert Mismatch.model_validate_json(text, strict=True).difference == float("inf")


def test_markdown_has_the_tables_of_the_console(report: CompareReport) -> None:
    text = comparison_markdown(report)
    assert text.startswith("# ")
    for section in sections(report):
        assert f"## {section.title}" in text
        for row in section.rows:
            assert row[0] in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


class Page(HTMLParser):
    """The tags and texts of a page; fails where tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.loaded += [value for name in ("src", "href") if (value := given.get(name)) is not None]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_stands_alone(report: CompareReport) -> None:
    page = Page()
    page.feed(comparison_page(report.model_copy(update={"model": "</title><script>alert(1)</script>"})))
    assert not page.open
    assert all(value.startswith("data:") for value in page.loaded)
    text = "".join(page.texts)
    for shown in (
        "every contract holds",
        "policy=strict",
        "equal bits",
        "linear@reference",
        "</title><script>alert(1)</script>",
    ):
        assert shown in text


def test_a_broken_contract_is_on_every_form(report: CompareReport) -> None:
    worst = Mismatch(output="logits", step=1, index=(0, 3), left=1.0, right=float("nan"), difference=float("inf"))
    pair = report.pairs[3].model_copy(update={"verdict": "mismatch", "worst": worst})
    broken = report.model_copy(update={"ok": False, "pairs": (*report.pairs[:3], pair, *report.pairs[4:])})
    for text in (comparison_markdown(broken), comparison_page(broken), str(broken)):
        assert "logits[0, 3]" in text
        assert "a contract is broken" in text or "bit-equal is required" in text


def test_the_command_writes_what_it_is_asked_for(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    html, markdown, data = tmp_path / "out" / "report.html", tmp_path / "report.md", tmp_path / "report.json"
    asked = ("--tokens", "4", "--replays", "1", "--no-edges", "--no-operators")
    files = [word for path in (html, markdown, data) for word in ("--output", str(path))]
    result = ostinato(
        "compare", str(tiny), "--modes", "eager,planned", "--side", "disable=fuse_qkv", *asked, *files, "--json"
    )
    assert result.code == 0, result.err
    found = result.report()
    assert isinstance(found, CompareReport)
    assert found.modes == ("eager", "planned", "disable=fuse_qkv")
    assert found.cases == ("random",)
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert markdown.read_text(encoding="utf-8").startswith("# ")
    assert CompareReport.model_validate_json(data.read_text(encoding="utf-8")) == found


def test_one_side_is_compared_with_the_planned_mode(ostinato: Run, tiny: Path) -> None:
    options = ("--tokens", "4", "--replays", "1", "--no-operators")
    result = ostinato("compare", str(tiny), "--side", "levels.linear=reference", *options, "--json")
    assert result.code == 0, result.err
    report = result.report()
    assert isinstance(report, CompareReport)
    assert [(pair.left, pair.right) for pair in report.pairs] == [("planned", "levels.linear=reference")]
    strict = ostinato("compare", str(tiny), "--side", "levels.linear=reference", *options, "--tolerance", "0")
    assert strict.code == 1
    assert "a contract is broken" in strict.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--side", "polcy=strict"),
        ("--side", "python=absent.py:f"),
        ("--output", "/proc/nowhere/x.html"),
        ("--output", "report.pdf"),
        ("--shapes", "B"),
    ],
)
def test_the_command_refuses_with_a_hint(ostinato: Run, tiny: Path, arguments: tuple[str, ...]) -> None:
    result = ostinato("compare", str(tiny), "--tokens", "4", *arguments)
    assert result.code == 2
    assert "hint" in result.err


def test_the_command_says_how_it_is_used() -> None:
    assert "Example: ostinato compare" in (compare_command.__doc__ or "")
