"""The report of `ostinato audit`."""

from __future__ import annotations

from typing import Literal

from ostinato.runtime.audit import AuditedPointer, AuditedScalar, AuditFinding, AuditReport, DeviceSlot
from ostinato.tools.report import Report

__all__ = ["AddressAuditReport", "AuditedEntry"]


class AuditedEntry(Report):
    """What one entry's graphs, or its step table, were given. Addresses are those of this process."""

    entry: str
    device: str
    graphs: int
    pointers: tuple[AuditedPointer, ...]
    scalars: tuple[AuditedScalar, ...]
    slots: tuple[DeviceSlot, ...]
    findings: tuple[AuditFinding, ...]

    @classmethod
    def of(cls, report: AuditReport) -> AuditedEntry:
        """The entry of an audit."""
        return cls(
            entry=report.entry,
            device=report.device,
            graphs=report.graphs,
            pointers=report.pointers,
            scalars=report.scalars,
            slots=report.slots,
            findings=report.findings,
        )


class AddressAuditReport(Report):
    """`ostinato audit`: every pointer and number of every entry. `ok` is what the exit code says: nothing was found."""

    kind: Literal["audit"] = "audit"
    model: str
    mode: str
    reason: str
    ok: bool
    entries: tuple[AuditedEntry, ...]
