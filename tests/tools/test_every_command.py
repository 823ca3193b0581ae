"""What holds of every command: help with an example, options with help, `--json` whose object fits its schema, errors with a hint and the right exit code.

Commands are taken from the table, so that a new one is held to all of it; one that has no row in `RUNS` or `ELSEWHERE` fails.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.markup import render

from ostinato.ir import errors
from ostinato.tools.cli import COMMANDS, Command
from ostinato.tools.console import Steps
from ostinato.tools.schemas import REPORTS, ErrorReport, Report
from tests.tools.conftest import Run

ROOT = Path(__file__).resolve().parents[2]
TEXT_ONLY = frozenset({"trace"})
"""Commands without `--json`: the text form of a graph is what programs read."""

RUNS: dict[str, tuple[str, str]] = {
    "audit": ("audit", "{model} --shapes B=1,T=4"),
    "breakeven": ("breakeven", "{model} --shapes B=1,T=4 --runs 8 --threads 1"),
    "compare": ("compare", "{model} --modes eager,planned --replays 1"),
    "compile": ("compile", "{model} --shapes B=1,T=4"),
    "diff": ("diff", "{model} {model} --shapes B=1,T=4"),
    "doctor": ("doctor", ""),
    "evidence ls": ("evidence", ""),
    "evidence prune": ("evidence_prune", ""),
    "explain": ("explain", "{model} layers.0 --dims N=4,R=1"),
    "passes": ("passes", "{model} --dims N=4,R=1"),
    "plan": ("plan", "{model} --shapes B=1,T=4"),
    "run": ("run", "{model} --prompt x --max-tokens 2 --threads 1"),
    "train": ("train_plan", "{config} --dry-run"),
    "view": ("view", "{model} --shapes B=1,T=4 --output {tmp}/report.html"),
}
"""Command -> the kind of its report, and what it is given: `{model}` is a small one."""

QUICK = frozenset({"evidence ls", "evidence prune"})
"""Commands that never take a second, and show no bar."""

ELSEWHERE = {
    "bench": "tests/tools/test_cli.py",
    "profile": "tests/tools/test_profile.py",
    "bisect": "tests/tools/bisect",
    "evidence export": "tests/tools/test_evidence.py",
    "evidence screen": "tests/tools/test_screening.py",
    "evidence show": "tests/tools/test_evidence.py",
    "evidence tune": "tests/tools/test_tune.py",
    "evidence validate": "tests/tools/test_validate.py",
    "repro": "tests/tools/bisect",
}
"""Commands whose report takes more than a small model: the tests that validate it."""

CONFIG = """
[model.new]
tokenizer = "bytes"
config = { model_type = "llama", hidden_size = 32, intermediate_size = 64, num_hidden_layers = 1, num_attention_heads = 2, max_position_embeddings = 64 }
[data]
stdlib = "20kB"
sequence = 16
batch = 2
[optimizer]
kind = "adamw"
lr = 1e-3
[train]
steps = 2
folder = "out"
device = "cpu"
"""


@dataclass(frozen=True)
class Loaded:
    """A command, or one of a group's, with the function behind it."""

    name: str
    function: Callable[..., Any]

    @property
    def words(self) -> list[str]:
        return self.name.split()


def loaded(command: Command) -> Iterator[Loaded]:
    function = command.load()
    if not command.group:
        yield Loaded(command.name, function)
        return
    for item in function().registered_commands:
        assert item.callback is not None
        yield Loaded(f"{command.name} {item.name}", item.callback)


ALL = [found for command in COMMANDS for found in loaded(command)]
every = pytest.mark.parametrize("command", ALL, ids=lambda command: command.name)


def parameters(command: Loaded) -> dict[str, Any]:
    """The typer options and arguments of a command by name."""
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(command.function, eval_str=True).parameters.items():
        metadata = getattr(parameter.annotation, "__metadata__", ())
        found.update((name, item) for item in metadata if hasattr(item, "help"))
        if not metadata:
            assert parameter.annotation is typer.Context, (
                f"{name} of {command.name} is neither an option nor the context"
            )
    return found


@every
def test_help_shows_an_example_of_the_command(command: Loaded, ostinato: Run) -> None:
    result = ostinato(*command.words, "--help")
    assert (result.code, result.err) == (0, "")
    documented = inspect.getdoc(command.function) or ""
    examples = re.findall(r"^Example: (.+)$", documented, re.MULTILINE)
    assert examples, "the docstring has an `Example: ` line"
    shown = " ".join(result.out.split())
    for example in examples:
        assert example.startswith(f"ostinato {command.name}")
        assert " ".join(example.split()) in shown
    assert "--help" in result.out


@every
def test_every_option_has_a_help_text_that_is_shown_as_it_is_written(command: Loaded) -> None:
    for name, parameter in parameters(command).items():
        assert parameter.help, f"{name} of {command.name}"
        assert parameter.help[0].isupper() or not parameter.help[0].isalpha() or parameter.help.split()[0].islower()
        plain = parameter.help.replace("\\[", "[")
        assert render(parameter.help).plain == plain, f"{name} of {command.name}: brackets are taken for markup"


@every
def test_json_is_there_where_it_should_be(command: Loaded) -> None:
    declared = {name for item in parameters(command).values() for name in (item.default, *(item.param_decls or ()))}
    assert ("--json" in declared) == (command.name not in TEXT_ONLY)


@every
def test_wrong_options_are_an_object_with_a_hint(command: Loaded, ostinato: Run) -> None:
    result = ostinato(*command.words, "--no-such-option", "--json")
    report = result.report()
    assert isinstance(report, ErrorReport)
    assert result.code == 2
    assert report.hint is not None
    assert f"ostinato {command.name} --help" in report.hint
    text = ostinato(*command.words, "--no-such-option")
    assert (text.code, text.out) == (2, "")
    assert "--no-such-option" in text.err


NAMING = [
    command
    for command in ALL
    if any(type(item).__name__ == "ArgumentInfo" for item in parameters(command).values())
    and command.name not in {"evidence ls", "evidence tune", "evidence export", *TEXT_ONLY}
]
"""Commands whose first argument names something that must be there."""


@pytest.mark.parametrize("command", NAMING, ids=lambda command: command.name)
def test_what_is_not_there_is_an_object_with_a_hint(command: Loaded, ostinato: Run) -> None:
    given = ["no-such-thing"] * (2 if command.name == "diff" else 1)
    result = ostinato(*command.words, *given, "--json")
    report = result.report()
    assert isinstance(report, ErrorReport), result.out
    assert result.code in (1, 2)
    assert report.hint, report.message
    assert "Traceback" not in result.err


def test_every_command_is_run_here_or_there() -> None:
    names = {command.name for command in ALL} - TEXT_ONLY
    assert names == {*RUNS, *ELSEWHERE}
    for name, place in ELSEWHERE.items():
        path = ROOT / place
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        words = name.split()
        text = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
        assert all(f'"{word}"' in text for word in words), f"{place} has no test of `{name}`"


@pytest.mark.parametrize("name", sorted(RUNS))
def test_json_fits_the_schema(
    name: str, ostinato: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(Steps, "begin", lambda self, text: begun.append(text))
    monkeypatch.chdir(tmp_path)
    kind, given = RUNS[name]
    (tmp_path / "run.toml").write_text(CONFIG, encoding="utf-8")
    arguments = given.format(model=tiny, tmp=tmp_path, config=tmp_path / "run.toml").split()
    result = ostinato(*name.split(), *arguments, "--json")
    assert result.code == 0, result.out + result.err
    assert json.loads(result.out)["kind"] == kind
    report: Report = result.report()  # validated strictly against the schema of its kind
    assert type(report) is REPORTS[kind]
    assert bool(begun) == (name not in QUICK), "a bar for whatever takes long"
    assert json.loads(report.model_dump_json()) == json.loads(result.out)


def test_every_report_has_a_schema_and_its_kind() -> None:
    for kind, report in REPORTS.items():
        assert report.model_fields["kind"].default == kind
        assert report.model_json_schema()["properties"]["kind"]["const"] == kind


FAMILIES = {
    name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, errors.OstinatoError)
}


def test_every_error_of_the_tools_has_a_hint() -> None:
    """Read from the syntax trees: whoever raises an error on purpose says how to mend it."""
    without: list[str] = []
    for path in sorted((ROOT / "ostinato" / "tools").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                hinted = any(keyword.arg == "hint" for keyword in node.exc.keywords)
                if node.exc.func.id in FAMILIES and not hinted:
                    without.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not without, "errors without hint=: " + ", ".join(without)
