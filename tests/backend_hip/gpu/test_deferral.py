"""Scopes that hold freed memory and that route work, a test for each sentence of their contracts."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.ir.errors import BackendError, ConfigError, LifecycleError
from tests.backend_hip.gpu.machine import LAUNCH_FAILURE, Memory, kernels

Deferred = _native.DeferredHipDeallocationScope
Routed = _native.ScopedDeferredHipStream


def chain(device: _native.GpuDevice, operations: int) -> int:
    """A chain of operations on four floats: each result replaces the one before, whose memory goes. Returns the last one's address."""
    address = device.allocate(16)
    for _ in range(operations - 1):
        following = device.allocate(16)
        device.free(address)
        address = following
    return address


def test_freed_memory_is_held_until_the_scope_finishes(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    reserved = device.counters.reserved_bytes
    with Deferred(stream, 16) as scope:
        last = chain(device, 8)
        found = scope.counters
        assert (found.pending_blocks, found.pending_bytes, found.flushes) == (7, 7 * 4 * 4, 0)
        assert device.counters.pending_bytes == 112
        assert device.counters.reserved_bytes == reserved + 8 * 16
        syncs, frees = machine.count("hipStreamSynchronize"), machine.count("hipFree")
        scope.finish()
        assert machine.count("hipStreamSynchronize") == syncs + 1, "one wait for the stream"
        assert machine.count("hipFree") == frees + 7
        assert (scope.counters.pending_blocks, scope.counters.total_blocks, scope.counters.total_bytes) == (0, 7, 112)
    device.free(last)
    assert device.counters.reserved_bytes == reserved


def test_a_full_table_waits_frees_everything_and_goes_on(device: _native.GpuDevice, stream: _native.Stream) -> None:
    with Deferred(stream, 2) as scope:
        last = chain(device, 7)
        found = scope.counters
        assert (found.total_blocks, found.flushes) == (6, 2)
        assert found.pending_blocks <= 2
    device.free(last)


def test_work_under_way_may_use_what_was_freed(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    machine.seed(7, eagerness=0)
    with Deferred(stream, 4):
        memory = Memory(device, np.zeros(8, np.float32))
        kernels(0).increment(memory, stream)
        memory.free()
    assert not machine.problem


def test_the_logical_peak_falls_while_memory_is_held(device: _native.GpuDevice, stream: _native.Stream) -> None:
    before = device.counters
    with Deferred(stream, 4) as scope:
        device.free(device.allocate(4096))
        after = device.counters
        assert after.current_bytes == before.current_bytes
        assert after.reserved_bytes == before.reserved_bytes + 4096
        assert scope.counters.pending_bytes == after.pending_bytes == 4096


def test_the_scope_chooses_no_stream_for_work(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    machine.seed(4, eagerness=0)
    memory = Memory(device, np.zeros(8, np.float32))
    with Deferred(stream, 4):
        kernels(0).increment(memory)
        assert stream.done, "the work is on the default stream"
    assert (memory.read() == 1).all()


def test_memory_of_another_device_is_not_held(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    other = machine.gpu.device(1)
    with Deferred(stream, 4) as scope:
        other.free(other.allocate(64))
        assert scope.counters.total_blocks == 0


def test_memory_freed_by_another_thread_is_not_held(device: _native.GpuDevice, stream: _native.Stream) -> None:
    address = device.allocate(64)
    with Deferred(stream, 4) as scope:
        thread = threading.Thread(target=device.free, args=(address,))
        thread.start()
        thread.join()
        assert scope.counters.total_blocks == 0


@pytest.mark.parametrize("kind", [Deferred, Routed])
def test_scopes_are_refused_for_the_cpu_without_room_nested_copied_and_moved(
    kind: Callable[[_native.Stream, int], object], device: _native.GpuDevice, stream: _native.Stream
) -> None:
    with pytest.raises(ConfigError, match="stream of a GPU"):
        kind(_native.Stream(None), 4)
    with pytest.raises(ConfigError, match="at least one block"):
        kind(stream, 0)
    scope = kind(stream, 4)
    with pytest.raises(LifecycleError, match="do not nest"):
        kind(stream, 4)
    with pytest.raises(LifecycleError, match="cannot be copied"):
        copy.copy(scope)
    assert not hasattr(scope, "move")
    del scope
    gc.collect()
    kind(stream, 4)


def test_another_thread_may_have_its_own_scope(device: _native.GpuDevice, stream: _native.Stream) -> None:
    found: list[int] = []

    def work() -> None:
        other = _native.Stream(device)
        with Deferred(other, 4) as scope:
            device.free(device.allocate(64))
            found.append(scope.counters.total_blocks)

    with Deferred(stream, 4) as scope:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert scope.counters.total_blocks == 0
    assert found == [1]


def test_finish_may_be_called_again_and_belongs_to_its_thread(
    device: _native.GpuDevice, stream: _native.Stream, machine: EmulatedGpu
) -> None:
    scope, errors = Deferred(stream, 4), []

    def finish() -> None:
        try:
            scope.finish()
        except LifecycleError as error:
            errors.append(str(error))

    thread = threading.Thread(target=finish)
    thread.start()
    thread.join()
    assert "the thread that opened it" in errors[0]
    scope.finish()
    syncs = machine.count("hipStreamSynchronize")
    scope.finish()
    assert machine.count("hipStreamSynchronize") == syncs
    device.free(device.allocate(64))
    assert scope.counters.total_blocks == 0, "a finished scope holds nothing any more"


def test_a_failed_free_is_reported_at_finish_after_all_were_tried(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    scope = Deferred(stream, 8)
    addresses = [device.allocate(64) for _ in range(3)]
    for address in addresses:
        device.free(address)
    machine.fail("hipFree", 1, nth=2)
    frees = machine.count("hipFree")
    with pytest.raises(BackendError, match="freeing deferred memory"):
        scope.finish()
    assert machine.count("hipFree") == frees + 3
    machine.forget(addresses[1])


def test_a_scope_that_is_dropped_finishes_quietly(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    scope = Deferred(stream, 4)
    device.free(device.allocate(64))
    machine.fail("hipStreamSynchronize", LAUNCH_FAILURE)
    del scope
    gc.collect()
    assert device.counters.pending_bytes == 0


def test_a_scope_in_a_capture_holds_nothing_itself(
    device: _native.GpuDevice, stream: _native.Stream, machine: EmulatedGpu
) -> None:
    memory, address = Memory(device, np.zeros(8, np.float32)), device.allocate(64)

    def submit() -> None:
        scope = Deferred(stream, 1)
        device.free(address)
        kernels(0).increment(memory, stream)
        with pytest.raises(LifecycleError, match="when the capture is over"):
            scope.finish()

    assert _native.HipGraphExecutable.capture(stream, submit).node_count == 1


def test_work_that_names_no_stream_goes_to_the_routed_one(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    memory = Memory(device, np.zeros(8, np.float32))
    machine.seed(3, eagerness=0)
    with Routed(stream, 4):
        kernels(0).increment(memory)
        _native.copy_async(memory.address, device, memory.address + 16, device, 16)
        _native.fill_async(memory.address, device, 0, 4)
        assert not stream.done, "the work is on the stream"
        stream.synchronize()
        assert stream.done


def test_operators_strided_copies_and_vendor_products_are_routed(device: _native.GpuDevice) -> None:
    """A capture sees what goes to its stream, and the default stream would spoil it."""
    stream = _native.Stream(device)
    memory = Memory(device, np.zeros(16, np.float32))
    problem = _native.GemmProblem(2, 2, 2, ("f32", "f32", "f32", "f32"), (2, 2, 2, 2))
    choice = _native.gemm_choices(device, problem, 0)[0]

    def product() -> None:
        _native.gemm(device, problem, choice, memory.address, memory.address, memory.address + 32, memory.address + 32)

    product()
    device.synchronize()

    def submit() -> None:
        scope = Routed(stream, 4)
        kernels(0).increment(memory)
        product()
        with pytest.raises(LifecycleError, match="when the capture is over"):
            scope.finish()

    assert _native.HipGraphExecutable.capture(stream, submit).node_count == 2


def test_another_explicit_stream_is_refused_while_work_is_routed(
    device: _native.GpuDevice, stream: _native.Stream, machine: EmulatedGpu
) -> None:
    memory, other = Memory(device, np.zeros(8, np.float32)), _native.Stream(device)
    elsewhere = machine.gpu.device(1)
    far = Memory(elsewhere, np.zeros(8, np.float32))
    with Routed(stream, 4):
        kernels(0).increment(memory, stream)
        with pytest.raises(LifecycleError, match="another stream"):
            kernels(0).increment(memory, other)
        with pytest.raises(ConfigError, match="stream of another device"):
            kernels(1).increment(far)
    kernels(0).increment(memory, other)
    kernels(1).increment(far)


def test_routing_is_the_thread_s_own(machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream) -> None:
    memory, other = Memory(device, np.zeros(8, np.float32)), _native.Stream(device)
    with Routed(stream, 4):
        thread = threading.Thread(target=kernels(0).increment, args=(memory, other))
        thread.start()
        thread.join()
    device.synchronize()
    assert (memory.read() == 1).all()


def test_finishing_ends_the_routing_first_and_then_drains(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    other = _native.Stream(device)
    memory = Memory(device, np.zeros(8, np.float32))
    scope = Routed(stream, 4)
    device.free(device.allocate(64))
    assert scope.counters.pending_blocks == 1
    machine.fail("hipStreamSynchronize", 1)
    with pytest.raises(BackendError, match="freeing deferred memory"):
        scope.finish()
    assert scope.counters.pending_blocks == 0
    kernels(0).increment(memory, other)  # not refused: the routing was over before the drain failed
    scope.finish()
