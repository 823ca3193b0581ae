"""Run by test_memory.py in a process of its own: bytes resident before and at the peak of loading and running a model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import ostinato as ost
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint


def status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) * 1024


def run(folder: str) -> ost.TextExecutable:
    executable = ost.compile(folder, buckets={"B": [1], "T": [32]}, context=64, threads=1)
    executable(input_ids=np.arange(32, dtype=np.int32)[None])
    return executable


def main() -> None:
    small, large = sys.argv[1:]
    write_hf_checkpoint(Path(small), small_config("llama"), random_model(small_config("llama"), 1))
    run(small)  # imports and allocator pools are not what is measured
    before = status("VmRSS")
    executable = run(large)
    print(executable.memory.weights, status("VmHWM") - before)


if __name__ == "__main__":
    main()
