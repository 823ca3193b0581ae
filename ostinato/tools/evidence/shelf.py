"""The ledger for people: which records there are, where each stands here, and what may be taken out or handed on.

A record of an architecture that this machine does not have is neither current nor stale here: it is elsewhere, and it is kept. What comes with the library is
never taken out. What is handed on never says where a user's files are: a record whose text does is left out, and named.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.environment import host_environment
from ostinato.backend_hip.evidence.gates import differences, judge_policy
from ostinato.backend_hip.evidence.known import current_records, stale_reason
from ostinato.backend_hip.evidence.ledger import Ledger, Lines, read_file
from ostinato.backend_hip.evidence.records import Environment, Record, TimingRecord, ValidationRecord, write_record
from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import write_text
from ostinato.ir.target import Impl
from ostinato.runtime.device import Device
from ostinato.saving.facts import environment_of
from ostinato.tools.evidence.report import (
    EvidenceExportReport,
    EvidenceListReport,
    EvidencePruneReport,
    EvidenceShowReport,
    GateReport,
    Origin,
    RecordLine,
    State,
)
from ostinato.tools.evidence.texts import names_a_path

__all__ = ["Shelf", "environments", "open_shelf"]

_SHORTEST = 4
"""Letters of an id by which a record may be called."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Records with where they are from, and the environments of this machine's devices by architecture."""

    records: tuple[tuple[Record, Origin], ...]
    here: Mapping[str, Environment]

    def of_kind(self, kind: str | None) -> Shelf:
        """The records of one kind (None: all). Raises `ConfigError` for a kind that there is not."""
        if kind not in (None, "validation", "timing"):
            raise ConfigError(f"records of kind {kind!r} do not exist", hint="use validation or timing")
        found = tuple(each for each in self.records if kind in (None, each[0].kind))
        return Shelf(found, self.here)

    def line(self, record: Record, origin: Origin) -> RecordLine:
        """A record in a list."""
        state, why = self._state(record)
        if isinstance(record, ValidationRecord):
            subject, detail = f"{record.operator}@{record.row}", record.signature
            known = record.maximum_error is not None and bool(record.bound)
            figure = (record.maximum_error or 0.0) / (record.bound or 1.0) if known else None
        else:
            subject, detail = record.candidate.name, f"{record.label or record.subject} {record.workload}"
            figure = record.ratio
        return RecordLine(
            id=record.id,
            kind=record.kind,
            subject=subject,
            detail=detail,
            architecture=record.environment.architecture,
            time=record.time,
            origin=origin,
            state=state,
            why=why,
            figure=figure,
        )

    def listed(self, pattern: str, *, everything: bool) -> EvidenceListReport:
        """Those that have `pattern` in their id, subject or detail; without one, and unless `everything` is asked for, all but shipped ones that hold."""
        lines = [self.line(record, origin) for record, origin in self.records]
        counts = Counter(line.state for line in lines)
        if pattern:
            shown = [line for line in lines if any(pattern in text for text in (line.id, line.subject, line.detail))]
        else:
            shown = [
                line for line in lines if everything or line.origin != "shipped" or line.state in ("failed", "stale")
            ]
        return EvidenceListReport(
            records=tuple(shown),
            total=len(lines),
            current=counts["current"],
            failed=counts["failed"],
            rejected=counts["rejected"],
            stale=counts["stale"],
            elsewhere=counts["elsewhere"],
        )

    def shown(self, name: str) -> EvidenceShowReport:
        """The record whose id begins so. Raises `ConfigError` where none does, or several do."""
        found = {record.id: (record, origin) for record, origin in self.records if record.id.startswith(name)}
        if len(name) < _SHORTEST or len(found) != 1:
            several = f"{len(found)} records have ids that begin with" if len(found) > 1 else "no record has the id"
            raise ConfigError(
                f"{several} {name!r}", hint="`ostinato evidence ls --all` lists them; four letters of an id are enough"
            )
        ((record, origin),) = found.values()
        gate, environment = None, self.here.get(record.environment.architecture, record.environment)
        if record.kind == "timing":
            records = [each for each, _ in self.records]
            gate = GateReport.of(judge_policy(record.candidate.name, records, environment, record.baseline.name))
        return EvidenceShowReport(line=self.line(record, origin), record=record, gate=gate)

    def pruned(self, ledger: Ledger, lines: Lines, *, dry: bool) -> EvidencePruneReport:
        """Takes what is stale, failed validations and lines that are no records out of a ledger, or says that it would. What was added since stays, and so do
        rejected candidates: without them a gate would forget what speaks against a policy."""
        removed = [line for line in (self.line(*each) for each in self.records) if line.state in ("stale", "failed")]
        damaged, names = lines.damaged, {line.id for line in removed}
        if not dry:
            done = ledger.prune(lambda record: record.id not in names)
            damaged, names = done.damaged, {record.id for record in done.removed}
        kept = len(self.records) - len(removed)
        return EvidencePruneReport(dry=dry, kept=kept, removed=tuple(removed), damaged=damaged)

    def exported(self, path: Path, pattern: str, *, everything: bool) -> EvidenceExportReport:
        """Writes records to a file: the user's own, or `everything`, that passed and are not stale, with `pattern` in what `listed` looks at or in their
        architecture. Raises `ConfigError` for a place that cannot be written."""
        chosen: list[Record] = []
        left: list[tuple[str, str]] = []
        for record, origin in self.records:
            line = self.line(record, origin)
            texts = (line.id, line.subject, line.detail, line.architecture)
            if (origin == "shipped" and not everything) or not any(pattern in text for text in texts):
                continue
            if line.state == "stale":
                left.append((line.id, f"stale: {line.why}"))
            elif names_a_path(write_record(record)):
                left.append((line.id, "its text names a place of this machine"))
            else:
                chosen.append(record)
        write_text(path, "".join(map(write_record, chosen)))
        return EvidenceExportReport(file=str(path), records=len(chosen), left_out=tuple(left))

    def _state(self, record: Record) -> tuple[State, str]:
        environment = self.here.get(record.environment.architecture)
        if environment is None:
            return "elsewhere", f"of {record.environment.device}"
        if why := _stale(record, environment):
            return "stale", why
        if record.passed:
            return "current", ""
        return "rejected" if record.kind == "timing" else "failed", record.reason


def _stale(record: Record, environment: Environment) -> str:
    """Why a record says nothing here; empty where it counts."""
    if isinstance(record, TimingRecord):
        return "; ".join(differences(record.environment, environment))
    row = _rows().get(f"{record.operator}@{record.row}")
    return "there is no such row" if row is None else stale_reason(record, row, None, environment)


@functools.cache
def _rows() -> Mapping[str, Impl]:
    return {row.identity: row for row in (*ROWS, *HIP_ROWS)}


def open_shelf(device: Device, file: Path | None) -> Shelf:
    """The records of the library and of the ledger, or those of a file, as a machine with that device sees them. Raises what reading them raises."""
    if file is not None:
        found: tuple[tuple[Record, Origin], ...] = tuple((record, "file") for record in read_file(file))
    else:
        found = tuple((record, "shipped" if ships else "yours") for record, ships in current_records())
    return Shelf(found, environments(device))


def environments(device: Device) -> dict[str, Environment]:
    """The environments of this machine by architecture: each kernel unit of its CPU, and the device's."""
    host = HostDevice(threads=1).info
    found = [host_environment(host.cpu, unit) for unit in host.available]
    return {each.architecture: each for each in (*found, environment_of(device))}
