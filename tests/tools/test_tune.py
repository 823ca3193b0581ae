"""`ostinato evidence tune`: nothing is timed that is not validated and right, what was measured is kept, and the gate has the last word.

Trials run in this process, and their times are made up: what is tested is what follows from them. One test runs the real thing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from ostinato.backend_hip.evidence.gates import BASELINE
from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE, Ledger
from ostinato.backend_hip.evidence.records import Environment, RunFigures, TimingRecord
from ostinato.backend_hip.target import named_target
from ostinato.compiler import open_device, open_model
from ostinato.ir.errors import ConfigError, PlanError
from ostinato.ir.evidence import Finding, Verdict
from ostinato.ir.selection_policy import Gated, SelectionPolicy
from ostinato.ir.target import CallSite, Impl, Level, Target
from ostinato.ir.types import Array
from ostinato.passes.pipeline import pipeline
from ostinato.passes.policy import BALANCED, FAST, STRICT, Policy
from ostinato.passes.runner import omitted
from ostinato.runtime.device import Device
from ostinato.tools.evidence.candidates import PLAIN, Candidate, Options, candidates_for, lowered_with
from ostinato.tools.evidence.judge import baseline_problem, judge_outputs
from ostinato.tools.evidence.measure import Setting
from ostinato.tools.evidence.processes import fresh
from ostinato.tools.evidence.report import TuneReport
from ostinato.tools.evidence.shelf import environment_of
from ostinato.tools.evidence.trial import Request, Result, run_trial
from ostinato.tools.evidence.tune import tune
from ostinato.tools.evidence.workloads import Workload, entries_of, parse_workloads
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.tools.conftest import Run

ENVIRONMENT = Environment(device="A CPU", architecture="x86_64/test", kernel_hash="k", version="0")
PASS = "fuse_qkv=off"


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another shape than `tiny`."""
    folder = tmp_path_factory.mktemp("other")
    config = small_config(num_hidden_layers=1)
    write_hf_checkpoint(folder, config, random_model(config, 6))
    return folder


class Distrust:
    """Evidence by which one row is not validated."""

    def __init__(self, row: str, finding: Finding) -> None:
        self.row, self.finding = row, finding

    def verdict(self, row: Impl, site: CallSite) -> Verdict:
        del site
        return Verdict(self.finding if row.identity == self.row else Finding.VALIDATED, (), "for this test")

    def gate(self, policy: Gated) -> Verdict:
        return Verdict(Finding.MISSING)


class Doubted:
    """A device with such evidence, and one row more: a copy of another."""

    def __init__(self, device: Device, evidence: Distrust) -> None:
        self._device, self._evidence = device, evidence

    @property
    def target(self) -> Target:
        found = self._device.target
        row = found.row("linear_swiglu", "host")
        assert row is not None
        planted = replace(row, name="planted", priority=-1)
        return replace(found, rows=(*found.rows, planted), evidence=self._evidence)

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)


def trusted() -> Doubted:
    """The CPU, with every row validated."""
    return Doubted(open_device("cpu", 1), Distrust("", Finding.FAILED))


class Machine:
    """Runs trials here. `speed`: how many times as fast as the baseline a candidate is; `hook` sees each result before it is told."""

    def __init__(self, speed: float = 1.5, hook: Callable[[Request, Result], Result] | None = None) -> None:
        self.speed, self.hook = speed, hook
        self.requests: list[Request] = []
        self._done: dict[str, Result] = {}

    def __call__(self, request: Request) -> Result:
        self.requests.append(request)
        key = request.model_copy(update={"seconds": 0.0, "outputs": ""}).model_dump_json()
        if request.outputs or key not in self._done:
            self._done[key] = run_trial(request.model_copy(update={"seconds": 0.0}), cast(Device, trusted()))
        result = self._done[key]
        if request.seconds:
            plain = request.options == Options()
            seconds = 1.0 if plain else 1.0 / self.speed
            runs = tuple(run.model_copy(update={"seconds": seconds}) for run in result.runs)
            result = result.model_copy(update={"runs": runs, "peak_bytes": 1000, "arena_bytes": 100})
        return result if self.hook is None else self.hook(request, result)

    @property
    def timed(self) -> list[Request]:
        return [request for request in self.requests if request.seconds]


def tuned(
    model: Path,
    ledger: Ledger,
    machine: Machine,
    *,
    only: tuple[str, ...] = (PASS,),
    workloads: str = "d1,p8",
    pairs: int = 3,
    device: Doubted | None = None,
) -> TuneReport:
    opened = device or trusted()
    setting = Setting(str(model), "cpu", 1, "auto", parse_workloads(workloads), pairs, 0.01)
    return tune(setting, open_model(str(model)), cast(Device, opened), ENVIRONMENT, ledger, only=only, runner=machine)


def timings(ledger: Ledger) -> list[TimingRecord]:
    return [record for record in ledger.records() if isinstance(record, TimingRecord)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "evidence")


def test_two_models_that_gain_pass_the_gate_and_one_does_not(tiny: Path, other: Path, ledger: Ledger) -> None:
    machine = Machine()
    first = tuned(tiny, ledger, machine).candidates[0]
    assert (first.name, first.state) == (PASS, "measured")
    assert [run.ratio for run in first.runs] == [pytest.approx(1.5)] * 2
    assert all(run.passed for run in first.runs)
    assert first.gate is not None
    assert not first.gate.passed, "one model is not enough"
    again = tuned(tiny, ledger, machine).candidates[0]
    assert again.gate is not None
    assert not again.gate.passed, "nor is the same one twice"
    assert len(timings(ledger)) == 2, "the later record replaces the earlier"
    second = tuned(other, ledger, Machine()).candidates[0]
    assert second.gate is not None
    assert second.gate.passed
    records = timings(ledger)
    assert {record.baseline.name for record in records} == {BASELINE}
    assert all(len(record.candidate.seconds) == len(record.baseline.seconds) == 3 for record in records)
    assert str(tiny) not in ledger.path.read_text()


def test_processes_take_turns_and_nothing_is_timed_before_it_is_checked(tiny: Path, ledger: Ledger) -> None:
    machine = Machine()
    tuned(tiny, ledger, machine, pairs=4)
    asked = [(request.mode, request.options.disable, bool(request.seconds)) for request in machine.requests]
    plain, mine = ("auto", (), True), ("auto", ("fuse_qkv",), True)
    assert asked[:3] == [("reference", (), False), ("auto", (), False), ("auto", ("fuse_qkv",), False)]
    assert asked[3:] == [plain, mine, mine, plain, plain, mine, mine, plain]


def test_a_gain_below_the_bound_does_not_pass(tiny: Path, other: Path, ledger: Ledger) -> None:
    for model in (tiny, other):
        report = tuned(model, ledger, Machine(1.009)).candidates[0]
        assert [run.passed for run in report.runs] == [False, False]
        assert "1.009x is below 1.01x" in report.runs[0].reason
    assert report.gate is not None
    assert not report.gate.passed


def test_the_ratio_is_the_median_of_pairs(tiny: Path, ledger: Ledger) -> None:
    """The machine is twice as slow in the second pair, and the candidate stumbles in the third."""
    paces = {0: (1.0, 0.5), 1: (2.0, 1.0), 2: (1.0, 9.0)}

    def hook(request: Request, result: Result) -> Result:
        if not request.seconds:
            return result
        plain, mine = paces[(len(machine.timed) - 1) // 2]
        seconds = plain if request.options == Options() else mine
        runs = tuple(run.model_copy(update={"seconds": seconds}) for run in result.runs)
        return result.model_copy(update={"runs": runs})

    machine = Machine(hook=hook)
    report = tuned(tiny, ledger, machine).candidates[0]
    assert report.runs[0].ratios == pytest.approx((2.0, 2.0, 1 / 9))
    assert report.runs[0].ratio == pytest.approx(2.0)


def _wrong(request: Request, result: Result) -> Result:
    """A candidate whose prefill is off, and fast."""
    if request.outputs and request.options != Options():
        with np.load(request.outputs) as found:
            arrays = dict(found)
        arrays["p8"] = arrays["p8"] + np.float32(1.0)
        np.savez(request.outputs, **arrays)
    return result


def test_a_faster_but_wrong_candidate_is_never_timed(tiny: Path, other: Path, ledger: Ledger) -> None:
    machine = Machine(10.0, _wrong)
    for model in (tiny, other):
        report = tuned(model, ledger, machine).candidates[0]
        assert report.state == "refused"
        assert "on p8 its logits are off by" in report.reason
    assert not machine.timed
    assert report.gate is not None
    assert any("outside tolerance" in reason for reason in report.gate.reasons)
    assert {record.ratio for record in timings(ledger)} == {None}, "it is on record, with the reason"


def test_a_wrong_baseline_ends_it(tiny: Path, ledger: Ledger) -> None:
    def hook(request: Request, result: Result) -> Result:
        if request.outputs and request.mode == "auto":
            with np.load(request.outputs) as found:
                np.savez(request.outputs, **{name: array + np.float32(1) for name, array in found.items()})
        return result

    machine = Machine(hook=hook)
    with pytest.raises(PlanError, match="the baseline is wrong"):
        tuned(tiny, ledger, machine)
    assert not machine.timed
    assert not ledger.path.exists()


def test_outputs_that_change_from_process_to_process_are_refused(tiny: Path, ledger: Ledger) -> None:
    def hook(request: Request, result: Result) -> Result:
        if request.seconds and request.options != Options():
            return result.model_copy(
                update={"runs": tuple(run.model_copy(update={"digest": "x"}) for run in result.runs)}
            )
        return result

    report = tuned(tiny, ledger, Machine(hook=hook)).candidates[0]
    assert (report.state, report.reason) == ("refused", "its outputs are not the same in every process")


def test_a_process_that_dies_is_a_reason(tiny: Path, ledger: Ledger) -> None:
    def hook(request: Request, result: Result) -> Result:
        return Result(error="no room in /home/user/x") if request.options != Options() else result

    report = tuned(tiny, ledger, Machine(hook=hook)).candidates[0]
    assert report.state == "refused"
    assert {record.reason for record in timings(ledger)} == {"no room in <path>"}


@pytest.mark.parametrize(("grown", "reason"), [("arena_bytes", "its arena is"), ("peak_bytes", "its peak is")])
def test_more_memory_is_refused(tiny: Path, other: Path, ledger: Ledger, grown: str, reason: str) -> None:
    def hook(request: Request, result: Result) -> Result:
        if request.seconds and request.options != Options():
            return result.model_copy(update={grown: getattr(result, grown) * 2})
        return result

    for model in (tiny, other):
        report = tuned(model, ledger, Machine(hook=hook)).candidates[0]
    assert report.gate is not None
    assert not report.gate.passed
    assert reason in report.gate.reasons[0]
    assert not any(record.passed for record in timings(ledger))


def test_an_interrupt_keeps_what_was_measured(tiny: Path, ledger: Ledger) -> None:
    def hook(request: Request, result: Result) -> Result:
        if len(machine.timed) == 4:
            raise KeyboardInterrupt
        return result

    machine = Machine(hook=hook)
    report = tuned(tiny, ledger, machine, only=("fuse_",), pairs=3)
    assert report.interrupted
    states = [candidate.state for candidate in report.candidates if candidate.state != "no change"]
    assert states == ["interrupted"] * len(states)
    first = next(candidate for candidate in report.candidates if candidate.runs)
    records = timings(ledger)
    assert {record.candidate.name for record in records} == {first.name}
    assert {len(record.candidate.seconds) for record in records} == {1}, "half a pair is no pair"
    assert first.gate is not None
    assert all(why.startswith("unfinished") for _, why in first.gate.unused)


@pytest.mark.parametrize("finding", [Finding.MISSING, Finding.STALE, Finding.FAILED])
def test_rows_that_are_not_validated_are_never_run(
    tiny: Path, ledger: Ledger, finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that puts such a row first is refused and recorded."""
    row = "linear_swiglu@planted"
    preference = SelectionPolicy("doubtful", row)
    monkeypatch.setattr(
        "ostinato.tools.evidence.tune.candidates_for",
        lambda *_, **__: iter([Candidate(preference.identity, Options(preferences=(preference,)))]),
    )
    device = Doubted(open_device("cpu", 1), Distrust(row, finding))
    machine = Machine()
    (report,) = tuned(tiny, ledger, machine, only=(), device=device).candidates
    assert report.state == "refused"
    assert report.reason == f"{row} is {finding.value}: for this test"
    assert not machine.requests
    assert {record.outputs for record in timings(ledger)} == {"not run"}


def test_what_changes_nothing_is_not_run(tiny: Path, ledger: Ledger) -> None:
    machine = Machine()
    report = tuned(tiny, ledger, machine, only=("cse=off",))
    assert [candidate.state for candidate in report.candidates] == ["no change"]
    assert report.candidates[0].gate is None
    assert not machine.requests
    assert not timings(ledger)


def test_unusable_requests(tiny: Path, ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="no candidate has 'nonsense'"):
        tuned(tiny, ledger, Machine(), only=("nonsense",))
    with pytest.raises(ConfigError, match="positions"):
        tuned(tiny, ledger, Machine(), workloads="p9999")
    for text in ("", "d", "x1", "d0", "d1,d1", "p-1", "d²"):
        with pytest.raises(ConfigError, match="workload"):
            parse_workloads(text)


def _arrays(values: Array, full: Array | None = None) -> dict[str, Array]:
    return {"d1": values, "d1.full": values if full is None else full}


def test_outputs_are_judged_against_the_reference() -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((1, 1, 1000)).astype(np.float32)
    noise = rng.standard_normal(truth.shape).astype(np.float32) * np.float32(1e-5)
    workload, baseline = Workload("d", 1), _arrays(truth + noise)

    def judge(values: Array, full: Array | None = None) -> tuple[str, str]:
        return judge_outputs(workload, truth, baseline, _arrays(values, full), "f32")

    assert judge(truth + noise) == ("equal", "")
    assert judge(truth - noise) == ("within tolerance", "")
    assert judge(truth + np.float32(1.9) * noise)[0] == "within tolerance"
    assert "on average" in judge(truth + np.float32(2.1) * noise)[1]
    one_off = (truth + noise).copy()
    one_off[0, 0, 7] += np.float32(3e-4)
    assert "a logit is off by" in judge(one_off)[1]
    assert "timed inputs" in judge(truth + noise, truth + np.float32(1e-3))[1]
    assert "not finite" in judge(truth + noise, truth * np.float32(np.nan))[1]
    assert "its logits are (1, 1, 999)" in judge(truth[..., 1:])[1]
    assert baseline_problem(workload, truth, baseline, "f32") == ""
    assert baseline_problem(workload, truth, _arrays(truth + np.float32(1)), "f32").startswith("a logit is off")
    assert (
        baseline_problem(workload, truth, _arrays(truth, truth * np.float32(np.inf)), "f32")
        == "some logits are not finite"
    )


def test_rows_are_tried_by_the_number_of_rows(tiny: Path) -> None:
    """On a card that need not be here: what takes the place of another row is put first for few rows, and for many, never below the level of what it is for."""
    target, model, workloads = named_target("sm_90"), open_model(str(tiny)), parse_workloads("d1,p64")
    baseline = lowered_with(PLAIN, entries_of(model, workloads, "bf16"), target, "bf16")
    found = [candidate for candidate in candidates_for(baseline, target, 1) if candidate.options.preferences]
    assert len({candidate.name for candidate in found}) == len(found)
    assert found
    for candidate in found:
        (preference,) = candidate.options.preferences
        assert candidate.name == preference.identity
        if preference not in target.preferences:
            assert (preference.minimum_rows, preference.maximum_rows) in ((0, 1), (2, None))
            row = target.row(preference.op, preference.row_name)
            assert row is not None
            assert row.level >= Level.READABLE


def test_the_real_thing(ostinato: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    arguments = ("--only", "fuse_swiglu", "--pairs", "1", "--time", "0.01", "--workloads", "d1", "--threads", "1")
    begin = time.perf_counter()
    result = ostinato("evidence", "tune", str(tiny), *arguments, "--json")
    assert result.code == 0, result.out
    report = result.report()
    assert isinstance(report, TuneReport)
    (candidate,) = report.candidates
    assert candidate.state == "measured"
    (run,) = candidate.runs
    assert run.ratio is not None
    assert run.ratio > 0
    assert run.baseline_peak_bytes > 1 << 20
    assert report.seconds <= time.perf_counter() - begin
    assert "fuse_swiglu=off" in ostinato("evidence", "ls").out


def test_a_process_that_says_nothing_is_a_result() -> None:
    found = fresh(Request(model="no-such-model", device="cpu", threads=1, precision="auto", workloads="d1"))
    assert found.error.startswith("[weights]")
    assert json.loads(found.model_dump_json())["runs"] == []


def test_what_passed_its_gate_is_what_balanced_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    device = open_device("cpu", 1)
    environment, row = environment_of(device), "linear@host_all_rows"
    policy = SelectionPolicy("few_rows", row, 0, 1)

    def gained(subject: str, name: str, environment: Environment = environment) -> TimingRecord:
        return TimingRecord.made(
            environment=environment, scope="model", subject=subject, workload="d1 f32", ratio=1.1, outputs="equal", passed=True,
            candidate=RunFigures(name=name, seconds=(1.0,) * 3), baseline=RunFigures(name=BASELINE, seconds=(1.1,) * 3),
        )  # fmt: skip

    def held(policy: Policy) -> set[str]:
        return set(omitted(pipeline(), device.target, policy))

    names = ("fuse_swiglu=off", "no_such_pass=off", policy.identity, "few_rows:linear@no_such_row[0..1]")
    stale = environment.model_copy(update={"kernel_hash": "older"})
    Ledger().add([gained(subject, name, stale) for subject in ("one", "two") for name in names])
    assert (device.target.omissions, device.target.preferences) == ((), ()), "a stale record is never used"
    Ledger().add([gained("one", name) for name in names])
    assert device.target.preferences == (policy,)
    assert (held(BALANCED), held(FAST), held(STRICT)) == (set(), {"fuse_swiglu"}, set()), (
        "one model is not enough for a default"
    )
    Ledger().add([gained("two", name) for name in names])
    target = device.target
    assert (held(BALANCED), held(FAST), held(STRICT)) == ({"fuse_swiglu"}, {"fuse_swiglu"}, set())
    assert target.evidence is not None
    assert target.evidence.gate(policy).finding is Finding.VALIDATED
    assert len(target.evidence.gate(policy).evidence) == 2
