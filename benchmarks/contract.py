"""What the design promises of a model, checked on a real shape: counts and bytes, no times.

    python -m benchmarks.contract [--model Q] [--dtypes f32,bf16]

For each dtype: eager and planned bit-equal over a prefill and three decode steps at one and two threads; the plan proven, its arena over its lower bound;
peak memory of this process over the weights. The zero-allocation count of one step runs under the interposer of `tests/runtime/test_allocations.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import ostinato as ost
from benchmarks.models import CONFIGS, checkpoint
from benchmarks.worker import CONTEXT, PROMPT
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack

MIB = 2**20


def logits(executable: ost.TextExecutable, tokens: Array) -> bytes:
    """Logits of a prefill and three decode steps, as bytes."""
    found = b""
    for piece in [Piece(0, tokens, 0, True)] + [Piece(0, tokens[at : at + 1], PROMPT + at, True) for at in range(3)]:
        plan = executable.bucket(len(piece.tokens), 1)
        inputs, _ = pack(plan, [piece], executable.block_table())
        found += executable.run(plan.name, inputs, ("logits",))["logits"].tobytes()
    return found


def check(model: str, dtype: str) -> dict[str, str]:
    """One row of the table; runs in a process of its own."""
    tokens = np.random.default_rng(1).integers(3, CONFIGS[model]["vocab_size"], PROMPT, dtype=np.int32)
    results, row = [], {}
    for threads in (1, 2):
        executable = ost.compile(
            checkpoint(model, dtype),
            buckets={"B": [1], "T": [1, PROMPT]},
            context=CONTEXT,
            threads=threads,
            precision=dtype,
        )
        results.append(logits(executable, tokens))
        if threads == 1:
            peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
            row["weights MiB"] = f"{executable.memory.weights / MIB:.0f}"
            row["peak over weights MiB"] = f"{(peak - executable.memory.weights) / MIB:.0f}"
            row["arena / bound"] = ", ".join(
                f"{name}: {plan.stats.arena_bytes / plan.stats.lower_bound:.4f}"
                for name, plan in executable.entries.items()
            )
            row["steps"] = str(max(len(plan.steps) for plan in executable.entries.values()))
        results.append(logits(executable.clone("eager"), tokens))
    row["eager = planned, 1 and 2 threads"] = "bit-equal" if len(set(results)) == 1 else "DIFFERENT"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="Q")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--one", action="store_true", help="check the first dtype in this process and print its row")
    options = parser.parse_args()
    dtypes = options.dtypes.split(",")
    if options.one:
        print(json.dumps(check(options.model, dtypes[0])))
        return
    table = Table("model", "dtype")
    for dtype in dtypes:
        checkpoint(options.model, dtype)
        command = [sys.executable, "-m", "benchmarks.contract", "--one", "--model", options.model, "--dtypes", dtype]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        row: dict[str, str] = json.loads(output.splitlines()[-1])
        if len(table.columns) == 2:
            for name in row:
                table.add_column(name)
        table.add_row(options.model, dtype, *row.values())
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
