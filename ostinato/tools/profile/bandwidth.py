"""Bytes a second between a device and its memory, measured."""

from __future__ import annotations

import time

import numpy as np

from ostinato.ir.step import StepKind
from ostinato.ir.types import DType
from ostinato.runtime.device import Device, ResolvedStep, Table

__all__ = ["read_bandwidth"]

READ_BYTES = 256 << 20
"""Memory read to measure bandwidth: far more than any cache holds."""
COPIED_BYTES = 1 << 30
READ_RUNS = 20
"""Enough that one of them meets no other work of the machine, where there is some."""
READ_COLUMNS = 4096


def read_bandwidth(device: Device) -> float:
    """Bytes a second between the device and its memory: the best of several passes.

    On the CPU a matrix-vector product over 256 MiB, which does next to nothing but read; on the machines tried it is at the rate of a plain read loop, where a
    reduction is not. On a GPU a copy of 1 GiB, whose bytes are read and written.
    """
    return _copied(device) if device.captures else _read(device)


def _copied(device: Device) -> float:
    source, to = device.allocate(COPIED_BYTES), device.allocate(COPIED_BYTES)
    operands = ((source.address, COPIED_BYTES), (to.address, COPIED_BYTES))
    table = device.make_table([ResolvedStep("copy", StepKind.COPY, "", operands, ())])
    return 2 * COPIED_BYTES / _best(table)


def _read(device: Device) -> float:
    rows = READ_BYTES // 4 // READ_COLUMNS
    sizes = (4 * READ_COLUMNS, READ_BYTES, 4 * rows)
    x, weight, y = (device.allocate(nbytes) for nbytes in sizes)
    # untouched pages are all one page of zeros, read from the cache
    weight.write(np.ones((rows, READ_COLUMNS), np.float32))
    absent = (0, 0)
    operands = ((x.address, sizes[0]), (weight.address, sizes[1]), *[absent] * 4, (y.address, sizes[2]), *[absent] * 3)
    params = (1, READ_COLUMNS, DType.F32.number, DType.F32.number, rows, 0, 0, 0.0)
    table = device.make_table([ResolvedStep("read", StepKind.LAUNCH, "linear_f32", operands, params)])
    return READ_BYTES / _best(table)


def _best(table: Table) -> float:
    """Seconds of the fastest of several runs."""
    seconds = []
    for _ in range(READ_RUNS):
        start = time.perf_counter()
        table.run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
