"""Profiles on a GPU: events between planned steps, stamps between the nodes of a captured twin, and an executable that cannot tell. No time is asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.runtime import markers
from ostinato.runtime.captured import CapturedRunner
from ostinato.runtime.trace_events import trace_problems
from tests.frontend.small_families import small_model
from tests.runtime.fake_markers import FakeMarkers, build
from tests.training.steps import state_of
from tests.training.tiny import batch, checkpoint, make

IDS = np.array([[5, 9, 2, 77]], np.int32)
RUNS = 2


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    return small_model("llama", tmp_path_factory.mktemp("llama"), 5)


def compiled(model: ost.Model, device: HipDevice, mode: str, **options: Any) -> ost.TextExecutable:
    return ost.compile(model, buckets={"B": [1], "T": [4]}, context=8, device=device, mode=mode, **options)


@pytest.mark.parametrize(
    ("mode", "capture", "method"),
    [("planned", None, "event"), ("captured", None, "captured twin"), ("captured", ["ffn"], "captured twin")],
)
def test_every_step_is_timed_and_nothing_can_tell(
    mode: str, capture: list[str] | None, method: str, llama: ost.Model, gpu: HipDevice
) -> None:
    executable = compiled(llama, gpu, mode, capture=capture)
    expected = executable(IDS)["logits"].tobytes()
    (name,) = executable.entries
    runner = executable.runner(name)
    memory = executable.regions
    seen = memory.window.view(np.uint8, (memory.io.nbytes,))
    seen[::3] = 7  # what a caller has written there and not run yet
    before = [region.read(np.uint8, (region.nbytes,)).tobytes() for region in (memory.state, memory.io)]
    shown = seen.tobytes()
    profile = executable.profile(runs=RUNS)
    assert seen.tobytes() == shown
    assert [region.read(np.uint8, (region.nbytes,)).tobytes() for region in (memory.state, memory.io)] == before
    assert executable.runner(name) is runner
    assert executable(IDS)["logits"].tobytes() == expected
    plan = executable.entries[name]
    assert [step.node for step in profile.steps] == [step.node for step in plan.steps]
    assert (profile.mode, profile.device, profile.runs) == (mode, gpu.name, RUNS)
    assert method in profile.method
    assert min(profile.whole_seconds, profile.overhead_seconds, profile.resolution_seconds) > 0
    assert any("may start early" in note for note in profile.notes)
    loose = sum(".ffn." not in step.node for step in plan.steps) if capture else 0
    assert [f"{loose} steps are in no graph" in note for note in profile.notes[1:]] == ([True] if capture else [])
    for found, step in zip(profile.steps, plan.steps, strict=True):
        assert found.launch == str(step.launch)
        assert found.kernel == step.kernel
    assert trace_problems(profile.to_chrome_json()) == []


def test_waves_of_64_lanes(llama: ost.Model, devices: dict[int, HipDevice], machine: EmulatedGpu) -> None:
    executable = compiled(llama, devices[64], "captured")
    assert executable.profile(runs=1).overhead_seconds > 0
    assert not machine.problem


def test_a_planned_run_has_an_event_behind_every_step(llama: ost.Model, gpu: HipDevice, machine: EmulatedGpu) -> None:
    """One run more and its undisturbed run beside it: as many events, and two."""
    executable = compiled(llama, gpu, "planned")
    counts = []
    for runs in (1, 2):
        before = machine.count("hipEventRecord")
        profile = executable.profile(runs=runs)
        counts.append(machine.count("hipEventRecord") - before)
    assert counts[1] - counts[0] == len(profile.steps) + 1 + 2


def test_steps_of_a_captured_graph_are_timed_inside_of_replays(
    llama: ost.Model, gpu: HipDevice, machine: EmulatedGpu
) -> None:
    """A run is a replay of the twin beside a replay of the graph; the executable's own graph is neither captured again nor replayed."""
    executable = compiled(llama, gpu, "captured")
    executable.prewarm()
    (runner,) = executable.runners.made.values()
    assert isinstance(runner, CapturedRunner)
    graph = runner.steps.segments[0].graph
    counts = []
    for runs in (1, 2):
        before = machine.count("hipGraphLaunch")
        captures = machine.count("hipStreamBeginCapture")
        executable.profile(runs=runs)
        assert machine.count("hipStreamBeginCapture") - captures == 3  # the graph, its twin, stamps alone
        counts.append(machine.count("hipGraphLaunch") - before)
    assert counts[1] - counts[0] == 2
    assert runner.steps.segments[0].graph is graph
    executables = machine.count("live executables")
    executable.profile(runs=1)
    assert machine.count("live executables") == executables


@pytest.mark.parametrize("mode", ["planned", "captured"])
def test_a_training_step_is_profiled_and_trains_nothing(mode: str, gpu: HipDevice, tmp_path: Path) -> None:
    folder = checkpoint("llama", tmp_path, num_hidden_layers=1)
    step = make(folder, device=gpu, mode=mode, keep_gradients=True)
    step(*batch(0))
    fired: list[int] = []
    if mode == "planned":
        step.on_gradient_ready(step.gradient_names[0], lambda ready: fired.append(ready.step))
    state, gradient = state_of(step), step.gradient(step.gradient_names[0]).tobytes()
    profile = step.profile(runs=1)
    assert len(profile.steps) == len(step.plan.steps)
    assert state_of(step) == state
    assert step.gradient(step.gradient_names[0]).tobytes() == gradient
    assert not fired, "hooks are for steps"


def test_breakeven_measures_all_three_modes(llama: ost.Model, gpu: HipDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.tools.profile.breakeven._FEWEST", 2)
    executable = compiled(llama, gpu, "captured")
    expected = executable(IDS)["logits"].tobytes()
    (entry,) = ost.breakeven(executable, runs=2).entries
    assert [mode.mode for mode in entry.modes] == ["eager", "planned", "captured"]
    assert set(entry.modes[2].parts) == {"capture", "proof"}
    assert min(entry.modes[2].parts.values()) > 0
    assert [(step.mode, step.against) for step in entry.steps] == [
        ("planned", "eager"),
        ("captured", "eager"),
        ("captured", "planned"),
    ]
    eager, planned, captured = (mode.once_seconds for mode in entry.modes)
    assert [step.once_seconds for step in entry.steps] == pytest.approx(
        [planned - eager, planned + captured - eager, captured]
    )
    assert executable(IDS)["logits"].tobytes() == expected


def test_a_replay_is_one_range_and_planned_steps_have_one_each(
    llama: ost.Model, gpu: HipDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build(tmp_path)
    monkeypatch.setattr(markers, "_LIBRARIES", ((str(library), "nvtxRangePushA", "nvtxRangePop"),))
    fake = FakeMarkers(library)
    executable = compiled(llama, gpu, "captured")
    expected = executable(IDS)["logits"].tobytes()
    (name,) = executable.entries
    steps = [step.node for step in executable.entries[name].steps]
    marked = executable.clone(markers=True)
    assert marked(IDS)["logits"].tobytes() == expected
    assert fake.take() == [name, "-"]
    assert executable.clone("planned", markers=True)(IDS)["logits"].tobytes() == expected
    assert fake.take() == [line for node in steps for line in (node, "-")]
    partly = compiled(llama, gpu, "captured", capture=["layers.1.ffn"], markers=True)
    assert partly(IDS)["logits"].tobytes() == expected
    taken = [line for line in fake.take() if line != "-"]
    assert taken.count(name) == 1
    assert [node for node in taken if node != name] == [node for node in steps if not node.startswith("layers.1.ffn.")]
