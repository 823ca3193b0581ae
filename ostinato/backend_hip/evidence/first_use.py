"""The first use of a row on a class of types that has no record: it is validated there and then, once, and never chosen before.

What a program would like is found by lowering it as if every row without a record were right; the rows that its nodes were then given are validated on the
device, recorded in the user's ledger, and the program is lowered again with what came of it, until no node has a row without a record that counts. Where
everything has one, that is a single lowering. `validate="never"` switches it off: where not everything has one, rows without a record are then passed over for
those that need none.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from ostinato.backend_hip.evidence.known import DeviceRecords, Known, Optimist, informed
from ostinato.backend_hip.evidence.records import ValidationRecord
from ostinato.backend_hip.evidence.rows import RowDevice
from ostinato.backend_hip.evidence.sources import source_of
from ostinato.backend_hip.evidence.validate import prepare, validate
from ostinato.ir.errors import ConfigError
from ostinato.ir.evidence import Finding, Validations, Verdict
from ostinato.ir.graph import Graph
from ostinato.ir.ops import OP
from ostinato.ir.selection_policy import Gated
from ostinato.ir.signature import signature_class
from ostinato.ir.target import CallSite, Evidence, Impl, Target
from ostinato.ir.views import ViewTable, call_site

__all__ = ["VALIDATE_VARIABLE", "VALIDATING", "FirstUse", "Progress", "lowered", "validation_option", "with_validation"]

VALIDATE_VARIABLE = "OSTINATO_VALIDATE"
"""Of the environment: "first-use" or "never", where nothing else says so."""
_OPTIONS = ("first-use", "never")
Progress = Callable[[str, int, int], None]
"""progress(VALIDATING, rows done, rows in all)."""
VALIDATING = "validating rows"


class Lowering(Protocol):
    """What lowering makes."""

    @property
    def graph(self) -> Graph: ...


L = TypeVar("L", bound=Lowering)


@dataclass(frozen=True, slots=True, eq=False)
class FirstUse:
    """The records of a device that is at hand, and what validates rows on it."""

    records: DeviceRecords
    device: RowDevice
    known: Known
    progress: Progress | None = None
    asked: bool = False
    """Whether the option `validate` was settled for it; where it was not, the environment settles it."""

    @staticmethod
    def of(target: Target, records: DeviceRecords, device: RowDevice) -> Target:
        """The target of a device, with the records that there are now."""
        known = records.known()
        return informed(target, FirstUse(records, device, known), known)

    def now(self) -> FirstUse:
        """With the records that there are by now."""
        return replace(self, known=self.records.known())

    def verdict(self, row: Impl, site: CallSite) -> Verdict:
        return self.known.verdict(row, site)

    def gate(self, policy: Gated) -> Verdict:
        return self.known.gate(policy)

    def validated(self, wanted: list[tuple[Impl, CallSite]]) -> tuple[FirstUse, list[ValidationRecord]]:
        """Validates rows on the classes of sites and records what came of it; the evidence with those records."""
        made: list[ValidationRecord] = []
        seeded = [(row, site, secrets.randbits(32)) for row, site in wanted]
        prepare(self.device, seeded)
        try:
            for number, (row, site, seed) in enumerate(seeded):
                if self.progress is not None:
                    self.progress(VALIDATING, number, len(wanted))
                made.append(validate(self.device, self.records.environment, row, site, seed))
        finally:  # what is known is known, whatever ends the rest
            self.records.add(made)
        if self.progress is not None:
            self.progress(VALIDATING, len(wanted), len(wanted))
        return self.now(), made


def validation_option(value: str | None) -> str:
    """The option `validate`, by default what the environment says, "first-use" otherwise. Raises `ConfigError` for any other."""
    found = os.environ.get(VALIDATE_VARIABLE, "first-use") if value is None else value
    if found not in _OPTIONS:
        where = f"{VALIDATE_VARIABLE} in the environment" if value is None else "validate"
        raise ConfigError(
            f"{where} is {found!r}",
            hint='"first-use" validates rows that have no record, once; "never" uses the plainest rows in their place',
        )
    return found


def with_validation(target: Target, validate: str | None, progress: Progress | None = None) -> Target:
    """The target of a device with that option, and with the progress that is told of validations. Raises what `validation_option` raises."""
    option = validation_option(validate)
    found = target.evidence
    if not isinstance(found, FirstUse):
        return target
    asked = replace(found, progress=progress, asked=True)
    return replace(target, evidence=found.known if option == "never" else asked)


def lowered(run: Callable[[Target], L], target: Target) -> tuple[L, Target, Validations]:
    """Lowers for a target: what `run` makes of it, with every row that it chose validated where the target's device can do so.

    Returns the target with the records that were used, and what was validated. Raises what `validation_option` raises, where nothing but the environment says
    whether to validate.
    """
    evidence = target.evidence
    if isinstance(evidence, FirstUse) and not evidence.asked:
        target = with_validation(target, None)
        evidence = target.evidence
    if isinstance(evidence, Known):  # what was fused on the way needs no record, if what came of it has one
        made = run(replace(target, evidence=Optimist(evidence)))
        if next(_wanted(made.graph, target, evidence), None) is None:
            return made, target, Validations()
    if not isinstance(evidence, FirstUse):
        return run(target), target, Validations()
    evidence, done = evidence.now(), Validations()
    while True:
        made = run(replace(target, evidence=Optimist(evidence)))
        wanted = list(_wanted(made.graph, target, evidence))
        if not wanted:
            return made, replace(target, evidence=evidence.known), done
        begin = time.perf_counter()
        evidence, records = evidence.validated(wanted)
        failed = tuple(f"{one.operator}@{one.row} on {one.signature}" for one in records if not one.passed)
        done = done.and_more(len(records), failed, time.perf_counter() - begin)


def _wanted(graph: Graph, target: Target, evidence: Evidence) -> Iterator[tuple[Impl, CallSite]]:
    """Rows of a lowered graph without a record that counts, each class once."""
    views, seen = ViewTable(graph), set[tuple[str, str, str]]()
    for node in graph.nodes:
        row = None if OP[node.op].is_view or node.impl is None else target.row(node.op, node.impl)
        if row is None:
            continue
        site = call_site(graph, node, views)
        if evidence.verdict(row, site).finding in (Finding.MISSING, Finding.STALE):
            key = row.identity, signature_class(site), source_of(row, site)[0]
            if key not in seen:
                seen.add(key)
                yield row, site
