"""The import table of the design (docs/adr/0002), read from the syntax trees of the package.

Rules: a folder imports only the folders its row names; imports of our own modules are absolute and stand at the top of the file (not in a function, not
behind `TYPE_CHECKING`, which would hide a cycle), except in the root, whose public names are lazy; no relative imports; the solver files know the
standard library alone, `ir` adds numpy and ml_dtypes; nothing imports `tools` but itself and the root's lazy attributes.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ostinato"

WIRING = (
    "ostinato.audit",
    "ostinato.artifact",
    "ostinato.compiler",
    "ostinato.llm",
    "ostinato.embedder",
    "ostinato.extending",
    "ostinato.hip",
    "ostinato.ops",
    "ostinato.served",
    "ostinato.stages",
    "ostinato.tracing",
    "ostinato.training",
)
FOLDERS = ("ir", "frontend", "passes", "planner", "backend_hip", "runtime", "saving")
# folder -> what it may import of ours besides itself; the longest row that fits a module is its row
ALLOWED: dict[str, tuple[str, ...]] = {
    "ostinato.ir": (),
    "ostinato.frontend": ("ostinato.ir",),
    "ostinato.frontend.checkpoints": ("ostinato.ir", "ostinato.frontend.tokenizer"),
    "ostinato.passes": ("ostinato.ir",),
    "ostinato.planner": ("ostinato.ir",),
    "ostinato.planner.problem": (),
    "ostinato.planner.solvers": ("ostinato.planner.problem", "ostinato.planner._solver"),
    "ostinato.planner.check": (
        "ostinato.ir",
        "ostinato.planner.check_clones",
        "ostinato.planner.check_step",
        "ostinato.planner.expected",
        "ostinato.planner.plan",
        "ostinato.planner.replay",
    ),
    "ostinato.planner.check_clones": ("ostinato.ir",),
    "ostinato.planner.check_step": ("ostinato.ir", "ostinato.planner.expected", "ostinato.planner.plan"),
    "ostinato.planner.expected": ("ostinato.ir",),
    "ostinato.planner.replay": ("ostinato.ir",),
    "ostinato.backend_hip": ("ostinato.ir",),
    "ostinato.runtime": ("ostinato.ir", "ostinato.planner.explain", "ostinato.planner.plan"),
    "ostinato.saving": (
        "ostinato.ir",
        "ostinato.frontend",
        "ostinato.passes",
        "ostinato.planner",
        "ostinato.backend_hip",
        "ostinato.runtime",
    ),
    "ostinato.artifact": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato.compiler": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato.llm": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato.embedder": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato.audit": ("ostinato.ir", "ostinato.backend_hip", "ostinato.runtime"),
    "ostinato.extending": ("ostinato.ir", "ostinato.backend_hip"),
    "ostinato.hip": ("ostinato.backend_hip",),
    "ostinato.ops": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato.served": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato.stages": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato.tracing": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato.training": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato.tools": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
    "ostinato": tuple(f"ostinato.{folder}" for folder in FOLDERS) + WIRING,
}
# rows whose own folder is not theirs to import: problem.py and the checker's files sit in `planner` and must not reach into it
CLOSED = (
    "ostinato.planner.problem",
    "ostinato.planner.check",
    "ostinato.planner.check_clones",
    "ostinato.planner.check_step",
    "ostinato.planner.expected",
    "ostinato.planner.replay",
    "ostinato.audit",
    "ostinato.artifact",
    "ostinato.compiler",
    "ostinato.llm",
    "ostinato.embedder",
    "ostinato.extending",
    "ostinato.hip",
    "ostinato.ops",
    "ostinato.served",
    "ostinato.stages",
    "ostinato.tracing",
    "ostinato.training",
    "ostinato",
)
# rows that may use these libraries and no others besides the standard library
LIBRARIES: dict[str, frozenset[str]] = {
    "ostinato.ir": frozenset({"numpy", "ml_dtypes"}),
    "ostinato.planner.problem": frozenset(),
    "ostinato.planner.solvers": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module as written: `top` when the statement stands at module level, `relative` for leading dots."""

    name: str
    line: int
    top: bool
    relative: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> list[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    top = {id(node) for node in tree.body}
    found: list[Import] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, id(node) in top, False) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if base == "ostinato" or (PACKAGE.parent / base.replace(".", "/")).is_dir():
                # `from ostinato.planner import plan` names the module, not the folder
                names = [f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base for alias in node.names]
            else:
                names = [base]
            found += [Import(name, node.lineno, id(node) in top, node.level > 0) for name in names]
    return found


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or path.with_suffix(".pyi").exists() or path.is_dir()


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def row_of(module: str) -> str:
    rows = [row for row in ALLOWED if within(module, row) and (row != "ostinato" or module == "ostinato")]
    assert rows, f"{module} belongs to no row of the import table: add it to docs/adr/0002 and here"
    return max(rows, key=len)


def problems_of(module: str, imports: list[Import]) -> list[str]:
    row = row_of(module)
    allowed = ALLOWED[row] if row in CLOSED else (*ALLOWED[row], row)
    problems: list[str] = []
    for found in imports:
        where = f"line {found.line}: "
        if found.relative:
            problems.append(f"{where}relative import; write the full name")
        elif within(found.name, "ostinato"):
            if module == "ostinato" and not found.top and within(found.name, "ostinato.tools"):
                continue  # the root's lazy attributes: `ostinato.compare` is loaded when it is first asked for
            if (
                not found.top and module != "ostinato"
            ):  # all of the root's names are lazy; it shows them to type checkers
                problems.append(
                    f"{where}{found.name} is imported inside a function or a condition; imports stand at the top"
                )
            if not any(within(found.name, prefix) for prefix in allowed):
                problems.append(
                    f"{where}{row} must not import {found.name}; allowed: {', '.join(allowed) or 'nothing of ours'}"
                )
        elif row in LIBRARIES:
            library = found.name.partition(".")[0]
            if library not in sys.stdlib_module_names and library not in LIBRARIES[row]:
                problems.append(f"{where}{row} must not use the library {library}")
    return problems


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_module_keeps_to_the_import_table(path: Path) -> None:
    problems = problems_of(module_name(path), imports_of(path))
    assert not problems, f"{path.relative_to(ROOT)}\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("ostinato.ir.graph", "from ostinato.passes import cse", "must not import"),
        ("ostinato.ir.graph", "import torch", "must not use the library"),
        ("ostinato.passes.cse", "from ostinato.planner.plan import EntryPlan", "must not import"),
        ("ostinato.planner.check", "from ostinato.planner import liveness", "must not import"),
        ("ostinato.planner.replay", "from ostinato.planner import liveness", "must not import"),
        ("ostinato.planner.check_step", "from ostinato.planner.replay import Memory", "must not import"),
        ("ostinato.planner.check_clones", "from ostinato.planner.recompute import model", "must not import"),
        ("ostinato.planner.problem", "import ostinato.ir.types", "must not import"),
        ("ostinato.planner.solvers.best_fit", "import networkx", "must not use the library"),
        ("ostinato.runtime.engine", "import ostinato.backend_hip.target", "must not import"),
        ("ostinato.runtime.engine", "from ostinato.planner import problem", "must not import"),
        ("ostinato.frontend.checkpoints.open", "from ostinato.frontend.models import FAMILIES", "must not import"),
        ("ostinato.frontend.trace", "def f() -> None:\n    import ostinato.ir.graph", "inside a function"),
        ("ostinato.frontend.trace", "from ..ir import graph", "relative import"),
        ("ostinato.compiler", "import ostinato.tools.compare", "must not import"),
        ("ostinato.tools.cli", "import ostinato", "must not import"),
        ("ostinato", "import ostinato.tools.compare", "must not import"),
    ],
)
def test_the_rules_bite(module: str, source: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert any(expected in problem for problem in problems_of(module, imports_of(path)))
