"""A bisection for people: what was tried, what makes the difference, what speaks for it, and how to do without."""

from __future__ import annotations

from rich.console import Console

from ostinato.tools.bisect.report import BisectReport, Culprit, Worst
from ostinato.tools.console import facts, many
from ostinato.tools.repro.report import required_text

__all__ = ["show_bisection"]

_ELSE = "the sides may compute different things, or with other weights: `ost.TraceSession` shows the values of chosen nodes (docs/trace-values.md)"


def show_bisection(report: BisectReport, console: Console) -> None:
    """Prints the report."""
    required = required_text(report.absolute, 0.0)
    rows = [("sides", f"{report.left} (taken to be right) and {report.right}, {required}")]
    if report.worst is not None:
        rows.append(("largest difference", _worst(report.worst, report.run, report.entry, report.verdict)))
    if report.first_step:
        rows.append(("first node", f"%{report.first_step} (run {report.run}, {report.entry})"))
    refused = f", {report.refused} could not be run" if report.refused else ""
    rows.append(
        ("tried", f"{many(report.trials, 'configuration')}{refused}, {report.seconds:.1f} s, seed {report.seed}")
    )
    console.print(facts(rows))
    for number, culprit in enumerate(report.culprits):
        console.print()
        console.print(("Culprit: " if number == 0 else "Also: ") + culprit.text, style="bold red", markup=False)
        console.print(facts(_about(culprit)))
    console.print()
    if report.ok:
        console.print("[bold green]the sides agree[/]")
        return
    if not report.culprits:
        console.print("nothing that could be left out makes the difference", style="bold red", markup=False)
        console.print(_ELSE, markup=False)
    if report.reduced:
        console.print(f"reduced to {many(len(report.reduced), 'node')}: {', '.join(report.reduced)}", markup=False)
    if report.bundle is not None:
        console.print(f"bundle {report.bundle}; run it with: {report.repro_command}", markup=False)
    if report.unreduced:
        console.print(f"not reduced: {report.unreduced}", markup=False)


def _worst(worst: Worst, run: int | None, entry: str, verdict: str) -> str:
    names = ("first", "again") if verdict == "not repeated" else ("left", "right")
    values = f"{names[0]} {worst.left:.6g}, {names[1]} {worst.right:.6g}"
    return f"{worst} ({values}), run {run}, {entry}"


def _about(culprit: Culprit) -> list[tuple[str, str]]:
    where = f"step {culprit.step} of {culprit.entry}" if culprit.step is not None else culprit.entry
    rows = [("where", where), ("row", culprit.row), ("line", culprit.line)]
    rows += [("evidence", text) for text in culprit.evidence]
    rows.append(("do without", culprit.workaround))
    return [(name, text) for name, text in rows if text]
