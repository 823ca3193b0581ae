"""What the tests of device kernels share: emulators whose compiled modules are kept between runs, and kernels written in a test."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ostinato.backend_hip.emulator.emulator import EmulatedModule, Emulator
from ostinato.backend_hip.emulator.machine import CACHE
from ostinato.backend_hip.evidence.calls import Call
from ostinato.backend_hip.evidence.rows import GUARD, Memory
from ostinato.backend_hip.kernel_source import STATUS_BYTES, Instance, KernelName, expanded, instance_of
from ostinato.ir.errors import BoundsError
from ostinato.ir.step import Launch
from ostinato.ir.types import Array, TensorType
from ostinato.ir.weights import PackSource

__all__ = ["CACHE", "WAVES", "EmulatedMachine", "Kernel", "compiled", "emulator", "instances"]

WAVES = (32, 64)
NOT_YET = 0xFF
"""Every byte of what no step has written yet: NaN, and an index that is out of range."""


@functools.cache
def emulator(wave: int) -> Emulator:
    """One emulator for each wave, kept for the whole test run."""
    return Emulator(wave, CACHE)


class Kernel:
    """A kernel whose text stands in a test: `kernel(pointers..., Status)`, run on arrays."""

    def __init__(self, text: str, *, operands: int, threads: int = 64, wave: int = 32, params: str = "") -> None:
        instance = Instance(KernelName("tests/kernel", "kernel"), operands, params, threads)
        self.module: EmulatedModule = emulator(wave).module(f"{expanded('device.h')}{text}\n{instance.text}\n")
        self.threads = threads

    def run(
        self,
        arrays: Sequence[Array],
        params: Sequence[int | float] = (),
        *,
        blocks: int = 1,
        seed: int = 0,
        step: int = 0,
    ) -> int:
        """Runs it on the arrays in place; returns the status word."""
        status = np.zeros(STATUS_BYTES // 4, np.uint32)
        self.module.launch(
            "kernel",
            Launch((blocks, 1, 1), (self.threads, 1, 1)),
            [array.ctypes.data for array in arrays],
            params,
            status=status.ctypes.data,
            step=step,
            seed=seed,
        )
        return int(status[0])


@dataclass(frozen=True)
class EmulatedMachine:
    """The emulator at one wave and one seed of schedules, with the compiled modules that it may launch (file -> module)."""

    wave: int
    seed: int
    modules: Mapping[str, EmulatedModule]
    poisoned: bool = False
    """Under the address sanitizer: what lies around the operands is no memory while a kernel runs."""

    def pack(self, tensor: TensorType, source: PackSource) -> Array:
        raise AssertionError(f"no GPU row asks for {tensor}")

    def run(self, call: Call, operands: Sequence[Memory | None]) -> None:
        kernel, launch = KernelName.parse(call.row.kernel(call.site)), call.row.launch_of(call.site)
        assert launch is not None, f"{call.row.identity} has no launch"
        status, addresses = (
            np.zeros(STATUS_BYTES // 4, np.uint32),
            [0 if memory is None else memory.address for memory in operands],
        )
        self._mark(operands, "poison")
        try:
            self.modules[kernel.file].launch(
                kernel.symbol,
                launch,
                addresses,
                call.row.params(call.site),
                status=status.ctypes.data,
                step=6,
                seed=self.seed,
                earlier=_earlier_work(call, operands) if launch.early else None,
            )
        finally:
            self._mark(operands, "unpoison")
        assert not status[1:].any(), "a kernel leaves tickets as it found them"
        if status[0]:
            assert status[0] == 7, "the status word is one more than the step"
            raise BoundsError(f"{kernel} met an index out of range")

    def _mark(self, operands: Sequence[Memory | None], how: str) -> None:
        if not self.poisoned:
            return
        mark = getattr(ctypes.CDLL(None), f"__asan_{how}_memory_region")
        for memory in (memory for memory in operands if memory is not None):
            for start in (memory.address - GUARD, memory.address + memory.nbytes):
                mark(ctypes.c_void_p(start), ctypes.c_size_t(GUARD))

    def __str__(self) -> str:
        return f"wave {self.wave} with seed {self.seed}"


def _earlier_work(call: Call, operands: Sequence[Memory | None]) -> Callable[[], None]:
    """Work that leaves in the operands what is there now, which none of them has before, but for those that the row reads ahead."""
    late = [
        memory
        for name, memory in zip(call.row.operands, operands, strict=True)
        if memory is not None and name not in call.row.ahead
    ]
    kept = [memory.bytes.copy() for memory in late]
    for memory in late:
        memory.bytes.fill(NOT_YET)

    def work() -> None:
        for memory, values in zip(late, kept, strict=True):
            memory.bytes[:] = values

    return work


def instances(found: Iterable[Call]) -> set[Instance]:
    """The entry points that calls need."""
    made = set()
    for call in found:
        launch = call.row.launch_of(call.site)
        assert launch is not None, f"{call.row.identity} has no launch"
        made.add(instance_of(call.row.kernel(call.site), len(call.row.operands), call.row.params(call.site), launch))
    return made


def compiled(sources: Mapping[str, str], wave: int, *, sanitize: bool = False) -> dict[str, EmulatedModule]:
    """All modules, two compilers at a time."""
    machine = Emulator(wave, CACHE, sanitize=sanitize)
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(sources, pool.map(machine.module, sources.values()), strict=True))
