"""`ostinato evidence validate`: validates rows of a device on the classes of types that samples of their operators have, and records what came of it."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console

from ostinato.backend_hip.evidence.known import DeviceRecords
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.records import ValidationRecord
from ostinato.backend_hip.evidence.survey import sample_sites, survey
from ostinato.ir.errors import ConfigError
from ostinato.ir.ops import OP
from ostinato.ir.target import Impl, Level
from ostinato.runtime.device import Device
from ostinato.saving.facts import environment_of
from ostinato.tools.console import Steps, count, table
from ostinato.tools.evidence.report import EvidenceValidateReport, ValidatedRow

__all__ = ["rows_asked_for", "show_validation", "validate_rows"]

_EVERY = 16
"""Classes after which records are written: an interruption loses no more than these."""


def rows_asked_for(device: Device, ops: Collection[str], rows: Collection[str]) -> tuple[Impl, ...]:
    """The rows of a device of these operators and names ("hip_rows" or "linear@hip_rows"), all where none is given. Raises `ConfigError` for unknown ones."""
    mine = [row for row in device.target.rows if row.level is not Level.REFERENCE]
    if unknown := sorted(set(ops) - set(OP)):
        raise ConfigError(f"there are no operators {unknown}", hint="dir(ostinato.ops) lists them")
    names = {row.name for row in mine} | {row.identity for row in mine}
    if unknown := sorted(set(rows) - names):
        known = ", ".join(sorted({row.name for row in mine}))
        raise ConfigError(f"{device.name} has no rows {unknown}", hint=f"rows, or operator@row: {known}")
    return tuple(
        row for row in mine if (not ops or row.op in ops) and (not rows or row.name in rows or row.identity in rows)
    )


def validate_rows(device: Device, rows: Collection[Impl], *, every: bool, steps: Steps) -> EvidenceValidateReport:
    """Validates rows on a device and records it in the user's ledger: on one class for each choice of dtypes, or on `every` class that samples give.

    Raises `ConfigError` for a device that keeps no records and for a ledger that is damaged.
    """
    records = DeviceRecords(environment_of(device), Ledger())
    records.known()  # a damaged ledger is told before the work
    wanted = [(row, site) for row in rows for site in sample_sites(row, every=every)]
    made: list[ValidationRecord] = []
    written = 0
    try:
        for record in survey([(device, records.environment)], wanted, steps.advance):
            made.append(record)
            if len(made) - written >= _EVERY:
                records.add(made[written:])
                written = len(made)
    finally:
        records.add(made[written:])
    return EvidenceValidateReport(
        ok=all(record.passed for record in made),
        architecture=records.environment.architecture,
        file=str(records.ledger.path),
        rows=tuple(
            ValidatedRow(
                id=record.id,
                operator=record.operator,
                row=record.row,
                level=record.level,
                signature=record.signature,
                calls=record.calls,
                error=record.maximum_error,
                bound=record.bound,
                passed=record.passed,
                reason=record.reason,
            )
            for record in made
        ),
    )


def show_validation(report: EvidenceValidateReport, console: Console) -> None:
    """The report for people: each row with its worst class, and every class that failed in full."""
    worst: dict[tuple[str, str], list[ValidatedRow]] = {}
    for found in report.rows:
        worst.setdefault((found.operator, found.row), []).append(found)
    cells = (
        (
            f"{operator}@{row}",
            found[0].level,
            f"{sum(one.passed for one in found)} of {len(found)}",
            count(sum(one.calls for one in found)),
            _part(found),
        )
        for (operator, row), found in worst.items()
    )
    headings = ("row", "level", "classes", "calls", "error / bound")
    console.print(table(f"validated on {report.architecture}", headings, cells))
    for one in report.rows:
        if not one.passed:
            console.print(f"failed: {one.operator}@{one.row} on {one.signature}: {one.reason}", markup=False)
    console.print(f"records are in {report.file}", markup=False)


def _part(rows: list[ValidatedRow]) -> str:
    """How much of its bound the error of the worst class takes up."""
    used = [(one.error or 0.0) / one.bound for one in rows if one.bound]
    return f"{max(used):.2f}" if used else "exact"
