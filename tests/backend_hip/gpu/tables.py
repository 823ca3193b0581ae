"""Step tables for tests: kernels that report to a status word, and steps over memory of a device."""

from __future__ import annotations

import functools

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import emulated_gpu
from tests.backend_hip.gpu.machine import CACHE, Memory

__all__ = ["TableKernels", "add", "copy", "fill", "require", "table_kernels"]

_KERNELS = """
typedef unsigned int u32;
typedef long long i64;
static void add(float* x, i64 n, double a) {
    const u32 i = block_index() * thread_count() + thread_index();
    if (i < n) x[i] += static_cast<float>(a);
}
static void require(const float* x, i64 most, u32* status, u32 step) {
    if (thread_index() == 0 && *x > most) atomic_compare_exchange(status, 0u, step + 1u);
}
KERNEL(add_f32, 64, (float* x, i64 n, double a, u32*, u32), (add(x, n, a)))
KERNEL(require_f32, 64, (const float* x, const float*, i64 most, u32* status, u32 step), (require(x, most, status, step)))
"""


class TableKernels:
    """The kernels above on a device: `add` adds a number, `require` reports a first value that is above a limit."""

    def __init__(self, device: _native.GpuDevice) -> None:
        options = [f"--offload-arch={device.architecture}"]
        code = device.gpu.compile(_KERNELS, "tables.hip", options)
        self.module = _native.GpuModule(device, code)
        self.add = self.module.function("add_f32", "pidpu")
        self.require = self.module.function("require_f32", "ppipu")


@functools.cache
def table_kernels(index: int) -> TableKernels:
    """The kernels of a device, loaded once."""
    return TableKernels(emulated_gpu(CACHE).gpu.device(index))


def add(memory: Memory, value: float, node: str = "add", *, kernels: TableKernels | None = None) -> _native.GpuStep:
    kernels = kernels or table_kernels(memory.device.index)
    shape = ((1, 1, 1), (64, 1, 1), 0)
    return _native.GpuStep.launch(node, kernels.add, *shape, [memory.address], [memory.values.size, float(value)])


def require(memory: Memory, most: int, node: str = "require") -> _native.GpuStep:
    function = table_kernels(memory.device.index).require
    return _native.GpuStep.launch(node, function, (1, 1, 1), (64, 1, 1), 0, [memory.address, 0], [most])


def copy(to: Memory, source: Memory, node: str = "copy") -> _native.GpuStep:
    return _native.GpuStep.copy(node, to.address, source.address, to.values.nbytes)


def fill(memory: Memory, value: int, node: str = "fill") -> _native.GpuStep:
    return _native.GpuStep.fill(node, memory.address, value, memory.values.nbytes)
