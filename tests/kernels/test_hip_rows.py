"""Every implementation row for GPUs against the one oracle, on the emulator: row x samples that it accepts x wave x schedule, all with the same bits.

A new row or operator needs no test of its own to be covered here: its samples, its declarations and the tolerance of its operator are all that is used.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.evidence.rows import Mismatch, check, references
from ostinato.backend_hip.evidence.samples import LARGE, arrays_of, well_typed
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.kernel_source import modules
from ostinato.ir.errors import BoundsError, OstinatoError
from ostinato.ir.ops import OP
from ostinato.ir.step import StepKind
from ostinato.ir.target import Impl
from tests.kernels.emulated import WAVES, EmulatedMachine, compiled, instances

KERNEL_ROWS = [row for row in HIP_ROWS if row.kind is StepKind.LAUNCH]
"""Rows of the vendor's GEMM run no kernel of ours: tests/backend_hip/gpu/test_vendor_rows.py."""
by_row = pytest.mark.parametrize("row", KERNEL_ROWS, ids=[row.identity for row in KERNEL_ROWS])
LISTED = 5
"""Failures shown in full."""


def fits(row: Impl, wave: int) -> bool:
    """Whether GPUs with such waves have the row."""
    return bool({"hip", f"wave{wave}"}.intersection(row.architectures))


def hip_calls(wave: int) -> Iterator[Call]:
    """Every call of every row for such waves, as far as types go: values do not change which kernel runs."""
    rng = np.random.default_rng(0)
    for row in (row for row in HIP_ROWS if fits(row, wave)):
        for sample in (*OP[row.op].samples(rng), *LARGE.get(row.op, ())):
            if sample.error is None or (sample.error is BoundsError and well_typed(OP[row.op], sample)):
                yield from calls(row, sample)


@functools.cache
def sources(wave: int) -> dict[str, str]:
    """One module a file, with every instance that any call needs."""
    return modules(instances(hip_calls(wave)))


@functools.cache
def machines() -> tuple[EmulatedMachine, ...]:
    """Each wave with two schedules; the first two differ in both."""
    made = {wave: compiled(sources(wave), wave) for wave in WAVES}
    return tuple(
        EmulatedMachine(wave, seed, made[wave])
        for seeds in ((1, 2), (3, 4))
        for wave, seed in zip(WAVES, seeds, strict=True)
    )


def failures(row: Impl, rng: np.random.Generator, others: int | None) -> tuple[list[str], int]:
    """What went wrong in how many calls: each sample as it lies on the first two machines, or on all of them, and in `others` (None: all) of the other ways
    of laying it out on one of them, in turns."""
    found, ran, turn = [], 0, 0
    able = [machine for machine in machines() if fits(row, machine.wave)]
    samples = (*OP[row.op].samples(rng), *LARGE.get(row.op, ()))
    for number, sample in enumerate(sample for sample in samples if sample.error is None):
        arrays = arrays_of(OP[row.op], sample, rng)
        ways = list(calls(row, sample))
        chosen = [(call, able[: 4 if others is None else 2]) for call in ways[:1]]
        for _ in range(len(ways) - 1 if others is None else min(others, len(ways) - 1)):
            chosen.append((ways[1 + turn % (len(ways) - 1)], able[turn % len(able) :][:1]))
            turn += 1
        for call, where in chosen:
            ran += 1
            try:
                check(call, where, arrays, references(call, arrays))
            except (AssertionError, Mismatch, OstinatoError) as error:
                found.append(f"sample {number}: {call}\n    {error}")
    return found, ran


def require_none(row: Impl, found: list[str], ran: int) -> None:
    assert ran, f"{row.identity} accepts no sample"
    assert not found, f"{len(found)} of {ran} calls failed\n" + "\n".join(found[:LISTED])


@by_row
def test_row_agrees_with_the_reference(row: Impl, rng: np.random.Generator) -> None:
    require_none(row, *failures(row, rng, others=1))


@pytest.mark.slow
@by_row
def test_row_agrees_in_every_layout_and_schedule(row: Impl, rng: np.random.Generator) -> None:
    require_none(row, *failures(row, rng, others=None))


@pytest.mark.parametrize("op", sorted({row.op for row in HIP_ROWS}))
def test_indices_out_of_range_set_the_status_word_and_stay_in_bounds(op: str, rng: np.random.Generator) -> None:
    for row in (row for row in HIP_ROWS if row.op == op):
        for sample in OP[op].samples(rng):
            if sample.error is BoundsError and well_typed(OP[row.op], sample):
                arrays = arrays_of(OP[row.op], sample, rng)
                for call in list(calls(row, sample))[:1]:
                    for machine in (machine for machine in machines()[:2] if fits(row, machine.wave)):
                        with pytest.raises(BoundsError):
                            check(call, [machine], arrays, [])


def run_sanitized() -> None:
    """What the test below runs in a process of its own."""
    rng = np.random.default_rng(11)
    machine = EmulatedMachine(64, 1, compiled(sources(64), 64, sanitize=True), poisoned=True)
    ran = 0
    for row in (row for row in HIP_ROWS if fits(row, 64)):
        for sample in OP[row.op].samples(rng):
            if sample.error not in (None, BoundsError) or not well_typed(OP[row.op], sample):
                continue
            arrays = arrays_of(OP[row.op], sample, rng)
            for call in list(calls(row, sample))[:1]:
                launch = row.launch_of(call.site)
                assert launch is not None
                if launch.threads * np.prod(launch.grid) > 2**13:
                    continue  # the smaller ones have every edge too
                ran += 1
                try:
                    check(call, [machine], arrays, references(call, arrays))
                except BoundsError:
                    assert sample.error is BoundsError
    print(f"{ran} calls, none outside")


@pytest.mark.slow
def test_kernels_stay_in_bounds_under_the_address_sanitizer() -> None:
    runtime = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("this compiler has no address sanitizer")
    command = [sys.executable, "-c", f"from {__name__} import run_sanitized; run_sanitized()"]
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=root)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    assert "none outside" in run.stdout
