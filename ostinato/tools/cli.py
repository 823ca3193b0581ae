"""The command line `ostinato`.

Each command reads its options, calls one function of this folder and prints the report it gets: text for people, one JSON object with `--json`. Exit codes:
0 ok; 1 a mismatch, or a check that failed; 2 usage, which includes input that cannot be used; 3 no such device; 130 interrupted; and the end that SIGPIPE
makes where the reader of a pipe has gone, which is no failed check. An error on purpose is printed with its code and hint, wrong options too; any other
exception is a bug and keeps its traceback.

Commands are a literal table, and only the module of the command that was asked for is loaded: `--help` stays quick, and `doctor` works where the native
module is missing, which is what it is for.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from ostinato.ir.errors import (
    CapacityError,
    ConfigError,
    DeviceUnavailable,
    NonFiniteLoss,
    OstinatoError,
    PlanError,
    StaleArtifact,
    VerificationError,
)
from ostinato.ir.naming import NO_TEXT_HINT, is_text
from ostinato.tools.completion import SHELLS, among, install_completion, show_completion, words_to_complete
from ostinato.tools.console import output, print_error
from ostinato.tools.loading import load_function
from ostinato.tools.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NO_DEVICE, EXIT_USAGE, JsonOption
from ostinato.tools.unavailable import UNAVAILABLE, refusal

__all__ = ["COMMANDS", "Command", "exit_code", "main"]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its name, the heading it is listed under, the function behind it, and the first line of that function's docstring.

    The function of a `group` makes the application that has its commands.
    """

    name: str
    panel: str
    module: str
    function: str
    summary: str
    group: bool = False

    def load(self) -> Callable[..., Any]:
        """The function, its module imported. Raises what `load_function` raises."""
        return load_function(self.module, self.function)


_ParserError: type[Exception] = typer.BadParameter.__mro__[1]
"""The parser's usage error: click's own class, or that of the copy that later versions of typer carry."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_RUN, _MEASURE, _LOOK, _PLAN, _PASSES = (
    f"ostinato.tools.commands_{group}" for group in ("run", "measure", "look", "plan", "passes")
)

COMMANDS = (
    Command(
        "run",
        "Run",
        _RUN,
        "run_command",
        "Complete a prompt, answer it or converse with --chat; text is printed as it is made. An encoder prints the embedding, or how alike prompts are.",
    ),
    Command(
        "train",
        "Run",
        "ostinato.tools.train.command",
        "train_command",
        "Train a model from a configuration file; Ctrl-C saves a checkpoint, --resume goes on with the same bits.",
    ),
    Command(
        "bench",
        "Run",
        _MEASURE,
        "bench_command",
        "Time prefill and decode, beside the read bandwidth measured in the same run.",
    ),
    Command(
        "profile",
        "Run",
        "ostinato.tools.profile.command",
        "profile_command",
        "Time every step of a model where it runs, against what was measured that this machine can do.",
    ),
    Command(
        "breakeven",
        "Run",
        "ostinato.tools.profile.command",
        "breakeven_command",
        "Say from how many runs on planning and capturing pay, or that they gain nothing here.",
    ),
    Command(
        "compare",
        "Check",
        "ostinato.tools.compare.command",
        "compare_command",
        "Run sides of a model beside each other: bit-equal, within contract, or the first node that differs and what is wrong with it.",
    ),
    Command(
        "bisect",
        "Check",
        "ostinato.tools.bisect.command",
        "bisect_command",
        "Name what makes two ways to run a model differ: the node, pass, row, bytes or captured step; and reduce it to a bundle.",
    ),
    Command(
        "repro",
        "Check",
        "ostinato.tools.repro.command",
        "repro_command",
        "Run a repro bundle without its model, and say whether what it states comes out: exit code 0 if so, 1 if not.",
    ),
    Command(
        "evidence",
        "Check",
        "ostinato.tools.evidence.command",
        "evidence_commands",
        "List, show, validate, tune, prune and export the evidence ledger.",
        group=True,
    ),
    Command(
        "doctor",
        "Check",
        "ostinato.tools.doctor",
        "doctor_command",
        "What was found on this machine, what is missing, and how to mend it; with --conformance, whether a device does what it should.",
    ),
    Command(
        "plan",
        "Look",
        _PLAN,
        "plan_command",
        "Plan the memory of a model and prove the plan, or solve a placement problem.",
    ),
    Command(
        "compile",
        "Look",
        "ostinato.tools.commands_compile",
        "compile_command",
        "Compile a model for buckets of B sequences times T tokens, load it, and say what it takes; or write it to a file that commands take as MODEL.",
    ),
    Command("trace", "Look", _LOOK, "trace_command", "Print the traced graph of a model in the text form."),
    Command(
        "passes",
        "Look",
        _PASSES,
        "passes_command",
        "Run the passes on one bucket and say what each did, and how long it took.",
    ),
    Command(
        "explain",
        "Look",
        "ostinato.tools.commands_explain",
        "explain_command",
        "Why nodes run as they do and values lie where they do: rows and their records, layouts, addresses, the bytes at the peak, the mode.",
    ),
    Command(
        "audit",
        "Look",
        "ostinato.tools.audit.command",
        "audit_command",
        "Every pointer and number that captured graphs and step tables were given, by name and line, and what of it does not hold.",
    ),
    Command(
        "diff",
        "Look",
        "ostinato.tools.diff.command",
        "diff_command",
        "What differs between two plans, graphs, models or artifacts; exit code 1 where something does, or exceeds a limit.",
    ),
    Command(
        "view",
        "Look",
        "ostinato.tools.view.command",
        "view_command",
        "Show a model, a training run or an artifact in one HTML file: graph, decisions, arena over time, steps and addresses; only --profile loads weights.",
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits. Without `arguments` it is the process: streams and signals are set up for it."""
    if arguments is None:
        _set_up_process()
    given = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in given
    try:
        code = _run(given, as_json)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for what is still flushed at the end
        with contextlib.suppress(OSError):  # messages may have no room either
            print_error(
                OstinatoError(f"the output cannot be written: {error.strerror}", hint="make room for it"), False
            )
        code = EXIT_USAGE
    raise SystemExit(code)


def _run(given: Sequence[str], as_json: bool) -> int:
    """Runs the command and returns the exit code; errors on purpose are printed."""
    try:
        for argument in given:
            if not is_text(argument):
                raise ConfigError(f"argument {argument!a} is no text", hint=NO_TEXT_HINT)
        # with --json the parser hands its errors over instead of printing them: they are an object too
        code = _build(given)(args=given, prog_name="ostinato", standalone_mode=not as_json)
        sys.stdout.flush()
    except OstinatoError as error:
        print_error(error, as_json)
        return exit_code(error)
    except _ParserError as error:
        print_error(_usage(error), as_json)
        return EXIT_USAGE
    except MemoryError as error:
        told = str(error) or "no memory is left"
        print_error(CapacityError(f"the machine's memory is too small: {told}", hint="ask for less"), as_json)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def exit_code(error: OstinatoError) -> int:
    """The exit code that an error on purpose ends the process with."""
    if isinstance(error, DeviceUnavailable):
        return EXIT_NO_DEVICE
    failed = PlanError | VerificationError | StaleArtifact | NonFiniteLoss
    return EXIT_FAILED if isinstance(error, failed) else EXIT_USAGE


def _set_up_process() -> None:
    """Ends quietly where the reader of a pipe has gone, as other programs do, and writes to nowhere where a standard stream is closed."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - it lives as long as the process


def _usage(error: Exception) -> ConfigError:
    """The parser's error as one of ours."""
    told = getattr(error, "format_message", error.__str__)()
    path = getattr(getattr(error, "ctx", None), "command_path", "ostinato")
    return ConfigError(told, hint=f"`{path} --help` shows what it takes")


def _build(arguments: Sequence[str]) -> typer.Typer:
    """The application, with the function of the command that `arguments` name; the others are listed only."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Compiles a transformer step once, gives every byte a fixed address, proves the plan and replays it.",
    )
    app.callback()(_root)
    words = words_to_complete()
    named = next((word for word in (arguments if words is None else words) if not word.startswith("-")), None)
    for command in COMMANDS:
        if command.name == named and command.group:
            load = command.load()
            app.add_typer(load(), name=command.name, rich_help_panel=command.panel, help=inspect.getdoc(load))
        elif command.name == named:
            app.command(command.name, rich_help_panel=command.panel)(command.load())
        else:
            app.command(command.name, rich_help_panel=command.panel, help=command.summary)(_listed)
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    for name, purpose in UNAVAILABLE.items():
        listed = app.command(
            name, help=f"Will {purpose}.", rich_help_panel="Not yet available", context_settings=settings
        )
        listed(_refusing(name))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        try:
            found = version("ostinato")
        except PackageNotFoundError:
            found = "(not installed)"
        output().print(f"ostinato {found}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, help="Print the version and exit.", callback=_version),
    ] = False,
    show: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="SHELL",
            is_eager=True,
            show_default=False,
            autocompletion=among(*SHELLS),
            callback=show_completion,
            help="Print the script that completes commands in bash, zsh or fish, and exit.",
        ),
    ] = None,
    install: Annotated[
        str | None,
        typer.Option(
            "--install-completion",
            metavar="SHELL",
            is_eager=True,
            show_default=False,
            autocompletion=among(*SHELLS),
            callback=install_completion,
            help="Write that script where the shell looks for it, and exit.",
        ),
    ] = None,
) -> None:
    del show_version, show, install


def _listed() -> None:
    """Stands for a command that was not asked for."""


def _refusing(name: str) -> Callable[..., None]:
    def refuse(as_json: JsonOption = False) -> None:
        del as_json
        raise refusal(name)

    return refuse
