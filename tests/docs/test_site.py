"""The documentation as a site: every page is in the navigation, and where mkdocs is installed the strict build passes (`make docs` and `.ci/run` have it)."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAVIGATION = re.compile(r"^ +- (?:[^:\n]+: )([\w./-]+\.md)$", re.MULTILINE)
ADDED = {"index.md", "building.md", "changelog.md"}
"""Pages made of files of the top folder (`.ci/site.py`)."""
EXTERNAL = re.compile(r"""(?:src|href)=["']?(https?://[^"'\s>]+)[^>]*>""")


def test_every_page_is_in_the_navigation_once() -> None:
    named = NAVIGATION.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert len(named) == len(set(named))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(named) == pages | ADDED


@pytest.mark.slow
def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("needs mkdocs-material (extra `docs`); `make docs` builds the site in CI")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="tour.html"' in home
    tour = (tmp_path / "tour.html").read_text(encoding="utf-8")
    assert "```" not in tour, "a fence that is not shown as one"
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = [url for tag in re.findall(r"<(?:script|link|img)\b[^>]*>", text) for url in EXTERNAL.findall(tag)]
        assert not fetched, f"{page.name} fetches {fetched}"
