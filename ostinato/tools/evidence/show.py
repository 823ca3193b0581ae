"""Records for people: tables and texts of the reports of `ostinato evidence`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console

from ostinato.tools.console import count, facts, fits, many, table
from ostinato.tools.evidence.report import (
    EvidenceExportReport,
    EvidenceListReport,
    EvidencePruneReport,
    EvidenceShowReport,
    RecordLine,
)

__all__ = ["show_export", "show_list", "show_prune", "show_record"]


def show_list(report: EvidenceListReport, console: Console) -> None:
    """The records that were asked for, and how many there are."""
    if report.records:
        _show_lines("evidence", report.records, console)
    states = (
        ("hold here", report.current),
        ("failed", report.failed),
        ("rejected candidates", report.rejected),
        ("stale", report.stale),
        ("of other devices", report.elsewhere),
    )
    counts = ", ".join(f"{count(number)} {what}" for what, number in states)
    hidden = report.total - len(report.records)
    console.print(
        f"{many(report.total, 'record')}: {counts}{f'; {count(hidden)} not shown (--all)' if hidden else ''}",
        markup=False,
    )


def show_record(report: EvidenceShowReport, console: Console) -> None:
    """A record whole: every field that says something."""
    line = report.line
    console.print(
        facts(
            [
                ("record", line.id),
                ("state", f"{line.state}{f': {line.why}' if line.why else ''}"),
                ("from", line.origin),
            ]
        )
    )
    fields = report.record.model_dump(mode="json", exclude_defaults=True, exclude={"id", "environment"})
    console.print(facts((name.replace("_", " "), _text(value)) for name, value in fields.items()))
    environment = report.record.environment.model_dump(exclude_defaults=True)
    console.print(facts((name.replace("_", " "), str(value)) for name, value in environment.items()))
    if report.gate is not None:
        verdict = "passed" if report.gate.passed else "not passed: " + "; ".join(report.gate.reasons)
        console.print(f"gate of {report.gate.policy}: {verdict}", markup=False)
        for name, why in report.gate.unused:
            console.print(f"{name} does not count: {why}", markup=False)


def show_prune(report: EvidencePruneReport, console: Console) -> None:
    """What was taken out, or would be."""
    if report.removed:
        _show_lines("would be taken out" if report.dry else "taken out", report.removed, console)
    for number, reason in report.damaged:
        console.print(f"line {number} is no record: {reason}", markup=False)
    gone = len(report.removed) + len(report.damaged)
    if not gone:
        console.print(f"nothing to take out; {many(report.kept, 'record')}", markup=False)
    elif report.dry:
        console.print(
            f"{count(gone)} would be taken out, {many(report.kept, 'record')} kept; --yes does it", markup=False
        )
    else:
        console.print(f"{count(gone)} taken out, {many(report.kept, 'record')} left", markup=False)


def show_export(report: EvidenceExportReport, console: Console) -> None:
    console.print(f"wrote {report.file}: {many(report.records, 'record')}", markup=False)
    for reason, number in Counter(reason for _, reason in report.left_out).items():
        console.print(f"left out {count(number)}: {reason}", markup=False)


def _show_lines(title: str, lines: Sequence[RecordLine], console: Console) -> None:
    """A table where there is room for it, else a few lines for each record."""
    columns = ("id", "kind", "subject", "of", "device", "figure", "from", "state")
    made = table(title, columns, map(_cells, lines), numbers=False)
    if fits(made, console):
        console.print(made)
        return
    for line in lines:
        name, _, subject, of, device, *said = _cells(line)
        console.print("  ".join(filter(None, (name, subject, *said))), markup=False)
        console.print(f"  {of} on {device}", markup=False)


def _cells(line: RecordLine) -> Iterable[str]:
    state = f"{line.state}: {line.why}" if line.why else line.state
    return (line.id, line.kind, line.subject, line.detail, line.architecture, _figure(line), line.origin, state)


def _figure(line: RecordLine) -> str:
    if line.figure is None:
        return ""
    if line.kind == "timing":
        return f"{line.figure:.3f}x"
    return "exact" if line.figure == 0 else f"{line.figure:.2f} of bound"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
