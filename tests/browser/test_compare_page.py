"""The page of `ostinato compare` in a browser: it shows what the report says, in both colour schemes, and asks for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.page import comparison_page
from ostinato.tools.compare.report import CompareReport
from tests.frontend.small_families import small_model


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> CompareReport:
    model = small_model("llama", tmp_path_factory.mktemp("llama"), 2)
    return compare(model, ("reference", "eager", "planned"), replays=1, tokens=4, edges=False, device="cpu")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_the_report(browser: Any, report: CompareReport, tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(comparison_page(report), encoding="utf-8")
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(file.as_uri())
    assert said == [file.as_uri()], "nothing is fetched and nothing complains"
    assert page.locator(".badge").inner_text() == "every contract holds"
    assert page.locator(".matrix td.equal").count() == 1
    assert page.locator(".matrix td.within").count() == 2
    rows = page.locator("h2:has-text('Operators of planned') + div tbody tr")
    assert rows.count() == len(report.operators[0].rows)
    wide, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= window, "nothing is cut off"
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 25, 31)"}[scheme]
    context.close()
