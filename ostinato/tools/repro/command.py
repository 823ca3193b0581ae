"""The command `repro`: runs a bundle that `bisect` wrote, without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ostinato.tools.console import emit_json, facts, output, progress
from ostinato.tools.options import EXIT_FAILED, DeviceOption, ExtensionOption, JsonOption
from ostinato.tools.repro.extension import extended
from ostinato.tools.repro.report import ReproReport, required_text
from ostinato.tools.repro.run import repro

__all__ = ["repro_command", "show_repro"]


def repro_command(
    bundle: Annotated[Path, typer.Argument(metavar="DIR", show_default=False, help="The folder of the bundle.")],
    device: DeviceOption = "auto",
    own_rows: Annotated[
        bool,
        typer.Option("--own-rows", help="Run with the rows that the device chooses, not those that the bundle names."),
    ] = False,
    extension: ExtensionOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run a repro bundle without its model, and say whether what it states comes out: exit code 0 if so, 1 if not.

    Example: ostinato repro repro/ --device cpu
    """
    with extended(extension), progress(as_json) as steps:
        steps.begin(f"running {bundle}")
        report = repro(bundle, device=device, own_rows=own_rows)
    emit_json(report) if as_json else show_repro(report, output())
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def show_repro(report: ReproReport, console: Console) -> None:
    """Prints the report."""
    required = required_text(report.absolute, report.relative)
    rows = [
        ("fault", report.fault),
        ("nodes", ", ".join(report.nodes)),
        ("compares", f"{report.left} with {report.right}, {required}, on {report.device}"),
        ("expected", report.expected),
        ("found", report.outcome),
    ]
    if report.worst is not None:
        worst = report.worst
        rows.append(("largest", f"{worst} (left {worst.left:.6g}, right {worst.right:.6g})"))
    if report.rows:
        rows.append(("rows", ", ".join(f"{node}@{row}" for node, row in report.rows.items())))
    if not report.same_environment:
        rows.append(("note", "the bundle was made on another device or unit"))
    console.print(facts(rows))
    told = {True: "[bold green]it is as stated[/]", False: "[bold red]it is not as stated[/]"}
    console.print(told[report.ok])
