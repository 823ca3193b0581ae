"""A report in the hands of somebody who presses the wrong keys, follows stale links, reads it on a phone or on paper, and has names that scripts know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.types import DType, TensorType
from tests.browser.conftest import Open, until
from tests.browser.test_graph_panel import chosen, click

NODE = "layers.1.attn.attention"
SETTLED = 300  # what follows sooner is one step of the history
KNOWN = ("constructor", "toString", "__proto__", "hasOwnProperty")


def entry(page: Any) -> str:
    name: str = page.evaluate("ostinato.bus.entry().name")
    return name


def select(page: Any, node: str) -> None:
    page.evaluate("node => ostinato.bus.select({ node })", node)


def test_back_goes_back_over_entries_too(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    first, second = page.locator("header option").all_inner_texts()
    select(page, NODE)
    page.wait_for_timeout(SETTLED)
    page.locator("header select").select_option(second)
    assert (entry(page), chosen(page)) == (second, None)
    page.go_back()
    until(page, f"ostinato.bus.selection && ostinato.bus.selection.node === '{NODE}'")
    assert entry(page) == first
    page.go_forward()
    until(page, f"ostinato.bus.entry().name === '{second}'")
    page.go_back()
    page.go_back()
    until(page, "ostinato.bus.selection === null")
    assert entry(page) == first


def test_a_key_that_is_held_is_one_step_of_the_history(opened: Open, forward_report: Path) -> None:
    """Browsers refuse more than some a second, with a message or an error."""
    page = opened(forward_report)
    select(page, "embed")
    page.wait_for_timeout(SETTLED)
    before = page.evaluate("history.length")
    page.evaluate(
        """() => {
          const canvas = document.querySelector('.graph > canvas');
          for (let times = 0; times < 60; times++) canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
        }"""
    )
    last = chosen(page)
    until(page, f"new URLSearchParams(location.hash.slice(1)).get('node') === '{last}'")
    assert page.evaluate("history.length") == before + 1


@pytest.mark.parametrize(
    "address", ["node=no.such.node", "entry=none&node=no.such.node", "node=no.such.node&lower=none&upper=none"]
)
def test_a_stale_link_says_that_there_is_no_such_node(opened: Open, forward_report: Path, address: str) -> None:
    page = opened(forward_report, address=address)
    assert "has no node or value of this name" in page.locator("aside").inner_text()
    assert page.locator(".panel:visible").count() == 2
    select(page, NODE)
    assert "operator" in page.locator("aside").inner_text()


def test_what_is_asked_for_shows_though_the_other_part_has_all_the_room(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report)
    select(page, NODE)
    page.locator(".dock.upper").get_by_role("button", name="Enlarge").click()
    assert not page.locator(".panel[data-panel=arena]").is_visible()
    page.get_by_role("button", name="show in the arena").click()
    assert page.locator(".panel[data-panel=arena]").is_visible()
    # a part that has all the room and gives its last panel away
    page.locator(".dock.upper").get_by_role("button", name="Enlarge").click()
    page.get_by_role("tab", name="Graph").dblclick()
    assert page.locator(".panel[data-panel=graph]").is_visible()


def test_names_that_scripts_know_are_names(opened: Open, tmp_path: Path) -> None:
    builder = GraphBuilder("known")
    x = builder.input("x", TensorType((4,), DType.F32))
    for name in KNOWN:
        x = builder.apply("silu", (x,), {}, name)
    ost.view(builder.finish((x,)), tmp_path / "known.html")
    page = opened(tmp_path / "known.html")
    for name in KNOWN:
        select(page, name)
        assert chosen(page) == name
        told = page.locator("aside").inner_text()
        assert "computes again" not in told
        assert "native code" not in told


def test_edges_far_across_a_long_chain_are_drawn_past_it(opened: Open, tmp_path: Path) -> None:
    """Half of the nodes read one of the other half. A way between the boxes was looked for along all layers for each: 20,000 nodes took minutes."""
    builder = GraphBuilder("far")
    x = builder.input("x", TensorType((4,), DType.F32))
    down = [x := builder.apply("scale", (x,), {"factor": float(index)}, None) for index in range(1_000)]
    for made in reversed(down):
        x = builder.apply("add", (x, made), {}, None)
    ost.view(builder.finish((x,)), tmp_path / "far.html")
    page = opened(tmp_path / "far.html")
    edges = page.evaluate(
        """() => {
          const { sort } = Array.prototype;
          let sorted = 0;
          Array.prototype.sort = function (...by) { sorted += this.length; return sort.apply(this, by); };
          const { edges } = ostinato.scene(ostinato.graph(ostinato.bus.entry()), new Map());
          Array.prototype.sort = sort;
          return { all: edges.length, arcs: edges.filter((edge) => edge.kind === 'arc').length, sorted };
        }"""
    )
    assert edges["all"] > 2_900
    assert 980 < edges["arcs"] < 1_001
    assert edges["sorted"] < 50 * edges["all"], "a few looks at each, whatever lies between its ends"


def test_tables_and_the_timeline_are_walked_through_by_keys(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report, address="lower=addresses")
    table = page.locator(".grid-scroll").first
    table.focus()
    picked = []
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
        picked.append(page.evaluate("document.querySelector('.panel[data-panel=addresses]').view.grid.last.name"))
    assert len(set(picked)) == 3
    assert picked[-1] == picked[1]
    page.evaluate("ostinato.bus.show('timeline')")
    steps = page.evaluate("ostinato.bus.entry().plan.steps.node.slice(0, 3).map(ostinato.text)")
    select(page, steps[1])
    page.locator(".lanes canvas").focus()
    page.keyboard.press("ArrowRight")
    assert chosen(page) == steps[2]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert chosen(page) == steps[0]
    page.keyboard.press("+")
    view = "document.querySelector('.panel[data-panel=timeline]').view"
    assert page.evaluate(f"{view}.view.right - {view}.view.left < {view}.total")
    page.keyboard.press("0")
    assert page.evaluate(f"{view}.view.right - {view}.view.left === {view}.total")


def test_a_narrow_page_has_everything_within_its_width(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report, size=(320, 640))
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    page.get_by_role("button", name="fit").click()
    page.wait_for_timeout(60)
    click(page, "embed")
    assert chosen(page) is not None
    for place in ("header", "aside", ".graph", ".dock.lower"):
        box = page.locator(place).first.bounding_box()
        assert box["x"] >= 0, place
        assert box["x"] + box["width"] <= 320, place
        assert box["height"] > 30, place
    assert not page.locator("canvas.overview").is_visible(), "it would cover what there is to see"


def test_paper_is_white(opened: Open, forward_report: Path) -> None:
    page = opened(forward_report, dark=True)
    ink = """(() => {
      const { color, backgroundColor } = getComputedStyle(document.body);
      return [color, backgroundColor].map(ostinato.plots.rgb).map(ostinato.plots.brightness);
    })()"""
    text, paper = page.evaluate(ink)
    assert text > 0.8 > 0.2 > paper
    page.emulate_media(media="print", color_scheme="dark")
    text, paper = page.evaluate(ink)
    assert text < 0.2 < 0.8 < paper


def test_names_in_the_list_of_tenants_read_from_the_left(opened: Open, forward_report: Path) -> None:
    """Their fronts are cut off by a direction, which must not turn the signs of a name around."""
    page = opened(forward_report)
    name = page.locator(".tenant .name bdi").first
    assert name.inner_text()
    assert page.evaluate("name => getComputedStyle(name).direction", name.element_handle()) == "ltr"
    select(page, NODE)
    styles = (
        "[...document.querySelectorAll('aside .mono, aside code')].map((name) => getComputedStyle(name).unicodeBidi)"
    )
    assert set(page.evaluate(styles)) == {"isolate"}, "a name that turns the direction turns its own alone"
