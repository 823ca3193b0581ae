"""How commands talk: tables and text on standard output, progress and errors on standard error, one JSON object instead where `--json` asks for it.

Nothing here decides an exit code. With `--json` standard output holds that one object and nothing else, so that it can be piped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ostinato.ir.errors import OstinatoError
from ostinato.tools.report import ErrorReport, Report

__all__ = [
    "Steps",
    "count",
    "emit_json",
    "facts",
    "fits",
    "many",
    "milliseconds",
    "notice",
    "output",
    "plain",
    "print_error",
    "processors",
    "progress",
    "remark",
    "size",
    "table",
    "write_piece",
]

_UNFOLDED = 500
"""Columns of what is written to a file or a pipe: no path is folded there."""
_SPELLED = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What terminals act on, spelled out: names and texts are often those of files from elsewhere."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def output() -> Console:
    """The console of standard output, made anew so that a redirected `sys.stdout` is honoured. What goes to a file or a pipe is not folded."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNFOLDED
    return console


def size(nbytes: float) -> str:
    """Bytes for people: `1.5 MiB`."""
    value = float(nbytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def count(number: int) -> str:
    """A number with thin groups: `1 048 576`."""
    return f"{number:,}".replace(",", " ")


def plain(text: str) -> str:
    """Markup that shows a text as it is, and nothing in it that a terminal acts on."""
    return escape(text.translate(_SPELLED))


def many(number: int, noun: str) -> str:
    """A number of things: `1 thread`, `2 threads`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def milliseconds(seconds: float) -> str:
    """A time for people, three digits: `12.3 ms`."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: bool = True) -> Table:
    """A table whose first column is text and whose others are right-aligned numbers (`numbers=False`: all text). Cells are plain text, not markup."""
    made = Table(title=escape(title), title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, justify="right" if numbers and index else "left", overflow="fold")
    for row in rows:
        made.add_row(*(plain(cell) for cell in row))
    return made


def fits(made: Table, console: Console) -> bool:
    """Whether a table is shown without folding a cell."""
    return console.measure(made, options=console.options.update_width(_UNFOLDED)).maximum <= console.width


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Two columns without a frame: name and value."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(plain(name), plain(value))
    return made


def emit_json(report: Report) -> None:
    """Writes a report as one indented JSON object."""
    sys.stdout.write(report.model_dump_json(indent=2) + "\n")


def notice(text: str) -> None:
    """A line beside the output proper, on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[dim]{plain(text)}[/]")


def remark(shown: RenderableType) -> None:
    """A table or a text beside the output proper, on standard error."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = _UNFOLDED
    console.print(shown)


def write_piece(text: str) -> None:
    """Writes a piece of generated text as it is and at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_error(error: OstinatoError, as_json: bool) -> None:
    """An error in the form the command was asked to speak: JSON on standard output, or two lines on standard error."""
    if as_json:
        emit_json(ErrorReport(code=error.code, message=error.message, node=error.node, hint=error.hint))
        return
    where = f"{error.node}: " if error.node else ""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error[/] \\[{escape(error.code)}] {plain(where + error.message)}")
    if error.hint:
        console.print(f"[bold]hint[/] {plain(error.hint)}")


class Steps:
    """Progress of long work: `begin` starts a step of unknown length, `advance` moves a bar."""

    def __init__(self, shown: Progress | None) -> None:
        self._shown = shown
        self._task = None if shown is None else shown.add_task("", total=None)

    def begin(self, text: str) -> None:
        """Starts a step of unknown length."""
        if self._shown is not None and self._task is not None:
            self._shown.reset(self._task, total=None, description=text)

    def advance(self, done: float, total: float, text: str) -> None:
        """Says that `done` of `total` units are done, and of what."""
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, completed=done, total=total, description=text)


@contextmanager
def progress(quiet: bool) -> Iterator[Steps]:
    """A bar on standard error that vanishes when the work is done; none when `quiet` or when standard error is not a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield Steps(None)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        yield Steps(shown)
