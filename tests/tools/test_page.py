"""The page around every HTML report: what it may run and load, and data that cannot break out of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.ir.errors import ConfigError
from ostinato.tools.page import asset, embedded_json, render_page
from ostinato.tools.view import report

WORDS = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["</script>", "<!--", "]]>", "\u2028", "\ud800", "&lt;", '"', "\\"]
)


class Reader(HTMLParser):
    """The elements of a page, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

        self.inside = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data


@given(
    st.recursive(
        WORDS | st.integers() | st.booleans() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner),
        max_leaves=12,
    )
)
def test_data_comes_out_as_it_went_in_and_stays_in_its_element(data: Any) -> None:
    found = Reader(render_page("t", "<p></p>", {"data": data}, ["let a = 1;"]))
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert json.loads(found.scripts[0]) == {"data": data}
    assert found.scripts[1] == "let a = 1;"


@given(WORDS)
def test_a_title_is_text(title: str) -> None:
    text = render_page(title, "")
    text.encode()
    assert [tag for tag, _ in Reader(text).tags] == [
        "html",
        "head",
        "meta",
        "meta",
        "meta",
        "meta",
        "link",
        "title",
        "body",
    ]


@pytest.mark.parametrize("data", [float("nan"), float("inf"), {1, 2}, b"x"])
def test_what_json_cannot_say_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        embedded_json({"data": data})


@pytest.mark.parametrize("text", ["a = '</script>'", "</SCRIPT", "x <!-- y"])
def test_a_script_that_would_end_itself_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a script contains"):
        render_page("t", "", None, [text])
    with pytest.raises(ConfigError, match="a style contains"):
        render_page("t", "", None, (), ["p::after { content: '</style>' }"])


def test_the_policy_lets_the_browser_run_these_scripts_and_load_nothing() -> None:
    page = render_page("t", "", None, ["let a = 1;", "let b = 2;"])
    policy = next(attributes["content"] for tag, attributes in Reader(page).tags if "http-equiv" in attributes)
    assert policy is not None
    hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in (b"let a = 1;", b"let b = 2;")]
    assert policy.startswith("default-src 'none'; script-src ")
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert "script-src 'none'" in render_page("t", "")


def test_every_asset_of_the_report_is_installed_and_used() -> None:
    folder = resources.files("ostinato.tools.view") / "assets"
    assert sorted(item.name for item in folder.iterdir()) == sorted([*report.SCRIPTS, *report.STYLES])
    for name in (*report.SCRIPTS, *report.STYLES):
        text = asset("ostinato.tools.view", name)
        assert len(text.splitlines()) < 600, f"{name} is too long"
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name
