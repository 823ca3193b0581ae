"""One version: what the code says of itself is what the package is built as."""

from __future__ import annotations

import tomllib
from pathlib import Path

import ostinato
from ostinato.ir.version import VERSION


def test_the_version_is_the_packages() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert VERSION == project["version"] == ostinato.__version__
