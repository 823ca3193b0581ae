"""Streams, events and copies, a test for each sentence of their contract, and that work really is asynchronous on the emulated device."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.ir.errors import BackendError, ConfigError, DeviceUnavailable, LifecycleError
from tests.backend_hip.gpu.machine import Memory, kernels


def floats(count: int = 8) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(count, dtype=np.float32)


def test_a_stream_of_the_cpu_is_legal_and_synchronous() -> None:
    stream = _native.Stream(None)
    source, target = floats(), np.zeros(8, np.float32)
    _native.copy_async(target.ctypes.data, None, source.ctypes.data, None, source.nbytes, stream)
    assert (target == source).all(), "the copy was done when the call returned"
    assert stream.done
    stream.synchronize()


def test_a_device_that_does_not_exist_is_refused(machine: EmulatedGpu) -> None:
    for index in (-1, machine.gpu.device_count):
        with pytest.raises(DeviceUnavailable, match="does not exist") as caught:
            machine.gpu.device(index)
        assert isinstance(caught.value, BackendError | RuntimeError)


def test_creating_any_stream_bans_the_pool_until_a_handoff(device: _native.GpuDevice) -> None:
    assert not device.pool_banned
    unused = _native.Stream(device, non_blocking=True)
    assert device.pool_banned
    del unused
    assert device.pool_banned, "the ban outlives the stream"
    device.hand_off()
    assert not device.pool_banned


def test_streams_and_events_are_not_copied(stream: _native.Stream, device: _native.GpuDevice) -> None:
    for thing in (stream, _native.Event(device)):
        with pytest.raises(LifecycleError, match="cannot be copied"):
            copy.copy(thing)
        with pytest.raises(LifecycleError, match="cannot be copied"):
            pickle.dumps(thing)


def test_work_waits_until_somebody_synchronises(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    memory, host = Memory(device, floats()), np.full(8, -1, np.float32)
    machine.seed(1, eagerness=0)
    kernels(0).increment(memory, stream)
    _native.copy_async(host.ctypes.data, None, memory.address, device, host.nbytes, stream)
    assert not stream.done
    assert (host == -1).all(), "nothing ran yet"
    stream.synchronize()
    assert stream.done
    assert (host == floats() + 1).all()
    memory.free()


def test_streams_without_an_event_run_in_either_order(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    seen = set()
    memory = Memory(device, np.zeros(1, np.uint32))
    for seed in range(12):
        machine.seed(seed, eagerness=0)
        streams = [_native.Stream(device, non_blocking=True) for _ in range(2)]
        memory.write(np.zeros(1, np.uint32))
        for value, stream in enumerate(streams, 1):
            kernels(0).run(kernels(0).tag, [memory.address, value], stream)
        for stream in streams:
            stream.synchronize()
        seen.add(int(memory.read()[0]))
    assert seen == {12, 21}
    memory.free()


def test_an_event_orders_two_streams(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    memory = Memory(device, np.zeros(1, np.uint32))
    for seed in range(12):
        machine.seed(seed, eagerness=0)
        first, second = (_native.Stream(device, non_blocking=True) for _ in range(2))
        event = _native.Event(device)
        memory.write(np.zeros(1, np.uint32))
        kernels(0).run(kernels(0).tag, [memory.address, 1], first)
        event.record(first)
        event.wait(second)
        kernels(0).run(kernels(0).tag, [memory.address, 2], second)
        second.synchronize()
        assert memory.read()[0] == 12
    memory.free()


def test_the_default_stream_waits_for_blocking_streams_alone(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    for non_blocking, expected in ((False, {12}), (True, {12, 21})):
        memory, seen = Memory(device, np.zeros(1, np.uint32)), set()
        for seed in range(12):
            machine.seed(seed, eagerness=0)
            stream = _native.Stream(device, non_blocking=non_blocking)
            memory.write(np.zeros(1, np.uint32))
            kernels(0).run(kernels(0).tag, [memory.address, 1], stream)
            kernels(0).run(kernels(0).tag, [memory.address, 2])
            seen.add(int(memory.read()[0])) if not non_blocking else None
            stream.synchronize()
            device.synchronize()
            seen.add(int(memory.read()[0]))
        assert seen == expected
        memory.free()


def test_an_event_of_the_cpu_is_ready_right_after_it_was_recorded() -> None:
    event, stream = _native.Event(None), _native.Stream(None)
    assert not event.ready
    event.record(stream)
    assert event.ready
    event.wait(stream)
    event.synchronize()


def test_an_event_is_ready_when_what_came_before_it_is_done(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    event, memory = _native.Event(device), Memory(device, floats())
    assert not event.ready, "never recorded"
    machine.seed(3, eagerness=0)
    kernels(0).increment(memory, stream)
    event.record(stream)
    assert not event.ready
    event.synchronize()
    assert event.ready
    memory.free()


def test_an_event_and_a_stream_of_different_devices_are_refused(machine: EmulatedGpu, stream: _native.Stream) -> None:
    for event in (_native.Event(machine.gpu.device(1)), _native.Event(None)):
        with pytest.raises(ConfigError, match="cannot be recorded"):
            event.record(stream)
        with pytest.raises(ConfigError, match="cannot be waited for"):
            event.wait(stream)


def test_an_event_of_the_cpu_has_no_default_stream() -> None:
    with pytest.raises(BackendError, match="the CPU has none"):
        _native.Event(None).record()


def test_the_default_stream_takes_events(device: _native.GpuDevice) -> None:
    event = _native.Event(device)
    event.record()
    event.wait()
    event.synchronize()
    assert event.ready


def test_time_passes_between_events_of_one_device_with_timing(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    first, second = _native.Event(device), _native.Event(device)
    first.record(stream)
    second.record(stream)
    stream.synchronize()
    assert first.milliseconds_to(second) > 0
    untimed, elsewhere, never = (
        _native.Event(device, timing=False),
        _native.Event(machine.gpu.device(1)),
        _native.Event(device),
    )
    untimed.record(stream)
    for other, text in ((untimed, "without timing"), (elsewhere, "one device"), (never, "not recorded")):
        with pytest.raises(ConfigError, match=text):
            first.milliseconds_to(other)
    with pytest.raises(BackendError, match="CPU"):
        _native.Event(None).milliseconds_to(_native.Event(None))


def test_a_copy_of_no_bytes_returns(stream: _native.Stream, machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    before = machine.count("hipMemcpyAsync")
    _native.copy_async(0, device, 0, None, 0, stream)
    assert machine.count("hipMemcpyAsync") == before


def test_a_copy_with_a_null_address_is_refused(device: _native.GpuDevice, stream: _native.Stream) -> None:
    host = floats()
    for to, source in ((0, host.ctypes.data), (host.ctypes.data, 0)):
        with pytest.raises(ConfigError, match="null address"):
            _native.copy_async(to, device, source, None, 4, stream)
    with pytest.raises(ConfigError, match="null address"):
        _native.fill_async(0, device, 0, 4)


def test_a_copy_between_gpus_is_refused(machine: EmulatedGpu) -> None:
    first, second = Memory(machine.gpu.device(0), floats()), Memory(machine.gpu.device(1), floats())
    with pytest.raises(ConfigError, match="from device 0 to device 1"):
        _native.copy_async(second.address, second.device, first.address, first.device, 4)
    first.free()
    second.free()


def test_a_copy_goes_on_a_stream_of_the_copying_device(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    memory, host = Memory(device, floats()), floats()
    for wrong in (_native.Stream(machine.gpu.device(1)), _native.Stream(None)):
        with pytest.raises(ConfigError, match="was given a stream of"):
            _native.copy_async(memory.address, device, host.ctypes.data, None, 4, wrong)
    with pytest.raises(ConfigError, match="was given a stream of"):
        _native.copy_async(host.ctypes.data, None, host.ctypes.data, None, 4, stream)
    memory.free()


def test_copies_and_fills_without_a_stream_go_on_the_default_one(device: _native.GpuDevice) -> None:
    memory = Memory(device, floats())
    _native.fill_async(memory.address + 8, device, 0, 8)
    expected = floats()
    expected[2:4] = 0
    assert (memory.read() == expected).all()
    assert not device.pool_banned, "the default stream bans nothing"
    memory.free()


def test_work_on_a_lost_device_fails_for_ever(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    memory = Memory(device, floats())
    machine.fail("kernel", 719)
    kernels(0).increment(memory, stream)
    with pytest.raises(BackendError, match="LaunchFailure"):
        stream.synchronize()
    with pytest.raises(BackendError, match="LaunchFailure"):
        device.allocate(16)
    assert machine.gpu.device(1).allocate(0) == 0, "the other device still works"
    machine.recover()
    memory.free()


def test_a_write_beyond_an_allocation_is_reported(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    memory = Memory(device, floats())
    kernels(0).run(kernels(0).beyond, [memory.address, 8])
    device.synchronize()
    assert "behind a block of 32" in machine.problem
    memory.write(floats())
    machine.recover()
    memory.free()
    machine.recover()


def test_a_kernel_on_freed_memory_is_reported(
    machine: EmulatedGpu, device: _native.GpuDevice, stream: _native.Stream
) -> None:
    memory = Memory(device, floats())
    memory.free()
    kernels(0).increment(memory, stream)
    with pytest.raises(BackendError, match="IllegalAddress"):
        stream.synchronize()
    assert "freed memory as argument 0" in machine.problem
    machine.recover()
