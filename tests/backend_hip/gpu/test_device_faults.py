"""Whatever the driver refuses, at whichever call, is a typed error that leaves nothing behind and a device that works; and what ends or forks a process."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.errors import BackendError, CapacityError, LifecycleError, OstinatoError
from ostinato.ir.step import KernelCall, Launch, StepKind
from ostinato.ir.types import DType, TensorType
from ostinato.ir.weights import PackSource
from ostinato.runtime.device import ResolvedStep
from tests.backend_hip.gpu.child import run_child
from tests.backend_hip.gpu.machine import CACHE, INVALID_VALUE, LAUNCH_FAILURE, OUT_OF_MEMORY, live

HOST = HostDevice(threads=1)
KERNEL = "elementwise/elementwise:add<f32>"
SHAPE = Launch((1, 1, 1), (256, 1, 1))
WEIGHT = TensorType((8, 8), DType.BF16)


def opened(native: _native.GpuDevice) -> HipDevice:
    return HipDevice(native, cache=CodeCache(CACHE / "code"), host=HOST)


def double(address: int, node: str = "double") -> ResolvedStep:
    place = (address, 256)
    return ResolvedStep(node, StepKind.LAUNCH, KERNEL, (place, place, (0, 0), place), (1, 64), launch=SHAPE)


def life(native: _native.GpuDevice) -> None:
    """Everything that a program does with a device, from opening it to its last result."""
    gpu = opened(native)
    weight, buffer, stream = gpu.allocate(WEIGHT.nbytes), gpu.allocate(256), gpu.open_stream()
    values = np.ones((8, 8), np.float32)
    gpu.pack(WEIGHT, weight.address, PackSource(values.view(np.uint8).reshape(-1), DType.F32, np.arange(8)), 0)
    window = buffer.window(stream)
    view = window.view(np.float32, (64,))
    view[:] = 1
    table = gpu.make_table([double(buffer.address), double(buffer.address)], stream)
    graph = table.capture()
    window.upload(0, 256)
    table.enqueue()
    graph.enqueue()
    window.download(0, 256)
    table.finish()
    assert (view == 16).all()
    step = double(buffer.address)
    launch = gpu.make_launch(KernelCall("alone", KERNEL, (1, 64), 4, launch=SHAPE))
    launch.run(step.operands)
    gpu.synchronize()
    assert (buffer.read(np.float32, (64,)) == 32).all()
    assert (gpu.unpack(WEIGHT, weight.address) == 1).all()
    gpu.synchronize()


def outcome(native: _native.GpuDevice) -> OstinatoError | None:
    """What a life ends with. The error is made anew: what it was raised through would keep everything alive."""
    try:
        life(native)
    except OstinatoError as error:
        return type(error)(error.message, node=error.node, hint=error.hint)
    return None


def cleared(machine: EmulatedGpu, native: _native.GpuDevice) -> dict[str, int]:
    gc.collect()
    native.synchronize()
    native.trim_pool()
    return live(machine)


CALLS = {
    "hipMalloc": OUT_OF_MEMORY,
    "hipHostMalloc": OUT_OF_MEMORY,
    "hipStreamCreateWithFlags": INVALID_VALUE,
    "hipEventCreateWithFlags": INVALID_VALUE,
    "hipEventRecord": INVALID_VALUE,
    "hipModuleLoadData": OUT_OF_MEMORY,
    "hipModuleGetFunction": INVALID_VALUE,
    "hipMemcpyAsync": INVALID_VALUE,
    "hipMemsetAsync": INVALID_VALUE,
    "hipModuleLaunchKernel": INVALID_VALUE,
    "hipStreamSynchronize": INVALID_VALUE,
    "hipDeviceSynchronize": INVALID_VALUE,
    "hipStreamIsCapturing": INVALID_VALUE,
    "hipStreamBeginCapture": INVALID_VALUE,
    "hipStreamEndCapture": INVALID_VALUE,
    "hipGraphGetNodes": INVALID_VALUE,
    "hipGraphNodeGetType": INVALID_VALUE,
    "hipGraphInstantiateWithFlags": OUT_OF_MEMORY,
    "hipGraphLaunch": INVALID_VALUE,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_leaves_nothing_behind(call: str, machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    before, made = cleared(machine, device), machine.count(call)
    assert outcome(device) is None
    count = machine.count(call) - made
    assert count > 0, f"the life of a device has no {call}"
    expected = CapacityError if CALLS[call] == OUT_OF_MEMORY else BackendError
    for nth in range(1, count + 1):
        assert cleared(machine, device) == before
        machine.fail(call, CALLS[call], nth=nth)
        error = outcome(device)
        assert isinstance(error, expected), f"the {nth}th {call}: {error!r}"
        machine.recover()
    assert cleared(machine, device) == before
    assert outcome(device) is None


def test_a_compiler_that_fails_leaves_a_device_that_works(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    gpu = opened(device)
    wrong = KernelCall("wrong", "elementwise/elementwise:no_such_kernel<f32>", (1, 64), 4, launch=SHAPE)
    right = KernelCall("right", KERNEL, (1, 64), 4, launch=SHAPE)
    with pytest.raises(BackendError, match="no_such_kernel"):
        gpu.prepare([right, wrong])
    assert gpu.kernels.module_count == 0, "all are there or none is"
    gpu.prepare([right])


def test_a_kernel_that_fails_loses_the_device_and_the_next_error_says_so(
    machine: EmulatedGpu, device: _native.GpuDevice
) -> None:
    gpu = opened(device)
    buffer, stream = gpu.allocate(256), gpu.open_stream()
    table = gpu.make_table([double(buffer.address, "first"), double(buffer.address)], stream)
    graph = table.capture()
    uses = (
        table.finish,
        graph.enqueue,
        lambda: buffer.read(np.uint8, (1,)),
        lambda: buffer.fill(0),
        lambda: gpu.allocate(64),
        gpu.synchronize,
        table.capture,
    )
    machine.fail("kernel", LAUNCH_FAILURE)
    table.enqueue()
    for use in uses:
        with pytest.raises(BackendError, match="the device is lost to this process"):
            use()
    machine.recover()
    assert outcome(device) is None


def test_what_goes_while_the_device_is_lost_goes_quietly(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    gpu = opened(device)
    buffer, stream = gpu.allocate(256), gpu.open_stream()
    address = buffer.address
    table = gpu.make_table([double(address)], stream)
    machine.fail("kernel", LAUNCH_FAILURE)
    table.enqueue()
    with pytest.raises(BackendError, match="the device is lost"):
        table.finish()
    buffer.free()
    buffer.free()
    machine.recover()
    machine.forget(address)


def test_an_exception_in_a_capture_leaves_the_stream_and_the_table_as_they_were(
    machine: EmulatedGpu, device: _native.GpuDevice
) -> None:
    gpu = opened(device)
    buffer, stream = gpu.allocate(256), gpu.open_stream()
    buffer.write(np.ones(64, np.float32))
    table = gpu.make_table([double(buffer.address, f"n{i}") for i in range(4)], stream)
    machine.fail("hipModuleLaunchKernel", INVALID_VALUE, nth=3)
    with pytest.raises(BackendError) as caught:
        table.capture()
    assert caught.value.node == "n2"
    assert machine.count("live graphs") == 0
    graph = table.capture()
    assert graph.node_count == 4
    table.run()
    graph.enqueue()
    table.finish()
    assert (buffer.read(np.float32, (64,)) == 256).all()


def test_loading_and_allocating_are_refused_in_a_capture(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    gpu = opened(device)
    buffer, stream = gpu.allocate(256), gpu.open_stream()
    table = gpu.make_table([double(buffer.address)], stream)

    def submit() -> None:
        table.enqueue()
        for wrong in (
            lambda: gpu.allocate(64),
            lambda: gpu.make_table([double(buffer.address)], stream),
            lambda: buffer.window(stream),
            lambda: buffer.read(np.uint8, (1,)),
            lambda: gpu.make_launch(KernelCall("n", KERNEL, (1, 64), 4, launch=SHAPE)),
            gpu.open_stream,
            gpu.synchronize,
            table.finish,
            table.capture,
        ):
            with pytest.raises(LifecycleError, match="captur"):
                wrong()
        table.enqueue()

    assert _native.HipGraphExecutable.capture(stream, submit).node_count == 2


def test_two_threads_capture_and_replay_tables_of_one_device(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    gpu, both = opened(device), threading.Barrier(2)
    wrong: list[object] = []
    gpu.prepare([KernelCall("n", KERNEL, (1, 64), 4, launch=SHAPE)])

    def work(steps: int) -> None:
        try:
            buffer, stream = gpu.allocate(256), gpu.open_stream()
            table = gpu.make_table([double(buffer.address)] * steps, stream)
            for _ in range(10):
                buffer.write(np.ones(64, np.float32))
                both.wait()
                graph = table.capture()
                both.wait()
                graph.enqueue()
                table.finish()
                if graph.node_count != steps or not (buffer.read(np.float32, (64,)) == 2**steps).all():
                    wrong.append(steps)
        except BaseException as error:
            both.abort()
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(steps,)) for steps in (2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_share_kernels_and_launches(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    gpu, loads = opened(device), machine.count("hipModuleLoadData")
    wrong: list[object] = []
    launches = [gpu.make_launch(KernelCall("n", KERNEL, (1, 64), 4, launch=SHAPE))]

    def work(start: float) -> None:
        try:
            buffer, stream = gpu.allocate(256), gpu.open_stream()
            buffer.write(np.full(64, start, np.float32))
            for _ in range(5):
                launches[0].run(double(buffer.address).operands, stream)
            gpu.finish(stream)
            if not (buffer.read(np.float32, (64,)) == start * 32).all():
                wrong.append(start)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(float(start),)) for start in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert machine.count("hipModuleLoadData") == loads + 1


def test_a_thousand_runs_and_replays_leave_memory_flat(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    gpu = opened(device)
    buffer, stream = gpu.allocate(256), gpu.open_stream()
    window, table = buffer.window(stream), gpu.make_table([double(buffer.address)], stream)
    graph, before = table.capture(), live(machine)
    for index in range(1000):
        window.upload(0, 256)
        if index % 2:
            table.enqueue()
        else:
            graph.enqueue()
        window.download(0, 256)
        table.finish()
    assert live(machine) == before


def test_a_process_ends_well_with_a_live_device() -> None:
    for last in ("table", "graph", "window"):
        assert run_child("exit_with_live_device", last) == "6"


def test_the_child_of_a_fork_is_told_at_once_by_a_device() -> None:
    assert run_child("fork_with_a_device") == "5", "each of five uses raised its typed error"
