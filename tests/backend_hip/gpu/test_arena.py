"""Activation arenas and stream-ordered buffers, a test for each sentence of their contracts."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.ir.errors import BackendError, CapacityError, ConfigError, LifecycleError
from tests.backend_hip.gpu.machine import OUT_OF_MEMORY, kernels

Arena = _native.HipActivationArena
Buffer = _native.StreamOrderedHipBuffer


def test_an_arena_is_one_allocation_at_one_address(device: _native.GpuDevice, stream: _native.Stream) -> None:
    before = device.counters
    arena = Arena(stream, 1 << 16)
    after = device.counters
    assert after.backend_allocations == before.backend_allocations + 1
    assert after.reserved_bytes == before.reserved_bytes + (1 << 16)
    assert arena.capacity_bytes == 1 << 16
    address = arena.address
    arena.allocate_slice(100)
    arena.reset_plan()
    assert arena.address == address
    with pytest.raises(LifecycleError, match="cannot be copied"):
        copy.copy(arena)
    assert not hasattr(arena, "move")


def test_an_arena_of_the_cpu_or_of_no_capacity_is_refused(stream: _native.Stream) -> None:
    with pytest.raises(ConfigError, match="stream of a GPU"):
        Arena(_native.Stream(None), 64)
    with pytest.raises(ConfigError, match="at least one byte"):
        Arena(stream, 0)


def test_slices_follow_each_other_at_their_alignment(stream: _native.Stream) -> None:
    arena = Arena(stream, 4096)
    first, second, third = arena.allocate_slice(100), arena.allocate_slice(10), arena.allocate_slice(4, alignment=8)
    assert (first, second, third) == (arena.address, arena.address + 256, arena.address + 272)
    assert arena.planned_bytes == 276
    assert all(address % alignment == 0 for address, alignment in ((first, 256), (second, 256), (third, 8)))


def test_a_slice_of_no_bytes_or_another_alignment_than_a_power_of_two_is_refused(stream: _native.Stream) -> None:
    arena = Arena(stream, 4096)
    with pytest.raises(ConfigError, match="at least one byte"):
        arena.allocate_slice(0)
    for alignment in (0, 3, 48):
        with pytest.raises(ConfigError, match="power of two"):
            arena.allocate_slice(4, alignment)
    assert arena.planned_bytes == 0


def test_a_slice_beyond_the_capacity_leaves_the_cursor(stream: _native.Stream) -> None:
    arena = Arena(stream, 1000)
    arena.allocate_slice(700)
    for nbytes in (301, 1000, 2**64 - 1, 2**64 - 800):
        with pytest.raises(CapacityError, match="does not fit"):
            arena.allocate_slice(nbytes, 1)
    with pytest.raises(CapacityError, match="does not fit"):
        arena.allocate_slice(1, 1 << 62)
    assert arena.planned_bytes == 700
    assert arena.allocate_slice(300, 1) == arena.address + 700
    assert arena.planned_bytes == 1000


def test_resetting_the_plan_only_rewinds_the_cursor(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    arena = Arena(stream, 4096)
    slice_ = arena.allocate_slice(32)
    _native.fill_async(slice_, device, 0, 32, stream)
    syncs = machine.count("hipStreamSynchronize")
    arena.reset_plan()
    assert machine.count("hipStreamSynchronize") == syncs, "the device is not asked"
    assert arena.planned_bytes == 0
    assert arena.allocate_slice(32) == slice_


def test_an_arena_waits_for_its_stream_before_it_goes(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    machine.seed(11, eagerness=0)
    arena = Arena(stream, 64)
    kernels(0).run(kernels(0).add_one, [arena.allocate_slice(32), 8], stream)
    assert not stream.done
    del arena
    assert stream.done
    assert not machine.problem, "the kernel ran before the memory went"


def test_an_arena_that_does_not_fit_is_refused(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    with pytest.raises(CapacityError, match="no room"):
        Arena(stream, 1 << 40)
    machine.fail("hipMalloc", OUT_OF_MEMORY)
    with pytest.raises(CapacityError, match="no room"):
        Arena(stream, 64)


def test_a_stream_ordered_buffer_is_allocated_and_freed_in_the_order_of_its_stream(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    machine.seed(2, eagerness=0)
    host = np.zeros(8, np.float32)
    buffer = Buffer(stream, 32)
    assert buffer.nbytes == 32
    _native.fill_async(buffer.address, device, 0, 32, stream)
    kernels(0).run(kernels(0).add_one, [buffer.address, 8], stream)
    _native.copy_async(host.ctypes.data, None, buffer.address, device, 32, stream)
    del buffer  # freed behind the work that uses it
    stream.synchronize()
    assert (host == 1).all()
    assert not machine.problem


def test_a_stream_ordered_buffer_needs_bytes_and_a_stream_of_a_gpu(
    device: _native.GpuDevice, stream: _native.Stream
) -> None:
    with pytest.raises(ConfigError, match="at least one byte"):
        Buffer(stream, 0)
    with pytest.raises(ConfigError, match="stream of a GPU"):
        Buffer(_native.Stream(None), 64)
    with pytest.raises(ConfigError, match="not the default one"):
        Buffer(_native.Stream.external(device, 0), 64)
    with pytest.raises(LifecycleError, match="cannot be copied"):
        copy.copy(Buffer(stream, 64))


def test_stream_ordered_memory_is_no_ordinary_storage(device: _native.GpuDevice, stream: _native.Stream) -> None:
    before = device.counters
    buffer = Buffer(stream, 64)
    after = device.counters
    assert (after.allocations, after.reserved_bytes) == (before.allocations, before.reserved_bytes)
    with pytest.raises(ConfigError, match="not allocated from this device"):
        device.free(buffer.address)
    buffer.release()
    buffer.release()
    assert buffer.address == 0


def test_the_default_pool_tells_its_use_keeps_to_a_threshold_and_is_trimmed(
    device: _native.GpuDevice, stream: _native.Stream
) -> None:
    assert Buffer.supported(device)
    Buffer.trim(device)
    start = Buffer.usage(device)
    buffer = Buffer(stream, 4096)
    used = Buffer.usage(device)
    assert used["used"] == start["used"] + 4096
    assert used["used_high"] >= used["used"]
    assert used["reserved"] >= used["used"]
    assert used["reserved_high"] >= used["reserved"]
    buffer.release()
    stream.synchronize()
    assert Buffer.usage(device)["used"] == start["used"]
    assert Buffer.usage(device)["reserved"] >= 4096
    Buffer.trim(device)
    assert Buffer.usage(device)["reserved"] == start["used"]
    Buffer.set_release_threshold(device, 1 << 20)
    assert Buffer.usage(device)["release_threshold"] == 1 << 20
    Buffer.set_release_threshold(device, 0)


def test_a_stream_outlives_its_buffers_and_arenas(device: _native.GpuDevice, machine: EmulatedGpu) -> None:
    stream = _native.Stream(device)
    streams = machine.count("live streams")
    buffer, arena = Buffer(stream, 64), Arena(stream, 64)
    del stream
    assert machine.count("live streams") == streams, "kept by what uses it"
    del buffer, arena
    assert machine.count("live streams") == streams - 1


def test_a_refused_stream_ordered_allocation_is_an_error(machine: EmulatedGpu, stream: _native.Stream) -> None:
    machine.fail("hipMallocAsync", OUT_OF_MEMORY)
    with pytest.raises(CapacityError, match="stream-ordered buffer of 64 bytes"):
        Buffer(stream, 64)
    machine.fail("hipFreeAsync", 1)
    buffer = Buffer(stream, 64)
    address = buffer.address
    with pytest.raises(BackendError, match="freeing a stream-ordered buffer"):
        buffer.release()
    machine.forget(address)
