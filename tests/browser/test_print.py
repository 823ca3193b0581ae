"""Reports on paper: every panel one after another on pages of its own, nothing scrolled or cut, and the screen afterwards as it was."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.tools.view.subjects import Viewed
from tests.browser.conftest import until
from tests.browser.test_data_panels import subjects, written

__all__ = ["subjects"]

Open = Callable[..., Any]
PANELS = ["Graph", "Arena", "Timeline", "Addresses", "Plan", "Difference"]
PLACES = """Array.from(document.querySelectorAll(".panel")).map((panel) => {
  const box = panel.getBoundingClientRect();
  return [panel.getAttribute("aria-label"), Math.round(box.top), Math.round(box.bottom)];
})"""
SCROLLED = """Array.from(document.querySelectorAll("body *")).filter((part) => {
  const style = getComputedStyle(part);
  return style.overflowY !== "visible" && style.display !== "inline" && part.clientHeight > 0 && part.scrollHeight > part.clientHeight + 1;
}).map((part) => part.className)"""
WIDER = """Array.from(document.querySelectorAll(".grid-row, .panel, .bar")).filter(
  (part) => part.getBoundingClientRect().right > document.body.getBoundingClientRect().right + 1).map((part) => part.className)"""
INK = """Array.from(document.querySelectorAll(".panel canvas")).filter((canvas) => canvas.clientHeight > 40).map((canvas) => {
  const found = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(found.buffer)).size;
})"""


def pages_of(page: Any, file: Path) -> int:
    page.pdf(path=str(file), prefer_css_page_size=True, print_background=True)
    return len(re.findall(rb"/Type\s*/Page\b", file.read_bytes()))


@pytest.fixture
def report(subjects: tuple[Viewed, Viewed], tmp_path: Path) -> Path:
    return written(tmp_path, subjects[1], before=subjects[0])


def test_a_report_is_printed_with_all_its_parts(opened: Open, report: Path) -> None:
    page = opened(report)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    places = page.evaluate(PLACES)
    assert sorted(name for name, _, _ in places) == sorted(PANELS)
    for (_, _, end), (name, begin, _) in itertools.pairwise(places):
        assert begin >= end, name
    assert page.evaluate(SCROLLED) == []
    assert page.evaluate(WIDER) == []
    assert min(page.evaluate(INK)) > 2
    rows = "document.querySelectorAll('[data-panel=addresses] .grid-body .grid-row').length"
    assert page.evaluate(rows) == int(page.text_content("[data-panel=addresses] .bar .soft").split()[0])
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert pages_of(page, report.with_suffix(".pdf")) >= len(PANELS)


def test_paper_is_light_and_the_screen_is_afterwards_what_it_was(opened: Open, report: Path) -> None:
    page = opened(report, dark=True, address="lower=timeline")
    until(page, "document.querySelector('[data-panel=timeline] canvas').width > 0")
    page.wait_for_timeout(100)
    before = page.screenshot()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    corner = (
        "Array.from(document.querySelector('[data-panel=graph] canvas').getContext('2d').getImageData(0, 0, 1, 1).data)"
    )
    assert page.evaluate(corner) == [255, 255, 255, 255]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert pages_of(page, report.with_suffix(".pdf")) >= len(PANELS)
    until(page, "!document.documentElement.classList.contains('printed')")
    page.wait_for_timeout(100)
    assert page.screenshot() == before
    shown = "Array.from(document.querySelectorAll('.panel')).filter((panel) => !panel.hidden).map((panel) => panel.ariaLabel)"
    assert sorted(page.evaluate(shown)) == ["Graph", "Timeline"]


def test_of_very_long_tables_the_beginning_is_printed(opened: Open, training_report: Path) -> None:
    page = opened(training_report)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    table = page.locator("[data-panel=addresses] .grid-body")
    assert table.locator(".grid-row").count() == 300
    total = int(page.text_content("[data-panel=addresses] .bar .soft").split()[0].replace(",", ""))
    assert table.locator(".empty").text_content() == f"and {total - 300:,} more rows"
