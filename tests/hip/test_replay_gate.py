"""Runtimes that are known to replay wrongly without a word: "auto" runs planned there, and "captured" falls back to it when a replay leaves another byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.runtime_faults import FAULTS, doubt_of, faults_of, version_number
from ostinato.ir.errors import UnreadableCapture
from ostinato.runtime.capture_report import CaptureFinding, CaptureReport
from ostinato.runtime.captured import CapturedRunner, CapturedSteps, Segment
from ostinato.runtime.replay_gate import REPLAYS
from tests.frontend.small_families import small_model
from tests.training.steps import state_of
from tests.training.tiny import batch, checkpoint, make

UNSUPPORTED = 801
IDS = np.array([[5, 9, 2, 77]], np.int32)
DOUBT = "ROCm 7.2.0 on gfx1100: replays are planted to be wrong"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    return small_model("llama", tmp_path_factory.mktemp("llama"), 5)


def compiled(model: ost.Model, device: HipDevice, mode: str = "auto", **options: Any) -> ost.TextExecutable:
    return ost.compile(model, buckets={"B": [1], "T": [4]}, context=16, device=device, mode=mode, **options)


@pytest.fixture
def doubted(gpu: HipDevice, monkeypatch: pytest.MonkeyPatch) -> HipDevice:
    """The GPU, with a runtime of which a fault is known."""
    assert gpu.replay_doubt == ""
    monkeypatch.setitem(gpu.__dict__, "replay_doubt", DOUBT)
    return gpu


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each replay of a graph has from now on."""
    found: list[int] = []
    submit = CapturedSteps.submit

    def counted(self: CapturedSteps, segment: Segment) -> None:
        found.append(segment.count)
        submit(self, segment)

    monkeypatch.setattr(CapturedSteps, "submit", counted)
    return found


def leave_the_last_step_out(monkeypatch: pytest.MonkeyPatch, *, of_replay: int) -> None:
    """That replay of a graph and all later ones end too early."""
    done: list[int] = []

    def early(self: CapturedSteps, segment: Segment) -> None:
        done.append(1)
        self._loaded.table.enqueue(segment.first, segment.count - (len(done) >= of_replay))

    monkeypatch.setattr(CapturedSteps, "submit", early)


def test_auto_is_planned_where_replays_are_in_doubt(llama: ost.Model, doubted: HipDevice) -> None:
    executable = compiled(llama, doubted)
    assert executable.mode == "planned"
    assert executable.reason == f"auto: planned, because replays are in doubt here: {DOUBT}"
    assert DOUBT in str(executable.explain_mode())


def test_captured_is_held_against_planned_before_it_counts(
    llama: ost.Model, doubted: HipDevice, replays: list[int]
) -> None:
    captured = compiled(llama, doubted, "captured")
    before = {name: captured.read_state(name) for name in captured.state_names}
    captured.prewarm()
    assert len(replays) == REPLAYS * len(captured.entries)
    assert (captured.mode, captured.reason) == ("captured", "")
    for name, values in before.items():  # nothing can tell that the gate ran
        assert captured.read_state(name).tobytes() == values.tobytes()
    assert captured(IDS)["logits"].tobytes() == captured.clone("planned")(IDS)["logits"].tobytes()


def test_what_is_captured_and_what_is_not_is_explained(llama: ost.Model, gpu: HipDevice) -> None:
    whole = compiled(llama, gpu, "captured").explain_mode()
    (entry,) = whole.entries
    assert (entry.graphs, entry.captured, entry.alone) == (1, entry.steps, ())
    (part,) = compiled(llama, gpu, "captured", capture=["ffn"]).explain_mode().entries
    assert part.graphs > 1
    assert part.captured + len(part.alone) == part.steps == entry.steps
    assert not any(".ffn." in name for name in part.alone)
    assert "are submitted one by one: " in str(part)


def test_no_gate_where_nothing_is_known(llama: ost.Model, gpu: HipDevice, replays: list[int]) -> None:
    compiled(llama, gpu, "captured").prewarm()
    assert not replays


@pytest.mark.parametrize("replay", [1, REPLAYS])
def test_a_replay_that_leaves_other_bytes_makes_it_planned(
    replay: int, llama: ost.Model, doubted: HipDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compiled(llama, doubted, "planned")(IDS)["logits"]
    leave_the_last_step_out(monkeypatch, of_replay=replay)
    executable = compiled(llama, doubted, "captured")
    assert executable(IDS)["logits"].tobytes() == expected.tobytes()
    assert executable.mode == "planned"
    assert executable.reason.startswith(f"replay {replay} left ")
    assert executable.reason.endswith(DOUBT)
    assert not any(isinstance(executable.runner(name), CapturedRunner) for name in executable.entries)
    assert executable.clone().mode == "planned"
    assert executable.reason in str(executable.explain_mode())


def test_a_driver_that_does_not_show_what_it_captured_makes_it_planned(
    llama: ost.Model, gpu: HipDevice, machine: EmulatedGpu
) -> None:
    expected = compiled(llama, gpu, "planned")(IDS)["logits"]
    machine.fail("hipGraphGetEdges", UNSUPPORTED)
    executable = compiled(llama, gpu)
    assert executable.mode == "captured"
    assert executable(IDS)["logits"].tobytes() == expected.tobytes()
    assert executable.mode == "planned"
    assert executable.reason.startswith("no captured graph can be proven here: ")
    assert "(801)" in executable.reason
    machine.fail("hipGraphGetEdges", UNSUPPORTED)
    with pytest.raises(UnreadableCapture, match=r"\(801\)") as caught:
        executable.clone("captured").prewarm()  # who asks for a mode by name gets that one or an error
    assert isinstance(caught.value, ost.BackendError)
    assert caught.value.hint is not None
    assert 'mode="planned"' in caught.value.hint


def test_arguments_that_are_not_shown_prove_nothing() -> None:
    unread = CaptureFinding(5, "the arguments of add_f32 cannot be read back", "", unread=True)
    other = CaptureFinding(2, "a node too many", "")
    counts = (0,) * 7
    assert CaptureReport("step", *counts, (), (unread, unread)).unreadable
    assert not CaptureReport("step", *counts, (), (unread, other)).unreadable
    assert not CaptureReport("step", *counts, (), ()).unreadable


def test_who_requires_captured_gets_an_error(
    llama: ost.Model, doubted: HipDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_the_last_step_out(monkeypatch, of_replay=1)
    executable = compiled(llama, doubted, "captured", on_fallback="raise")
    with pytest.raises(ost.BackendError, match="replay 1 left") as caught:
        executable(IDS)
    with pytest.raises(ost.BackendError, match="left"):
        compiled(llama, doubted, "planned").clone("captured").prewarm()
    assert caught.value.hint is not None
    assert "doctor --quirks" in caught.value.hint


@pytest.mark.parametrize(
    ("version", "architecture", "doubted"),
    [
        ("7.1.25424", "gfx942", False),
        ("7.2.53211", "gfx942", True),
        ("7.2.53211", "gfx942:sramecc+:xnack-", True),
        ("7.13.0", "gfx942", False),
        ("7.2.0", "gfx90a", False),
        ("7.2.0", "gfx950", True),
        ("6.4.0", "gfx1201", True),
        ("7.13.0", "gfx1100", False),
        ("", "gfx942", False),
    ],
)
def test_which_runtimes_are_doubted(version: str, architecture: str, doubted: bool) -> None:
    text = doubt_of("amd", version, architecture)
    assert bool(text) is doubted
    assert not doubted or (f"ROCm {version}" in text and "#" in text)
    assert doubt_of("nvidia", "13.0", "sm_90") == ""


def test_the_table_is_complete() -> None:
    assert version_number("7.13.1") > version_number("7.2.3")
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.reports
        assert all(report.rpartition("#")[2].isdigit() for report in fault.reports)
        assert fault.fix or fault.handling == "avoided"
        assert fault.what_is_done
        assert fault.versions.startswith(("ROCm", "CUDA"))
    assert [fault.handling for fault in faults_of("nvidia", "11.3", "sm_80")] == ["avoided", "avoided"]
    assert len(faults_of("nvidia", "12.8", "sm_90")) == 1


def test_a_training_step_is_held_against_its_planned_steps_too(
    doubted: HipDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing tells that the gate ran: not the parameters, the moments or the number of the step; and a step that replays wrongly trains planned."""
    folder = checkpoint("llama", tmp_path, num_hidden_layers=1)
    planned = make(folder, device=doubted, mode="planned")
    captured = make(folder, device=doubted, mode="captured")
    assert captured(*batch(0)).loss == planned(*batch(0)).loss
    assert (captured.mode, state_of(captured)) == ("captured", state_of(planned))
    leave_the_last_step_out(monkeypatch, of_replay=1)
    wrong = make(folder, device=doubted, mode="captured")
    wrong(*batch(0))
    assert (wrong.mode, state_of(wrong)) == ("planned", state_of(planned))
