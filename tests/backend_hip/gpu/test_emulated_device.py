"""The emulated device below the table. In a capture it refuses what the strictest of the real drivers does: our own refusals are tested against that.

These tests call its C interface directly; through the runtime objects such calls never get here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from tests.backend_hip.gpu.machine import Memory, kernels

UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(
    900, 909
)
THREAD_LOCAL = 1


class Raw:
    """The C interface with two streams, an event recorded outside of any capture, and memory."""

    def __init__(self, machine: EmulatedGpu, device: _native.GpuDevice) -> None:
        self.functions = ctypes.CDLL(str(machine.folder / "libamdhip64.so"))
        self.device = device
        self.memory = Memory(device, np.zeros(8, np.float32))
        self.streams = [_native.Stream(device) for _ in range(2)]
        self.first, self.second = (ctypes.c_void_p(stream.handle) for stream in self.streams)
        self.events = [self.event() for _ in range(2)]
        self.call("hipEventRecord", self.events[0], self.second)

    def event(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call("hipEventCreateWithFlags", ctypes.byref(made), ctypes.c_uint(0))
        return made

    def call(self, name: str, *arguments: object) -> int:
        return int(getattr(self.functions, name)(*arguments))

    def begin(self, stream: ctypes.c_void_p) -> int:
        return self.call("hipStreamBeginCapture", stream, ctypes.c_int(THREAD_LOCAL))

    def end(self, stream: ctypes.c_void_p) -> int:
        graph = ctypes.c_void_p()
        result = self.call("hipStreamEndCapture", stream, ctypes.byref(graph))
        if graph.value:
            self.call("hipGraphDestroy", graph)
        return result

    def work(self, stream: ctypes.c_void_p) -> int:
        return self.call(
            "hipMemsetAsync", ctypes.c_void_p(self.memory.address), ctypes.c_int(0), ctypes.c_size_t(4), stream
        )

    def allocate(self) -> int:
        return self.call("hipMalloc", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64))


@pytest.fixture
def raw(machine: EmulatedGpu, device: _native.GpuDevice) -> Iterator[Raw]:
    made = Raw(machine, device)
    yield made
    for event in made.events:
        made.call("hipEventDestroy", event)
    made.call("hipGetLastError")


SPOILING: dict[str, tuple[Callable[[Raw], int], int]] = {
    "waiting for the capturing stream": (lambda raw: raw.call("hipStreamSynchronize", raw.first), UNSUPPORTED),
    "asking the capturing stream": (lambda raw: raw.call("hipStreamQuery", raw.first), UNSUPPORTED),
    "waiting for the device": (lambda raw: raw.call("hipDeviceSynchronize"), UNSUPPORTED),
    "allocating": (Raw.allocate, UNSUPPORTED),
    "freeing": (lambda raw: raw.call("hipFree", None), UNSUPPORTED),
    "using the default stream": (lambda raw: raw.work(ctypes.c_void_p()), IMPLICIT),
    "waiting for an event from outside": (
        lambda raw: raw.call("hipStreamWaitEvent", raw.first, raw.events[0], ctypes.c_uint(0)),
        ISOLATION,
    ),
}


@pytest.mark.parametrize("name", SPOILING)
def test_a_call_that_a_capture_forbids_fails_and_spoils_it(name: str, raw: Raw) -> None:
    call, error = SPOILING[name]
    assert raw.begin(raw.first) == 0
    assert raw.work(raw.first) == 0
    assert call(raw) == error
    assert raw.work(raw.first) == INVALIDATED
    assert raw.end(raw.first) == INVALIDATED
    assert raw.begin(raw.first) == 0, "and the stream captures again"
    assert raw.work(raw.first) == 0
    assert raw.end(raw.first) == 0


def test_asking_a_captured_event_spoils_the_capture(raw: Raw) -> None:
    raw.begin(raw.first)
    raw.work(raw.first)
    raw.call("hipEventRecord", raw.events[1], raw.first)
    assert raw.call("hipEventQuery", raw.events[1]) == CAPTURED_EVENT
    assert raw.end(raw.first) == INVALIDATED


def test_captures_do_not_merge_and_end_where_they_began(raw: Raw) -> None:
    raw.begin(raw.first)
    raw.work(raw.first)
    raw.call("hipEventRecord", raw.events[1], raw.first)
    raw.begin(raw.second)
    raw.work(raw.second)
    assert raw.call("hipStreamWaitEvent", raw.second, raw.events[1], ctypes.c_uint(0)) == MERGE
    assert raw.end(raw.second) == 0
    raw.call("hipStreamWaitEvent", raw.second, raw.events[1], ctypes.c_uint(0))
    assert raw.end(raw.second) == UNMATCHED
    raw.call("hipEventRecord", raw.events[1], raw.second)
    raw.call("hipStreamWaitEvent", raw.first, raw.events[1], ctypes.c_uint(0))
    assert raw.end(raw.first) == 0


def test_the_default_stream_captures_nothing(raw: Raw) -> None:
    assert raw.begin(ctypes.c_void_p()) == UNSUPPORTED


def test_the_last_error_is_told_once(raw: Raw) -> None:
    raw.call("hipGetLastError")
    assert raw.call("hipMemsetAsync", None, ctypes.c_int(0), ctypes.c_size_t(4), ctypes.c_void_p(12345)) != 0
    assert raw.call("hipGetLastError") != 0
    assert raw.call("hipGetLastError") == 0


def test_our_failures_are_taken_off_the_record(machine: EmulatedGpu, raw: Raw, device: _native.GpuDevice) -> None:
    machine.fail("hipMalloc", 999)
    with pytest.raises(RuntimeError):
        device.allocate(64)
    assert raw.call("hipGetLastError") == 0, "nobody else in the process finds our error"


def test_the_caller_s_choice_of_device_survives_ours(machine: EmulatedGpu, raw: Raw, device: _native.GpuDevice) -> None:
    chosen = ctypes.c_int()
    raw.call("hipSetDevice", 1)
    device.free(device.allocate(64))
    kernels(0).increment(raw.memory)
    device.synchronize()
    raw.call("hipGetDevice", ctypes.byref(chosen))
    raw.call("hipSetDevice", 0)
    assert chosen.value == 1


def test_work_runs_in_orders_that_a_seed_repeats(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    memory = Memory(device, np.zeros(1, np.uint32))

    def run(seed: int) -> int:
        memory.write(np.zeros(1, np.uint32))
        machine.seed(seed, eagerness=50)
        streams = [_native.Stream(device, non_blocking=True) for _ in range(3)]
        for value in range(1, 7):
            kernels(0).run(kernels(0).tag, [memory.address, value], streams[value % 3])
        device.synchronize()
        return int(memory.read()[0])

    found = {seed: run(seed) for seed in range(8)}
    assert len(set(found.values())) > 2
    assert {seed: run(seed) for seed in range(8)} == found
    for order in map(str, found.values()):
        assert all(order.index(str(value)) < order.index(str(value + 3)) for value in (1, 2, 3)), (
            "each stream's own order holds"
        )
