"""Kernels that start before the work in front of them is over, on the emulator: what they may do until they wait, and that it sees what they may not."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ostinato.backend_hip.emulator.emulator import EmulatedModule
from ostinato.backend_hip.kernel_source import STATUS_BYTES, Instance, KernelName, expanded
from ostinato.ir.errors import BackendError
from ostinato.ir.step import Launch
from ostinato.ir.types import Array
from tests.kernels.emulated import WAVES, emulator

by_wave = pytest.mark.parametrize("wave", WAVES)
BLOCKS, THREADS = 5, 128
SHAPE = Launch((BLOCKS, 1, 1), (THREADS, 1, 1), early=True)
SEEDS = range(4)
EXPECTED = np.arange(BLOCKS * THREADS) + 100

SUM = "y[at] = w[at] + x[at];"
BODIES = {
    "waited": SUM,
    "ahead": """
        SHARED(f32, kept, 128);
        kept[thread_index()] = w[at];
        const f32 neighbour = shuffle_xor(w[at], 1);
        start.wait();
        block_barrier();
        const f32 other = kept[thread_index() ^ 1];
        y[at] = other == neighbour ? shuffle_xor(other, 1) + x[at] : 0.0f;
        """,
    "apart": f"if (thread_index() < 64) start.wait(); block_barrier(); if (thread_index() >= 64) start.wait(); {SUM}",
    "reads": "const f32 value = x[at]; start.wait(); y[at] = w[at] + value;",
    "writes": f"{SUM} start.wait();",
    "spoils": f"y[at] = 1.0f; start.wait(); {SUM}",
    "never": "if (false) start.wait();",
    "not_all": "if (thread_index() != 5) start.wait();",
    "not_here": "if (block_index() < 9) return; start.wait();",
}
"""Kernels of a weight `w`, an operand `x` and a result `y`."""


@functools.cache
def module(wave: int) -> EmulatedModule:
    text = expanded("device.h")
    for name, body in BODIES.items():
        start = "Status" if name == "waited" else "Start start"
        text += f"DEVICE void {name}(const f32* w, const f32* x, f32* y, {start}) {{ const i64 at = first_element(); {body} }}\n"
    lines = (Instance(KernelName("tests/kernel", name), 3, "", THREADS).text for name in BODIES)
    return emulator(wave).module("\n".join([text, *lines, ""]))


def run(kernel: str, wave: int = 32, seed: int = 0) -> tuple[Array, Array]:
    """What a kernel gives for a weight that is there all the time and an operand that comes with the work in front of it; and what that work, which leaves
    something else there, found in the bytes of the result."""
    size = BLOCKS * THREADS
    w, x, y = np.arange(size, dtype=np.float32), np.full(size, np.nan, np.float32), np.full(size, 7, np.float32)
    status, found = np.zeros(STATUS_BYTES // 4, np.uint32), np.zeros(size, np.float32)

    def earlier() -> None:
        x[:] = 100
        found[:] = y
        y[:] = np.nan

    operands = [array.ctypes.data for array in (w, x, y)]
    module(wave).launch(kernel, SHAPE, operands, [], status=status.ctypes.data, seed=seed, earlier=earlier)
    assert not status.any()
    return y, found


@by_wave
def test_a_kernel_that_takes_a_status_has_waited_when_it_begins(wave: int) -> None:
    for seed in SEEDS:
        y, found = run("waited", wave, seed)
        assert (y == EXPECTED).all()
        assert (found == 7).all()


@by_wave
def test_a_kernel_may_read_weights_and_use_shared_memory_before_it_waits(wave: int) -> None:
    """What it has in registers, in shared memory and at barriers and shuffles is as it left it, whatever ran in between."""
    for seed in SEEDS:
        assert (run("ahead", wave, seed)[0] == EXPECTED).all()


def test_threads_may_wait_on_either_side_of_a_barrier() -> None:
    assert (run("apart")[0] == EXPECTED).all()


@pytest.mark.parametrize("kernel", ["reads", "writes"])
def test_what_a_kernel_reads_or_writes_too_soon_shows(kernel: str) -> None:
    for seed in SEEDS:
        assert not (run(kernel, seed=seed)[0] == EXPECTED).all()


def test_what_is_written_too_soon_spoils_the_work_in_front() -> None:
    assert not (run("spoils")[1] == 7).all()


@pytest.mark.parametrize("kernel", ["never", "not_all", "not_here"])
def test_a_thread_that_ends_without_waiting_is_refused(kernel: str) -> None:
    with pytest.raises(BackendError, match=r"thread \d+ of block \[\d,0,0\] ends without waiting for earlier work"):
        run(kernel)


def test_several_kernels_of_a_module_may_have_begun() -> None:
    size = BLOCKS * THREADS
    w, x, y, z = np.arange(size, dtype=np.float32), *(np.full(size, np.nan, np.float32) for _ in range(3))
    status = np.zeros(STATUS_BYTES // 4, np.uint32)

    def launch(source: Array, to: Array, seed: int) -> None:
        def earlier() -> None:
            if source is y:
                launch(x, y, seed + 1)
            else:
                x[:] = 1

        operands = [array.ctypes.data for array in (w, source, to)]
        module(32).launch("ahead", SHAPE, operands, [], status=status.ctypes.data, seed=seed, earlier=earlier)

    for seed in SEEDS:
        x[:], y[:], z[:] = np.nan, np.nan, np.nan
        launch(y, z, seed)
        assert (z == 2 * np.arange(size) + 1).all()
