"""`ostinato evidence tune`: nothing is timed that is not validated and right, what was measured is kept, and the gate has the last word.

Trials run in this process, and their times are made up: what is tested is what follows from them. One test runs the real thing.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip.evidence.gates import BASELINE
from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE, Ledger
from ostinato.ir.errors import ConfigError, PlanError
from ostinato.ir.evidence import Finding
from ostinato.ir.selection_policy import SelectionPolicy
from ostinato.stages import open_device
from ostinato.tools.evidence.candidates import Candidate, Options
from ostinato.tools.evidence.processes import fresh
from ostinato.tools.evidence.report import TuneReport
from ostinato.tools.evidence.trial import Request, Result
from ostinato.tools.evidence.workloads import parse_workloads
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.tools.conftest import Run
from tests.tools.tuning import (
    PASS,
    Distrust,
    Doubted,
    Machine,
    timings,
    tuned,
)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another shape than `tiny`."""
    folder = tmp_path_factory.mktemp("other")
    config = small_config(num_hidden_layers=1)
    write_hf_checkpoint(folder, config, random_model(config, 6))
    return folder


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


def test_a_ledger_that_cannot_be_written_is_refused_before_anything_is_run(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine = Machine()
    with pytest.raises(ConfigError, match="cannot be used"):
        tuned(tiny, Ledger(tmp_path / "file" / "evidence"), machine)
    assert machine.requests == []


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
