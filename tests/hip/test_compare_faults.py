"""Planted faults are named by `compare` on a GPU, whose graphs are captured and replayed; and so is a node that is wrong within a replay alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.backend_hip.hip_device import HipDevice
from ostinato.runtime.captured import CapturedRunner
from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.examine import examine
from ostinato.tools.compare.workload import make_workload
from tests.faults import FAULTS, Bench
from tests.frontend.small_families import small_model
from tests.tools.compare.test_causes import NAMED, compared
from tests.training.tiny import checkpoint, make

SMALL = {"num_hidden_layers": 1}


@pytest.fixture(scope="module")
def bench(devices: dict[int, HipDevice], tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One layer in bf16, which is what cards run, on the device with waves of 32 lanes."""
    model = small_model("llama", tmp_path_factory.mktemp("one"), 5, **SMALL)
    return Bench(model, devices[32], tokens=4, options={"precision": "bf16"})


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_named(fault: Any, bench: Bench) -> None:
    with fault.plant(bench) as planted:
        report = compared(bench, planted, edges=False)
    assert not report.ok
    assert NAMED[fault.name](report, planted), str(report)


def test_no_row_that_is_right_is_called_wrong(bench: Bench) -> None:
    executable = bench.plain.clone("planned")
    found = examine(executable, "planned", make_workload(executable, tokens=bench.tokens, seed=1))
    assert (found.cause, found.non_finite) == (None, None)
    assert all(row.worst_ratio <= 1 and not row.outside for row in found.operators)


def test_a_node_that_is_wrong_within_a_replay_alone_is_named(
    gpu: HipDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = Bench(small_model("llama", tmp_path, 5, **SMALL), gpu, tokens=4).compiled()
    original = CapturedRunner.enqueue

    def enqueue(self: CapturedRunner) -> None:
        original(self)
        self.loaded.table.finish()
        place = next(binding for binding in self.loaded.plan.outputs if binding.name == "logits")
        buffer = self._memory["io"]
        values = buffer.read(np.float32, place.type.static_shape, place.range.offset)
        buffer.write(values + np.float32(1), place.range.offset)

    monkeypatch.setattr(CapturedRunner, "enqueue", enqueue)
    report = compare(executable, ("planned", "captured"), replays=1, edges=False, operators=False, tokens=4)
    assert not report.ok
    (cause,) = report.causes
    assert (cause.kind, cause.side, cause.place.node) == ("capture", "captured", "logits")
    assert abs(cause.found - cause.expected - 1) < 1e-5
    counts = {side.name: side.counts for side in report.sides}
    assert counts["captured"] is not None
    assert counts["planned"] is not None
    assert counts["captured"].graph_nodes == counts["captured"].steps == counts["planned"].launches > 0
    assert counts["captured"].submissions == report.steps
    assert report.sides[1].break_even is not None
    assert report.sides[1].break_even.against == "planned"


def test_a_captured_training_step_is_compared(gpu: HipDevice, tmp_path: Path) -> None:
    step = make(checkpoint("llama", tmp_path, num_hidden_layers=1), keep_gradients=True, device=gpu)
    report = compare(step, ("reference", "eager", "planned", "captured"), replays=2)
    assert report.ok, str(report)
    verdicts = {(pair.left, pair.right): pair.verdict for pair in report.pairs}
    assert {verdict for pair, verdict in verdicts.items() if "reference" not in pair} == {"bit-equal"}
    counts = {side.name: side.counts for side in report.sides}
    assert counts["captured"] is not None
    assert counts["captured"].submissions == report.steps
    assert counts["captured"].graph_nodes == counts["captured"].launches > 100
