"""`ostinato evidence tune RUN.toml`: the whole step of a training run in the place of a model's prefills and decode steps, judged by what it leaves.

Trials run in this process, and their times are made up. One test, marked slow, runs the real thing.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE, Ledger
from ostinato.ir.types import Array
from ostinato.runtime.device import Device
from ostinato.tools.evidence.candidates import Options
from ostinato.tools.evidence.judge import baseline_problem, judge_outputs
from ostinato.tools.evidence.measure import training_setting
from ostinato.tools.evidence.report import CandidateReport, TuneReport
from ostinato.tools.evidence.training import TrainingWork, training_model
from ostinato.tools.evidence.trial import Request, Result
from ostinato.tools.evidence.tune import tune
from ostinato.tools.evidence.workloads import Workload
from tests.tools.conftest import Run
from tests.tools.tuning import ENVIRONMENT, Machine, timings, trusted
from tests.training.planted import gained
from tests.training.tiny import checkpoint

SAVED = "fuse_saved_attention=off"
RUN = """
[model]
{model}

[data]
text = "nobody reads this"
sequence = {sequence}
batch = 2

[optimizer]
{optimizer}

[train]
steps = 3
folder = "out"
device = "cpu"
threads = 1
"""
NEW = 'new = { config = { model_type = "llama", hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 1 } }'


def run_file(
    folder: Path, model: str = 'path = "model"', optimizer: str = "clip_norm = 1.0", sequence: int = 20
) -> Path:
    path = folder / "run.toml"
    path.write_text(RUN.format(model=model, optimizer=optimizer, sequence=sequence))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of two models."""
    made = []
    for family in ("llama", "qwen2"):
        folder = tmp_path_factory.mktemp(family)
        checkpoint(family, folder / "model", num_hidden_layers=1)
        made.append(run_file(folder))
    return made


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "evidence")


def tuned(path: Path, ledger: Ledger, machine: Machine, *only: str) -> CandidateReport:
    with training_setting(path, 3, 0.01) as (setting, model):
        device = cast(Device, trusted())
        report = tune(setting, model, device, ENVIRONMENT, ledger, only=only or (SAVED,), runner=machine)
    return report.candidates[0]


def spoil(outputs: str) -> None:
    """One moment of one parameter is off by a thousandth."""
    with np.load(outputs) as found:
        arrays = dict(found)
    arrays["t2x20"][-1] *= np.float32(1.001)
    np.savez(outputs, **arrays)


def test_a_second_model_whose_steps_gain_passes_the_gate(runs: list[Path], ledger: Ledger) -> None:
    ledger.add([gained(SAVED, "another model", ENVIRONMENT, workload="t2x20 bf16 sgd")])
    report = tuned(runs[0], ledger, Machine())
    (run,) = report.runs
    assert (report.state, run.workload) == ("measured", "t2x20 f32 adamw f32 clipped, 1 thread")
    assert run.outputs == "equal"
    assert run.ratio == pytest.approx(1.5)
    assert report.gate is not None
    assert report.gate.passed
    assert set(report.gate.evidence) == {record.id for record in timings(ledger)}
    assert str(runs[0].parent) not in ledger.path.read_text()


def test_what_changes_how_a_model_decodes_is_left_to_runs_of_that(runs: list[Path], ledger: Ledger) -> None:
    machine = Machine()
    report = tuned(runs[0], ledger, machine, "fuse_residual")
    assert (report.state, report.gate, machine.requests, timings(ledger)) == ("shared", None, [], [])
    assert tuned(runs[0], ledger, machine, "fuse_swiglu").state == "no change"


def test_a_step_that_leaves_something_else_is_never_timed(runs: list[Path], ledger: Ledger) -> None:
    def hook(request: Request, result: Result) -> Result:
        if request.outputs and request.options != Options():
            spoil(request.outputs)
        return result

    machine = Machine(10.0, hook)
    report = tuned(runs[0], ledger, machine)
    assert report.state == "refused"
    assert report.reason.startswith("on t2x20 its values are off by"), report.reason
    assert not machine.timed
    assert {record.outputs for record in timings(ledger)} == {"outside tolerance"}


def test_moments_in_bf16_are_judged_as_such(runs: list[Path], ledger: Ledger, tmp_path: Path) -> None:
    """A thousandth is less than bf16 rounds by."""

    def hook(request: Request, result: Result) -> Result:
        if request.outputs and request.options == Options() and request.mode != "reference":
            spoil(request.outputs)
        return result

    with pytest.raises(ost.PlanError, match="the baseline is wrong"):
        tuned(runs[0], ledger, Machine(hook=hook))
    path = run_file(tmp_path, f'path = "{runs[0].parent / "model"}"', 'moments = "bf16"')
    assert tuned(path, ledger, Machine(hook=hook)).state == "measured"


def test_what_a_step_leaves_is_judged_tensor_by_tensor() -> None:
    rng = np.random.default_rng(0)
    scales = np.array([[1e-6], [1.0], [1e4], [0.0]], np.float32)
    truth = rng.standard_normal((4, 64)).astype(np.float32) * scales
    noise = rng.standard_normal(truth.shape).astype(np.float32) * scales * np.float32(1e-5)
    workload = Workload("t", 2, 20)

    def arrays(values: Array) -> dict[str, Array]:
        return {"t2x20": values, "t2x20.full": values}

    def judge(values: Array, precision: str = "f32") -> tuple[str, str]:
        return judge_outputs(workload, truth, arrays(truth + noise), arrays(values), precision)

    assert judge(truth + noise) == ("equal", "")
    assert judge(truth - noise) == ("within tolerance", "")
    assert "on average" in judge(truth + np.float32(2.1) * noise)[1]
    one, zero, large = truth + noise, truth + noise, truth + noise
    one[0] *= np.float32(1 + 1.9e-5)  # the smallest tensor counts like any other
    assert judge(one)[0] == "within tolerance"
    one[0] *= np.float32(1 + 1e-3)
    zero[3, 5] = 1e-9
    large[2, 5] = np.nan
    for wrong, why in ((one, "its values are off"), (zero, "its values are off"), (large, "values are not finite")):
        assert judge(wrong)[0] == "outside tolerance"
        assert why in judge(wrong)[1]
    assert baseline_problem(workload, truth, arrays(truth + noise), "f32") == ""
    assert baseline_problem(workload, truth, arrays(one), "f32").startswith("a tensor is off by")
    assert baseline_problem(workload, truth, arrays(one), "bf16") == ""


@pytest.mark.parametrize(
    "optimizer", ['moments = "bf16"\nschedule = "cosine"\nwarmup_steps = 1', 'kind = "sgd"\nmomentum = 0.9']
)
def test_timed_steps_leave_the_parameters(optimizer: str, tmp_path: Path) -> None:
    """Of a model that is made for it, in a folder that goes: the run's own has nothing after it."""
    with training_model(run_file(tmp_path, NEW, optimizer)) as (config, name, model):
        assert Path(name).is_dir()
        work = TrainingWork(config, model, cast(Device, trusted()), "f32", "auto", Options())
        ticks = iter(range(1000))
        workload = Workload("t", 2, 20)
        first = work.full(workload)
        parameters = work._step.parameters()
        assert work.seconds(workload, 1e-9, lambda: float(next(ticks))) == 1.0
        for key, values in work._step.parameters().items():
            np.testing.assert_array_equal(values, parameters[key])
        np.testing.assert_array_equal(work.full(workload), first)
        assert len(first) == 1 + len(work._step.state_names)
    assert not Path(name).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_what_the_file_says_is_no_option(ostinato: Run, runs: list[Path]) -> None:
    for option, value in (("--workloads", "d1"), ("--device", "cpu"), ("--threads", "1")):
        result = ostinato("evidence", "tune", str(runs[0]), option, value)
        assert (result.code, option in result.err, "into its file" in result.err) == (2, True, True), result.err


@pytest.mark.slow
def test_the_real_thing(ostinato: Run, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    result = ostinato("evidence", "tune", str(runs[1]), "--only", SAVED, "--pairs", "1", "--time", "0.01", "--json")
    assert result.code == 0, result.out
    report = result.report()
    assert isinstance(report, TuneReport)
    (candidate,) = report.candidates
    assert candidate.state == "measured"
    (run,) = candidate.runs
    assert run.ratio is not None
    assert run.baseline_peak_bytes > 1 << 20
    assert SAVED in ostinato("evidence", "ls").out
