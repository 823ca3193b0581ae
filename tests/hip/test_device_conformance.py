"""`ostinato doctor --conformance` on the emulated devices: they conform, and what a fault breaks is told and stops nothing else."""

from __future__ import annotations

import pytest

from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.target import Level
from ostinato.tools.conformance.command import run_conformance
from ostinato.tools.conformance.objects import run_objects
from ostinato.tools.conformance.quirks import QUIRKS, find_quirks
from ostinato.tools.conformance.replay import run_replay
from ostinato.tools.conformance.report import CaptureNumbers, ConformanceReport

OPS = ("add_rms_norm", "argmax", "rms_norm")
UNSUPPORTED, OUT_OF_MEMORY, LAUNCH_FAILURE = 801, 2, 719


VENDOR_HIDDEN = "parameters of the vendor's kernels cannot be read back"


def has_vendor(device: HipDevice) -> bool:
    return any(row.level is Level.VENDOR for row in device.target.rows)


def test_an_emulated_card_conforms(device: HipDevice, machine: EmulatedGpu) -> None:
    report = run_conformance(device, seed=3, ops=OPS, ways=1, replays=3)
    assert ConformanceReport.model_validate_json(report.model_dump_json(), strict=True) == report
    failed = [row for row in report.rows if row.verdict not in ("pass", "not accepted")]
    assert not failed
    assert not [check for check in (*report.runtime, *report.capture) if check.verdict != "pass"]
    assert report.ok
    assert {row.op for row in report.rows if row.verdict == "pass"} == set(OPS)
    assert all(row.reason for row in report.rows if row.verdict == "not accepted")
    facts = report.environment
    assert (facts.platform, facts.wave, facts.architecture) == ("amd", device.native.wave, device.isa)
    assert {library.role for library in facts.libraries} == {"runtime", "compiler", "blas", "collective"}
    for graph in report.graphs:
        assert graph.launches + graph.vendor_nodes + graph.copies + graph.fills == graph.graph_nodes
        assert graph.dependencies == graph.graph_nodes - 1, "one stream"
        assert graph.opaque == graph.vendor_nodes
        assert (graph.vendor_nodes > 0) == has_vendor(device)
    assert len(report.graphs) == 2
    present = {quirk.name: quirk.present for quirk in report.quirks}
    assert set(present) == {quirk.name for quirk in QUIRKS}
    assert [name for name, found in present.items() if found != "no"] == [VENDOR_HIDDEN] * has_vendor(device)


def test_a_driver_that_cannot_instantiate_fails_its_checks_alone(gpu: HipDevice, machine: EmulatedGpu) -> None:
    machine.fail("hipGraphInstantiateWithFlags", UNSUPPORTED)
    verdicts = {check.name: check for check in run_objects(gpu)}
    assert [name for name, check in verdicts.items() if check.verdict == "fail"] == ["capture"]
    assert "instantiating a graph" in verdicts["capture"].detail


def test_a_capture_that_fails_leaves_the_other_modes_to_their_verdicts(gpu: HipDevice, machine: EmulatedGpu) -> None:
    numbers: list[CaptureNumbers] = []
    steps: list[str] = []
    checks = run_replay(gpu, 1, replays=2, numbers=numbers, advance=steps.append)
    found = []
    for check in checks:
        found.append(check)
        if check.name.endswith("guarded = planned") and len(found) < 6:
            machine.fail("hipGraphGetEdges", UNSUPPORTED)
    failed = [check.name for check in found if check.verdict == "fail"]
    assert failed == ["decoder in f32: captured = planned"]
    assert len(numbers) == 1
    assert len(steps) == 2 + len(found) - 2


@pytest.mark.parametrize(
    ("call", "quirk"),
    [
        ("hipGraphGetEdges", "edges cannot be read back"),
        ("hipGraphExecUpdate", "graphs are not updated in place"),
    ],
)
def test_a_quirk_is_seen_where_a_driver_refuses(call: str, quirk: str, gpu: HipDevice, machine: EmulatedGpu) -> None:
    machine.fail(call, UNSUPPORTED)
    found = {found.name: found for found in find_quirks(gpu)}
    assert found[quirk].present in ("yes", "unknown")
    assert "(801)" in found[quirk].detail
    assert found[quirk].consequence
    assert [name for name, other in found.items() if other.present != "no" and name != VENDOR_HIDDEN] == [quirk]
