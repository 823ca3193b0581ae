"""Timeline, addresses, statistics and difference in a real browser: their numbers are those of plan and profile, and tables hold any number of rows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.backend_hip.target import named_target
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.graph import Graph
from ostinato.ir.step import Region
from ostinato.ir.types import DType, TensorType
from ostinato.passes.runner import run_pipeline
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.program import build_program
from ostinato.runtime.profile import Profile, StepTime
from ostinato.runtime.program import NoWeights, Program
from ostinato.tools.diff import diff_plans
from ostinato.tools.profile.ceilings import Ceilings
from ostinato.tools.programs import plan_buckets
from ostinato.tools.view.report import page_data, report_page
from ostinato.tools.view.subjects import Viewed, subject_of
from tests.browser.conftest import stacked, until

Open = Callable[..., Any]
LAYERS = 6


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> tuple[Viewed, Viewed]:
    """The same model twice, the second time with a longer bucket."""
    model = stacked(tmp_path_factory.mktemp("model") / "model", LAYERS)
    made = [plan_buckets(model, {"B": [1], "T": [length]}, context=64, precision="auto") for length in (8, 16)]
    return subject_of(made[0]), subject_of(made[1])


def entry_of(subject: Viewed) -> EntryPlan:
    plan = subject.entries[0].plan
    assert plan is not None
    return plan


def program_of(subject: Viewed) -> ProgramPlan:
    assert subject.plan is not None
    return subject.plan


def written(folder: Path, subject: Viewed, **settings: Any) -> Path:
    file = folder / "report.html"
    file.write_text(report_page(page_data(subject, "made", **settings)), encoding="utf-8")
    return file


def measured(plan: EntryPlan) -> Profile:
    """Times that nobody measured: step i takes i + 1 microseconds."""
    steps = tuple(
        StepTime(at, step.node, "op", step.kernel, step.kind.value, (at + 1) * 1e-6, 4096, 4096, 1_000, (at + 1) * 9e-7)
        for at, step in enumerate(plan.steps)
    )
    return Profile(plan.name, plan.device, "planned", steps, 7, 0.0012, method="by counting", notes=("made up",))


def show(page: Any, tab: str) -> None:
    page.evaluate("document.body.classList.add('only-lower')")
    page.get_by_role("tab", name=tab, exact=True).click()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def panel(name: str) -> str:
    return f"document.querySelector('[data-panel={name}]').view"


def cells(page: Any, name: str, row: int = 0) -> list[str]:
    """What a row of a panel's table says."""
    place = page.locator(f"[data-panel={name}] .grid-body .grid-row").nth(row)
    found: list[str] = place.locator("> .cell").all_inner_texts()
    return found


def test_without_a_profile_steps_are_as_wide_as_their_bytes_and_it_says_so(
    opened: Open, subjects: tuple[Viewed, Viewed], tmp_path: Path
) -> None:
    page = opened(written(tmp_path, subjects[0]))
    show(page, "Timeline")
    assert page.get_by_text("modelled: bytes read and written, no times").is_visible()
    assert page.get_by_role("radio", name="time", exact=True).count() == 0
    plan = entry_of(subjects[0])
    assert page.evaluate(f"{panel('timeline')}.width.length") == len(plan.steps)
    drawn = int(page.locator(".lanes canvas").get_attribute("data-drawn"))
    assert 0 < drawn <= len(plan.steps)


def test_a_profile_gives_times_shares_and_what_bounds_a_step(
    opened: Open, subjects: tuple[Viewed, Viewed], tmp_path: Path
) -> None:
    plan = entry_of(subjects[0])
    ceilings = Ceilings(1e10, {("f32", "f32"): 1e12}, 1e-9)
    page = opened(written(tmp_path, subjects[0], profiles={plan.name: measured(plan)}, ceilings=ceilings))
    show(page, "Timeline")
    assert "measured on host:0, planned, 7 runs: 1.20 ms undisturbed" in page.locator(".timeline").inner_text()
    last = len(plan.steps) - 1
    row = cells(page, "timeline")
    assert row[:2] == [str(last), plan.steps[last].node], "the longest stands first"
    assert "memory" in row
    assert f"{100 * 8192 / 1e10 / ((last + 1) * 1e-6):.1f} %" in row
    starts = page.evaluate(f"{panel('timeline')}.starts")
    assert starts == pytest.approx([at * (at + 1) / 2 * 1e-6 for at in range(len(plan.steps) + 1)], rel=1e-4)
    box = page.locator(".lanes canvas").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 16, box["y"] + 25)
    assert page.evaluate("ostinato.bus.selection.node") == plan.steps[last].node
    page.get_by_role("radio", name="layers", exact=True).click()
    rows = page.locator("[data-panel=timeline] .grid-body .grid-row")
    rows.nth(LAYERS).wait_for()
    assert rows.count() == LAYERS + 1


def test_lanes_stand_below_one_another(opened: Open, subjects: tuple[Viewed, Viewed], tmp_path: Path) -> None:
    plan, program = entry_of(subjects[0]), program_of(subjects[0])
    steps = tuple(replace(step, lane=at % 3) for at, step in enumerate(plan.steps))
    lanes = plan.model_copy(update={"steps": steps})
    (entry,) = subjects[0].entries
    subject = replace(subjects[0], entries=(replace(entry, plan=lanes),), plan=program)
    page = opened(written(tmp_path, subject))
    show(page, "Timeline")
    assert page.evaluate(f"{panel('timeline')}.lanes") == ["host:0 0", "host:0 1", "host:0 2"]
    assert page.evaluate(f"{panel('timeline')}.lane") == [at % 3 for at in range(len(steps))]
    assert page.locator(".lanes canvas").bounding_box()["height"] > 3 * 46


def test_every_value_has_its_address(opened: Open, subjects: tuple[Viewed, Viewed], tmp_path: Path) -> None:
    """All of the plan's values as CSV: offset and bytes where its steps have them, the absolute address behind 53 bits."""
    program, plan = program_of(subjects[0]), entry_of(subjects[0])
    bases = {item.region: 0x7FFF_0000_0000_0000 + 2**32 * at for at, item in enumerate(program.regions)}
    loaded = Viewed("made", "loaded", subjects[0].entries, program, bases)
    page = opened(written(tmp_path, loaded))
    show(page, "Addresses")
    rows = list(csv.DictReader(io.StringIO(page.evaluate(f"{panel('addresses')}.grid.csv()"), newline="")))
    table = {(row["region"], row["name"].removeprefix("#")): row for row in rows}
    assert len(rows) == len(plan.inputs) + len(plan.outputs) + len(program.weights) + len(program.state) + len(
        program.constants
    ) + sum(len(slot.values) for slot in plan.slots)
    seen = 0
    for step in plan.steps:
        for operand in step.operands:
            row = operand and table.get((operand.range.region.kind, operand.value))
            if not operand or not row:
                continue
            base = bases[Region("host:0", operand.range.region.kind)]
            place = (str(operand.range.offset), str(operand.range.size), hex(base + operand.range.offset))
            if operand.range.region.kind == "arena":
                assert place == (row["offset"], row["bytes"], row["address"]), operand
                seen += 1
    assert seen > len(plan.steps)


def test_tables_are_searched_sorted_and_hold_few_rows_at_a_time(
    opened: Open, subjects: tuple[Viewed, Viewed], tmp_path: Path
) -> None:
    page = opened(written(tmp_path, subjects[0]))
    show(page, "Addresses")
    total = page.evaluate(f"{panel('addresses')}.grid.rows.length")
    body = page.locator("[data-panel=addresses] .grid-body .grid-row")
    assert 10 < body.count() < 80 < total
    page.locator("[data-panel=addresses]").get_by_role("columnheader", name="bytes").click()
    sizes = page.evaluate(f"{panel('addresses')}.grid.shown.map((row) => row.bytes)")
    assert sizes == sorted(sizes, reverse=True)
    page.locator("[data-panel=addresses] input[type=search]").fill("LAYERS.3 attn")
    names = page.evaluate(f"{panel('addresses')}.grid.shown.map((row) => row.name)")
    assert 0 < len(names) < total
    assert all("layers.3" in name and "attn" in name for name in names)
    page.locator("[data-panel=addresses] input[type=search]").fill("")
    until(page, f"{panel('addresses')}.grid.body.clientHeight >= {total}")  # drawn with all rows again
    page.locator("[data-panel=addresses] .grid-scroll").evaluate("(table) => { table.scrollTop = 1e6; }")
    until(page, f"{panel('addresses')}.grid.scroll.scrollTop > 100")
    body.last.click()
    assert page.evaluate("ostinato.bus.selection.node")
    page.get_by_role("button", name="Copy as CSV").first.click()
    page.get_by_text(re.compile("rows copied")).wait_for()


def test_the_statistics_are_the_plans(opened: Open, subjects: tuple[Viewed, Viewed], tmp_path: Path) -> None:
    stats = entry_of(subjects[0]).stats
    page = opened(written(tmp_path, subjects[0]))
    show(page, "Plan")
    text = page.locator("[data-panel=plan]").inner_text()
    for fact in (f"{stats.steps}", f"{stats.status}, by {stats.solver}", f"step {stats.peak_step}", "lower bound"):
        assert fact in text


def test_two_plans_are_held_side_by_side(opened: Open, subjects: tuple[Viewed, Viewed], tmp_path: Path) -> None:
    before, after = subjects
    page = opened(written(tmp_path, after, before=before, before_title="short"))
    show(page, "Difference")
    (entry,) = diff_plans(program_of(before), program_of(after)).entries
    text = page.locator("[data-panel=diff] .changes").inner_text()
    (arena,) = [figure for figure in entry.figures if figure.name == "arena"]
    grown = page.evaluate("(change) => ostinato.bytes(change)", arena.change)
    assert f"+{grown} (+" in text
    kinds = page.evaluate(f"{panel('diff')}.maps.map((half) => half.kinds)")
    assert [len(kinds[0]), len(kinds[1])] == [len(entry_of(before).slots), len(entry_of(after).slots)]
    for kind in ("added", "resized", "reshared", "moved", "shifted"):
        assert kinds[1].count(kind) == sum(slot.kind == kind for slot in entry.slots)
    assert kinds[1].count("same") == entry.same_slots
    drawn = [int(canvas.get_attribute("data-drawn")) for canvas in page.locator(".half canvas").all()]
    assert drawn == [len(kinds[0]), len(kinds[1])]
    page.get_by_role("radiogroup", name="Colour the arenas by").get_by_role("radio", name="role").click()
    assert "activation" in page.locator(".diff .legend").inner_text()
    page.get_by_role("radio", name=re.compile("slots")).click()
    assert page.evaluate(f"{panel('diff')}.grid.rows.length") == len(entry.slots)


def test_equal_plans_differ_in_nothing(opened: Open, subjects: tuple[Viewed, Viewed], tmp_path: Path) -> None:
    page = opened(written(tmp_path, subjects[0], before=subjects[0], before_title="the same"))
    show(page, "Difference")
    assert page.get_by_text("no slot differs").is_visible()
    assert page.evaluate(f"{panel('diff')}.grid.rows.length") == 0


def test_a_graph_without_a_plan_has_no_panels_of_memory(
    opened: Open, subjects: tuple[Viewed, Viewed], tmp_path: Path
) -> None:
    file = tmp_path / "graph.html"
    ost.view(subjects[0].entries[0].graph, file)
    page = opened(file)
    assert page.locator("[role=tab]").all_text_contents() == ["Graph"]


def program_with(graph: Graph) -> Program:
    """A graph of one's own, lowered and planned for the host."""
    target = named_target("host")
    lowered = run_pipeline(graph, target).graph
    plan = build_program({"own": (lowered, plan_entry(lowered, target, name="own"))})
    return Program(plan, {"own": lowered}, target, NoWeights())


def each_panel(page: Any) -> None:
    """Shows every panel of the lower part once; complaints are the fixture's business."""
    for tab in page.locator(".dock.lower [role=tab]").all_text_contents():
        show(page, tab)


def test_a_program_without_an_arena_is_shown(opened: Open, tmp_path: Path) -> None:
    builder = GraphBuilder("own")
    x = builder.input("x", TensorType((4,), DType.F32))
    program = program_with(builder.finish((builder.apply("silu", (x,), name="y"),)))
    assert program.plan.entries["own"].slots == ()
    page = opened(written(tmp_path, subject_of(program), before=subject_of(program)))
    each_panel(page)
    show(page, "Addresses")
    names = page.evaluate(f"{panel('addresses')}.grid.shown.map((row) => row.name)")
    assert sorted(names) == ["x", "y"]


def test_names_are_text_everywhere(opened: Open, tmp_path: Path) -> None:
    """Markup, separators and line ends in names of values: shown, selected and copied as they are."""
    names = ["</script><img src=x onerror=alert(1)>", 'a,"b"\nc', "=1+1", "d.layers.3.<b>"]
    builder = GraphBuilder("own")
    value = builder.input("x", TensorType((512,), DType.F32))
    for name in names:
        value = builder.apply("silu", (value,), name=name)
    program = program_with(builder.finish((builder.apply("tanh", (value,), name="y"),)))
    page = opened(written(tmp_path, subject_of(program), before=subject_of(program)))
    each_panel(page)
    for name in names:
        page.evaluate("(node) => ostinato.bus.select({ node })", name)
        assert name.split("\n")[0] in page.locator("aside").inner_text()
    show(page, "Addresses")
    rows = csv.DictReader(io.StringIO(page.evaluate(f"{panel('addresses')}.grid.csv()"), newline=""))
    assert set(names) <= {row["name"] for row in rows}
    assert page.evaluate("document.images.length") == 0
