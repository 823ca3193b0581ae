"""Threads that share a device: counters, memory and captures stay right whatever they do at the same time."""

from __future__ import annotations

import functools
import threading
import time

import numpy as np

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from tests.backend_hip.gpu.machine import Memory, kernels

THREADS, ROUNDS = 4, 25


def test_threads_allocate_run_and_capture_at_once(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    before = device.counters
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            stream = _native.Stream(device, non_blocking=True)
            for i in range(ROUNDS):
                memory = Memory(device, np.full(8, number, np.float32))
                with _native.DeferredHipDeallocationScope(stream, 2):
                    for _ in range(3):
                        device.free(device.allocate(64 * number))
                    kernels(0).increment(memory, stream)
                submit = functools.partial(kernels(0).increment, memory, stream)
                graph = _native.HipGraphExecutable.capture(stream, submit)
                graph.launch(stream)
                stream.synchronize()
                if not (memory.read() == number + 2).all():
                    wrong.append((number, i, memory.read()))
        except BaseException as error:
            wrong.append((number, error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, THREADS + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    after = device.counters
    assert after.current_bytes == before.current_bytes
    assert after.reserved_bytes == before.reserved_bytes
    assert after.pending_bytes == 0
    assert after.allocations - before.allocations == THREADS * ROUNDS * 4
    assert after.deallocations - before.deallocations == THREADS * ROUNDS * 4


def test_a_wait_for_the_device_lets_a_capture_end_first(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    """A driver gives a capture up when somebody waits for the whole device: also reads, writes and hand-offs do that."""
    memory, stream = Memory(device, np.zeros(8, np.float32)), _native.Stream(device, non_blocking=True)
    began, order = threading.Event(), []

    def waits() -> None:
        began.wait()
        device.synchronize()
        order.append("waited")

    def submits() -> None:
        began.set()
        time.sleep(0.05)  # the other thread asks for its wait meanwhile
        kernels(0).increment(memory, stream)
        order.append("captured")

    other = threading.Thread(target=waits)
    other.start()
    graph = _native.HipGraphExecutable.capture(stream, submits)
    other.join()
    assert order == ["captured", "waited"]
    graph.launch(stream)
    stream.synchronize()
    assert (memory.read() == 1).all()
