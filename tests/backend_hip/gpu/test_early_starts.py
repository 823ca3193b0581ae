"""Kernels of a step table that start while the one before them runs: where they do, what comes of it, and that the emulated device shows a kernel that does not
wait for what it reads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu, emulated_gpu
from ostinato.backend_hip.kernel_source import Instance, KernelName, expanded
from ostinato.ir.errors import BackendError
from tests.backend_hip.gpu.machine import CACHE, Memory, empty_machine
from tests.backend_hip.gpu.tables import copy, fill

capture = _native.HipGraphExecutable.capture
SIZE = 256
_BODIES = {
    "plain": ("Status", "y[at] = w[at] + x[at];"),
    "ahead": ("Start start", "const f32 mine = w[at]; allow_later(); start.wait(); y[at] = mine + x[at];"),
    "too_soon": ("Start start", "const f32 value = x[at]; start.wait(); y[at] = w[at] + value;"),
    "never": ("Start", "y[at] = w[at] + x[at];"),
}


@functools.cache
def functions() -> dict[str, _native.GpuFunction]:
    """Kernels that add a weight to what was there."""
    device = emulated_gpu(CACHE).gpu.device(0)
    text = expanded("device.h")
    for name, (start, body) in _BODIES.items():
        text += f"DEVICE void {name}(const f32* w, const f32* x, f32* y, {start}) {{ const i64 at = first_element(); {body} }}\n"
    lines = [Instance(KernelName("tests/early", name), 3, "", 64).text for name in _BODIES]
    code = device.gpu.compile("\n".join([text, *lines, ""]), "early.hip", [f"--offload-arch={device.architecture}"])
    module = _native.GpuModule(device, code)
    return {name: module.function(name, "ppppu") for name in _BODIES}


@pytest.fixture(autouse=True)
def loaded(machine: EmulatedGpu) -> None:
    before = machine.count("live modules")
    functions()
    empty_machine()["modules"] += machine.count("live modules") - before


@pytest.fixture
def chain(device: _native.GpuDevice) -> list[Memory]:
    """A weight, and what each of three steps reads and writes."""
    return [
        Memory(device, np.arange(SIZE, dtype=np.float32)),
        *(Memory(device, np.ones(SIZE, np.float32)) for _ in range(4)),
    ]


def step(kernel: str, *operands: Memory, early: bool = True) -> _native.GpuStep:
    addresses = [memory.address for memory in operands]
    return _native.GpuStep.launch(kernel, functions()[kernel], (4, 1, 1), (64, 1, 1), 0, addresses, [], early)


def steps(kernel: str, memory: list[Memory]) -> list[_native.GpuStep]:
    w, *values = memory
    return [step(kernel, w, x, y) for x, y in pairwise(values)]


def runs(
    table: _native.GpuTable, graph: _native.HipGraphExecutable, stream: _native.Stream
) -> tuple[Callable[[], None], ...]:
    """The two ways to submit the steps."""
    return table.enqueue, functools.partial(graph.launch, stream)


EXPECTED = 3 * np.arange(SIZE) + 1


@pytest.mark.parametrize("kernel", ["plain", "ahead"])
def test_kernels_that_wait_give_the_same_bits_however_they_start(
    kernel: str, machine: EmulatedGpu, device: _native.GpuDevice, chain: list[Memory]
) -> None:
    stream = _native.Stream(device, non_blocking=True)
    table = _native.GpuTable(device, stream, steps(kernel, chain))
    graph = capture(stream, table.enqueue)
    for seed in range(3):
        machine.seed(seed, eagerness=0)
        for run in runs(table, graph, stream):
            before = machine.count("early starts")
            run()
            table.finish()
            assert (chain[-1].read() == EXPECTED).all()
            assert machine.count("early starts") >= before + 2, "the second and the third began before their turn"
            chain[-1].write(np.zeros(SIZE, np.float32))


def test_a_kernel_that_lets_later_ones_start_before_it_waits_has_two_behind_it(
    machine: EmulatedGpu, device: _native.GpuDevice, chain: list[Memory]
) -> None:
    stream = _native.Stream(device, non_blocking=True)
    machine.seed(1, eagerness=0)
    found = {}
    for kernel in ("plain", "ahead"):
        table = _native.GpuTable(device, stream, steps(kernel, chain))
        before = machine.count("early starts")
        table.enqueue()
        table.finish()
        found[kernel] = machine.count("early starts") - before
    assert found == {"plain": 2, "ahead": 3}, "the third begins before the first has run, and before the second has"


def test_a_kernel_that_reads_too_soon_gives_something_else(
    machine: EmulatedGpu, device: _native.GpuDevice, chain: list[Memory]
) -> None:
    stream = _native.Stream(device, non_blocking=True)
    table = _native.GpuTable(device, stream, steps("too_soon", chain))
    graph = capture(stream, table.enqueue)
    machine.seed(1, eagerness=0)
    for run in runs(table, graph, stream):
        for memory in chain[1:]:
            memory.write(np.ones(SIZE, np.float32))
        run()
        table.finish()
        assert not (chain[-1].read() == EXPECTED).all()


def test_a_kernel_that_does_not_wait_takes_the_device_down(
    machine: EmulatedGpu, device: _native.GpuDevice, chain: list[Memory]
) -> None:
    machine.seed(1, eagerness=0)
    table = _native.GpuTable(device, _native.Stream(device, non_blocking=True), steps("never", chain))
    table.enqueue()
    with pytest.raises(BackendError):
        table.finish()
    assert "ends without waiting for earlier work" in machine.problem
    machine.recover()


def test_only_a_kernel_behind_a_kernel_starts_early(device: _native.GpuDevice, chain: list[Memory]) -> None:
    w, x, y, z, last = chain
    stream = _native.Stream(device, non_blocking=True)
    table = _native.GpuTable(
        device,
        stream,
        [
            step("plain", w, x, y),
            step("plain", w, y, z),
            step("plain", w, z, last, early=False),
            copy(x, last),
            step("plain", w, x, y),
            fill(z, 0),
            step("plain", w, z, last),
            step("plain", w, z, last),
        ],
    )
    graph = capture(stream, table.enqueue, record=True)
    assert graph.edges == [(number, number + 1) for number in range(7)]
    assert graph.early_edges == [(0, 1), (6, 7)]
    part = capture(stream, lambda: table.enqueue(1, 2), record=True)
    assert (part.edges, part.early_edges) == ([(0, 1)], [])


def test_a_call_does_not_start_early_behind_another(
    machine: EmulatedGpu, device: _native.GpuDevice, chain: list[Memory]
) -> None:
    """Between two calls a caller may submit anything to the stream."""
    machine.seed(1, eagerness=0)
    table = _native.GpuTable(device, _native.Stream(device, non_blocking=True), steps("plain", chain))
    before = machine.count("early starts")
    for number in range(3):
        table.enqueue(number, 1)
    table.finish()
    assert machine.count("early starts") == before
    assert (chain[-1].read() == EXPECTED).all()
