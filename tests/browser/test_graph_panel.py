"""The graph of a report in a real browser: what is drawn, collapsed, clicked, searched and linked to. Every test also says that the page fetched nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.trace import GraphBuilder
from ostinato.frontend.training import TrainingShape
from ostinato.ir.opdef import Attr
from ostinato.ir.types import DType, TensorType
from ostinato.tools.programs import plan_buckets
from ostinato.training import Recipe, plan_training
from tests.browser.conftest import Open, stacked, until

ATTENTION = "layers.0.attn.attention"


def click(page: Any, node: str) -> None:
    """Clicks a node where it is drawn."""
    found = page.evaluate("name => ostinato.boxOf(name)", node)
    page.mouse.click(found["x"], found["y"])


def chosen(page: Any) -> str | None:
    found: str | None = page.evaluate("ostinato.bus.selection && ostinato.bus.selection.node")
    return found


def frames(page: Any) -> list[str]:
    """The titles of the frames, in sight or not."""
    found: list[str] = page.evaluate("ostinato.frames().map((frame) => frame.title)")
    return found


def counts(page: Any) -> list[int]:
    """How many stretches each frame stands for."""
    found: list[int] = page.evaluate("ostinato.frames().map((frame) => frame.count)")
    return found


def first_frame(page: Any, file: Path) -> None:
    """Prints what the claim of the issue is about: from navigation to the first frame of the graph."""
    took = page.evaluate("performance.getEntriesByName('ostinato-graph')[0].startTime")
    print(f"{file.name}: {file.stat().st_size / 2**20:.2f} MiB, graph drawn after {took:.0f} ms")


def test_a_forward_opens_with_its_layers_collapsed(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    first_frame(page, forward_report)
    assert forward_report.stat().st_size < 5 * 2**20
    assert page.locator(".frame-head strong").all_inner_texts() == ["× 24"]
    assert frames(page) == ["layers.0"]
    assert page.locator("aside").inner_text().count("nodes") >= 1
    assert 4 < int(page.locator(".graph > canvas").first.get_attribute("data-drawn")) < 60


def test_a_training_step_opens_with_forward_and_backward_collapsed(opened: Open, training_report: Path) -> None:
    page = opened(training_report)
    first_frame(page, training_report)
    assert training_report.stat().st_size < 5 * 2**20
    assert counts(page) == [24, 24]
    assert frames(page) == ["layers.0", "d.layers.23"]
    assert page.evaluate("ostinato.graph(ostinato.bus.entry()).nodes.length") > 24 * 50


def test_a_repeat_expands_to_all_its_layers_and_draws_what_is_in_sight(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    page.get_by_role("button", name="Expand").click()
    page.wait_for_selector("canvas[data-frames='24']")
    assert frames(page) == [f"layers.{layer}" for layer in range(24)]
    assert 1 <= page.locator(".frame-head").count() < 8, "those in sight have their buttons"
    nodes = page.evaluate("ostinato.graph(ostinato.bus.entry()).nodes.length")
    assert 0 < int(page.locator(".graph > canvas").first.get_attribute("data-drawn")) < nodes / 2
    page.get_by_role("button", name="Collapse").first.click()
    assert len(frames(page)) == 1


def test_a_clicked_node_says_what_it_is_and_why(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    click(page, ATTENTION)
    assert chosen(page) == ATTENTION
    told = page.locator("aside").inner_text()
    for part in (ATTENTION, "attention", "chosen", "exactness", "evidence", "f32[", ".py:", "1 of 24"):
        assert part in told, part
    page.locator("aside details summary").first.click()
    assert len(page.locator("aside details").first.inner_text().splitlines()) > 1, "the reason against the other row"
    assert f"node={ATTENTION}" in page.url
    page.mouse.click(
        *page.evaluate(
            "(() => { const b = document.querySelector('.graph canvas').getBoundingClientRect(); return [b.left + 6, b.bottom - 6]; })()"
        )
    )
    assert chosen(page) is None


def test_the_stretch_that_is_shown_can_be_turned_and_takes_the_selection_along(
    opened: Open, forward_report: Path
) -> None:
    page = opened(forward_report)
    click(page, ATTENTION)
    page.get_by_role("button", name="Next", exact=True).click()
    assert frames(page) == ["layers.1"]
    assert chosen(page) == "layers.1.attn.attention"
    page.get_by_role("button", name="Previous", exact=True).click()
    page.get_by_role("button", name="Previous", exact=True).click()
    assert chosen(page) == "layers.23.attn.attention"


def test_a_selected_node_of_another_layer_is_brought_into_sight(opened: Open, training_report: Path) -> None:
    page = opened(training_report)
    page.evaluate("ostinato.bus.select({ node: 'd.layers.3.ffn_norm.add' })")
    page.wait_for_timeout(60)
    assert frames(page)[1] == "d.layers.3"
    found = page.evaluate("ostinato.boxOf('d.layers.3.ffn_norm.add')")
    bounds = page.locator(".graph").bounding_box()
    assert bounds["y"] < found["y"] < bounds["y"] + bounds["height"]


@pytest.mark.parametrize(
    ("query", "found"), [("attention_packed", 24), ("layers.5 linear", 3), ("i32[", 1), ("decoder.py:45", 1)]
)
def test_search_finds_names_operators_types_and_lines(
    opened: Open, forward_report: Path, query: str, found: int
) -> None:
    page = opened(forward_report)
    page.keyboard.press("/")
    page.keyboard.type(query)
    told = page.locator(".results .total").inner_text()
    assert int(told.split(" ")[0]) >= found, told
    page.keyboard.press("Enter")
    name = chosen(page)
    assert name is not None
    assert name in page.locator("aside").inner_text()
    page.keyboard.press("Escape")
    assert chosen(page) is None
    assert page.locator("input[type=search]").first.input_value() == ""


def test_a_search_without_a_match_says_so(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    page.keyboard.press("/")
    page.keyboard.type("no such thing")
    assert "no node" in page.locator(".results .total").inner_text()
    page.keyboard.press("Enter")
    assert chosen(page) is None


def test_a_link_opens_at_its_node_and_back_goes_back(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report, address="node=layers.7.attn.attention&lower=arena")
    assert chosen(page) == "layers.7.attn.attention"
    assert frames(page) == ["layers.7"]
    click(page, "layers.7.attn.q_rotated")
    assert chosen(page) == "layers.7.attn.q_rotated"
    page.go_back()
    until(page, "ostinato.bus.selection.node === 'layers.7.attn.attention'")


def test_arrow_keys_follow_the_edges(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    click(page, ATTENTION)
    page.keyboard.press("ArrowDown")
    below = chosen(page)
    assert below != ATTENTION
    page.keyboard.press("ArrowUp")
    assert chosen(page) == ATTENTION


def test_the_wheel_moves_and_zooms(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    before = page.evaluate("name => ostinato.boxOf(name)", ATTENTION)
    page.mouse.move(before["x"], before["y"])
    page.mouse.wheel(0, 50)
    page.wait_for_timeout(60)
    moved = page.evaluate("name => ostinato.boxOf(name)", ATTENTION)
    assert moved["y"] == pytest.approx(before["y"] - 50, abs=1)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_timeout(60)
    assert page.evaluate("name => ostinato.boxOf(name)", ATTENTION)["width"] > 1.5 * before["width"]


def test_another_entry_has_its_own_graph(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    first = page.locator("aside .title").inner_text()
    name = page.locator("header option").nth(1).inner_text()
    page.locator("header select").select_option(name)
    assert page.locator("aside .title").inner_text() == name != first
    assert page.evaluate("ostinato.graph(ostinato.bus.entry()).nodes[3].types[0]").count("16") == 1
    assert "entry=" in page.url
    assert name in page.locator("aside").inner_text()


def test_the_page_is_dark_where_the_reader_wants_it_dark(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report, dark=True)
    paper = """(() => {
        const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
        pen.drawImage(document.querySelector(".graph canvas"), -3, -3);
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
    })()"""
    assert max(page.evaluate(paper)) < 60
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(80)
    assert min(page.evaluate(paper)) > 200


def test_the_arena_leads_to_the_node(opened: Open, training_report: Path) -> None:
    page = opened(training_report, address="lower=arena")
    page.locator(".tenants .link").first.click()
    name = chosen(page)
    assert name is not None
    box = page.evaluate("name => ostinato.boxOf(name)", name)
    bounds = page.locator(".graph").bounding_box()
    assert bounds["y"] < box["y"] < bounds["y"] + bounds["height"]


def test_any_value_of_a_node_selects_it_and_its_workspace_too(opened: Open, training_report: Path) -> None:
    page = opened(training_report)
    for name in ("d.layers.5.attn.attention.attention_log_sum", "#workspace of layers.5.attn.attention"):
        page.evaluate("ostinato.bus.select(null)")
        page.evaluate("name => ostinato.bus.select({ node: name })", name)
        assert chosen(page) == "layers.5.attn.attention"


def test_panels_move_between_the_parts_and_the_parts_share_the_room(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    whole = page.locator(".docks").bounding_box()["height"]
    bar = page.locator(".splitter.row").bounding_box()
    page.mouse.move(bar["x"] + 200, bar["y"] + 1)
    page.mouse.down()
    page.mouse.move(bar["x"] + 200, bar["y"] - 150)
    page.mouse.up()
    assert page.locator(".splitter.row").bounding_box()["y"] == pytest.approx(bar["y"] - 150, abs=3)
    page.get_by_role("tab", name="Graph").dblclick()
    assert page.locator(".dock.upper").is_hidden()
    assert page.locator(".dock.lower").bounding_box()["height"] == pytest.approx(whole, abs=1)
    assert page.locator("[data-panel=graph]").is_visible()
    click(page, ATTENTION)
    assert chosen(page) == ATTENTION
    page.get_by_role("tab", name="Arena").click()
    assert page.locator("[data-panel=graph]").is_hidden()
    page.get_by_role("tab", name="Graph").dblclick()
    assert page.locator(".dock.upper").is_visible()


ODD = (
    "</script><script>alert(1)</script>",
    '"quoted" & <b>bold</b>',
    "имя·名前·🎻",
    "a b\tc",
    "\ud800",
    "__proto__",
    "${x}`",
)


def test_names_are_text_whatever_they_say(opened: Open, tmp_path: Path) -> None:
    builder = GraphBuilder("<img src=x onerror=alert(2)>")
    value = builder.input(ODD[0] + ".in", TensorType((4,), DType.F32))
    for name in ODD:
        value = builder.apply("silu", (value,), {}, name)
    ost.view(builder.finish((value,)), tmp_path / "odd.html", title="<title> & </title>")
    page = opened(tmp_path / "odd.html")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    assert page.title() == "<title> & </title>"
    assert page.evaluate("ostinato.graph(ostinato.bus.entry()).nodes.map((node) => node.name)")[:4] == list(ODD[:4])
    for name in ODD[:4]:
        page.evaluate("name => ostinato.bus.select({ node: name })", name)
        assert page.locator("aside .title").inner_text().split() == name.split()
    page.keyboard.press("/")
    page.keyboard.type("script")
    assert page.locator(".result").count() >= 1
    assert page.locator("body script").count() == page.evaluate("document.scripts.length")
    assert dialogs == []


def test_eighty_layers_are_one_frame_and_a_small_file(opened: Open, tmp_path: Path) -> None:
    model = stacked(tmp_path / "model", 80)
    file = tmp_path / "eighty.html"
    (entry,) = ost.view(plan_buckets(model, {"B": [1], "T": [16]}, context=64, precision="auto"), file)
    assert [repeat.count for repeat in entry.repeats] == [80]
    assert entry.nodes > 80 * 5
    assert entry.nodes_drawn < 40
    assert file.stat().st_size < 2**20
    page = opened(file)
    first_frame(page, file)
    assert page.locator(".frame-head strong").all_inner_texts() == ["× 80"]


@pytest.mark.slow
def test_a_graph_without_repeats_and_one_with_ten_thousand_open_as_well(
    opened: Open, tmp_path: Path, rng: np.random.Generator
) -> None:
    """A long irregular chain with skips, a node that thousands read, and a chain that is one repeat of many stretches, expanded."""
    builder = GraphBuilder("wild")
    values = [builder.input("x", TensorType((4,), DType.F32))]
    for _ in range(1500):
        op = ("silu", "tanh", "scale")[rng.integers(3)]
        attrs: dict[str, Attr] = {"factor": float(rng.integers(2, 50))} if op == "scale" else {}
        values.append(builder.apply(op, (values[-int(rng.integers(1, min(len(values), 40) + 1))],), attrs))
    fan = [builder.apply("scale", (values[0],), {"factor": float(number)}) for number in range(2, 1002)]
    chain = values[-1]
    for _ in range(10_000):
        chain = builder.apply("silu", (chain,), {})
    file = tmp_path / "wild.html"
    (entry,) = ost.view(builder.finish((chain, *fan)), file)
    assert entry.nodes == 12_500
    assert entry.nodes_drawn < 3_000
    assert file.stat().st_size < 5 * 2**20
    page = opened(file)
    first_frame(page, file)
    page.evaluate(
        "() => { const graph = ostinato.graph(ostinato.bus.entry()); ostinato.bus.select({ node: graph.nodes[9000].name }); }"
    )
    page.wait_for_timeout(100)
    page.locator(".frame-head", has_text="× 100").get_by_role("button", name="Expand").click()
    until(page, "Number(document.querySelector('.graph canvas').dataset.frames) > 9000")
    assert int(page.locator(".graph > canvas").first.get_attribute("data-drawn")) < 1500


@pytest.mark.slow
def test_a_training_step_of_eighty_layers_opens_and_expands(opened: Open, tmp_path: Path) -> None:
    file = tmp_path / "eighty.html"
    (entry,) = ost.view(plan_training(stacked(tmp_path / "model", 80), Recipe(TrainingShape(1, 16))), file)
    assert [repeat.count for repeat in entry.repeats] == [80, 80]
    assert file.stat().st_size < 5 * 2**20
    page = opened(file)
    first_frame(page, file)
    for repeat in (1, 0):
        page.evaluate(
            "repeat => { const graph = ostinato.graph(ostinato.bus.entry()); ostinato.bus.select({ node: graph.nodes[graph.repeats[repeat].start].name }); }",
            repeat,
        )
        page.wait_for_timeout(100)
        page.get_by_role("button", name="Expand").first.click()
    page.wait_for_selector("canvas[data-frames='160']")
    assert int(page.locator(".graph > canvas").first.get_attribute("data-drawn")) < 400
