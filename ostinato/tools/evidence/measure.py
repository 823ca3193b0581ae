"""One candidate beside the baseline: validated, judged, timed in alternating fresh processes, recorded."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.backend_hip.evidence.gates import BASELINE, RATIO, run_problems
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.records import Environment, RunFigures, TimingRecord
from ostinato.frontend.model import Model
from ostinato.ir.errors import OstinatoError, PlanError
from ostinato.ir.types import Array
from ostinato.runtime.device import Device
from ostinato.stages import Entries
from ostinato.tools.evidence.candidates import (
    PLAIN,
    Candidate,
    Lowering,
    Options,
    differing,
    lowered_with,
    refusal_of,
)
from ostinato.tools.evidence.judge import Outputs, baseline_problem, judge_outputs
from ostinato.tools.evidence.processes import Runner
from ostinato.tools.evidence.report import CandidateReport, Outcome, RunReport
from ostinato.tools.evidence.texts import fingerprint, label_of, without_paths
from ostinato.tools.evidence.training import (
    decoding_entries,
    described,
    has_bf16_moments,
    training_entries,
    training_model,
    workload_of,
)
from ostinato.tools.evidence.trial import Request, Result
from ostinato.tools.evidence.workloads import Workload, entries_of
from ostinato.tools.train.config import TrainConfig

__all__ = ["Measurement", "Setting", "training_setting"]

Logits = Mapping[str, Array]
Told = Callable[[str, float], None]
"""Hears what is being done, and how much of the candidate is done, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how trials run: the model and the device by name, how many pairs of processes, and for how long each workload is timed in one. `training` is
    the file of the training run whose step is measured, `config` what it says."""

    model: str
    device: str
    threads: int
    precision: str
    workloads: tuple[Workload, ...]
    pairs: int
    seconds: float
    training: str = ""
    config: TrainConfig | None = None

    def request(self, options: Options, **fields: Any) -> Request:
        names = ",".join(map(str, self.workloads))
        common = {"model": self.model, "device": self.device, "threads": self.threads, "precision": self.precision}
        common = {**common, "workloads": names, "training": self.training}
        return Request.model_validate({**common, "options": options, **fields})


@contextmanager
def training_setting(path: Path, pairs: int, seconds: float) -> Iterator[tuple[Setting, Model]]:
    """How the step of the training run in a file is measured, and the model that the run begins with. Raises what `training_model` raises."""
    with training_model(path) as (config, name, model):
        train, workloads = config.train, (workload_of(config),)
        yield (
            Setting(name, train.device, train.threads, train.precision, workloads, pairs, seconds, str(path), config),
            model,
        )


@dataclass
class _Pairs:
    """What the processes found, in the order they ran; `ended` is why there are no more: empty, an error, or that the user interrupted."""

    mine: list[Result] = field(default_factory=list)
    theirs: list[Result] = field(default_factory=list)
    ended: str = ""
    interrupted: bool = False


class Measurement:
    """The candidates of one model on one device are measured by one of these: the oracle and the baseline's outputs are made once, when first needed."""

    def __init__(
        self,
        setting: Setting,
        model: Model,
        device: Device,
        environment: Environment,
        ledger: Ledger,
        runner: Runner,
        folder: Path,
    ) -> None:
        """`folder` is for outputs of trials while this is in use. Raises what tracing the entries and lowering the baseline raise."""
        self._setting, self._device, self._environment = setting, device, environment
        self._ledger, self._run, self._folder = ledger, runner, folder
        self._subject, self.label = fingerprint(model), label_of(setting.model, model)
        self.precision = model.precision(setting.precision)
        self.threads = 0 if device.captures else device.threads
        self._how = self._rounding = self.precision
        self._others: Entries = {}  # what else runs with the choices that pass, and these runs say nothing of
        if setting.config is None:
            self._entries = entries_of(model, setting.workloads, setting.precision)
        else:
            self._entries = training_entries(setting.config, model)
            self._others = decoding_entries(setting.config, model)
            self._how = f"{self.precision} {described(setting.config)}"
            if has_bf16_moments(setting.config):
                self._rounding = "bf16"  # outputs are judged by it, and moments are among them
        self.plain = self._lowered(PLAIN, self._entries)
        self._truth: tuple[Logits, Logits] | None = None
        self._checked = Result()
        self.recorded = 0

    def candidate(self, candidate: Candidate, told: Told) -> CandidateReport:
        """The report on a candidate, which is recorded too unless it changes nothing, or more than these runs say anything of. Raises `PlanError` where the
        baseline itself is wrong."""
        try:
            lowering, others = (self._lowered(candidate, entries) for entries in (self._entries, self._others))
        except OstinatoError as error:
            return self._refused(candidate, self._setting.workloads, error.message)
        changed = differing(self.plain, candidate, lowering, self._device.target)
        if self._others and changed and differing(self._plain_others, candidate, others, self._device.target):
            return CandidateReport(name=candidate.name, state="shared", reason="", runs=(), gate=None)
        if reason := refusal_of(candidate, lowering, self._device.target):
            return self._refused(candidate, self._setting.workloads, reason)
        workloads = tuple(workload for workload in self._setting.workloads if str(workload) in changed)
        if not workloads:
            return CandidateReport(name=candidate.name, state="no change", reason="", runs=(), gate=None)
        told("checking outputs", 0.0)
        oracle, baseline = self._oracle(told)
        checked = self._trial(candidate, outputs="candidate")
        if checked.error:
            return self._refused(candidate, workloads, checked.error)
        mine = self._logits("candidate")
        verdicts = {
            workload: judge_outputs(workload, oracle[str(workload)], baseline, mine, self._rounding)
            for workload in workloads
        }
        wrong = [
            f"on {workload} {why}" for workload, (outputs, why) in verdicts.items() if outputs == "outside tolerance"
        ]
        if wrong:
            records = [self._record(candidate, each, verdicts[each][0], wrong[0], None) for each in workloads]
            return self._kept(candidate, "refused", records, None)
        pairs = self._timed(candidate, checked, told)
        if pairs.ended and not pairs.interrupted:
            return self._refused(candidate, workloads, pairs.ended)
        state: Outcome = "interrupted" if pairs.interrupted else "measured"
        if not pairs.mine:
            return CandidateReport(name=candidate.name, state=state, reason=pairs.ended, runs=(), gate=None)
        records = [self._record(candidate, workload, *verdicts[workload], pairs) for workload in workloads]
        return self._kept(candidate, state, records, pairs)

    def _lowered(self, candidate: Candidate, entries: Entries) -> Lowering:
        return lowered_with(candidate, entries, self._device.target, self.precision)

    @cached_property
    def _plain_others(self) -> Lowering:
        return self._lowered(PLAIN, self._others)

    def _oracle(self, told: Told) -> tuple[Logits, Logits]:
        """Logits of the reference and of the baseline, which is right or nothing is timed."""
        if self._truth is None:
            told("running the reference", 0.0)
            plain = {"device": "cpu", "precision": "f32", "mode": "reference"}
            found = self._run(self._setting.request(Options(), outputs=self._file("oracle"), **plain))
            if not found.error:
                told("running the baseline", 0.0)
                found = self._trial(PLAIN, outputs="baseline")
            if found.error:
                raise PlanError(
                    f"the baseline cannot be run: {found.error}", hint="`ostinato compare` runs the modes side by side"
                )
            oracle, baseline = self._logits("oracle"), self._logits("baseline")
            for workload in self._setting.workloads:
                problem = baseline_problem(workload, oracle[str(workload)], baseline, self._rounding)
                if problem:
                    hint = "`ostinato compare` names the first node that differs"
                    raise PlanError(
                        f"the baseline is wrong, nothing was timed: {problem}", node=str(workload), hint=hint
                    )
            self._truth, self._checked = (oracle, baseline), found
        return self._truth

    def _timed(self, candidate: Candidate, checked: Result, told: Told) -> _Pairs:
        """Pairs of fresh processes, each time in the other order. A pair that is not whole is dropped."""
        pairs = _Pairs()
        for number in range(self._setting.pairs):
            told(f"pair {number + 1} of {self._setting.pairs}", number / self._setting.pairs)
            order = (PLAIN, candidate) if number % 2 == 0 else (candidate, PLAIN)
            try:
                found = {each.name: self._trial(each, seconds=self._setting.seconds) for each in order}
            except KeyboardInterrupt:
                pairs.interrupted, pairs.ended = True, "interrupted"
                return pairs
            mine, theirs = found[candidate.name], found[PLAIN.name]
            if mine.error or theirs.error:
                pairs.ended = mine.error or f"the baseline's process failed: {theirs.error}"
                return pairs
            for whose, result, first in (("its", mine, checked), ("the baseline's", theirs, self._checked)):
                if [run.digest for run in result.runs] != [run.digest for run in first.runs]:
                    pairs.ended = f"{whose} outputs are not the same in every process"
                    return pairs
            pairs.mine.append(mine)
            pairs.theirs.append(theirs)
        return pairs

    def _record(
        self, candidate: Candidate, workload: Workload, outputs: Outputs, reason: str, pairs: _Pairs | None
    ) -> TimingRecord:
        """What is known of a candidate on a workload, with the verdict of this run by itself."""
        mine, theirs = RunFigures(name=candidate.name), RunFigures(name=BASELINE)
        ratio = None
        if pairs is not None:
            mine, theirs = (
                _figures(each.name, workload, found) for each, found in ((mine, pairs.mine), (theirs, pairs.theirs))
            )
            ratio = statistics.median(b / a for a, b in zip(mine.seconds, theirs.seconds, strict=True))
        return self._made(workload, candidate=mine, baseline=theirs, ratio=ratio, outputs=outputs, reason=reason)

    def _made(self, workload: Workload, **fields: Any) -> TimingRecord:
        place = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        common = {
            "environment": self._environment,
            "scope": "model",
            "subject": self._subject,
            "label": self.label,
            "workload": f"{workload} {self._how}{place}",
        }
        draft = TimingRecord.made(**common, **{**fields, "passed": False})
        problems = [text for _, text in run_problems(draft)]
        if not problems and (draft.ratio or 0.0) < RATIO:
            problems.append(f"{draft.ratio:.3f}x is below {RATIO}x")
        reason = without_paths(fields["reason"] or "; ".join(problems))
        return TimingRecord.made(**common, **{**fields, "passed": not problems, "reason": reason, "time": draft.time})

    def _refused(self, candidate: Candidate, workloads: tuple[Workload, ...], reason: str) -> CandidateReport:
        """A candidate of which nothing is timed, for that reason."""
        figures = {"candidate": RunFigures(name=candidate.name), "baseline": RunFigures(name=BASELINE)}
        records = [self._made(workload, **figures, outputs="not run", reason=reason) for workload in workloads]
        return self._kept(candidate, "refused", records, None)

    def _kept(
        self, candidate: Candidate, state: Outcome, records: list[TimingRecord], pairs: _Pairs | None
    ) -> CandidateReport:
        """Puts records in the ledger and makes the report of them."""
        self._ledger.add(records)
        self.recorded += len(records)
        runs = tuple(_run(record) for record in records)
        reason = pairs.ended if pairs is not None else next((run.reason for run in runs if run.reason), "")
        return CandidateReport(name=candidate.name, state=state, reason=reason, runs=runs, gate=None)

    def _trial(self, candidate: Candidate, *, outputs: str = "", seconds: float = 0.0) -> Result:
        file = self._file(outputs) if outputs else ""
        return self._run(self._setting.request(candidate.options, outputs=file, seconds=seconds))

    def _file(self, name: str) -> str:
        return str(self._folder / f"{name}.npz")

    def _logits(self, name: str) -> Logits:
        with np.load(self._file(name)) as found:
            return dict(found)


def _figures(name: str, workload: Workload, found: list[Result]) -> RunFigures:
    seconds = (run.seconds for result in found for run in result.runs if run.workload == str(workload))
    return RunFigures(
        name=name,
        seconds=tuple(each for each in seconds if each is not None),
        peak_bytes=int(statistics.median(result.peak_bytes for result in found)),
        arena_bytes=found[0].arena_bytes,
    )


def _run(record: TimingRecord) -> RunReport:
    mine, theirs = record.candidate, record.baseline
    return RunReport(
        workload=record.workload,
        baseline_ms=statistics.median(theirs.seconds) * 1e3 if theirs.seconds else None,
        candidate_ms=statistics.median(mine.seconds) * 1e3 if mine.seconds else None,
        ratio=record.ratio,
        ratios=tuple(b / a for a, b in zip(mine.seconds, theirs.seconds, strict=True)),
        outputs=record.outputs,
        baseline_arena_bytes=theirs.arena_bytes,
        candidate_arena_bytes=mine.arena_bytes,
        baseline_peak_bytes=theirs.peak_bytes,
        candidate_peak_bytes=mine.peak_bytes,
        passed=record.passed,
        reason=record.reason,
        record=record.id,
    )
