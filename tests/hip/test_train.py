"""Training steps on a GPU: captured steps are the planned ones bit for bit, results come back while the next step is on its way, and gradients lie in memory of
the caller's on the device."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.errors import ConfigError, LifecycleError, NonFiniteLoss
from ostinato.passes.training_graph import Updates
from ostinato.runtime.program import Program
from ostinato.runtime.tensor_view import TensorView
from ostinato.runtime.training.executable import TrainOptions
from tests.training.steps import SETTINGS, batch, forward_graph, make, program_of, state_of, step_graph

MODES = ("eager", "planned", "guarded", "captured")
NAMES = ("embed", "gain", "up")


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    return {}


def program_for(gpu: HipDevice, programs: dict[str, Program]) -> Program:
    """Planned once for the device of these tests."""
    if gpu.name not in programs:
        graphs = {"train": step_graph(Updates("adamw", clip=True)), "forward": forward_graph()}
        programs[gpu.name] = program_of(graphs, device=gpu)
    return programs[gpu.name]


def test_modes_agree_to_the_bit(gpu: HipDevice, programs: dict[str, Program]) -> None:
    program = program_for(gpu, programs)
    exes = {mode: make(mode, program=program, device=gpu) for mode in (*MODES, "reference")}
    for seed in range(4):
        settings = SETTINGS.copy()
        settings[0] = 0.05 / (1 + seed)
        results = {mode: exe.step(batch(seed), settings=settings) for mode, exe in exes.items()}
        exact = {(r.loss, r.learning_rate, r.gradient_norm) for m, r in results.items() if m != "reference"}
        assert len(exact) == 1
        assert results["reference"].loss == pytest.approx(results["captured"].loss, rel=1e-4)
    states = {mode: state_of(exe) for mode, exe in exes.items()}
    for mode in MODES:
        assert states[mode] == states["planned"], mode
        for name in NAMES:
            np.testing.assert_array_equal(exes[mode].gradient(name), exes["planned"].gradient(name))
    ids = {"input_ids": batch(9)["input_ids"]}
    logits = {mode: exes[mode].run("forward", ids)["logits"] for mode in MODES}
    assert all(np.array_equal(found, logits["planned"]) for found in logits.values())


def test_a_captured_step_is_one_graph_and_an_event_makes_it_two(gpu: HipDevice, programs: dict[str, Program]) -> None:
    program = program_for(gpu, programs)
    exe, plain = (make("captured", program=program, device=gpu) for _ in range(2))
    assert exe.submissions == 1
    exe.step(batch(0)).wait()
    assert len(exe.captures("train")) == 1
    event = exe.gradient_event("embed")
    with pytest.raises(LifecycleError, match="no step has recorded"):
        event.wait()
    assert exe.submissions == 2
    assert len(exe.captures("train")) == 2
    result = exe.step(batch(1))
    event.wait()
    assert event.recorded == 1
    assert exe.gradient("embed").any()
    for seed in range(2):
        found = plain.step(batch(seed))
    assert result.loss == found.loss
    assert state_of(exe) == state_of(plain)
    with pytest.raises(ConfigError, match="calls nobody within a step"):
        exe.on_gradient_ready("up", lambda ready: None)
    exe.drop_gradient_event("embed")
    assert exe.submissions == 1


@pytest.mark.parametrize("mode", ["planned", "captured"])
def test_work_of_another_stream_waits_for_a_gradient(
    mode: str, gpu: HipDevice, programs: dict[str, Program], machine: EmulatedGpu
) -> None:
    """What waits on the event finds the gradient of the step before it; what does not finds it only where the card happens to be so far."""
    program = program_for(gpu, programs)
    exe, plain = make(mode, program=program, device=gpu), make("eager", program=program, device=gpu)
    event, stream = exe.gradient_event("up"), _native.Stream(gpu.native, non_blocking=True)
    with pytest.raises(LifecycleError, match="no step has recorded"):
        event.wait_on(stream)
    found, early = np.empty((8, 8), np.float32), set()
    (address,) = {row.address for row in exe.addresses().of("grad.up")}
    for seed in range(12):
        machine.seed(seed, eagerness=0)
        exe.step(batch(seed))
        waits = seed % 2 == 0
        if waits:
            event.wait_on(stream)
        _native.copy_async(found.ctypes.data, None, address, gpu.native, found.nbytes, stream)
        stream.synchronize()
        plain.step(batch(seed)).wait()
        if waits:
            np.testing.assert_array_equal(found, plain.gradient("up"))
        else:
            early.add(not np.array_equal(found, plain.gradient("up")))
    assert True in early, "without the event nothing orders them"


@pytest.mark.parametrize("mode", ["planned", "captured"])
def test_steps_are_submitted_ahead_of_their_results(mode: str, gpu: HipDevice, programs: dict[str, Program]) -> None:
    """Every step has the inputs that it was given, however far the host is."""
    program = program_for(gpu, programs)
    exe = make(mode, program=program, device=gpu, options=TrainOptions("skip", ahead=3))
    plain = make("eager", program=program, device=gpu)
    results = [exe.step(batch(seed)) for seed in range(7)]
    assert exe.pending == 3
    assert not results[-1].ready
    assert [result.loss for result in results] == [plain.step(batch(seed)).loss for seed in range(7)]
    assert state_of(exe) == state_of(plain)


@pytest.mark.parametrize("mode", ["planned", "captured"])
def test_a_loss_that_is_no_number_changes_nothing(mode: str, gpu: HipDevice, programs: dict[str, Program]) -> None:
    exe = make(mode, program=program_for(gpu, programs), device=gpu)
    exe.step(batch(0)).wait()
    gain = exe.read_state("gain")
    exe.write_state("gain", np.full_like(gain, np.nan))
    before = state_of(exe)
    exe.step(batch(1))
    with pytest.raises(NonFiniteLoss, match="step 2") as caught:
        exe.step(batch(2))
    assert math.isnan(caught.value.loss)
    assert (exe.number, exe.skipped) == (2, 1)
    assert state_of(exe) == before
    exe.write_state("gain", gain)
    exe.step(batch(2)).wait()
    assert int(exe.read_state("step")[0]) == 2


@pytest.mark.parametrize("mode", ["eager", "planned", "captured"])
def test_gradients_in_memory_of_the_caller(mode: str, gpu: HipDevice, programs: dict[str, Program]) -> None:
    program = program_for(gpu, programs)
    exe, plain = make(mode, program=program, device=gpu), make("planned", program=program, device=gpu)
    memory = gpu.allocate(8 * 8 * 4)
    memory.fill(0x3F)
    view = TensorView(memory.address, memory.nbytes, (8, 8), None, "f32", gpu.name, memory)
    exe.step(batch(0)).wait()
    exe.bind_grad_buffer("up", view)
    assert not memory.read(np.float32, (8, 8)).any()
    plain.step(batch(0)).wait()
    for seed in (1, 2):
        exe.step(batch(seed)).wait()
        plain.step(batch(seed)).wait()
        np.testing.assert_array_equal(memory.read(np.float32, (8, 8)), plain.gradient("up"))
        np.testing.assert_array_equal(exe.gradient("up"), plain.gradient("up"))
        np.testing.assert_array_equal(exe.gradient("embed"), plain.gradient("embed"))
    if mode != "eager":
        assert {row.address for row in exe.addresses().of("grad.up")} == {memory.address}
    exe.zero_grad()
    assert not memory.read(np.float32, (8, 8)).any()
    with pytest.raises(ConfigError, match="the buffer is on cpu"):
        exe.bind_grad_buffer("gain", np.zeros(8, np.float32))
    exe.unbind_grad_buffer("up")
    exe.step(batch(3)).wait()
    assert not memory.read(np.float32, (8, 8)).any()
    assert exe.gradient("up").any()
    assert exe.gradient_names == NAMES
