"""Allocation accounting and the exact-size pool, a test for each sentence of their contract."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.ir.errors import BackendError, CapacityError, ConfigError, LifecycleError
from tests.backend_hip.gpu.machine import OUT_OF_MEMORY, Memory, kernels

FIELDS = (
    "current_bytes",
    "total_bytes",
    "cached_bytes",
    "pending_bytes",
    "reserved_bytes",
    "allocations",
    "deallocations",
    "backend_allocations",
    "backend_deallocations",
    "reuses",
    "handoffs",
)


def changes(device: _native.GpuDevice, work: Callable[[], object]) -> dict[str, int]:
    """What `work` adds to the counters, those that do not move left out."""
    before = device.counters
    work()
    after = device.counters
    return {
        field: getattr(after, field) - getattr(before, field)
        for field in FIELDS
        if getattr(after, field) != getattr(before, field)
    }


def allocate_and_free(device: _native.GpuDevice, nbytes: int, times: int = 1, rounds: int = 1) -> None:
    for _ in range(rounds):
        for address in [device.allocate(nbytes) for _ in range(times)]:
            device.free(address)


def test_counters_follow_an_allocation_and_its_end(device: _native.GpuDevice) -> None:
    addresses: list[int] = []
    made = changes(device, lambda: addresses.append(device.allocate(1000)))
    assert made == {
        "current_bytes": 1000,
        "total_bytes": 1000,
        "reserved_bytes": 1000,
        "allocations": 1,
        "backend_allocations": 1,
    }
    assert device.counters.peak_bytes >= device.counters.current_bytes
    freed = changes(device, lambda: device.free(addresses[0]))
    assert freed == {"current_bytes": -1000, "reserved_bytes": -1000, "deallocations": 1, "backend_deallocations": 1}


def test_the_counters_are_what_the_backend_saw(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    held = [device.allocate(nbytes) for nbytes in (1, 300, 4096)]
    assert machine.count("live bytes") == sum(machine.gpu.device(i).counters.reserved_bytes for i in range(2))
    for address in held:
        device.free(address)


def test_resetting_the_peak_keeps_what_is_current(device: _native.GpuDevice) -> None:
    held = device.allocate(256)
    allocate_and_free(device, 1 << 20)
    before = device.counters
    device.reset_peak()
    after = device.counters
    assert before.peak_bytes > before.current_bytes
    assert after.peak_bytes == after.current_bytes == before.current_bytes
    device.free(held)


def test_no_bytes_are_no_allocation(device: _native.GpuDevice) -> None:
    assert changes(device, lambda: device.free(device.allocate(0))) == {}


def test_two_allocations_one_after_the_other_are_one_of_the_backend_and_one_reuse(device: _native.GpuDevice) -> None:
    device.pool_enabled = True
    found = changes(device, lambda: allocate_and_free(device, 4096, rounds=2))
    assert (found["backend_allocations"], found["reuses"]) == (1, 1)
    assert found["cached_bytes"] == 4096
    assert "backend_deallocations" not in found


def test_sixteen_and_sixteen_blocks_are_sixteen_of_the_backend_and_sixteen_reuses(device: _native.GpuDevice) -> None:
    device.pool_enabled = True
    found = changes(device, lambda: allocate_and_free(device, 4096, times=16, rounds=2))
    assert (found["allocations"], found["backend_allocations"], found["reuses"]) == (32, 16, 16)


def test_the_pool_is_exact_about_size_and_last_in_first_out(device: _native.GpuDevice) -> None:
    device.pool_enabled = True
    first, second = device.allocate(512), device.allocate(512)
    device.free(first)
    device.free(second)
    other = device.allocate(511)
    assert other not in (first, second)
    assert [device.allocate(512), device.allocate(512)] == [second, first]
    for address in (first, second, other):
        device.free(address)


def test_the_pool_keeps_no_more_than_its_capacity(device: _native.GpuDevice) -> None:
    assert device.pool_capacity == 8 << 30
    device.pool_enabled, device.pool_capacity = True, 10_000
    allocate_and_free(device, 4096, times=3)
    assert device.counters.cached_bytes == 8192
    allocate_and_free(device, 20_000)
    assert device.counters.cached_bytes == 8192, "a block that does not fit goes back"
    device.pool_capacity = 8 << 30


def test_the_pool_lives_as_long_as_the_process(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    device.pool_enabled = True
    address = device.allocate(4096)
    device.free(address)
    again = machine.gpu.device(0)
    assert again.allocate(4096) == address
    again.free(address)


def test_pools_of_two_devices_know_nothing_of_each_other(machine: EmulatedGpu) -> None:
    first, second = machine.gpu.device(0), machine.gpu.device(1)
    first.pool_enabled = second.pool_enabled = True
    allocate_and_free(first, 4096)
    assert changes(second, lambda: allocate_and_free(second, 4096))["backend_allocations"] == 1


def test_without_a_pool_nothing_is_kept(device: _native.GpuDevice) -> None:
    found = changes(device, lambda: allocate_and_free(device, 4096, rounds=2))
    assert (found["backend_allocations"], found["backend_deallocations"]) == (2, 2)


def test_after_a_stream_exists_nothing_is_reused(device: _native.GpuDevice) -> None:
    device.pool_enabled = True
    _native.Stream(device)
    found = changes(device, lambda: allocate_and_free(device, 4096, rounds=2))
    assert found["backend_allocations"] == 2
    assert "reuses" not in found


def test_enabling_the_pool_while_it_is_banned_is_refused(device: _native.GpuDevice, stream: _native.Stream) -> None:
    with pytest.raises(LifecycleError, match="other streams than the default one"):
        device.pool_enabled = True
    device.pool_enabled = False
    device.hand_off()
    device.pool_enabled = True


def test_a_handoff_waits_for_the_device_lifts_the_ban_and_is_counted(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    memory = Memory(device, np.zeros(4, np.float32))
    machine.seed(5, eagerness=0)
    kernels(0).increment(memory, stream)
    assert not stream.done
    assert changes(device, device.hand_off) == {"handoffs": 1}
    assert stream.done
    assert not device.pool_banned
    memory.free()


def test_every_later_submission_but_on_the_default_stream_bans_again_before_it_is_enqueued(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    memory = Memory(device, np.zeros(4, np.float32))
    graph = _native.HipGraphExecutable.capture(stream, lambda: kernels(0).increment(memory, stream))
    event, host = _native.Event(device), np.zeros(4, np.float32)
    submissions: dict[str, Callable[[], object]] = {
        "hipStreamBeginCapture": lambda: _native.HipGraphExecutable.capture(
            stream, lambda: kernels(0).increment(memory, stream)
        ),
        "hipGraphLaunch": lambda: graph.launch(stream),
        "hipEventRecord": lambda: event.record(stream),
        "hipStreamWaitEvent": lambda: event.wait(stream),
        "hipModuleLaunchKernel": lambda: kernels(0).increment(memory, stream),
        "hipMemcpyAsync": lambda: _native.copy_async(memory.address, device, host.ctypes.data, None, 16, stream),
        "hipMemsetAsync": lambda: _native.fill_async(memory.address, device, 0, 16, stream),
        "hipMallocAsync": lambda: _native.StreamOrderedHipBuffer(stream, 64),
    }
    for call, submit in submissions.items():
        device.hand_off()
        machine.fail(call, 1)  # the backend refuses; the ban came before it was asked
        with pytest.raises(BackendError):
            submit()
        assert device.pool_banned, call
        device.hand_off()
        submit()
        assert device.pool_banned, call
    device.hand_off()
    kernels(0).increment(memory)
    _native.copy_async(memory.address, device, host.ctypes.data, None, 16)
    event.record()
    assert not device.pool_banned, "the default stream bans nothing"
    memory.free()


def test_storage_asked_for_in_a_capture_is_refused_before_the_backend_is_touched(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    before = machine.count("hipMalloc")
    with pytest.raises(LifecycleError, match="while this thread captures"):
        _native.HipGraphExecutable.capture(stream, lambda: device.allocate(4096))
    assert machine.count("hipMalloc") == before


def test_a_foreign_or_freed_address_is_refused(device: _native.GpuDevice) -> None:
    address = device.allocate(16)
    device.free(address)
    for wrong in (address, 12345):
        with pytest.raises(ConfigError, match="freed already"):
            device.free(wrong)


def test_too_little_memory_says_what_is_missing(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    free = device.memory_info[0]
    with pytest.raises(CapacityError, match=f"no room for {free + 100} bytes: {free} of .* 100 are missing"):
        device.allocate(free + 100)
    assert not machine.problem


def test_cached_memory_is_given_back_before_there_is_too_little(
    machine: EmulatedGpu, device: _native.GpuDevice
) -> None:
    device.pool_enabled = True
    allocate_and_free(device, 1 << 20)
    machine.fail("hipMalloc", OUT_OF_MEMORY)
    address = device.allocate(4096)
    assert device.counters.cached_bytes == 0
    device.free(address)


def test_a_failed_allocation_leaves_no_trace(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    def fail() -> None:
        machine.fail("hipMalloc", OUT_OF_MEMORY, nth=2)
        held = device.allocate(64)
        with pytest.raises(CapacityError):
            device.allocate(64)
        device.free(held)

    found = changes(device, fail)
    assert (found["allocations"], found["deallocations"], found.get("current_bytes", 0)) == (1, 1, 0)
