"""What the tests of the runtime objects share: the emulated GPU, cleaned before and looked at after each test, and small kernels for it."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import CACHE as CACHE  # for the tests that import it from here
from ostinato.backend_hip.emulator.machine import EmulatedGpu, emulated_gpu
from ostinato.ir.types import Array

# error numbers of HIP that tests inject
INVALID_VALUE, OUT_OF_MEMORY, LAUNCH_FAILURE, CAPTURE_INVALIDATED = 1, 2, 719, 901

_KERNELS = """
typedef unsigned int u32;
typedef long long i64;
static void add_one(float* x, i64 n) {
    const u32 i = block_index() * thread_count() + thread_index();
    if (i < n) x[i] += 1.0f;
}
static void axpy(const float* x, float* y, double a, i64 n) {
    const u32 i = block_index() * thread_count() + thread_index();
    if (i < n) y[i] = static_cast<float>(a) * x[i] + y[i];
}
static void beyond(float* x, i64 n) {
    if (thread_index() == 0) x[n] = 1.0f;
}
static void tag(u32* x, u32 value) {
    if (thread_index() == 0) *x = *x * 10 + value;
}
KERNEL(add_one_f32, 64, (float* x, i64 n), (add_one(x, n)))
KERNEL(axpy_f32, 64, (const float* x, float* y, double a, i64 n), (axpy(x, y, a, n)))
KERNEL(beyond_f32, 64, (float* x, i64 n), (beyond(x, n)))
KERNEL(tag_u32, 64, (u32* x, u32 value), (tag(x, value)))
"""


class Memory:
    """Storage of a device for a test: written and read by blocking copies on the default stream, freed with the last reference."""

    def __init__(self, device: _native.GpuDevice, values: Array) -> None:
        self.device, self.values = device, values
        self.address = device.allocate(values.nbytes)
        self.free = weakref.finalize(self, device.free, self.address)
        self.write(values)

    def write(self, values: Array) -> None:
        self.values = np.ascontiguousarray(values)
        _native.copy_async(self.address, self.device, self.values.ctypes.data, None, self.values.nbytes)
        self.device.synchronize()

    def read(self) -> Array:
        found = np.empty_like(self.values)
        _native.copy_async(found.ctypes.data, None, self.address, self.device, found.nbytes)
        self.device.synchronize()
        return found


class Kernels:
    """The kernels above on a device."""

    def __init__(self, machine: EmulatedGpu, device: _native.GpuDevice) -> None:
        options = [f"--offload-arch={device.architecture}"]
        self.module = _native.GpuModule(device, machine.gpu.compile(_KERNELS, "kernels.hip", options))
        self.add_one = self.module.function("add_one_f32", "pi")
        self.axpy = self.module.function("axpy_f32", "ppdi")
        self.beyond = self.module.function("beyond_f32", "pi")
        self.tag = self.module.function("tag_u32", "pu")

    def increment(self, memory: Memory, stream: _native.Stream | None = None) -> None:
        self.run(self.add_one, [memory.address, memory.values.size], stream)

    @staticmethod
    def run(
        function: _native.GpuFunction, arguments: Sequence[int | float], stream: _native.Stream | None = None
    ) -> None:
        function.launch((1, 1, 1), (64, 1, 1), 0, arguments, stream)


@functools.cache
def kernels(index: int) -> Kernels:
    machine = emulated_gpu(CACHE)
    return Kernels(machine, machine.gpu.device(index))


LIVE = ("streams", "events", "graphs", "executables", "modules", "allocations")


def live(machine: EmulatedGpu) -> dict[str, int]:
    """What there is on the devices, by kind."""
    return {what: machine.count(f"live {what}") for what in LIVE}


@functools.cache
def empty_machine() -> dict[str, int]:
    """What there is before any test: the kernels above, loaded on every device before anything captures."""
    machine = emulated_gpu(CACHE)
    for index in range(machine.gpu.device_count):
        kernels(index)
    return live(machine)


_previous = ["no test"]


@pytest.fixture
def machine(seed: int, request: pytest.FixtureRequest) -> Iterator[EmulatedGpu]:
    """The emulated GPU with fresh orders. A test fails where something was wrong that it took no note of, the next one where it left something behind
    (fixtures of a test live until its end)."""
    found, expected = emulated_gpu(CACHE), empty_machine()
    if live(found) != expected:
        # pytest keeps the frames of a test that failed, and with them what it made, until another test has begun
        for kept in ("last_type", "last_value", "last_exc", "last_traceback"):
            vars(sys).pop(kept, None)
        gc.collect()
    assert live(found) == expected, f"left behind by {_previous[0]}"
    _previous[0] = request.node.nodeid
    found.recover()
    found.seed(seed)
    devices = [found.gpu.device(index) for index in range(found.gpu.device_count)]
    for device in devices:
        device.hand_off()
    yield found
    for device in devices:
        device.synchronize()
        device.pool_enabled = False
        device.trim_pool()
    assert not found.problem


@pytest.fixture
def device(machine: EmulatedGpu) -> _native.GpuDevice:
    return machine.gpu.device(0)


@pytest.fixture
def stream(device: _native.GpuDevice) -> _native.Stream:
    return _native.Stream(device)
