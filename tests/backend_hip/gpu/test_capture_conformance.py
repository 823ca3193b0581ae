"""Capture conformance on graphs that a driver recorded: the emulated device captures a plan's steps, and what is read back is judged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.ir.step import Region, StepKind
from ostinato.runtime.capture_report import CaptureReport
from ostinato.runtime.conformance import PlacedMemory, TableFacts, examine_capture
from ostinato.runtime.device import ResolvedStep
from tests.backend_hip.gpu.machine import Memory
from tests.runtime.capture_plans import BASES, DEVICE, SHAPE, Captured, small_plan

# entry points as `kernel_source.py` makes them: pointers, parameters, the status word, the number of the step
_KERNELS = """
typedef unsigned int u32;
typedef long long i64;
static void nothing() {}
KERNEL(a, 64, (void* x, void* w, void* y, i64 p0, double p1, u32* status, u32 step), (nothing()))
KERNEL(b, 64, (void* g, void* o, void* z, void* cache, void* y, u32* status, u32 step), (nothing()))
"""
_SQUARE = _native.GemmProblem(4, 4, 4, ("f32", "f32", "f32", "f32"), (4, 4, 4, 4))


@dataclass
class Bench:
    """The small plan over memory of a device, with what records its steps."""

    device: _native.GpuDevice
    stream: _native.Stream
    plan: Captured
    functions: dict[str, _native.GpuFunction]
    choice: _native.GemmChoice
    status: Memory
    held: dict[str, Memory]

    def submit(self, number: int, step: ResolvedStep, stream: _native.Stream | None = None) -> None:
        addresses, on = [address for address, _ in step.operands], stream or self.stream
        match step.kind:
            case StepKind.LAUNCH:
                arguments = [*addresses, *step.params, self.status.address, number]
                self.functions[step.node].launch(SHAPE.grid, SHAPE.block, SHAPE.shared, arguments, on)
            case StepKind.GEMM:
                a, b, d, scratch = addresses
                _native.gemm(
                    self.device,
                    _SQUARE,
                    self.choice,
                    a,
                    b,
                    d,
                    d,
                    workspace=scratch,
                    workspace_bytes=self.choice.workspace_bytes,
                    stream=on,
                )
            case StepKind.COPY:
                _native.copy_async(addresses[1], self.device, addresses[0], self.device, step.operands[1][1], on)
            case _:
                _native.fill_async(addresses[0], self.device, int(step.params[0]), step.operands[0][1], on)

    def submit_all(self) -> None:
        for number, step in enumerate(self.plan.steps):
            self.submit(number, step)

    def examine(self, graph: _native.HipGraphExecutable) -> CaptureReport:
        handles = tuple(self.functions[s.node].handle if s.kind is StepKind.LAUNCH else 0 for s in self.plan.steps)
        facts = TableFacts(self.status.address, handles, (1, 2, 1, 1, 1))
        plan = self.plan
        return examine_capture(plan.program, plan.entry, plan.memory, plan.steps, facts, graph.nodes, graph.edges)


@pytest.fixture
def bench(machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream) -> Bench:
    held = {kind: Memory(device, np.zeros(8192, np.uint8)) for kind in BASES}
    memory = PlacedMemory(tuple((Region(DEVICE, kind), found.address, 8192) for kind, found in held.items()))
    code = machine.gpu.compile(_KERNELS, "kernels.hip", [f"--offload-arch={device.architecture}"])
    module = _native.GpuModule(device, code)
    functions = {"a": module.function("a", "pppidpu"), "b": module.function("b", "ppppppu")}
    _native.warm_vendor(device)
    choice = next(c for c in _native.gemm_choices(device, _SQUARE, 65536) if c.workspace_bytes == 4096)  # of two nodes
    bench = Bench(device, stream, small_plan(memory), functions, choice, Memory(device, np.zeros(1, np.uint32)), held)
    bench.submit(1, bench.plan.steps[1])  # a vendor's product is run once before it is captured
    stream.synchronize()
    return bench


def test_what_a_driver_recorded_is_proven(bench: Bench) -> None:
    graph = _native.HipGraphExecutable.capture(bench.stream, bench.submit_all, record=True)
    report = bench.examine(graph)
    report.check()
    assert (report.launches, report.vendor_nodes, report.copies, report.fills) == (2, 2, 1, 1)
    assert (report.graph_nodes, report.dependencies) == (graph.node_count, 5)
    assert len(report.opaque) == 2


def test_a_step_recorded_twice_is_found(bench: Bench) -> None:
    def twice() -> None:
        bench.submit_all()
        bench.submit(3, bench.plan.steps[3])

    report = bench.examine(_native.HipGraphExecutable.capture(bench.stream, twice, record=True))
    assert [(finding.rule, finding.node) for finding in report.findings] == [(2, None)]


def test_a_step_recorded_with_another_address_is_found(bench: Bench) -> None:
    beside = replace(bench.plan.steps[0], operands=bench.plan.steps[1].operands[:3])

    def wrong() -> None:
        bench.submit(0, beside)
        for number in range(1, 5):
            bench.submit(number, bench.plan.steps[number])

    report = bench.examine(_native.HipGraphExecutable.capture(bench.stream, wrong, record=True))
    assert {finding.rule for finding in report.findings} == {5, 6}
    assert {finding.tensor for finding in report.findings} == {"x", "a"}


def test_a_step_on_a_stream_that_does_not_wait_is_found(bench: Bench) -> None:
    """The fill takes bytes that the product may still read."""
    other, fork, join = (
        _native.Stream(bench.device),
        _native.Event(bench.device),
        _native.Event(bench.device),
    )

    def beside() -> None:
        bench.submit(0, bench.plan.steps[0])
        fork.record(bench.stream)
        fork.wait(other)
        bench.submit(1, bench.plan.steps[1])
        bench.submit(2, bench.plan.steps[2], other)
        join.record(other)
        join.wait(bench.stream)
        for number in (3, 4):
            bench.submit(number, bench.plan.steps[number])

    report = bench.examine(_native.HipGraphExecutable.capture(bench.stream, beside, record=True))
    (finding,) = report.findings
    assert (finding.rule, finding.step, finding.tensor) == (11, 2, "z")
    assert "write after read" in finding.message
