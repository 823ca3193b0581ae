"""The native step table of a GPU and pinned memory: a test for each sentence of their contracts, and faults in the middle of things."""

from __future__ import annotations

import copy as copies
import functools
import gc
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.kernel_source import STATUS_BYTES
from ostinato.ir.errors import BackendError, BoundsError, CapacityError, ConfigError, LifecycleError
from tests.backend_hip.gpu.child import ROOT, run_child
from tests.backend_hip.gpu.machine import (
    INVALID_VALUE,
    LAUNCH_FAILURE,
    OUT_OF_MEMORY,
    Memory,
    empty_machine,
)
from tests.backend_hip.gpu.tables import TableKernels, add, copy, fill, require, table_kernels

capture = _native.HipGraphExecutable.capture


@pytest.fixture(autouse=True)
def loaded(machine: EmulatedGpu) -> None:
    """Kernels of tables are loaded before anything is counted."""
    for index in range(2):
        before = machine.count("live modules")
        table_kernels(index)
        empty_machine()["modules"] += machine.count("live modules") - before


@pytest.fixture
def x(device: _native.GpuDevice) -> Memory:
    return Memory(device, np.arange(8, dtype=np.float32))


@pytest.fixture
def y(device: _native.GpuDevice) -> Memory:
    return Memory(device, np.zeros(8, np.float32))


def made(stream: _native.Stream | None, *steps: _native.GpuStep, device: _native.GpuDevice) -> _native.GpuTable:
    return _native.GpuTable(device, stream, steps)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("own", [True, False])
def test_steps_run_in_their_order(index: int, own: bool, machine: EmulatedGpu) -> None:
    device = machine.gpu.device(index)
    stream = _native.Stream(device, non_blocking=True) if own else None
    x, y = Memory(device, np.arange(8, dtype=np.float32)), Memory(device, np.zeros(8, np.float32))
    table = made(stream, add(x, 2), copy(y, x), add(y, -1), fill(x, 0), add(x, 0.5), device=device)
    for _ in range(2):
        x.write(np.arange(8, dtype=np.float32))
        table.enqueue()
        table.finish()
        assert (x.read() == 0.5).all()
        assert (y.read() == np.arange(8) + 1).all()
    assert len(table) == 5


def test_a_part_of_a_table_runs_alone(device: _native.GpuDevice, stream: _native.Stream, x: Memory) -> None:
    table = made(stream, add(x, 1), add(x, 10), add(x, 100), device=device)
    table.enqueue(1, 1)
    table.enqueue(2)
    table.enqueue(3, 0)
    table.finish()
    assert (x.read() == np.arange(8) + 110).all()
    for first, count in ((-1, 1), (4, 0), (0, 4), (3, 1), (0, -2)):
        with pytest.raises(BoundsError, match="outside of a table of 3"):
            table.enqueue(first, count)


def test_an_index_out_of_range_names_the_first_node_and_is_told_once(
    device: _native.GpuDevice, stream: _native.Stream, x: Memory, y: Memory
) -> None:
    table = made(stream, require(y, 0, "fine"), require(x, 5, "first"), require(x, 5, "second"), device=device)
    x.write(np.full(8, 9, np.float32))
    table.enqueue()
    with pytest.raises(BoundsError, match="step 1: an index in device memory was out of range") as caught:
        table.finish()
    assert caught.value.node == "first"
    table.finish()
    x.write(np.full(8, 5, np.float32))
    table.enqueue()
    table.finish()


def test_each_table_has_a_status_word_of_its_own(device: _native.GpuDevice, x: Memory, y: Memory) -> None:
    streams = [_native.Stream(device, non_blocking=True) for _ in range(2)]
    x.write(np.full(8, 9, np.float32))
    wrong, right = (made(stream, require(m, 5), device=device) for stream, m in zip(streams, (x, y), strict=True))
    assert wrong.status_address != right.status_address
    wrong.enqueue()
    right.enqueue()
    right.finish()
    with pytest.raises(BoundsError):
        wrong.finish()


def test_the_native_layer_and_the_kernels_agree_on_the_size_of_the_status_block() -> None:
    assert _native.STATUS_BYTES == STATUS_BYTES


def _step(function: str, *, grid: int = 1, threads: int = 64, shared: int = 0, index: int = 0) -> _native.GpuStep:
    kernels = table_kernels(index)
    found = {"add": kernels.add, "require": kernels.require}[function]
    return _native.GpuStep.launch("wrong", found, (grid, 1, 1), (threads, 1, 1), shared, [256], [1, 1.0])


_SQUARE = _native.GemmProblem(4, 4, 4, ("f32", "f32", "f32", "f32"), (4, 4, 4, 4))
WRONG: dict[str, tuple[Callable[[], _native.GpuStep], str]] = {
    "operands": (lambda: _step("require"), "takes ppipu, the step gives pidpu"),
    "threads": (lambda: _step("add", threads=2048), "blocks of 2048 threads"),
    "no threads": (lambda: _step("add", threads=0), "blocks of 0 threads"),
    "blocks": (lambda: _step("add", grid=0), "a grid of no blocks"),
    "shared memory": (lambda: _step("add", shared=1 << 20), "1048576 bytes of shared memory"),
    "another device": (lambda: _step("add", index=1), "is of another device"),
    "a copy from nowhere": (lambda: _native.GpuStep.copy("wrong", 256, 0, 8), "a null address"),
    "a copy onto itself": (lambda: _native.GpuStep.copy("wrong", 256, 260, 8), "overlap"),
    "a fill of nowhere": (lambda: _native.GpuStep.fill("wrong", 0, 0, 8), "a null address"),
    "a fill of two bytes": (lambda: _native.GpuStep.fill("wrong", 256, 256, 8), "a fill is of one byte"),
    "a small workspace": (
        lambda: _native.GpuStep.gemm("wrong", _SQUARE, _native.GemmChoice([0] * 8, 64), 256, 256, 256, 256),
        "needs a workspace of 64 bytes, found 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_step_that_cannot_run_is_refused_by_name(
    name: str, device: _native.GpuDevice, stream: _native.Stream, x: Memory
) -> None:
    make, message = WRONG[name]
    before = device.counters.current_bytes
    with pytest.raises(BackendError, match=message) as caught:
        made(stream, add(x, 1), make(), device=device)
    assert caught.value.node == "wrong"
    assert "step 1:" in caught.value.message
    assert device.counters.current_bytes == before


def test_nothing_to_copy_or_fill_is_no_work(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, x: Memory
) -> None:
    nothing = _native.GpuStep.copy("none", 0, 0, 0), _native.GpuStep.fill("none", 0, 0, 0)
    same = _native.GpuStep.copy("same", x.address, x.address, 32)
    table = made(stream, *nothing, same, add(x, 1), device=device)
    assert capture(stream, table.enqueue).node_count == 1


def test_a_table_of_another_devices_stream_is_refused(
    machine: EmulatedGpu, device: _native.GpuDevice, x: Memory
) -> None:
    with pytest.raises(ConfigError, match="a stream of device 1"):
        made(_native.Stream(machine.gpu.device(1)), add(x, 1), device=device)


def test_a_table_keeps_its_kernels_and_its_stream(machine: EmulatedGpu, device: _native.GpuDevice, x: Memory) -> None:
    modules = machine.count("live modules")
    kernels = TableKernels(device)
    table = made(_native.Stream(device), add(x, 3, kernels=kernels), device=device)
    del kernels
    gc.collect()
    assert machine.count("live modules") == modules + 1
    table.enqueue()
    table.finish()
    assert (x.read() == np.arange(8) + 3).all()
    del table
    gc.collect()
    assert machine.count("live modules") == modules


def test_a_table_that_goes_while_its_work_waits_is_waited_for(
    machine: EmulatedGpu, device: _native.GpuDevice, x: Memory
) -> None:
    machine.seed(1, eagerness=0)
    for stream in (_native.Stream(device, non_blocking=True), None):
        table = made(stream, add(x, 1), require(x, 0), device=device)
        table.enqueue()
        del table
    device.synchronize()
    assert (x.read() == np.arange(8) + 2).all()
    assert not machine.problem, "nothing was written into memory that was given back"


def test_a_table_cannot_be_copied(device: _native.GpuDevice, stream: _native.Stream, x: Memory) -> None:
    table = made(stream, add(x, 1), device=device)
    for thing in (table, add(x, 1), _native.PinnedMemory(device, 8)):
        with pytest.raises(LifecycleError, match="cannot be copied"):
            copies.copy(thing)


# graphs


def test_a_captured_table_is_read_back_and_replays(
    device: _native.GpuDevice, stream: _native.Stream, x: Memory, y: Memory
) -> None:
    table = made(stream, add(x, 2), copy(y, x), fill(x, 0x3F), device=device)
    graph = capture(stream, table.enqueue, record=True)
    assert [node.type for node in graph.nodes] == ["kernel", "copy", "fill"]
    assert graph.edges == [(0, 1), (1, 2)]
    arguments = graph.nodes[0].arguments
    assert arguments is not None
    assert b"".join(arguments) == struct.pack("<QqdQI", x.address, 8, 2.0, table.status_address, 0)
    assert (x.read() == np.arange(8)).all(), "nothing ran"
    for _ in range(3):
        x.write(np.arange(8, dtype=np.float32))
        graph.launch(stream)
        table.finish()
        assert (y.read() == np.arange(8) + 2).all()


def test_a_replay_reports_to_its_table(device: _native.GpuDevice, stream: _native.Stream, x: Memory) -> None:
    table = made(stream, add(x, 4), require(x, 9, "late"), device=device)
    graph = capture(stream, functools.partial(table.enqueue, 0, 2))
    graph.launch(stream)
    table.finish()
    graph.launch(stream)
    graph.launch(stream)
    with pytest.raises(BoundsError) as caught:
        table.finish()
    assert caught.value.node == "late"


def test_making_and_finishing_a_table_are_refused_in_a_capture(
    device: _native.GpuDevice, stream: _native.Stream, x: Memory
) -> None:
    table = made(stream, add(x, 1), device=device)

    def submit() -> None:
        table.enqueue()
        for wrong in (
            table.finish,
            lambda: made(stream, add(x, 1), device=device),
            lambda: _native.PinnedMemory(device, 8),
            lambda: _native.StatusBlock(device, stream),
        ):
            with pytest.raises(LifecycleError, match="captures"):
                wrong()
        table.enqueue()

    assert capture(stream, submit).node_count == 2


def test_a_table_that_goes_in_a_capture_goes_when_it_is_over(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, x: Memory
) -> None:
    kept = made(stream, add(x, 1), device=device)
    tables = [made(_native.Stream(device), add(x, 1), device=device)]
    pinned = [_native.PinnedMemory(device, 64)]

    def submit() -> None:
        kept.enqueue()
        calls = ("hipFree", "hipHostFree", "hipStreamSynchronize")
        before = [machine.count(call) for call in calls]
        tables.clear()
        pinned.clear()
        assert [machine.count(call) for call in calls] == before
        kept.enqueue()

    before = machine.count("live allocations")
    assert capture(stream, submit).node_count == 2
    assert machine.count("live allocations") == before - 3, "status block, its pinned word, pinned memory"


def test_gemm_is_a_step_that_is_warmed_by_a_run(
    device: _native.GpuDevice, stream: _native.Stream, rng: np.random.Generator
) -> None:
    problem = _native.GemmProblem(4, 6, 8, ("f32", "f32", "f32", "f32"), (4, 8, 4, 4), bias="f32")
    choice = _native.gemm_choices(device, problem, 1 << 16, 1)[0]
    a, b, bias = (rng.standard_normal(shape, np.float32) for shape in ((8, 4), (6, 8), (4,)))
    memory = [Memory(device, array) for array in (a, b, bias, np.zeros((6, 4), np.float32))]
    workspace = Memory(device, np.zeros(choice.workspace_bytes + 1, np.uint8))
    ma, mb, mbias, md = (item.address for item in memory)
    step = _native.GpuStep.gemm(
        "product", problem, choice, ma, mb, md, md, mbias, 0.5, 0.0, workspace.address, choice.workspace_bytes
    )
    table = made(stream, step, add(memory[3], 1), device=device)
    _native.clear_plan_cache()
    with pytest.raises(LifecycleError, match="did not run before") as caught:
        capture(stream, table.enqueue)
    assert caught.value.node == "product"
    table.enqueue()
    table.finish()
    expected = 0.5 * b @ a + bias + 1
    np.testing.assert_allclose(memory[3].read(), expected, rtol=1e-5, atol=1e-5)
    graph = capture(stream, table.enqueue)
    memory[3].write(np.zeros((6, 4), np.float32))
    graph.launch(stream)
    table.finish()
    np.testing.assert_allclose(memory[3].read(), expected, rtol=1e-5, atol=1e-5)


# faults


def test_a_launch_that_fails_names_its_node_and_the_table_runs_again(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, x: Memory
) -> None:
    table = made(stream, add(x, 1, "one"), add(x, 10, "two"), add(x, 100, "three"), device=device)
    machine.fail("hipModuleLaunchKernel", INVALID_VALUE, nth=2)
    with pytest.raises(BackendError, match="step 1: launching kernel add_f32: hipErrorInvalidValue") as caught:
        table.enqueue()
    assert caught.value.node == "two"
    table.finish()
    assert (x.read() == np.arange(8) + 1).all(), "what was submitted before ran"
    table.enqueue()
    table.finish()
    assert (x.read() == np.arange(8) + 112).all()


def test_a_capture_that_fails_midway_leaves_a_stream_that_captures(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, x: Memory
) -> None:
    table = made(stream, add(x, 1, "one"), add(x, 10, "two"), device=device)
    machine.fail("hipModuleLaunchKernel", INVALID_VALUE, nth=2)
    with pytest.raises(BackendError) as caught:
        capture(stream, table.enqueue)
    assert caught.value.node == "two"
    assert not _native.capturing()
    assert machine.count("live graphs") == 0
    graph = capture(stream, table.enqueue)
    graph.launch(stream)
    table.finish()
    assert (x.read() == np.arange(8) + 11).all()


def test_a_kernel_that_fails_loses_the_device(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, x: Memory
) -> None:
    table = made(stream, add(x, 1), device=device)
    machine.fail("kernel", LAUNCH_FAILURE)
    table.enqueue()
    with pytest.raises(BackendError, match=r"LaunchFailure.*the device is lost to this process") as caught:
        table.finish()
    assert caught.value.hint == "start a new process"
    with pytest.raises(BackendError, match="the device is lost"):
        table.enqueue()
    with pytest.raises(BackendError, match="the device is lost"):
        device.allocate(64)
    machine.recover()
    table.enqueue()
    table.finish()


@pytest.mark.parametrize("call", ["hipMalloc", "hipHostMalloc", "hipMemsetAsync"])
def test_a_table_without_room_leaves_nothing(
    call: str, machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, x: Memory
) -> None:
    before = machine.count("live allocations")
    machine.fail(call, OUT_OF_MEMORY)
    with pytest.raises(CapacityError):
        made(stream, add(x, 1), device=device)
    assert machine.count("live allocations") == before
    made(stream, add(x, 1), device=device).enqueue()


# pinned memory


def test_pinned_memory_is_zeroed_and_given_back(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    before = machine.count("live allocations")
    memory = _native.PinnedMemory(device, 4096)
    assert memory.nbytes == 4096
    assert memory.address % 64 == 0
    found = np.ones(4096, np.uint8)
    _native.copy_async(found.ctypes.data, None, memory.address, None, 4096)
    assert not found.any()
    memory.release()
    memory.release()
    assert memory.address == 0
    assert machine.count("live allocations") == before
    with pytest.raises(ConfigError, match="at least one byte"):
        _native.PinnedMemory(device, 0)
    machine.fail("hipHostMalloc", OUT_OF_MEMORY)
    with pytest.raises(CapacityError, match="64 bytes of pinned memory"):
        _native.PinnedMemory(device, 64)


# processes


@pytest.fixture(scope="module")
def interposer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that counts allocations, to be loaded before all others."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("interposer") / "interposer.so"
    source = ROOT / "tests" / "runtime" / "interposer.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True)
    return library


def test_submitting_steps_and_replays_allocates_nothing(interposer: Path) -> None:
    environment = {"LD_PRELOAD": str(interposer), "PYTHONMALLOC": "malloc"}
    printed = run_child("count_allocations", environment=environment)
    assert printed.splitlines() == [
        "a call that allocates: 1",
        "enqueue: 0",
        "enqueue and finish: 0",
        "launch: 0",
    ]


def test_one_call_to_the_driver_a_step(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, x: Memory
) -> None:
    table = made(stream, *(add(x, 1) for _ in range(10)), device=device)
    names = ("hipModuleLaunchKernel", "hipMalloc", "hipMemcpyAsync", "hipMemsetAsync", "hipStreamSynchronize")
    before = [machine.count(name) for name in names]
    table.enqueue()
    assert [machine.count(name) - count for name, count in zip(names, before, strict=True)] == [10, 0, 0, 0, 0]
    table.finish()
    assert [machine.count(name) - count for name, count in zip(names, before, strict=True)] == [10, 0, 1, 0, 1]
