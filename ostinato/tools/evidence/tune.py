"""`ostinato evidence tune MODEL`, or `RUN.toml`: what there is to choose on this machine, measured on whole-model runs and held against the gate.

For each candidate in turn: its rows must be validated, its outputs right (`judge.py`), and only then is it timed: the baseline's process, the candidate's, and
again in the other order, each fresh. What was found is recorded at once, so that an interrupt keeps what came before it; a candidate that was refused is
recorded with the reason. A policy that passes the gate is what `balanced` uses from then on, on this machine, as long as nothing changes that times depend on.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from ostinato.backend_hip.evidence.gates import MODELS, RATIO, judge_policy
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.records import Environment, Record
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.vendor_record import solutions
from ostinato.frontend.model import Model
from ostinato.runtime.device import Device
from ostinato.tools.console import Steps, fits, many, size, table
from ostinato.tools.evidence.candidates import candidates_for, named
from ostinato.tools.evidence.measure import Measurement, Setting
from ostinato.tools.evidence.processes import Runner, fresh
from ostinato.tools.evidence.report import CandidateReport, GateReport, RunReport, TuneReport

__all__ = ["show_tuning", "tune"]

_UNTRIED = {
    "no change": "the programs stay as they are with",
    "shared": "they change how the model decodes too, and are tried on the model",
}
"""States of candidates of which nothing is recorded, and what they mean."""


def tune(
    setting: Setting,
    model: Model,
    device: Device,
    environment: Environment,
    ledger: Ledger,
    *,
    only: Sequence[str] = (),
    known: Sequence[Record] = (),
    runner: Runner = fresh,
    steps: Steps | None = None,
) -> TuneReport:
    """Measures the candidates for a model, or those whose names have one of the texts of `only` in them; Ctrl-C ends it with what was measured so far.

    `known` are the records besides the ledger's that the gate may look at. Raises `ConfigError` for workloads and names that are of no use and for a ledger
    that cannot be written, `PlanError` where the baseline itself is wrong, and what lowering the baseline raises.
    """
    ledger.need_writable()
    begin, shown = time.perf_counter(), steps or Steps(None)
    shown.begin("looking for candidates")
    reports: list[CandidateReport] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Measurement(setting, model, device, environment, ledger, runner, Path(folder))
        decode_rows = max((workload.rows for workload in setting.workloads if workload.kind == "d"), default=1)
        screened = setting.config is None and isinstance(device, HipDevice) and bool(solutions().read().records)
        tried = named(tuple(candidates_for(work.plain, device.target, decode_rows, screened=screened)), only)
        for number, candidate in enumerate(tried):

            def told(what: str, part: float, name: str = candidate.name, number: int = number) -> None:
                shown.advance(number + part, len(tried), f"{name}: {what}")

            try:
                reports.append(work.candidate(candidate, told))
            except KeyboardInterrupt:
                reports.append(_unmeasured(candidate.name))
            if reports[-1].state == "interrupted":
                break
        interrupted = any(report.state == "interrupted" for report in reports)
        reports += [_unmeasured(candidate.name) for candidate in tried[len(reports) :]]
    records = (*known, *ledger.records())
    return TuneReport(
        model=work.label,
        device=environment.device,
        architecture=environment.architecture,
        precision=work.precision,
        threads=work.threads,
        workloads=tuple(map(str, setting.workloads)),
        pairs=setting.pairs,
        candidates=tuple(_gated(report, records, environment) for report in reports),
        recorded=work.recorded,
        interrupted=interrupted,
        seconds=time.perf_counter() - begin,
    )


def show_tuning(report: TuneReport, console: Console) -> None:
    """The report for people."""
    place = f"{report.device}, {many(report.threads, 'thread')}" if report.threads else report.device
    title = f"{report.model}: {report.precision} on {place}, {many(report.pairs, 'pair')} of fresh processes"
    columns = ("candidate", "workload", "default", "its own", "faster", "outputs", "arena", "peak", "gate")
    rows = [row for each in report.candidates for row in _rows(each)]
    made = table(title, columns, rows)
    if fits(made, console):
        console.print(made)
    else:
        console.print(title, markup=False)
        for row in rows:
            said = (f"{column} {cell}" for column, cell in zip(columns[2:], row[2:], strict=True) if cell)
            console.print(f"{row[0]} {row[1]}: {', '.join(said)}", markup=False)
    for each in report.candidates:
        if each.state in ("refused", "measured") and each.gate is not None:
            idle = dict.fromkeys(f"a run does not count, {why}" for _, why in each.gate.unused)
            verdict = "passed: balanced uses it here" if each.gate.passed else "; ".join((*each.gate.reasons, *idle))
            console.print(f"{each.name}: {verdict}", markup=False)
    for state, text in _UNTRIED.items():
        if names := [each.name for each in report.candidates if each.state == state]:
            console.print(f"{text}: {', '.join(names)}", markup=False)
    bound = f"a gate passes where {MODELS} models gain {RATIO}x on the same workload"
    console.print(f"{many(report.recorded, 'record')} in {report.seconds:.0f} s; {bound}", markup=False)
    if report.interrupted:
        console.print("[bold]interrupted[/]; what was measured is recorded")


def _rows(candidate: CandidateReport) -> Iterator[tuple[str, ...]]:
    for run in candidate.runs:
        yield (
            candidate.name,
            run.workload,
            *_cells(run),
            "yes" if candidate.gate is not None and candidate.gate.passed else "no",
        )


def _cells(run: RunReport) -> tuple[str, ...]:
    if run.ratio is None or run.baseline_ms is None or run.candidate_ms is None:
        return "", "", "", run.outputs, "", ""
    arena = _both(size(run.baseline_arena_bytes), size(run.candidate_arena_bytes))
    peak = _both(size(run.baseline_peak_bytes), size(run.candidate_peak_bytes))
    return f"{run.baseline_ms:.3f} ms", f"{run.candidate_ms:.3f} ms", f"{run.ratio:.3f}x", run.outputs, arena, peak


def _both(default: str, candidate: str) -> str:
    return default if default == candidate else f"{default} / {candidate}"


def _unmeasured(name: str) -> CandidateReport:
    return CandidateReport(name=name, state="interrupted", reason="", runs=(), gate=None)


def _gated(report: CandidateReport, records: Sequence[Record], environment: Environment) -> CandidateReport:
    """With the verdict of the gate on all records there are."""
    if report.state in _UNTRIED:
        return report
    return report.model_copy(update={"gate": GateReport.of(judge_policy(report.name, records, environment))})
