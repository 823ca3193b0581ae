"""What `ostinato evidence ... --json` prints. All sizes are bytes, all times seconds unless the name says otherwise."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ostinato.backend_hip.evidence.gates import GateVerdict
from ostinato.backend_hip.evidence.records import TimingRecord, ValidationRecord
from ostinato.tools.report import Report

__all__ = [
    "CandidateReport",
    "EvidenceExportReport",
    "EvidenceListReport",
    "EvidencePruneReport",
    "EvidenceScreenReport",
    "EvidenceShowReport",
    "EvidenceValidateReport",
    "GateReport",
    "Origin",
    "Outcome",
    "RecordLine",
    "RunReport",
    "ScreenedProduct",
    "State",
    "TuneReport",
    "ValidatedRow",
]

State = Literal["current", "failed", "rejected", "stale", "elsewhere"]
Outcome = Literal["measured", "refused", "no change", "shared", "interrupted"]
Origin = Literal["shipped", "yours", "file"]


class RecordLine(Report):
    """A record in a list. `state`: current (holds here), failed (a validation that holds here and says no), rejected (a candidate that was measured or refused
    here and not taken), stale (of this architecture, but of another environment), elsewhere (of another architecture). `why` says what differs or went wrong;
    `figure` is the error as a part of its bound, or the ratio of times, null without one."""

    id: str
    kind: Literal["validation", "timing"]
    subject: str
    detail: str
    architecture: str
    time: str
    origin: Origin
    state: State
    why: str
    figure: float | None


class EvidenceListReport(Report):
    """`ostinato evidence ls`: the records that were asked for, and how many there are of each state in all."""

    kind: Literal["evidence"] = "evidence"
    records: tuple[RecordLine, ...]
    total: int
    current: int
    failed: int
    rejected: int
    stale: int
    elsewhere: int


class GateReport(Report):
    """A candidate at the gate of defaults: the reasons why not, the records that count, and those that do not, with reasons."""

    policy: str
    passed: bool
    reasons: tuple[str, ...]
    evidence: tuple[str, ...]
    unused: tuple[tuple[str, str], ...]

    @staticmethod
    def of(verdict: GateVerdict) -> GateReport:
        """What a gate says, as a report."""
        return GateReport(
            policy=verdict.policy,
            passed=verdict.passed,
            reasons=verdict.reasons,
            evidence=verdict.evidence,
            unused=verdict.unused,
        )


class EvidenceShowReport(Report):
    """`ostinato evidence show ID`: the record whole, where it stands here, and of a timing the gate of its candidate."""

    kind: Literal["evidence_record"] = "evidence_record"
    line: RecordLine
    record: Annotated[ValidationRecord | TimingRecord, Field(discriminator="kind")]
    gate: GateReport | None


class EvidencePruneReport(Report):
    """`ostinato evidence prune`: what was taken out of the user's ledger, or (`dry`) would be: records, and lines that are none by number and reason."""

    kind: Literal["evidence_prune"] = "evidence_prune"
    dry: bool
    kept: int
    removed: tuple[RecordLine, ...]
    damaged: tuple[tuple[int, str], ...]


class EvidenceExportReport(Report):
    """`ostinato evidence export`: the file and how many records it has; those left out, each with its reason."""

    kind: Literal["evidence_export"] = "evidence_export"
    file: str
    records: int
    left_out: tuple[tuple[str, str], ...]


class RunReport(Report):
    """A candidate beside the baseline on one workload: medians over the processes, `ratio` the median of the paired ratios (`ratios`), above 1 where the
    candidate is faster. Times and ratio are null where nothing was timed, for the reason in `reason`."""

    workload: str
    baseline_ms: float | None
    candidate_ms: float | None
    ratio: float | None
    ratios: tuple[float, ...]
    outputs: Literal["equal", "within tolerance", "outside tolerance", "not run"]
    baseline_arena_bytes: int
    candidate_arena_bytes: int
    baseline_peak_bytes: int
    candidate_peak_bytes: int
    passed: bool
    reason: str
    record: str


class CandidateReport(Report):
    """A candidate: measured, refused before anything was timed, one that changes nothing in these programs, interrupted before it was measured, or of a
    training run one that is `shared`: it changes how the model decodes too, of which runs of training say nothing."""

    name: str
    state: Outcome
    reason: str
    runs: tuple[RunReport, ...]
    gate: GateReport | None


class TuneReport(Report):
    """`ostinato evidence tune MODEL`: candidates in the order they were tried. `recorded` is how many records were added to the ledger."""

    kind: Literal["tune"] = "tune"
    model: str
    device: str
    architecture: str
    precision: str
    threads: int
    workloads: tuple[str, ...]
    pairs: int
    candidates: tuple[CandidateReport, ...]
    recorded: int
    interrupted: bool
    seconds: float


class ScreenedProduct(Report):
    """A product of a vendor's library: how many algorithms the vendor proposed, how many were right, the time of the first right one and of the one that was
    recorded. Times are null where none was right; `problem` says so, or why nothing was recorded."""

    product: str
    workloads: tuple[str, ...]
    candidates: int
    right: int
    first_seconds: float | None
    seconds: float | None
    gain: float | None
    problem: str


class EvidenceScreenReport(Report):
    """`ostinato evidence screen MODEL`: the products of a model's programs; `ok` says that each has a solution that was right and recorded."""

    kind: Literal["evidence_screen"] = "evidence_screen"
    model: str
    device: str
    seed: int
    ok: bool
    products: tuple[ScreenedProduct, ...]


class ValidatedRow(Report):
    """A row on one class of types. `error` and `bound` are absolute, of the call that came nearest to its bound; null where they are not finite."""

    id: str
    operator: str
    row: str
    level: str
    signature: str
    calls: int
    error: float | None
    bound: float | None
    passed: bool
    reason: str


class EvidenceValidateReport(Report):
    """`ostinato evidence validate`: what was validated, in the order it was run, and the file that has the records."""

    kind: Literal["evidence_validate"] = "evidence_validate"
    ok: bool
    architecture: str
    file: str
    rows: tuple[ValidatedRow, ...]
