"""`ostinato diff`: two plans, graphs or models beside each other, and the limits that make it a check."""

from __future__ import annotations

from pathlib import Path

import pytest

import ostinato as ost
from ostinato.ir.errors import ConfigError
from ostinato.ir.parse import parse_graph
from ostinato.planner.saved import program_from_json
from ostinato.tools.diff import diff_graphs, diff_plans
from ostinato.tools.diff.data import Fact, Figure
from ostinato.tools.diff.graphs import out_of_order, paired
from ostinato.tools.diff.limits import judge, parse_limit
from ostinato.tools.diff.report import DiffReport
from ostinato.tools.schemas import ErrorReport
from tests.artifact.files import changed
from tests.tools.conftest import Run
from tests.tools.test_every_command import CONFIG

SHAPES = ("--shapes", "B=1,T=8")
GRAPH = """graph @f {{
  input %x: f32[4,8]
  %{a}: f32[4,8] = gelu(%x) {{approximate=true}}
  %{b}: f32[4,8] = add(%{a}, %x)
  return %{b}
}}
"""


def graph(a: str = "a", b: str = "b", **changes: str) -> str:
    text = GRAPH.format(a=a, b=b)
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return text


def diff(*arguments: object, run: Run) -> DiffReport:
    report = run("diff", *arguments, "--json").report()
    assert isinstance(report, DiffReport)
    return report


def test_nodes_are_matched_by_name_and_then_by_structure() -> None:
    plain = parse_graph(graph())
    assert not diff_graphs(plain, plain).differs
    renamed = diff_graphs(plain, parse_graph(graph(a="c")))
    assert [(node.kind, node.before, node.after) for node in renamed.nodes] == [("renamed", "a", "c")]
    assert (renamed.same, renamed.matched) == (1, (("b", "b"), ("a", "c")))
    everything = diff_graphs(plain, parse_graph(graph(a="c", b="d")))
    assert [node.kind for node in everything.nodes] == ["renamed", "renamed"]
    assert everything.outputs == ()  # the same value under another name
    other = diff_graphs(plain, parse_graph(graph(gelu="silu", **{" {approximate=true}": ""})))
    assert [(node.name, node.kind) for node in other.nodes] == [("a", "changed")]
    assert Fact("operator", "gelu", "silu") in other.nodes[0].facts


def test_what_was_added_and_taken_away_stands_where_it_is() -> None:
    longer = graph().replace("  return %b", "  %more: f32[4,8] = silu(%b)\n  return %more")
    found = diff_graphs(parse_graph(graph()), parse_graph(longer))
    assert [(node.kind, node.name, node.place) for node in found.nodes] == [("added", "more", 2)]
    assert found.outputs == (Fact("output 0", "%b", "%more"),)
    back = diff_graphs(parse_graph(longer), parse_graph(graph()))
    assert [(node.kind, node.name, node.place) for node in back.nodes] == [("removed", "more", 2)]


def test_types_layouts_and_attributes_are_facts() -> None:
    before, after = graph(), graph(**{"approximate=true": "approximate=false"}).replace("4,8", "4,16")
    found = diff_graphs(parse_graph(before), parse_graph(after))
    facts = {fact.what: fact for node in found.nodes for fact in node.facts}
    assert facts["attribute approximate"] == Fact("attribute approximate", "True", "False")
    assert facts["type of %a"].after.startswith("f32[4,16]")
    assert [fact.what for fact in found.inputs[0].facts] == ["type of %x"]


@pytest.mark.parametrize(("order", "moved"), [((), 0), ((0, 1, 2), 0), ((2, 0, 1), 1), ((3, 2, 1, 0), 3)])
def test_how_many_stand_in_another_order(order: tuple[int, ...], moved: int) -> None:
    assert out_of_order(order) == moved


def test_entries_of_other_buckets_are_held_against_each_other() -> None:
    assert paired(["s[N=1]", "s[N=8]"], ["s[N=1]", "s[N=9]"]) == (("s[N=1]", "s[N=1]"), ("s[N=8]", "s[N=9]"))
    assert paired(["a"], ["b"]) == (("a", "b"),)
    assert paired(["s[N=1]", "s[N=8]"], ["s[N=9]"]) == ()


@pytest.mark.parametrize(
    ("text", "before", "after", "ok", "said"),
    [
        ("arena>3%", 1000, 1031, False, "grew by 3.1 %, from 1000 to 1031: more than the 3 % allowed"),
        ("arena>3%", 1000, 1030, True, "grew by 3 %"),
        ("arena>64", 1000, 1065, False, "grew by 65 bytes, from 1000 to 1065: more than the 64 allowed"),
        ("arena>1KiB", 1000, 2024, True, "grew by 1024 bytes"),
        ("arena > 0", 1000, 900, True, "shrank, from 1000 to 900"),
        ("arena>0%", 0, 1, False, "more than the 0 % allowed"),
    ],
)
def test_a_limit_beside_a_figure(text: str, before: int, after: int, ok: bool, said: str) -> None:
    plain = parse_graph(graph())
    compared = diff_graphs(plain, plain)
    object.__setattr__(compared, "figures", (Figure("arena", before, after, "B"),))
    (verdict,) = judge([parse_limit(text)], None, [compared])
    assert verdict.ok is ok
    assert said in verdict.text


@pytest.mark.parametrize(
    "text", ["", "arena", "arena>", "arena>-1", "arena>3%%", ">3", "Arena>3", "arena>x%", "arena<3"]
)
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_limit(text)
    assert caught.value.hint


def test_limits_of_entries_and_regions() -> None:
    assert parse_limit("host:0/arena>1%").figure == "host:0/arena"
    of_entry = parse_limit("step[N=1,R=1]:strided-copies>2")
    assert (of_entry.entry, of_entry.figure, of_entry.amount) == ("step[N=1,R=1]", "strided-copies", 2)


def test_plans_of_a_model(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    """The figures are those of the plans, whatever the sides were read from; a plan beside itself does not differ."""
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file, options in zip(files, ((), ("--dtype", "bf16")), strict=True):
        assert ostinato("plan", tiny, *SHAPES, *options, "--output", file).code == 0
    plans = [program_from_json(file.read_text()) for file in files]
    assert not diff_plans(plans[0], plans[0]).differs
    (entry,) = diff_plans(*plans).entries
    figures = {figure.name: figure for figure in entry.figures}
    stats = [next(iter(plan.entries.values())).stats for plan in plans]
    assert (figures["arena"].before, figures["arena"].after) == (stats[0].arena_bytes, stats[1].arena_bytes)
    assert figures["arena"].change < 0
    assert figures["steps"].after == stats[1].steps
    assert len(entry.slots) + entry.same_slots >= len(next(iter(plans[1].entries.values())).slots)
    assert any("precision" in fact.what for fact in entry.facts)
    shown = ostinato("diff", *files)
    assert shown.code == 1
    assert "arena" in shown.out
    assert len(shown.out.splitlines()) < 60  # layers that changed alike are one line
    assert "layers.*" in shown.out
    assert ostinato("diff", files[0], files[0]).out == "no difference\n"


def test_models_with_options_of_their_own(ostinato: Run, tiny: Path) -> None:
    same = ostinato("diff", tiny, tiny, *SHAPES)
    assert (same.code, same.out) == (0, "no difference\n")
    report = diff(tiny, f"{tiny},disable=fuse_swiglu,B=1,T=8", "--fail-if", "launches>0", *SHAPES, run=ostinato)
    assert report.differs
    assert not report.ok
    assert report.plan is not None
    kinds = {node.kind for node in report.graphs[0].nodes}
    assert kinds >= {"added", "changed"}
    (verdict,) = report.limits
    assert verdict.text == (
        f"launches of step[N=8,R=1] grew by 2, from {verdict.before} to {verdict.before + 2}: more than the 0 allowed"
    )
    fine = ostinato("diff", f"{tiny},disable=fuse_swiglu", tiny, *SHAPES, "--fail-if", "launches>0")
    assert fine.code == 0
    assert "ok launches>0" in fine.out
    rows = diff(
        tiny, f"{tiny},levels.swiglu=reference,disable=fuse_swiglu", *SHAPES, "--fail-if", "rows>0", run=ostinato
    )
    assert not rows.ok


def test_dumped_folders_and_graphs(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    for name, options in (("a", ()), ("b", ("--disable", "fuse_swiglu"))):
        passes = ("passes", tiny, "--dims", "N=8,R=1", *options)
        assert ostinato(*passes, "--dump", tmp_path / name).code == 0
    report = diff(tmp_path / "a", tmp_path / "b", run=ostinato)
    assert (report.plan, report.before.kind) == (None, "stages")
    assert next(graph.name for graph in report.graphs if not graph.differs) == "00_input"
    first, last = sorted((tmp_path / "a").glob("*.graph"))[:: len(list((tmp_path / "a").glob("*.graph"))) - 1]
    assert diff(first, last, "--fail-if", "nodes>0", run=ostinato).ok
    assert ostinato("compile", tiny, *SHAPES, "--dump", tmp_path / "c").code == 0
    dump = diff(tmp_path / "c", tiny, *SHAPES, run=ostinato)
    assert dump.before.kind == "dump"
    assert len(dump.graphs) == 1
    assert diff(tmp_path / "c", tmp_path / "c", run=ostinato).ok


def test_entries_that_are_not_in_both_are_told(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    buckets = ("--shapes", "B=1,T=1,4")
    assert ostinato("compile", tiny, *buckets, "--context", "8", "--output", tmp_path / "m.ost").code == 0
    result = ostinato("diff", tmp_path / "m.ost", tiny, *buckets)
    assert result.code == 1
    assert "no entry is in both" in result.out


@pytest.mark.parametrize(
    ("after", "options", "message"),
    [
        ("no-such-model", (), "no-such-model"),
        ("no-such.json", (), "there is no file no-such.json"),
        ("{tiny},policy", (), "no option of a model"),
        ("{tiny},speed=9", (), "no option of a model"),
        ("{tiny},context=many", (), "no option of a model"),
        ("{tmp}", (), "neither a model (config.json) nor a plan"),
        ("{tmp}/broken.json", (), "not a saved plan"),
        ("{tmp}/broken.graph", (), "is neither a saved plan nor a graph as text"),
        ("{tmp}/f.graph", (), "neither plans nor graphs in common"),
        ("{tiny}", ("--fail-if", "areena>3%", *SHAPES), "about nothing that was compared"),
        ("{tiny}", ("--fail-if", "arena"), "is no limit"),
        ("{tiny}", ("--shapes", "B=1"), "shapes name"),
    ],
)
def test_what_cannot_be_compared(
    after: str, options: tuple[str, ...], message: str, ostinato: Run, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.json").write_text("{}")
    (tmp_path / "broken.graph").write_text("graph @f {\n")
    (tmp_path / "f.graph").write_text(graph())
    folder = tmp_path / "empty"
    folder.mkdir()
    second = after.replace("{tmp}/", f"{tmp_path}/").replace("{tmp}", str(folder)).replace("{tiny}", str(tiny))
    before = tmp_path / "plan.json" if "f.graph" in after else tiny
    if "f.graph" in after:
        assert ostinato("plan", tiny, *SHAPES, "--output", before).code == 0
    result = ostinato("diff", before, second, *(options or SHAPES), "--json")
    report = result.report()
    assert isinstance(report, ErrorReport)
    assert result.code in (1, 2)
    assert message in report.message
    assert report.hint


def test_artifacts_and_training_runs(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    """Of artifacts also what they were made of and on; of a training run the planned step."""
    files = [tmp_path / name for name in ("a.ost", "b.ost")]
    for file, disable in zip(files, ((), ("fuse_swiglu",)), strict=True):
        ost.compile(tiny, buckets={"B": [1], "T": [4]}, device="cpu", disable=disable).save(file)
    report = diff(*files, run=ostinato)
    assert report.before.kind == "artifact"
    assert report.plan is not None
    assert report.plan.differs
    assert "asked disable" in {fact.what for fact in report.made_with}
    assert any(fact.what.startswith("row ") for fact in report.made_with)
    assert ostinato("diff", files[0], files[0]).out == "no difference\n"
    assert "made of and on" in ostinato("diff", *files).out
    other = changed(files[0], tmp_path / "other.ost", package_version="0.0.9")
    assert diff(files[0], other, run=ostinato).made_with[0].what == "library"
    for question in ((), ("--address",), ("--layout",)):
        assert ostinato("explain", files[0], "logits", *question).code == 0
    assert ostinato("explain", files[0], "--peak").out.startswith("prefill[N=4,R=1]: ")
    assert "does not take --dims" in ostinato("explain", files[0], "--dims", "N=4,R=1").err
    runs = [tmp_path / name for name in ("a.toml", "b.toml")]
    for file, batch in zip(runs, (2, 4), strict=True):
        file.write_text(CONFIG.replace("batch = 2", f"batch = {batch}"), encoding="utf-8")
    figures = {figure.name: figure for _, figure in diff(*runs, run=ostinato).plan.figures()}  # type: ignore[union-attr]
    assert figures["arena"].change > 0
    assert not figures["launches"].differs
