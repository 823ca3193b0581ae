"""Shell completion: the scripts, what they ask for and the words that come back; once in bash itself, where no command is loaded for the name of one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ostinato.frontend.checkpoints.packages import MODEL_PACKAGES
from ostinato.passes.policy import POLICIES
from ostinato.runtime.options import MODES
from ostinato.tools.cli import COMMANDS
from ostinato.tools.completion import MODEL_NAMES, SHELLS, complete_model, models_and
from ostinato.tools.options import MODE_NAMES, POLICY_NAMES
from tests.tools.conftest import Run

QUICK = """
import atexit, sys
from ostinato.tools.cli import main
atexit.register(lambda: print("slow" if "numpy" in sys.modules else "quick"))
main()
"""
"""The program, which says at its end whether it has loaded what takes long."""


@pytest.fixture
def asked(ostinato: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Mapping[str, str]], list[str]]:
    """What the program prints when a shell starts it with these variables, in an empty folder."""

    def started(variables: Mapping[str, str]) -> list[str]:
        monkeypatch.chdir(tmp_path)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return ostinato().out.splitlines()

    return started


def bash(words: str) -> dict[str, str]:
    number = len(words.split()) - (not words.endswith(" "))
    return {"_OSTINATO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}


def test_names_of_commands(asked: Callable[[Mapping[str, str]], list[str]]) -> None:
    assert set(asked(bash("ostinato "))) >= {command.name for command in COMMANDS}
    zsh = {"_OSTINATO_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "ostinato ex"}
    assert any("explain" in line for line in asked(zsh))
    fish = {"_OSTINATO_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert [line.partition("\t")[0] for line in asked(fish)] == ["explain"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ostinato diff --fail", ["--fail-if"]),
        ("ostinato explain --mode c", ["captured"]),
        ("ostinato evidence va", ["validate"]),
        ("ostinato plan sm", ["smollm2", "small.gguf"]),
        ("ostinato --show-completion z", ["zsh"]),
    ],
)
def test_options_values_and_models(
    words: str, found: list[str], asked: Callable[[Mapping[str, str]], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "small.gguf").touch()
    assert asked(bash(words)) == found


def test_models_complete_to_packages_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.gguf", "b.OST", "c.csv", "notes.txt", ".hidden.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.ost").touch()
    assert complete_model("") == [*MODEL_NAMES, "folder/", "a.gguf", "b.OST"]
    assert complete_model("folder/m") == ["folder/model.ost"]
    assert complete_model(f"{tmp_path}/a") == [f"{tmp_path}/a.gguf"]
    assert complete_model(".h") == [".hidden.gguf"]
    assert complete_model("nowhere/") == []
    assert models_and(".csv")("c") == ["c.csv"]


def test_words_that_are_listed_twice_agree() -> None:
    """What shells complete to is written down apart, since a shell should not wait for the modules that know it."""
    assert set(MODEL_NAMES) == set(MODEL_PACKAGES)
    assert MODE_NAMES == MODES
    assert set(POLICY_NAMES) == set(POLICIES)


def test_the_script_in_bash(ostinato: Run, tmp_path: Path) -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("needs bash")
    script = ostinato("--show-completion", "bash").out
    program = tmp_path / "ostinato"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{QUICK}' \"$@\"\n")
    program.chmod(0o755)
    asked = 'COMP_WORDS=(ostinato brea); COMP_CWORD=1; _ostinato_completion ostinato; echo "${COMPREPLY[@]}"'
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [shell, "-c", f"{script}\n{asked}"], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["breakeven", "quick"]


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_shown_and_installed(
    shell: str, ostinato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "_OSTINATO_COMPLETE" in ostinato("--show-completion", shell).out
    result = ostinato("--install-completion", shell)
    assert result.code == 0
    path = Path(result.out.partition(" is in ")[2].partition(";")[0])
    assert path.is_relative_to(tmp_path)
    assert "_OSTINATO_COMPLETE" in path.read_text()


def test_a_shell_without_completion(ostinato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = ostinato("--show-completion", "nosh")
    assert (result.code, "shells: bash, zsh, fish" in result.err) == (2, True)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    result = ostinato("--install-completion", "bash")
    assert (result.code, "--show-completion bash" in result.err) == (2, True)
