"""`ostinato.train_step` on tiny models: the same bits in every mode over many steps, the same addresses, one submission, gradients in the caller's memory."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.errors import LifecycleError, NonFiniteLoss, ShapeError
from ostinato.runtime.training.gradients import GradientReady
from tests.training.steps import state_of
from tests.training.tiny import EMBED, FAMILIES, batch, checkpoint, make

STEPS, COMPARED = 50, 12
RATES = {0: 3e-3, 15: 1e-3, 16: 0.0, 17: 5e-3, 40: 1e-4}
"""From which step on a learning rate is used; at 0 nothing but decay's share of it, nothing, moves."""
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of what is no number


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def whole(folder: Path) -> ost.TrainStep:
    """Micro-batches, dropout, clipping, and gradients that are kept; never stepped itself."""
    return make(folder, micro_batches=2, dropout=0.1, keep_gradients=True, mode="planned", seed=9)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ost.TrainStep:
    """A small step of one layer."""
    return make(checkpoint("llama", tmp_path_factory.mktemp("one"), num_hidden_layers=1), keep_gradients=True)


def test_fifty_steps_have_the_same_bits_in_every_mode(whole: ost.TrainStep, folder: Path) -> None:
    exes: dict[str, ost.TrainStep] = {mode: whole.clone(mode) for mode in ("planned", "eager", "reference")}
    exes["guarded"] = make(folder, micro_batches=2, dropout=0.1, keep_gradients=True, mode="guarded", seed=9)
    assert exes["guarded"].memory.arena > whole.memory.arena, "guards lie between the tensors"
    losses = []
    for number in range(STEPS):
        if number == COMPARED:
            oracle = exes.pop("reference")
            for name, values in exes["planned"].parameters().items():
                np.testing.assert_allclose(values, oracle.read_state(name), 2e-4, 2e-4, err_msg=name)
        for exe in exes.values():
            if number in RATES:
                assert exe.optimizer is not None
                exe.optimizer = replace(exe.optimizer, lr=RATES[number])
        before = exes["planned"].parameters() if RATES.get(number) == 0.0 else None
        found = {mode: exe(*batch(number)) for mode, exe in exes.items()}
        exact = {(r.loss, r.learning_rate, r.gradient_norm) for mode, r in found.items() if mode != "reference"}
        assert len(exact) == 1, number
        if "reference" in found:
            assert found["reference"].loss == pytest.approx(found["planned"].loss, rel=3e-5), number
        if before is not None:
            assert all(np.array_equal(before[name], now) for name, now in exes["planned"].parameters().items())
        losses.append(found["planned"].loss)
    states = {mode: state_of(exe) for mode, exe in exes.items()}
    assert states["eager"] == states["planned"] == states["guarded"]
    assert exes["planned"].applied_steps == STEPS
    assert len(set(losses)) == STEPS


def test_masks_of_dropout_differ_from_step_to_step_and_repeat_with_the_seed(whole: ost.TrainStep) -> None:
    frozen, again = whole.clone(), whole.clone()
    for exe in (frozen, again):
        assert exe.optimizer is not None
        exe.optimizer = replace(exe.optimizer, lr=0.0)
    losses = [frozen(*batch(0)).loss for _ in range(5)]
    assert len(set(losses)) == 5
    assert [again(*batch(0)).loss for _ in range(5)] == losses
    again.keep_input("seed", np.array([10], np.int64))
    again.number = 0
    assert again(*batch(0)).loss not in losses


def test_a_step_has_the_same_addresses_always_and_is_one_submission(whole: ost.TrainStep) -> None:
    exe = whole.clone()
    first = exe.addresses()
    for number in range(6):
        exe(*batch(number))
        assert exe.addresses() == first
    assert exe.submissions == 1
    assert (exe.plan.stats.copies, exe.plan.stats.strided_copies) == (0, 0)
    regions = Counter(row.region for row in first)
    assert regions["arena"] > 100
    assert {row.region for row in first if row.name.startswith(("first.", "second."))} == {"state"}
    kept = [row for row in first if row.name.startswith("grad.")]
    assert {row.region for row in kept} == {"io"}
    assert len({row.address for row in kept}) == len(whole.gradient_names)


def test_gradients_are_added_in_their_own_bytes(whole: ost.TrainStep) -> None:
    """Of two micro-batches every gradient has two contributions, and the tied matrix four."""
    exe = whole.clone()
    for number in range(3):
        exe(*batch(number))
    candidates, executed = exe.accumulation.candidates, exe.accumulation.executed
    assert executed == candidates
    assert candidates >= 3 * len(exe.gradient_names)


def test_micro_batches_give_the_gradients_of_the_whole(folder: Path) -> None:
    options = {"optimizer": None, "keep_gradients": True}
    plain, parts = make(folder, **options), make(folder, micro_batches=2, **options)
    for number in (0, 3):
        assert parts(*batch(number)).loss == pytest.approx(plain(*batch(number)).loss, rel=1e-6)
        for name in plain.gradient_names:
            np.testing.assert_allclose(parts.gradient(name), plain.gradient(name), 1e-4, 1e-6, err_msg=name)


def test_gradients_in_arrays_and_tensors_of_the_caller(whole: ost.TrainStep) -> None:
    torch = pytest.importorskip("torch")
    exe, plain = whole.clone(), whole.clone()
    shapes = {name: exe.gradient(name).shape for name in exe.gradient_names}
    ours = {EMBED: np.zeros(shapes[EMBED], np.float32)}
    other = next(name for name in shapes if "down_proj" in name)
    tensor = torch.full(shapes[other], 7.0)
    exe.bind_grad_buffer(EMBED, ours[EMBED])
    exe.bind_grad_buffer(other, tensor)
    assert not tensor.any()
    for number in range(3):
        assert exe(*batch(number)).loss == plain(*batch(number)).loss
        np.testing.assert_array_equal(ours[EMBED], plain.gradient(EMBED))
        np.testing.assert_array_equal(tensor.numpy(), plain.gradient(other))
    assert exe.addresses().of(f"grad.{other}")[0].address == tensor.data_ptr()
    exe.zero_grad()
    assert not tensor.any()
    assert exe(*batch(7)).loss == plain(*batch(7)).loss
    np.testing.assert_array_equal(tensor.numpy(), plain.gradient(other))
    with pytest.raises(ShapeError, match="expected shape"):
        exe.bind_grad_buffer(next(name for name in shapes if "norm" in name), torch.zeros(3))
    assert state_of(exe) == state_of(plain)


def test_hooks_are_called_once_a_step_with_the_whole_gradient(whole: ost.TrainStep) -> None:
    exe, plain = whole.clone(), whole.clone()
    seen: list[tuple[int, str]] = []

    def note(ready: GradientReady) -> None:
        seen.append((ready.step, ready.name))
        np.testing.assert_array_equal(ready.values(), wanted[ready.name], err_msg=ready.name)

    for name in exe.gradient_names:
        exe.on_gradient_ready(name, note)
    for number in range(2):
        plain(*batch(number))
        wanted = {name: plain.gradient(name) for name in plain.gradient_names}
        exe(*batch(number))
    assert sorted(seen) == sorted((step, name) for step in (1, 2) for name in exe.gradient_names)
    assert plain.gradient_marks == 0
    assert plain.submissions == 1


def test_a_loss_that_is_no_number_is_raised_and_leaves_every_byte(llama: ost.TrainStep) -> None:
    exe, plain = llama.clone(), llama.clone()
    exe(*batch(0)), plain(*batch(0))
    good = exe.read_state(EMBED)
    bad = good.copy()
    bad[:, 3] = np.inf
    exe.write_states({EMBED: bad})
    before = state_of(exe)
    with pytest.raises(NonFiniteLoss, match="step 2: the loss is nan") as caught:
        exe(*batch(1))
    assert 'on_nan="skip"' in str(caught.value)
    assert math.isnan(caught.value.loss)
    assert state_of(exe) == before
    exe.write_states({EMBED: good})
    assert exe(*batch(1)).loss == plain(*batch(1)).loss
    assert state_of(exe) == state_of(plain)


def test_steps_that_are_skipped_are_counted(tmp_path: Path) -> None:
    exe = make(checkpoint("llama", tmp_path, num_hidden_layers=1), on_nan="skip")
    exe(*batch(0))
    good = exe.read_state(EMBED)
    exe.write_states({EMBED: np.full_like(good, np.nan)})
    before = state_of(exe)
    results = [exe(*batch(number)) for number in (1, 2)]
    assert not any(result.applied for result in results)
    assert state_of(exe) == before
    exe.write_states({EMBED: good})
    assert exe(*batch(3)).applied
    assert (exe.skipped, exe.number, exe.applied_steps) == (2, 4, 2)


def test_a_clone_trains_parameters_of_its_own_by_the_same_optimizer(llama: ost.TrainStep) -> None:
    exe = llama.clone()
    assert exe.optimizer == llama.optimizer
    assert exe.optimizer is not None
    exe.optimizer = replace(exe.optimizer, lr=0.125)
    first = exe(*batch(0))
    trained = state_of(exe)
    clone = exe.clone()
    assert clone.optimizer == exe.optimizer != llama.optimizer
    again = clone(*batch(0))
    assert (again.loss, again.learning_rate) == (first.loss, 0.125)
    assert state_of(clone) == trained
    clone(*batch(1))
    assert state_of(exe) == trained
    assert state_of(clone) != trained


def test_two_threads_do_not_step_at_once(llama: ost.TrainStep) -> None:
    exe = llama.clone()
    inside, leave = threading.Event(), threading.Event()
    refused: list[BaseException] = []

    def hold(ready: GradientReady) -> None:
        inside.set()
        assert leave.wait(30)

    def other() -> None:
        assert inside.wait(30)
        try:
            exe(*batch(1))
        except LifecycleError as error:
            refused.append(error)
        finally:
            leave.set()

    exe.on_gradient_ready(EMBED, hold)
    thread = threading.Thread(target=other)
    thread.start()
    result = exe(*batch(0))
    thread.join()
    assert [type(error) for error in refused] == [LifecycleError]
    assert result.applied
    assert exe.applied_steps == 1


def test_what_was_trained_is_what_generation_reads(llama: ost.TrainStep, tmp_path: Path) -> None:
    """Parameters have the names and shapes of the checkpoint, and go on where they were."""
    exe, other = llama.clone(), llama.clone()
    for number in range(2):
        exe(*batch(number))
    parameters: Mapping[str, object] = exe.parameters()
    other.load(parameters, exe.optimizer_state())
    assert (other.number, other.applied_steps) == (2, 2)
    assert other(*batch(5)).loss == exe(*batch(5)).loss
    assert state_of(other) == state_of(exe)
