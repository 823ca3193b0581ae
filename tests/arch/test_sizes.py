"""Files stay small enough to be read in one sitting: none passes 600 lines."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600
KINDS = (".py", ".pyi", ".h", ".hpp", ".cpp", ".cc", ".hip", ".inc")


def sources() -> list[Path]:
    folders = (ROOT / name for name in ("ostinato", "tests", "benchmarks"))
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in KINDS)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_file_is_not_too_long(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LIMIT, f"{path.relative_to(ROOT)} has {lines} lines, at most {LIMIT} are allowed: split it"
