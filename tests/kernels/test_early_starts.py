"""Kernels that start before the work in front of them is over, on the emulator: what they may do until they wait, and that it sees what they may not."""

from __future__ import annotations

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
SEEDS = range(4)


def module(body: str, wave: int = 32, *, start: str = "Start start") -> EmulatedModule:
    """A kernel of a weight, an operand and a result."""
    instance = Instance(KernelName("tests/kernel", "kernel"), 3, "", THREADS)
    text = f"DEVICE void kernel(const f32* w, const f32* x, f32* y, {start}) {{ const i64 at = first_element(); {body} }}"
    return emulator(wave).module(f"{expanded('device.h')}{text}\n{instance.text}\n")


def run(made: EmulatedModule, seed: int = 0) -> tuple[Array, Array]:
    """What it gives for a weight that is there all the time and an operand that comes with the work in front, which reads its result's bytes, too; and
    what that work found there."""
    size = BLOCKS * THREADS
    w, x, y = np.arange(size, dtype=np.float32), np.full(size, np.nan, np.float32), np.full(size, 7, np.float32)
    status, found = np.zeros(STATUS_BYTES // 4, np.uint32), np.zeros(size, np.float32)

    def earlier() -> None:
        x[:] = 100
        found[:] = y
        y[:] = np.nan

    made.launch(
        "kernel",
        Launch((BLOCKS, 1, 1), (THREADS, 1, 1), early=True),
        [array.ctypes.data for array in (w, x, y)],
        [],
        status=status.ctypes.data,
        seed=seed,
        earlier=earlier,
    )
    assert not status.any()
    return y, found


EXPECTED = np.arange(BLOCKS * THREADS) + 100
SUM = "y[at] = w[at] + x[at];"


@by_wave
def test_a_kernel_that_takes_a_status_has_waited_when_it_begins(wave: int) -> None:
    made = module(SUM, wave, start="Status")
    for seed in SEEDS:
        y, found = run(made, seed)
        assert (y == EXPECTED).all()
        assert (found == 7).all()


@by_wave
def test_a_kernel_may_read_weights_and_use_shared_memory_before_it_waits(wave: int) -> None:
    """What it has in registers, in shared memory and at barriers and shuffles is as it left it, whatever ran in between."""
    body = """
        SHARED(f32, kept, 128);
        kept[thread_index()] = w[at];
        const f32 neighbour = shuffle_xor(w[at], 1);
        start.wait();
        block_barrier();
        const f32 other = kept[thread_index() ^ 1];
        y[at] = other == neighbour ? shuffle_xor(other, 1) + x[at] : 0.0f;
        """
    made = module(body, wave)
    for seed in SEEDS:
        assert (run(made, seed)[0] == EXPECTED).all()


def test_threads_may_wait_on_either_side_of_a_barrier() -> None:
    body = "if (thread_index() < 64) start.wait(); block_barrier(); if (thread_index() >= 64) start.wait();"
    assert (run(module(f"{body} {SUM}"))[0] == EXPECTED).all()


@pytest.mark.parametrize(
    "body",
    ["const f32 value = x[at]; start.wait(); y[at] = w[at] + value;", f"{SUM} start.wait();"],
    ids=["reads", "writes"],
)
def test_what_a_kernel_reads_or_writes_too_soon_shows(body: str) -> None:
    made = module(body)
    for seed in SEEDS:
        assert not (run(made, seed)[0] == EXPECTED).all()


def test_what_is_written_too_soon_spoils_the_work_in_front() -> None:
    assert not (run(module(f"y[at] = 1.0f; start.wait(); {SUM}"))[1] == 7).all()


@pytest.mark.parametrize("ends", ["", "if (thread_index() != 5) start.wait();", "if (block_index() < 9) return;"])
def test_a_thread_that_ends_without_waiting_is_refused(ends: str) -> None:
    made = module(f"{ends} if (false) start.wait();")
    with pytest.raises(BackendError, match=r"thread \d+ of block \[\d,0,0\] ends without waiting for earlier work"):
        run(made)


def test_several_kernels_of_a_module_may_have_begun() -> None:
    made = module("const f32 mine = w[at]; SHARED(f32, kept, 128); kept[thread_index()] = mine; start.wait();" + SUM)
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
        shape = Launch((BLOCKS, 1, 1), (THREADS, 1, 1), early=True)
        made.launch("kernel", shape, operands, [], status=status.ctypes.data, seed=seed, earlier=earlier)

    for seed in SEEDS:
        x[:], y[:], z[:] = np.nan, np.nan, np.nan
        launch(y, z, seed)
        assert (z == 2 * np.arange(size) + 1).all()
