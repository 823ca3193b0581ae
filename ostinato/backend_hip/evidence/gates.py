"""The gate in front of every default: whether the records of whole models allow a policy to be what programs use without being asked.

A policy passes where all of this holds, and for no other reason:

- on one workload, runs of at least `MODELS` models are at least `RATIO` times as fast as the baseline, each the median over at least `PAIRS` pairs of fresh
  processes that took turns;
- no run of any model or workload is slower by as much;
- all outputs are equal to the baseline's or within their tolerance;
- neither the plan's arena nor the peak of a process is above the baseline's;
- all of that was measured here and now: with this device, driver, library, compiler, these kernels and this version.

Records of operators and regions never decide. A record that is stale, unfinished or of another baseline is no evidence, for or against, and is named. All
functions are pure: the same records in any order give the same verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ostinato.backend_hip.evidence.records import Environment, Record, TimingRecord
from ostinato.ir.evidence import Finding
from ostinato.ir.selection_policy import Gated, parse_gated

__all__ = [
    "BASELINE",
    "MODELS",
    "PAIRS",
    "RATIO",
    "GateVerdict",
    "differences",
    "judge_policy",
    "promising",
    "run_problems",
]

BASELINE = "default"
"""Name of what the library does without evidence, against which policies are measured."""
MODELS = 2
RATIO = 1.01
PAIRS = 3
_STALE = "stale"
_GRAVEST = (Finding.FAILED, Finding.MEMORY, Finding.SLOWER, Finding.STALE, Finding.MISSING)
_PEAK_NOISE = 0.01
"""By so much the peaks of two processes that do the same differ. The arena is the plan's and has none."""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """`VALIDATED` where a policy passed; else the gravest of what keeps it out, with all reasons. The ids of the records that count, and of those that do
    not, each with its reason."""

    policy: str
    finding: Finding
    reasons: tuple[str, ...]
    evidence: tuple[str, ...]
    unused: tuple[tuple[str, str], ...] = ()

    @property
    def passed(self) -> bool:
        return self.finding is Finding.VALIDATED


def judge_policy(
    policy: str, records: Iterable[Record], environment: Environment, baseline: str = BASELINE
) -> GateVerdict:
    """The verdict on a policy from all records there are, on a machine like this."""
    counted: list[TimingRecord] = []
    unused: list[tuple[str, str]] = []
    for record in records:
        if isinstance(record, TimingRecord) and record.candidate.name == policy:
            why = _no_evidence(record, environment, baseline)
            if why:
                unused.append((record.id, why))
            else:
                counted.append(record)
    counted.sort(key=lambda record: (record.label, record.subject, record.workload, record.id))
    problems = [(finding, f"{_named(record)}: {text}") for record in counted for finding, text in run_problems(record)]
    models: dict[str, set[str]] = defaultdict(set)
    for record in counted:
        if record.ratio is not None and record.ratio >= RATIO and not run_problems(record):
            models[record.workload.partition(" ")[0]].add(record.subject)
    most = max((len(found) for found in models.values()), default=0)
    if most < MODELS:
        best = max((record.ratio or 0.0 for record in counted), default=0.0)
        stale = any(why.startswith(_STALE) for _, why in unused)
        missing = Finding.SLOWER if counted and best < RATIO else Finding.STALE if stale else Finding.MISSING
        shown = f", the best run is {best:.3f}x" if counted else ""
        problems.append((missing, f"{most} of {MODELS} models gain {RATIO}x on the same workload{shown}"))
    finding = min((found for found, _ in problems), key=_GRAVEST.index, default=Finding.VALIDATED)
    evidence = tuple(record.id for record in counted)
    return GateVerdict(policy, finding, tuple(text for _, text in problems), evidence, tuple(sorted(unused)))


def run_problems(record: TimingRecord) -> list[tuple[Finding, str]]:
    """What a whole-model run says against its candidate."""
    if record.ratio is None or record.outputs not in ("equal", "within tolerance"):
        detail = f": {record.reason}" if record.reason else ""
        right = record.outputs in ("equal", "within tolerance")
        return [(Finding.FAILED, f"{'it was not timed' if right else f'its outputs are {record.outputs}'}{detail}")]
    problems, mine, theirs = [], record.candidate, record.baseline
    if mine.arena_bytes > theirs.arena_bytes:
        text = f"its arena is {mine.arena_bytes:,} bytes, the baseline's {theirs.arena_bytes:,}"
        problems.append((Finding.MEMORY, text))
    if mine.peak_bytes > theirs.peak_bytes * (1 + _PEAK_NOISE):
        problems.append(
            (Finding.MEMORY, f"its peak is {mine.peak_bytes:,} bytes, the baseline's {theirs.peak_bytes:,}")
        )
    if record.ratio * RATIO <= 1:
        problems.append((Finding.SLOWER, f"it is slower: {record.ratio:.3f}x"))
    return problems


def promising(records: Iterable[Record], environment: Environment) -> tuple[Gated, ...]:
    """What gained in a whole-model run on a machine like this and did no harm there, the best first; whether it passes the gate is another question."""
    found: dict[Gated, float] = {}
    for record in records:
        if not isinstance(record, TimingRecord) or record.ratio is None or record.ratio < RATIO:
            continue
        if _no_evidence(record, environment, BASELINE) or run_problems(record):
            continue
        policy = parse_gated(record.candidate.name)
        if policy is not None:
            found[policy] = max(record.ratio, found.get(policy, 0.0))
    return tuple(sorted(found, key=lambda policy: (-found[policy], policy.identity)))


def differences(recorded: Environment, current: Environment) -> tuple[str, ...]:
    """What makes a measurement of one environment say nothing about another, in words. Times depend on everything."""
    return tuple(
        f"{name} {getattr(recorded, name) or 'unknown'}, here {getattr(current, name) or 'unknown'}"
        for name in Environment.model_fields
        if getattr(recorded, name) != getattr(current, name)
    )


def _no_evidence(record: TimingRecord, environment: Environment, baseline: str) -> str:
    """Why a record is no evidence, for or against; empty where it is."""
    if record.scope != "model":
        return f"a win of one {record.scope} never decides"
    if record.baseline.name != baseline:
        return f"measured against {record.baseline.name}, not {baseline}"
    if stale := differences(record.environment, environment):
        return f"{_STALE}: {'; '.join(stale)}"
    pairs = min(len(record.candidate.seconds), len(record.baseline.seconds))
    if record.ratio is not None and pairs < PAIRS:
        return f"unfinished: {pairs} of {PAIRS} pairs"
    return ""


def _named(record: TimingRecord) -> str:
    return f"{record.label or record.subject} {record.workload}"
