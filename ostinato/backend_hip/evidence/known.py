"""What the records say about the rows of one device: the answer to selection, from the shipped ledger and the user's own.

A validation record counts for a row on a class of types where it was made for the same architecture (of the host: the same kernel unit), by this version of the
library, with the sources that the row's kernel is made of now, and for a vendor's product with the library that is there now. What was made with anything else
is stale: kept, named in verdicts and lists, never used. The user's own record goes before the shipped one, the later before the earlier. Which gates of
selection policies passed is for `gates.py`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ostinato.backend_hip.evidence.gates import judge_policy, promising
from ostinato.backend_hip.evidence.ledger import Ledger, shipped_records
from ostinato.backend_hip.evidence.records import Environment, Record, ValidationRecord
from ostinato.backend_hip.evidence.sources import current, source_of
from ostinato.ir.errors import ConfigError
from ostinato.ir.evidence import Finding, Verdict
from ostinato.ir.selection_policy import Gated, PassOmission, SelectionPolicy
from ostinato.ir.signature import signature_class
from ostinato.ir.step import StepKind
from ostinato.ir.target import CallSite, Evidence, Impl, Level, Target

__all__ = ["DeviceRecords", "Known", "OnTrust", "Optimist", "current_records", "informed", "stale_reason"]

HOW = "`ostinato evidence validate` makes a record"
_KEY = tuple[str, str, str]


class Known:
    """The records that there are at one moment for one environment. Its verdicts never change."""

    def __init__(self, environment: Environment, records: Iterable[Record]) -> None:
        """`records` come in the order of their weight: of two that count the later one does."""
        self.environment = environment
        self._all = tuple(records)
        self._found: dict[_KEY, list[ValidationRecord]] = {}
        for record in self._all:
            if isinstance(record, ValidationRecord) and record.environment.architecture == environment.architecture:
                self._found.setdefault((record.operator, record.row, record.signature), []).insert(0, record)
        self._gates: dict[Gated, Verdict] = {}

    def verdict(self, row: Impl, site: CallSite) -> Verdict:
        if row.level is Level.REFERENCE:
            return Verdict(Finding.VALIDATED)
        signature = signature_class(site)
        found = self._found.get((row.op, row.name, signature))
        if found is None:
            return Verdict(Finding.MISSING, reason=f"no record of {row.identity} on {signature}; {HOW}")
        stale: list[str] = []
        for record in found:
            why = stale_reason(record, row, site, self.environment)
            if not why:
                if record.passed:
                    return Verdict(Finding.VALIDATED, (record.id,))
                return Verdict(Finding.FAILED, (record.id,), record.reason)
            stale.append(why)
        ids = tuple(record.id for record in found)
        return Verdict(Finding.STALE, ids, f"{stale[0]}; {HOW}")

    def beside(self, earlier: Iterable[Record]) -> Known:
        """These records and others, which count where these say nothing."""
        return Known(self.environment, (*earlier, *self._all))

    @property
    def validations(self) -> tuple[ValidationRecord, ...]:
        """Those that are of rows, for this architecture."""
        return tuple(record for records in self._found.values() for record in records)

    @functools.cached_property
    def promising(self) -> tuple[Gated, ...]:
        """What gained in a whole-model run here, the best first: what there is to hold against a gate."""
        return promising(self._all, self.environment)

    def gate(self, policy: Gated) -> Verdict:
        found = self._gates.get(policy)
        if found is None:
            judged = judge_policy(policy.identity, self._all, self.environment)
            found = Verdict(judged.finding, judged.evidence, "; ".join(judged.reasons))
            self._gates[policy] = found
        return found


def stale_reason(record: ValidationRecord, row: Impl, site: CallSite | None, environment: Environment) -> str:
    """Why a record says nothing about a row as it is now, empty where it counts. `site`: the call it is asked for, None for any."""
    if record.environment.version != environment.version:
        return f"its record is of version {record.environment.version}, this is {environment.version}"
    if row.kind is not StepKind.LAUNCH and environment.vendor_library not in ("", record.environment.vendor_library):
        return f"its record is of {record.environment.vendor_library}, here is {environment.vendor_library}"
    for name, recorded in record.sources.items():
        if current(name, row) != recorded:
            return f"the source of {name} is not the one that was validated"
    if site is not None and source_of(row, site)[0] not in record.sources:
        return f"its kernel here is of {source_of(row, site)[0]}, which its record does not have"
    return ""


def informed(target: Target, evidence: Evidence, known: Known) -> Target:
    """A target with that evidence, and with what is known from runs on its device."""
    preferences = tuple(policy for policy in known.promising if isinstance(policy, SelectionPolicy))
    present = tuple(policy for policy in preferences if target.row(policy.op, policy.row_name) is not None)
    omissions = tuple(policy for policy in known.promising if isinstance(policy, PassOmission))
    added = tuple(policy for policy in present if policy not in target.preferences)
    return replace(target, evidence=evidence, preferences=(*target.preferences, *added), omissions=omissions)


@dataclass(frozen=True, slots=True)
class Optimist:
    """Takes for validated what has no record that counts: what selection would choose if all rows were right."""

    known: Evidence

    def verdict(self, row: Impl, site: CallSite) -> Verdict:
        found = self.known.verdict(row, site)
        return Verdict(Finding.VALIDATED) if found.finding in (Finding.MISSING, Finding.STALE) else found

    def gate(self, policy: Gated) -> Verdict:
        return self.known.gate(policy)


class DeviceRecords:
    """The records for one environment as they change: those that ship, the user's own, and those that could not be written there."""

    def __init__(self, environment: Environment, ledger: Ledger | None = None, *, shipped: bool = True) -> None:
        """`ledger` is the user's own by default; without `shipped` the records that come with the library are left out."""
        self.environment = environment
        self.ledger = Ledger() if ledger is None else ledger
        self._shipped = shipped
        self._unwritten: tuple[Record, ...] = ()
        self._known: tuple[tuple[object, ...], Known] | None = None

    @property
    def unwritten(self) -> int:
        """How many records are known to this process alone."""
        return len(self._unwritten)

    def known(self) -> Known:
        """The records at this moment: the same object as long as nothing changed. Raises `ConfigError` for a ledger that is damaged or cannot be read."""
        stamp = (self.ledger.stamp(), len(self._unwritten))
        if self._known is None or self._known[0] != stamp:
            records = (
                *(_shipped(self.environment.architecture) if self._shipped else ()),
                *self.ledger.records(),
                *self._unwritten,
            )
            self._known = stamp, Known(self.environment, records)
        return self._known[1]

    def add(self, records: Iterable[Record]) -> None:
        """Adds records to the user's ledger, and to this process alone where that cannot be written, which is warned of."""
        added = tuple(records)
        try:
            self.ledger.add(added)
        except ConfigError as error:
            self.ledger.records()  # a damaged ledger is the user's to mend
            warnings.warn(f"validations are kept for this process alone: {error}", RuntimeWarning, stacklevel=2)
            self._unwritten += added


class OnTrust:
    """For plans that no device is at hand for: what has a record is judged by it, and what has none is taken on trust, which the verdict says.

    Such a plan is what a device of this kind makes where all rows pass.
    """

    def __init__(self, records: DeviceRecords) -> None:
        self._records = records

    def verdict(self, row: Impl, site: CallSite) -> Verdict:
        found = self._known.verdict(row, site)
        if found.finding in (Finding.MISSING, Finding.STALE):
            return Verdict(Finding.VALIDATED, (), f"on trust, since no device is opened here: {found.reason}")
        return found

    def gate(self, policy: Gated) -> Verdict:
        return self._known.gate(policy)

    @functools.cached_property
    def _known(self) -> Known:
        """As of the first question."""
        return self._records.known()


@functools.cache
def _shipped(architecture: str | None = None) -> tuple[Record, ...]:
    return shipped_records(architecture)


def current_records(ledger: Ledger | None = None) -> Iterator[tuple[Record, bool]]:
    """Every record there is, and whether it ships with the library: shipped ones first."""
    yield from ((record, True) for record in _shipped())
    yield from ((record, False) for record in (Ledger() if ledger is None else ledger).records())
