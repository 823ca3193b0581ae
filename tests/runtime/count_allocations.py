"""Run by test_allocations.py under the interposer: prints the allocations of one native step, beyond those of an empty native call."""

from __future__ import annotations

import ctypes
import gc
import sys

import numpy as np

import ostinato as ost
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.runners import PlannedRunner

REPEATS = 20
"""Runs a count covers: the interpreter's own odd allocation disappears in it, one of ours on each run does not."""


def main() -> None:
    gc.disable()  # a collection allocates and frees when it likes
    counter = ctypes.CDLL(None)
    start, stop = counter.counting_start, counter.counting_stop
    stop.restype = ctypes.c_long
    executable = ost.compile(sys.argv[1], buckets={"B": [1], "T": [1, 32]}, context=64, threads=int(sys.argv[2]))
    for tokens in (32, 1):
        plan = executable.bucket(tokens, 1)
        inputs, _ = pack(plan, [Piece(0, np.arange(tokens, dtype=np.int32), 0, True)], executable.block_table())
        executable.run(plan.name, inputs)
        runner = executable.runner(plan.name)
        assert isinstance(runner, PlannedRunner)
        run = runner.table.run

        def counted(first: int, count: int) -> int:
            start()
            for _ in range(REPEATS):
                run(first, count)  # noqa: B023 - called at once
            return int(stop())

        counted(0, -1)
        empty = min(counted(0, 0) for _ in range(5))
        full = min(counted(0, -1) for _ in range(5))
        print(f"tokens {tokens} steps {len(plan.steps)} calls 1 allocations {round((full - empty) / REPEATS)}")


if __name__ == "__main__":
    main()
