"""Shell completion: the scripts of bash, zsh and fish, and what they ask this program for.

The shells' part is typer's: a script that starts `ostinato` with the words so far in the environment, and the printing of the answer. Only the command that is
being completed is loaded, so that names of commands come at once. Models complete to installed packages, folders, `.gguf` and `.ost` files.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script, install

from ostinato.ir.errors import ConfigError
from ostinato.tools.console import output

__all__ = [
    "MODEL_NAMES",
    "SHELLS",
    "among",
    "complete_model",
    "install_completion",
    "models_and",
    "show_completion",
    "words_to_complete",
]

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_OSTINATO_COMPLETE"
_WORDS = {"bash": "COMP_WORDS", "zsh": "_TYPER_COMPLETE_ARGS", "fish": "_TYPER_COMPLETE_ARGS"}
_MODELS = (".gguf", ".ost")
MODEL_NAMES = ("minilm", "smollm2")
"""The packages of `frontend.checkpoints.packages`, whose module takes longer to load than a shell should wait."""


def words_to_complete() -> list[str] | None:
    """The words behind the program's name that a shell asks completions for; None where this process is no completion."""
    asked = os.environ.get(VARIABLE, "")
    shell = asked.removeprefix("complete_")
    if shell == asked or shell not in _WORDS:
        return None
    completion_init()
    try:
        words = shlex.split(os.environ.get(_WORDS[shell], ""))
    except ValueError:  # a quote that is still open
        words = os.environ.get(_WORDS[shell], "").split()
    return words[1:]


def among(*choices: str) -> Callable[[str], list[str]]:
    """Completes to these words."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def models_and(*endings: str) -> Callable[[str], list[str]]:
    """Completes to packages of models, folders, files that hold a model, and files with these endings."""

    def complete(incomplete: str) -> list[str]:
        names = [name for name in MODEL_NAMES if name.startswith(incomplete)]
        return names + _paths(incomplete, (*_MODELS, *endings))

    return complete


complete_model = models_and()
"""Completes to what MODEL may be."""


def show_completion(shell: str | None) -> None:
    """Prints the script of a shell and ends. Raises `ConfigError` for a shell that has none."""
    if shell is None:
        return
    script = get_completion_script(prog_name="ostinato", complete_var=VARIABLE, shell=_known(shell))
    output().print(script, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit


def install_completion(shell: str | None) -> None:
    """Writes the script where a shell looks for it, says where that is, and ends. Raises `ConfigError` for a shell that has none and for a home that cannot be
    written."""
    if shell is None:
        return
    try:
        _, path = install(shell=_known(shell), prog_name="ostinato", complete_var=VARIABLE)
    except OSError as error:
        raise ConfigError(
            f"completion cannot be installed: {error}",
            hint=f"ostinato --show-completion {shell} prints it, for a place of your own",
        ) from None
    output().print(f"completion of {shell} is in {path}; a new shell has it", markup=False)
    raise typer.Exit


def _known(shell: str) -> str:
    if shell not in SHELLS:
        raise ConfigError(f"there is no completion for the shell {shell!r}", hint=f"shells: {', '.join(SHELLS)}")
    return shell


def _paths(incomplete: str, endings: Sequence[str]) -> list[str]:
    """Folders, with a slash behind them, and files of these endings that begin so; hidden ones only where that is asked for."""
    head, slash, tail = incomplete.rpartition("/")
    folder = Path(os.path.expanduser(head + slash)) if slash else Path()
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    found = [entry for entry in entries if entry.name.startswith(tail) and (tail or not entry.name.startswith("."))]
    return [f"{head}{slash}{entry.name}/" for entry in found if entry.is_dir()] + [
        f"{head}{slash}{entry.name}" for entry in found if entry.suffix.lower() in endings and not entry.is_dir()
    ]
