"""A copy of the tree with the diffs of the documentation applied, and Python run in it.

The copy holds what Python needs: package, tests, examples, and the native modules that are built, which know nothing of the diffs. Programs run without the
`.pth` files of the environment, since those of an editable install would lead back to the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ostinato.backend_hip import _native
from ostinato.planner import _solver

__all__ = ["EXAMPLES", "ROOT", "apply", "copy_tree", "marked_blocks", "run", "touched"]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
_FILE = re.compile(r"^diff --git a/\S+ b/(\S+)$", re.MULTILINE)


def marked_blocks(page: Path, mark: str) -> list[str]:
    """The blocks of a page that begin with "```python MARK"."""
    block = re.compile(rf"^```python {mark}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return block.findall(page.read_text(encoding="utf-8"))


def touched(diff: Path) -> set[str]:
    """The files that a diff makes or changes."""
    return set(_FILE.findall(diff.read_text(encoding="utf-8")))


def copy_tree(folder: Path) -> Path:
    """The tree as it is, without anything that Python does not read."""
    left_out = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("ostinato", "tests", "docs/examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for native in map(Path, (_native.__file__, _solver.__file__)):
        shutil.copy(native, folder / "ostinato" / native.parent.name / native.name)
    return folder


def apply(diff: Path, folder: Path) -> None:
    """Applies a diff with git, which needs no repository for it. Raises `AssertionError` with what git says, unless it applies cleanly."""
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = ["git", "apply", "--verbose", str(diff)]
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"docs/examples/{diff.name} does not apply any more: mend the example in a copy of the tree, write the diff anew with `git diff`, and take its "
        f"changes over into the page that shows it\n{done.stderr}"
    )


def run(folder: Path, arguments: Sequence[str]) -> str:
    """What a Python program prints that runs in a copied tree. Raises `AssertionError` with everything it printed unless it ends well."""
    elsewhere = [path for path in sys.path if path and Path(path).resolve() != ROOT and Path(path).is_dir()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *elsewhere])}
    command = [sys.executable, "-S", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout
