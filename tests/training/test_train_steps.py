"""A whole step at run time: the same bits in every mode, results that are read later, steps that change nothing, batches that are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ostinato.ir.errors import (
    BoundsError,
    ConfigError,
    DTypeError,
    InputError,
    LifecycleError,
    NonFiniteLoss,
    ShapeError,
)
from ostinato.passes.training_graph import Updates
from ostinato.runtime.program import Program
from ostinato.runtime.training.executable import TrainExecutable, TrainOptions
from ostinato.runtime.training.pipeline import StepPipeline
from tests.training.steps import SETTINGS, VOCABULARY, batch, forward_graph, make, program_of, state_of, step_graph

MODES = ("reference", "eager", "planned", "guarded")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of what is no number
STEPS = 12


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of({"train": step_graph(Updates("adamw", clip=True)), "forward": forward_graph()})


def _working_ahead(exe: TrainExecutable) -> TrainExecutable:
    """As on a device that works while its host goes on: results stay on their way until somebody asks or their slots are needed."""
    exe._works_ahead = True
    exe._steps = StepPipeline(exe.plan, exe.options.depth, exe.read_back)
    return exe


def test_modes_agree_to_the_bit_while_the_learning_rate_changes(program: Program) -> None:
    exes = {mode: make(mode, program=program) for mode in MODES}
    exes["clone"] = exes["planned"].clone()
    for seed in range(STEPS):
        settings = SETTINGS.copy()
        settings[0] = 0.05 / (1 + seed)
        settings[5] = 0.5 if seed % 2 else 0.0
        found = {name: exe.step(batch(seed), settings=settings) for name, exe in exes.items()}
        exact = {(r.loss, r.learning_rate, r.gradient_norm) for name, r in found.items() if name != "reference"}
        assert len(exact) == 1
        assert found["reference"].loss == pytest.approx(found["planned"].loss, rel=2e-5)
        assert found["planned"].learning_rate == settings[0]
        assert found["planned"].applied
    states = {name: state_of(exe) for name, exe in exes.items()}
    for name in ("eager", "guarded", "clone"):
        assert states[name] == states["planned"], name
    for name in exes["reference"].state_names:
        ours, oracle = exes["planned"].read_state(name), exes["reference"].read_state(name)
        np.testing.assert_allclose(ours, oracle, atol=2e-4, rtol=2e-4, err_msg=name)
    assert int(exes["planned"].read_state("step")[0]) == STEPS


def test_a_step_is_numbered_on_from_the_state(program: Program) -> None:
    exe = make(program=program)
    assert exe.step(batch(0)).number == 1
    exe.write_state("step", np.array([40], np.int32))
    assert exe.step(batch(1)).number == 41
    assert exe.number == 41
    exe.number = 50
    assert exe.step(batch(1)).number == 51
    assert int(exe.read_state("step")[0]) == 42


def test_results_wait_for_their_own_step(program: Program) -> None:
    exe = _working_ahead(make(program=program, options=TrainOptions("skip", ahead=2)))
    plain = make(program=program)
    expected = [plain.step(batch(seed)).loss for seed in range(5)]
    results = [exe.step(batch(seed)) for seed in range(5)]
    assert exe.pending == 2
    assert [result.ready for result in results] == [True, True, True, False, False]
    assert repr(results[4]) == "<step 5: on its way>"
    assert results[3].loss == expected[3]
    assert [result.ready for result in results] == [True, True, True, True, False]
    exe.finish()
    assert [result.loss for result in results] == expected
    assert exe.pending == 0
    assert set(results[0].outputs) == {"loss", "factors"}
    assert state_of(exe) == state_of(plain)


def test_a_failure_is_told_once_whoever_waits_for_it(program: Program) -> None:
    """Another call, or a later result, settles the step that failed; the next step says so."""
    exe = _working_ahead(make(program=program, options=TrainOptions("raise", ahead=2)))
    gain = exe.read_state("gain")
    for settle in ("run", "later result"):
        exe.write_state("gain", np.full_like(gain, np.nan))
        failed = exe.step(batch(0))
        if settle == "run":
            exe.run("forward", {"input_ids": batch(0)["input_ids"]})
            assert failed.ready
            exe.write_state("gain", gain)
        else:
            later = exe.step(batch(1))
            with pytest.raises(NonFiniteLoss, match=f"step {later.number}"):
                later.wait()
            exe.write_state("gain", gain)
        with pytest.raises(NonFiniteLoss, match=f"step {failed.number}:"):
            exe.step(batch(2))
        assert exe.step(batch(2)).applied


def test_by_default_no_step_is_submitted_behind_a_loss_that_is_not_known(program: Program) -> None:
    exe = _working_ahead(make(program=program))
    first = exe.step(batch(0))
    assert not first.ready
    exe.step(batch(1))
    assert first.ready


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ahead", [False, True])
def test_a_loss_that_is_no_number_is_raised_and_changes_nothing(mode: str, ahead: bool, program: Program) -> None:
    exe = make(mode, program=program)
    if ahead:
        exe = _working_ahead(exe)
    exe.step(batch(0)).wait()
    gain = exe.read_state("gain")
    exe.write_state("gain", np.full_like(gain, np.inf))
    before = state_of(exe)
    with pytest.raises(NonFiniteLoss, match="step 2: the loss is nan") as caught:
        exe.step(batch(1)).wait()
    assert (caught.value.step, caught.value.code) == (2, "non_finite_loss")
    assert math.isnan(caught.value.loss)
    assert state_of(exe) == before
    exe.write_state("gain", gain)
    assert exe.step(batch(1)).number == 3
    assert int(exe.read_state("step")[0]) == 2
    assert exe.skipped == 1


def test_a_failure_that_nobody_read_stops_the_next_step(program: Program) -> None:
    exe = _working_ahead(make(program=program))
    gain = exe.read_state("gain")
    exe.write_state("gain", np.full_like(gain, np.nan))
    exe.step(batch(0))
    before = state_of(exe)
    with pytest.raises(NonFiniteLoss, match="step 1"):
        exe.step(batch(1))
    assert (exe.number, exe.pending) == (1, 0)
    assert state_of(exe) == before
    exe.step(batch(1))
    with pytest.raises(NonFiniteLoss, match="step 2"):
        exe.finish()


@pytest.mark.parametrize("mode", MODES)
def test_a_skipped_step_is_counted(mode: str, program: Program) -> None:
    exe = make(mode, program=program, options=TrainOptions("skip"))
    exe.step(batch(0))
    gain = exe.read_state("gain")
    exe.write_state("gain", np.full_like(gain, np.inf))
    before = state_of(exe)
    results = [exe.step(batch(seed)) for seed in (1, 2)]
    assert [result.applied for result in results] == [False, False]
    assert all(math.isnan(result.loss) for result in results)
    assert "not applied" in repr(results[0])
    assert state_of(exe) == before
    assert exe.skipped == 2
    exe.write_state("gain", gain)
    assert exe.step(batch(1)).applied
    assert exe.skipped == 2


def test_a_norm_that_is_no_number_changes_nothing_either(program: Program) -> None:
    """The loss is finite; a gradient is too large to be squared."""
    exe = make(program=program)
    embed = exe.read_state("embed")
    exe.write_state("embed", embed * np.float32(1e19))
    before = state_of(exe)
    with pytest.raises(NonFiniteLoss, match="the norm of the gradients inf") as caught:
        exe.step(batch(0))
    assert math.isfinite(caught.value.loss)
    assert state_of(exe) == before


def _broken(values: dict[str, Any]) -> dict[str, Any]:
    return {**batch(0), **values}


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_does_not_fit_changes_nothing(mode: str, program: Program) -> None:
    exe = make(mode, program=program)
    exe.step(batch(0))
    before, good = state_of(exe), batch(0)
    ids, target = good["input_ids"], good["target"]
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"input_ids": np.full_like(ids, VOCABULARY)}, BoundsError, "the table has rows 0 to 10"),
        ({"input_ids": np.full_like(ids, -1)}, BoundsError, "values from -1 to -1"),
        ({"target": np.full_like(target, -1)}, BoundsError, "and -100 for tokens that are not learned"),
        ({"target": np.full_like(target, VOCABULARY)}, BoundsError, "rows 0 to 10"),
        ({"target": np.full_like(target, -100)}, BoundsError, "all targets are -100"),
        ({"target": target[:1]}, ShapeError, "expected shape"),
        ({"target": target.astype(np.float32)}, DTypeError, "expected i32"),
        ({"labels": target}, InputError, r"unknown inputs \['labels'\]"),
        ({"input_ids": ids.astype(np.int64) + 2**40}, BoundsError, "do not fit int32"),
    ]
    for values, error, words in cases:
        with pytest.raises(error, match=words):
            exe.step(_broken(values))
    with pytest.raises(InputError, match=r"missing inputs \['target'\]"):
        exe.step(input_ids=ids)
    assert state_of(exe) == before
    assert exe.number == 1
    assert exe.step(input_ids=ids.astype(np.int64), target=target.astype(np.int64)).number == 2


def test_inputs_that_stay(program: Program) -> None:
    exe = make(program=program)
    settings = SETTINGS.copy()
    settings[0] = 0.25
    exe.keep_input("settings", settings)
    settings[0] = 0.5
    assert exe.step(batch(0)).learning_rate == 0.25
    assert exe.clone().step(batch(0)).learning_rate == 0.25
    assert exe.step(batch(0), settings=settings).learning_rate == 0.5
    assert exe.step(batch(0)).learning_rate == 0.25
    with pytest.raises(InputError, match="no input 'lr'"):
        exe.keep_input("lr", 1)


def test_a_step_without_an_optimizer_gives_gradients_alone() -> None:
    exe = make(program=program_of({"train": step_graph(None)}), kind=_without_settings)
    result = exe.step(batch(0))
    assert result.applied
    with pytest.raises(ConfigError, match="has no optimizer"):
        _ = result.learning_rate
    assert exe.gradient_names == ("embed", "gain", "up")
    assert all(exe.gradient(name).any() for name in exe.gradient_names)


def _without_settings(*arguments: Any, standing: Any, **options: Any) -> TrainExecutable:
    del standing
    return TrainExecutable(*arguments, **options)


def test_what_cannot_be_driven_is_refused(program: Program) -> None:
    with pytest.raises(ConfigError, match="on_nan is 'ignore'"):
        TrainOptions("ignore")
    with pytest.raises(Exception, match="ahead"):
        TrainOptions(ahead=0)
    with pytest.raises(ConfigError, match="no entry train"):
        make(program=program_of({"forward": forward_graph()}))
    exe = make(program=program)
    with exe.exclusive(), pytest.raises(LifecycleError, match="another call"):
        exe.step(batch(0))


def test_warming_up_changes_nothing(program: Program) -> None:
    exe = make(program=program)
    before = state_of(exe)
    exe.warm_up()
    assert state_of(exe) == before
    assert exe.step(batch(0)).number == 1
