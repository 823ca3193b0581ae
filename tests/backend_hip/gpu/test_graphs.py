"""Captured graphs: a test for each sentence of `HipGraphExecutable`'s contract, what is read back of a graph, and faults at every step of a capture."""

from __future__ import annotations

import copy
import functools
import struct
import threading
from collections.abc import Callable

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.ir.errors import BackendError, CapacityError, ConfigError, LifecycleError
from tests.backend_hip.gpu.child import run_child
from tests.backend_hip.gpu.machine import CAPTURE_INVALIDATED, OUT_OF_MEMORY, Kernels, Memory, kernels

capture = _native.HipGraphExecutable.capture


@pytest.fixture
def memory(device: _native.GpuDevice) -> Memory:
    return Memory(device, np.arange(8, dtype=np.float32))


def steps(memory: Memory, stream: _native.Stream, count: int) -> Callable[[], None]:
    def submit() -> None:
        for _ in range(count):
            kernels(0).increment(memory, stream)

    return submit


def test_a_capture_without_a_callback_is_refused(stream: _native.Stream) -> None:
    with pytest.raises(ConfigError, match="needs a callback"):
        capture(stream, None)


def test_a_stream_of_the_cpu_captures_nothing() -> None:
    with pytest.raises(BackendError, match="CPU captures nothing"):
        capture(_native.Stream(None), lambda: None)


def test_a_callback_that_submits_nothing_is_refused(stream: _native.Stream, machine: EmulatedGpu) -> None:
    with pytest.raises(ConfigError, match="no device nodes"):
        capture(stream, lambda: None)
    assert machine.count("live graphs") == 0


def test_a_callback_that_fails_leaves_a_stream_that_captures(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, memory: Memory
) -> None:
    class Mine(Exception):
        pass

    def fails() -> None:
        kernels(0).increment(memory, stream)
        raise Mine

    with pytest.raises(Mine):
        capture(stream, fails)
    with pytest.raises(LifecycleError, match="while this thread captures"):
        capture(stream, lambda: device.allocate(64))
    assert machine.count("live graphs") == 0
    assert capture(stream, steps(memory, stream, 2)).node_count == 2
    kernels(0).increment(memory, stream)
    stream.synchronize()
    assert (memory.read() == np.arange(8) + 1).all(), "nothing of the abandoned captures ran"


def test_the_capture_is_local_to_its_thread(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, memory: Memory
) -> None:
    refused: list[str] = []

    def elsewhere() -> None:
        device.free(device.allocate(1 << 16))
        try:
            device.synchronize()  # would spoil the capture, which waits for this thread
        except LifecycleError as error:
            refused.append(error.message)

    def submit() -> None:
        kernels(0).increment(memory, stream)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        kernels(0).increment(memory, stream)

    assert capture(stream, submit).node_count == 2
    assert "another thread captures" in refused[0]


def test_two_threads_capture_on_two_streams(device: _native.GpuDevice, memory: Memory) -> None:
    both, counts = threading.Barrier(2), {}

    def submit(number: int) -> None:
        stream = _native.Stream(device, non_blocking=True)

        def work() -> None:
            both.wait()
            steps(memory, stream, number)()
            both.wait()

        counts[number] = capture(stream, work).node_count

    threads = [threading.Thread(target=submit, args=(number,)) for number in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {1: 1, 3: 3}


def test_a_graph_is_instantiated_once_and_its_template_destroyed(
    machine: EmulatedGpu, stream: _native.Stream, memory: Memory
) -> None:
    before, executables = machine.count("hipGraphInstantiateWithFlags"), machine.count("live executables")
    graph = capture(stream, steps(memory, stream, 3))
    for _ in range(4):
        graph.launch(stream)
    stream.synchronize()
    assert machine.count("hipGraphInstantiateWithFlags") == before + 1
    assert machine.count("live graphs") == 0
    assert graph.node_count == 3
    assert machine.count("live executables") == executables + 1
    del graph
    assert machine.count("live executables") == executables


def test_a_graph_is_moved_and_not_copied(stream: _native.Stream, memory: Memory) -> None:
    graph = capture(stream, steps(memory, stream, 1))
    with pytest.raises(LifecycleError, match="cannot be copied"):
        copy.deepcopy(graph)
    moved = graph.move()
    assert moved.defined
    assert not graph.defined
    assert moved.node_count == 1


def test_an_undefined_graph_refuses_everything(stream: _native.Stream, memory: Memory) -> None:
    graph = capture(stream, steps(memory, stream, 1))
    graph.release()
    graph.release()
    uses: tuple[Callable[[], object], ...] = (
        lambda: graph.device,
        lambda: graph.node_count,
        lambda: graph.launch(stream),
    )
    for use in uses:
        with pytest.raises(LifecycleError, match="undefined"):
            use()


def test_a_launch_on_a_stream_of_another_device_is_refused(
    machine: EmulatedGpu, stream: _native.Stream, memory: Memory
) -> None:
    graph = capture(stream, steps(memory, stream, 1))
    for other in (_native.Stream(machine.gpu.device(1)), _native.Stream(None)):
        with pytest.raises(ConfigError, match="of another one"):
            graph.launch(other)


def test_replays_see_what_is_in_memory_and_copy_nothing(
    machine: EmulatedGpu, stream: _native.Stream, memory: Memory
) -> None:
    graph = capture(stream, steps(memory, stream, 2))
    for value in (3, 50, -7):
        memory.write(np.full(8, value, np.float32))
        before = [machine.count(f"copies {kind}") for kind in range(4)]
        graph.launch(stream)
        stream.synchronize()
        assert [machine.count(f"copies {kind}") for kind in range(4)] == before
        assert (memory.read() == value + 2).all()


def test_a_graph_keeps_nothing_alive(machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream) -> None:
    memory = Memory(device, np.zeros(8, np.float32))
    before = device.counters.current_bytes
    graph = capture(stream, steps(memory, stream, 1))
    memory.free()
    assert device.counters.current_bytes == before - 32
    graph.launch(stream)
    with pytest.raises(BackendError, match="IllegalAddress"):
        stream.synchronize()
    machine.recover()


def test_streams_join_a_capture_by_events_and_the_graph_has_their_order(
    device: _native.GpuDevice, stream: _native.Stream, memory: Memory
) -> None:
    other, fork, join = _native.Stream(device), _native.Event(device), _native.Event(device)

    def submit() -> None:
        kernels(0).increment(memory, stream)
        fork.record(stream)
        fork.wait(other)
        _native.fill_async(memory.address, device, 0, 4, other)
        kernels(0).increment(memory, stream)
        join.record(other)
        join.wait(stream)
        kernels(0).increment(memory, stream)

    graph = capture(stream, submit, record=True)
    assert [node.type for node in graph.nodes] == ["kernel", "fill", "kernel", "kernel"]
    assert graph.edges == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_a_stream_that_does_not_come_back_spoils_the_capture(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, memory: Memory
) -> None:
    other, fork = _native.Stream(device), _native.Event(device)

    def submit() -> None:
        kernels(0).increment(memory, stream)
        fork.record(stream)
        fork.wait(other)
        kernels(0).increment(memory, other)

    with pytest.raises(BackendError, match="Unjoined"):
        capture(stream, submit)
    assert capture(stream, steps(memory, stream, 1)).node_count == 1


def test_nodes_are_read_back_with_their_parameters(
    device: _native.GpuDevice, stream: _native.Stream, memory: Memory
) -> None:
    other = Memory(device, np.ones(8, np.float32))

    def submit() -> None:
        Kernels.run(kernels(0).axpy, [other.address, memory.address, 0.5, 8], stream)
        _native.copy_async(other.address, device, memory.address, device, 12, stream)
        _native.fill_async(memory.address, device, 0x3F, 16, stream)

    kernel, copied, fill = capture(stream, submit, record=True).nodes
    assert (kernel.type, kernel.function, kernel.grid, kernel.block) == (
        "kernel",
        kernels(0).axpy.handle,
        (1, 1, 1),
        (64, 1, 1),
    )
    assert kernel.arguments is not None
    assert b"".join(kernel.arguments) == struct.pack("<QQdq", other.address, memory.address, 0.5, 8)
    assert (copied.type, copied.to, copied.source, copied.nbytes) == ("copy", other.address, memory.address, 12)
    assert (fill.type, fill.to, fill.nbytes, fill.value) == ("fill", memory.address, 16, 0x3F)
    with pytest.raises(LifecycleError, match="record=True"):
        _ = capture(stream, submit).nodes


def test_types_of_nodes_are_understood_in_the_older_numbering() -> None:
    """HIP up to 5.2 counts them from 1; the adaptor asks once a process, hence a process of its own."""
    assert run_child("older_node_types") == "kernel copy fill"


def test_an_update_changes_parameters_and_refuses_another_topology(
    stream: _native.Stream, memory: Memory, device: _native.GpuDevice
) -> None:
    other = Memory(device, np.zeros(8, np.float32))
    graph = capture(stream, steps(memory, stream, 2))
    assert graph.update(stream, steps(other, stream, 2))
    graph.launch(stream)
    stream.synchronize()
    assert (other.read() == 2).all()
    assert (memory.read() == np.arange(8)).all()
    assert not graph.update(stream, steps(memory, stream, 3))
    graph.launch(stream)
    stream.synchronize()
    assert (other.read() == 4).all(), "as it was before the refused update"


def test_captures_do_not_nest(device: _native.GpuDevice, stream: _native.Stream, memory: Memory) -> None:
    inner = _native.Stream(device)

    def submit() -> None:
        kernels(0).increment(memory, stream)
        capture(inner, steps(memory, inner, 1))

    with pytest.raises(LifecycleError, match="captures do not nest"):
        capture(stream, submit)


def test_a_stream_that_somebody_else_captures_on_is_refused(
    machine: EmulatedGpu, stream: _native.Stream, memory: Memory
) -> None:
    assert "captures already, for somebody else" in run_child("foreign_capture")


ILLEGAL: dict[str, Callable[[_native.GpuDevice, _native.Stream, _native.Event, _native.HipGraphExecutable], object]] = {
    "wait for the stream": lambda device, stream, event, graph: stream.synchronize(),
    "wait for the device": lambda device, stream, event, graph: device.synchronize(),
    "hand off": lambda device, stream, event, graph: device.hand_off(),
    "ask the stream": lambda device, stream, event, graph: stream.done,
    "ask an event": lambda device, stream, event, graph: event.ready,
    "wait for an event": lambda device, stream, event, graph: event.synchronize(),
    "make a stream": lambda device, stream, event, graph: _native.Stream(device),
    "launch a graph": lambda device, stream, event, graph: graph.launch(stream),
    "stream-ordered memory": lambda device, stream, event, graph: _native.StreamOrderedHipBuffer(stream, 64),
    "an arena": lambda device, stream, event, graph: _native.HipActivationArena(stream, 64),
    "load kernels": lambda device, stream, event, graph: _native.GpuModule(device, b"code"),
    "make a vendor handle": lambda device, stream, event, graph: _fresh_handle(device),
}


def _fresh_handle(device: _native.GpuDevice) -> None:
    if _native.vendor_is_warm(device):
        raise LifecycleError("captures already (this thread has its handle)")
    _native.warm_vendor(device)


@pytest.mark.parametrize("name", ILLEGAL)
def test_calls_that_a_capture_forbids_are_refused_before_the_driver_sees_them(
    name: str, device: _native.GpuDevice, stream: _native.Stream, memory: Memory
) -> None:
    event, graph = _native.Event(device), capture(stream, steps(memory, stream, 1))
    event.record(stream)
    stream.synchronize()

    def submit() -> None:
        kernels(0).increment(memory, stream)
        with pytest.raises(LifecycleError, match="captur"):
            ILLEGAL[name](device, stream, event, graph)
        kernels(0).increment(memory, stream)

    assert capture(stream, submit).node_count == 2, "the capture is intact: nothing reached the driver"


def test_memory_that_is_freed_in_a_capture_is_held_until_it_is_over(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, memory: Memory
) -> None:
    address, seen = device.allocate(4096), []

    def submit() -> None:
        kernels(0).increment(memory, stream)
        frees = machine.count("hipFree")
        device.free(address)
        seen.append((machine.count("hipFree") - frees, device.counters.pending_bytes))

    graph = capture(stream, submit)
    assert graph.node_count == 1
    assert seen == [(0, 4096)]
    assert device.counters.pending_bytes == 0


def test_what_a_collector_drops_in_a_capture_goes_when_it_is_over(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, memory: Memory
) -> None:
    """Modules, arenas, stream-ordered buffers and scopes may lose their last reference at any moment."""
    own = _native.Stream(device)
    code = machine.gpu.compile("KERNEL(empty, 64, (float*), ((void)0))", "empty.hip", ["--offload-arch=gfx942"])
    dropped: list[object] = [
        _native.GpuModule(device, code),
        _native.HipActivationArena(own, 4096),
        _native.StreamOrderedHipBuffer(stream, 64),
        _native.DeferredHipDeallocationScope(own, 4),
    ]
    held = device.allocate(256)

    def submit() -> None:
        kernels(0).increment(memory, stream)
        device.free(held)
        calls = ("hipModuleUnload", "hipFree", "hipFreeAsync", "hipStreamSynchronize")
        before = [machine.count(call) for call in calls]
        while dropped:
            dropped.pop()
        assert [machine.count(call) for call in calls] == before
        kernels(0).increment(memory, stream)

    assert capture(stream, submit).node_count == 2
    assert device.counters.pending_bytes == 0


@pytest.mark.parametrize(
    "call",
    [
        "hipStreamBeginCapture",
        "hipStreamEndCapture",
        "hipGraphInstantiateWithFlags",
        "hipModuleLaunchKernel",
        "hipGraphGetNodes",
    ],
)
def test_a_fault_at_any_step_leaves_a_stream_that_captures(
    call: str, machine: EmulatedGpu, stream: _native.Stream, memory: Memory
) -> None:
    executables = machine.count("live executables")
    machine.fail(call, CAPTURE_INVALIDATED)
    with pytest.raises(BackendError, match="Invalidated"):
        capture(stream, steps(memory, stream, 2))
    assert machine.count("live graphs") == 0
    assert machine.count("live executables") == executables
    assert not _native.capturing()
    kernels(0).increment(memory, stream)
    assert capture(stream, steps(memory, stream, 2)).node_count == 2


def test_no_room_for_the_graph_is_no_room_and_not_an_invalid_capture(
    machine: EmulatedGpu, stream: _native.Stream, memory: Memory
) -> None:
    machine.fail("hipGraphInstantiateWithFlags", OUT_OF_MEMORY)
    with pytest.raises(CapacityError, match="instantiating a graph of 2 nodes"):
        capture(stream, steps(memory, stream, 2))
    assert capture(stream, steps(memory, stream, 2)).node_count == 2


def test_a_thousand_replays_leave_memory_flat(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream, memory: Memory
) -> None:
    graph = capture(stream, steps(memory, stream, 2))
    before = device.memory_info
    for i in range(1000):
        graph.launch(stream)
        if i % 100 == 0:
            stream.synchronize()
    stream.synchronize()
    assert device.memory_info == before
    assert (memory.read() == np.arange(8) + 2000).all()


def test_both_graphs_of_two_devices_replay(machine: EmulatedGpu) -> None:
    made = []
    for index in range(2):
        device = machine.gpu.device(index)
        memory, stream = Memory(device, np.zeros(4, np.float32)), _native.Stream(device)
        made.append((memory, stream, capture(stream, functools.partial(kernels(index).increment, memory, stream))))
    for count in (1, 2):
        for _, stream, graph in made:
            graph.launch(stream)
            stream.synchronize()
        assert all((memory.read() == count).all() for memory, _, _ in made)
