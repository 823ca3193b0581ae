"""The clock of a GPU as two kernels of one thread that matters: `stamp` notes the time, `hold` lets it pass.

They are steps like others, so that stamps stand between the nodes of a captured graph and time them where they are. The clock is one for the whole device:
nanoseconds on NVIDIA (which cards advance in steps of 32 ns to about 1 us), the constant clock of AMD's, whose rate is for the reader to find out. Their source
is no part of the kernel folder, whose hash says what the rows of a program run.
"""

from __future__ import annotations

from ostinato.backend_hip.kernel_source import add_kernel_file
from ostinato.ir.step import KernelCall, Launch

__all__ = ["stopwatch_calls"]

_FILE = "profile/stopwatch"
_SOURCE = """\
// The time of the device, and a wait. Thread 0 alone does either.
#if defined(OSTINATO_EMULATOR)
#include <ctime>
#endif
#include "device.h"

#if defined(OSTINATO_EMULATOR)
DEVICE i64 now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<i64>(time.tv_sec) * 1000000000 + time.tv_nsec;
}
#elif defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
// wall_clock64() of some releases is a constant on gfx11.
DEVICE i64 now() {
#if __has_builtin(__builtin_readsteadycounter)
    return static_cast<i64>(__builtin_readsteadycounter());
#else
    return static_cast<i64>(wall_clock64());
#endif
}
#else
DEVICE i64 now() {
    i64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
}
#endif

DEVICE void stamp(i64* at, Status) {
    if (thread_index() == 0) *at = now();
}

DEVICE void hold(i64 ticks, Status) {
    if (thread_index() != 0) return;
    const i64 end = now() + ticks;
    while (now() < end) {
    }
}
"""
_SHAPE = Launch((1, 1, 1), (64, 1, 1))


def stopwatch_calls(ticks: int = 0) -> tuple[KernelCall, KernelCall]:
    """`stamp`, whose operand is a 64-bit integer that it writes the time to, and `hold`, which is over so many ticks after it began."""
    add_kernel_file(_FILE, _SOURCE)
    return (
        KernelCall("stamp", f"{_FILE}:stamp", (), 1, launch=_SHAPE),
        KernelCall("hold", f"{_FILE}:hold", (ticks,), 0, launch=_SHAPE),
    )
