"""The address audit of captured graphs on a GPU: what the driver recorded is what the report says, and memory that went away is found without a replay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.runtime.audit import audit_entry
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.captured import CapturedRunner
from tests.backend_hip.gpu.device_memory import OnDevice
from tests.frontend.small_families import small_model


@pytest.fixture
def ready(gpu: HipDevice, tmp_path: Path) -> ost.TextExecutable:
    model = small_model("llama", tmp_path, 5)
    return ost.compile(model, buckets={"B": [1], "T": [4]}, context=16, device=gpu, mode="captured")


def test_every_pointer_of_the_captured_graph_is_named(ready: ost.TextExecutable) -> None:
    report = ready.audit()
    assert report.ok, str(report)
    assert report.graphs == 1
    known = {pointer.address for pointer in report.pointers}
    runner = ready.runner(report.entry)
    assert isinstance(runner, CapturedRunner)
    (segment,) = runner.steps.segments
    assert segment.graph is not None
    (plan,) = ready.entries.values()
    for step, node in zip(plan.steps, segment.graph.nodes, strict=True):
        assert node.arguments is not None
        read = [int.from_bytes(argument, "little") for argument in node.arguments[: len(step.operands)]]
        assert {address for address in read if address} <= known, step.node
    assert len(report.scalars) == sum(len(step.params) for step in plan.steps)


def test_a_graph_whose_memory_is_elsewhere_now_is_not_the_plan(ready: ost.TextExecutable, gpu: HipDevice) -> None:
    """An audit asks where things lie now, not where they lay at the capture."""
    name = ready.entry()
    runner = ready.runner(name)
    assert isinstance(runner, CapturedRunner)
    regions = ready.regions.bind((), gpu.allocate(ready.memory.arena).address)
    report = audit_entry(ready.program, name, gpu, regions, runner.loaded.resolved, runner.steps.segments)
    assert {finding.kind for finding in report.findings} == {"moved", "not the plan"}
    assert any("rule 5" in finding.message for finding in report.findings)


def test_bound_memory_is_audited_with_its_graph(ready: ost.TextExecutable, gpu: HipDevice) -> None:
    plan, memory = ready.bucket(4, 1), OnDevice(gpu)
    packed, _ = pack(plan, [Piece(0, np.array([5, 6, 7, 8], np.int32), 0, True)], ready.block_table())
    inputs = {name: memory.put(array) for name, array in packed.items()}
    bound = ready.bind(entry=plan.name, inputs=inputs, arena=memory.bytes(ready.memory.arena))
    bound.capture()
    bound.run()
    report = bound.audit()
    assert report.ok, str(report)
    assert report.graphs == 1
    owners = {pointer.owner for pointer in report.pointers}
    assert {"the caller's arena", "the caller's buffer bound to %input_ids"} <= owners
    old = inputs["input_ids"].address
    inputs["input_ids"].owner.free()
    (finding,) = bound.audit().findings
    assert (finding.kind, finding.name) == ("freed", "input_ids")
    assert f"bound at {old:#x}" in finding.message
    with pytest.raises(ost.AddressChanged, match="freed"):
        bound.run()
