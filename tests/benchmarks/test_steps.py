"""The benchmarks' own parts: that they run what they say, count right, and compare equals. No times."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ablation.measure import Row, measure
from benchmarks.ablation.variants import fusions
from benchmarks.models import CONFIGS, checkpoint
from benchmarks.steps import LoadedStep, WeightPool, plan_workload
from benchmarks.workloads import BYTES_PER_SECOND, FLOPS_PER_SECOND, Shape, Workload
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.open import open_hip
from ostinato.frontend.model import Model
from ostinato.passes.pipeline import PipelineOptions
from ostinato.planner.settings import PlanSettings
from ostinato.runtime.device import Device
from ostinato.stages import open_model
from tests.backend_hip.gpu.machine import machine

__all__ = ["machine"]


def rows_of(workload: str, device: Device, model: Model | None = None) -> dict[str, Row]:
    rows = measure(Workload.parse(workload), model, device, WeightPool(device), "f32", 1, lambda text: None)
    return {row.variant: row for row in rows}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(checkpoint("tiny", "bf16", tmp_path_factory.mktemp("benchmarks")))


@pytest.mark.parametrize("workload", ["d1", "d3", "p16"])
def test_the_ablation_of_a_model_runs_the_same_step_in_every_way(tiny: Model, workload: str) -> None:
    rows = rows_of(workload, HostDevice(threads=1), tiny)
    ran = {name: row for name, row in rows.items() if row.ms is not None}
    assert all(row.note == "needs a GPU" for name, row in rows.items() if name not in ran)
    assert len(ran) == 4 + len(fusions())
    assert all(row.equal for row in ran.values())
    planned = ran["planned"]
    assert (planned.allocations, planned.launches) == (0, planned.steps)
    assert ran["eager"].allocations >= planned.launches
    assert ran["planned, no fusion"].launches > planned.launches


def test_the_ablation_of_a_chain_counts_launches_graphs_and_nodes(machine: EmulatedGpu) -> None:
    device = open_hip(gpu=machine.gpu)
    rows = rows_of("c8", device)
    assert all(row.ms is not None and row.equal for row in rows.values()), rows
    captured, apart = rows["captured: planned arena"], rows["captured: library's memory"]
    assert (captured.launches, captured.submissions, captured.graphs) == (8, 1, 1)
    assert (captured.nodes, captured.dependencies, captured.allocations) == (8, 7, 0)
    assert rows["planned"].submissions == 8
    assert captured.arena_bytes < apart.arena_bytes
    assert rows["eager"].allocations == 8


def test_a_step_put_back_gives_what_it_gave(tiny: Model) -> None:
    device, workload = HostDevice(threads=1), Workload("d", 2)
    program = plan_workload(workload, tiny, device.target, PipelineOptions("bf16"), PlanSettings())
    shape = Shape.read(tiny.checkpoint.path)
    step = LoadedStep(workload, program, device, WeightPool(device).of(program), "planned", shape=shape)
    expected = step.digest()
    for _ in range(3):
        step.timed.step()
    assert step.outputs()["logits"].shape == (2, shape.vocabulary)
    step.timed.reset()
    step.timed.step()
    ahead = step.runner.inputs["position"].copy()
    step.rewind()
    np.testing.assert_array_equal(ahead, step.runner.inputs["position"] + 1)
    step.regions.state.fill(0)
    step.fill_state()
    assert step.digest() == expected


@pytest.mark.parametrize(
    ("model", "workload", "milliseconds"),
    [("Q", "d1", 0.234), ("Q", "d8", 0.244), ("D", "d1", 0.729), ("Q", "p512", 0.480), ("D", "p2048", 7.273)],
)
def test_the_limit_is_the_one_that_was_worked_out_by_hand(model: str, workload: str, milliseconds: float) -> None:
    shape = Shape.of(CONFIGS[model])
    found = shape.limit_ms(Workload.parse(workload), BYTES_PER_SECOND, FLOPS_PER_SECOND)
    assert found == pytest.approx(milliseconds, abs=6e-4)


@pytest.mark.parametrize("text", ["", "d", "d0", "x8", "p-1", "d1.5"])
def test_what_is_no_workload_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no workload"):
        Workload.parse(text)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["d1", "d3", "p16"])
def test_the_lean_peer_and_ours_agree_with_fp32(tiny: Model, name: str) -> None:
    import torch  # the extra "parity"

    from benchmarks.gpu.lean import Lean, LeanState, read_tensors

    workload, folder = Workload.parse(name), str(tiny.checkpoint.path)
    shape = Shape.read(folder)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        lean = Lean(shape, read_tensors(folder, "cpu"), dtype)
        state = LeanState(shape, workload.rows, dtype, "cpu", filled=workload.kind == "d")
        found[dtype] = lean.first(workload, state).detach().float().numpy()
    device = HostDevice(threads=1)
    program = plan_workload(workload, tiny, device.target, PipelineOptions("bf16"), PlanSettings())
    step = LoadedStep(workload, program, device, WeightPool(device).of(program), "planned", shape=shape)
    exact = found[torch.float32]
    for logits in (found[torch.bfloat16], step.outputs()["logits"]):
        assert np.sqrt(np.mean((logits - exact) ** 2)) / exact.std() < 0.01
