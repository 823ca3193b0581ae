"""The photographs of the documentation: each scene can be taken, and each picture is there."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Watched
from tests.browser.conftest import stacked
from tests.browser.photographs import IMAGES, SCENES, make_reports, take


def extent(file: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.parametrize("name", SCENES)
def test_the_documentation_has_every_photograph(name: str) -> None:
    file = IMAGES / f"{name}.png"
    assert file.stat().st_size < 2**20
    width, height = SCENES[name].size
    assert extent(file) == (width * 1.25, height * 1.25)
    assert any(f"images/{name}.png" in page.read_text(encoding="utf-8") for page in IMAGES.parent.glob("*.md")), (
        f"no page shows {name}.png"
    )


@pytest.mark.slow
def test_every_photograph_can_be_taken_again(browser: Any, tmp_path: Path) -> None:
    watched = Watched()
    model = stacked(tmp_path / "model", 4, blank=False)
    reports = make_reports(model, model, tmp_path, tokens=16)
    for name, scene in SCENES.items():
        file = tmp_path / f"{name}.png"
        take(browser, scene, reports[scene.report], file, middle=2, watched=watched, scale=1)
        assert extent(file) == scene.size
        assert file.stat().st_size > 25_000, f"{name} shows hardly anything"
    assert watched.nothing(), watched
