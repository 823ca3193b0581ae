"""Planted faults on a GPU: each is found and named there as on the host, and a captured step that differs is found by capturing prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.planner.check import check_program
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.captured import CapturedSteps
from ostinato.runtime.loaded import LoadedSteps
from ostinato.runtime.regions import Regions
from ostinato.tools.bisect.decisions import early_starts
from ostinato.tools.bisect.subject import Subject
from ostinato.tools.repro.run import repro
from tests.faults import FAULTS, Bench, Fault, Planted, found
from tests.frontend.small_families import small_model

pytestmark = pytest.mark.usefixtures("machine")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    return small_model("llama", tmp_path_factory.mktemp("llama"), 5)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_named_on_a_gpu(fault: Fault, model: ost.Model, gpu: HipDevice, tmp_path: Path) -> None:
    bench = Bench(model, gpu, 4)
    with fault.plant(bench) as planted:
        report = bench.bisect(planted, output=tmp_path / "bundle")
        assert found(report, planted), report
        if report.bundle is not None:
            assert repro(report.bundle, device=gpu).ok
        else:
            assert planted.kind in ("scalar", "address"), report.unreduced


@pytest.mark.slow
def test_early_starts_can_be_left_out_one_by_one(model: ost.Model, gpu: HipDevice) -> None:
    executable = Bench(model, gpu, 4).compiled()
    subject, ids = Subject("captured", executable), [[5, 9, 2]]
    decisions = early_starts(subject, executable.entries)
    assert len(decisions.names) > 5
    for kept in (frozenset[str](), frozenset(decisions.names[2:4]), frozenset(decisions.names)):
        other = decisions.made(kept)
        check_program(other.program.plan, other.program.graphs, other.program.target)
        found = {
            f"{name}/{step.node}"
            for name, plan in other.entries.items()
            for step in plan.steps
            if step.launch is not None and step.launch.early
        }
        assert found == kept
        assert isinstance(other, ost.TextExecutable)
        assert other(ids)["logits"].tobytes() == executable(ids)["logits"].tobytes()


class Spoiling(CapturedSteps):
    """Graphs with step number `wrong` in them leave NaN in the logits."""

    wrong = 0

    def __init__(
        self,
        program: ProgramPlan,
        loaded: LoadedSteps,
        regions: Regions,
        ranges: Sequence[tuple[int, int]],
        cuts: Sequence[int] = (),
    ) -> None:
        super().__init__(program, loaded, regions, ranges, cuts)
        self._spoilt = [item.range for item in loaded.plan.outputs if item.name == "logits"]  # none of a cut
        self._regions = regions

    def enqueue(self) -> None:
        super().enqueue()
        captured = [segment for segment in self.segments if segment.graph is not None]
        if any(segment.first <= self.wrong < segment.first + segment.count for segment in captured):
            for place in self._spoilt:
                self._regions.io.fill(0xFF, place.offset, place.size)


@pytest.mark.parametrize(
    "position", [pytest.param(0, marks=pytest.mark.slow), 7, pytest.param(-1, marks=pytest.mark.slow)]
)
def test_the_captured_step_that_differs_is_found(
    position: int, model: ost.Model, gpu: HipDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(model, gpu, 4)
    executable = bench.compiled("planned")
    (entry,) = executable.entries.values()
    monkeypatch.setattr(Spoiling, "wrong", position % len(entry.steps))
    for module in ("ostinato.runtime.captured", "ostinato.tools.bisect.decisions"):
        monkeypatch.setattr(f"{module}.CapturedSteps", Spoiling)
    report = bench.bisect(Planted(executable, executable, executable.clone("captured"), "capture", ()), runs=2)
    first = report.culprits[0]
    assert (first.kind, first.step, first.node) == ("capture", Spoiling.wrong, entry.steps[position].node)
    assert first.workaround == 'mode="planned"'
    assert report.trials < 15, "by halves"
    if position == -1:
        assert "logits" in report.reduced  # an entry that ends alike shows it alike
    else:
        assert "alone do not show it" in report.unreduced  # the step is right: it was the capture
