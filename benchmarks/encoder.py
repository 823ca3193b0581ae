"""An encoder beside Hugging Face on torch: contenders are asked in turn in one run, and nothing is timed before their vectors agree.

    python -m benchmarks.encoder [--model minilm] [--dtypes f32,bf16] [--threads 1,2] [--rounds 7] [--json out.json]

Prints medians, the ratio torch / ours, and the multiplications and additions of the projections and of attention a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ostinato as ost
from benchmarks.side_by_side import Worker
from ostinato.ir.types import Array

BATCHES = ((1, 32, 30), (32, 128, 1))
"""Texts, tokens of each, and how often a round runs the batch."""
GATE = 1e-5
"""Largest error of a component in fp32. In bf16 ours may be that plus twice as far from fp32 as torch's bf16 is."""


def vectors(worker: Worker, texts: int, tokens: int) -> Array:
    return np.array(worker.ask("embed", texts=texts, tokens=tokens)["vectors"])


def measure(model: str, dtype: str, threads: int, rounds: int) -> list[dict[str, Any]]:
    """Times each batch of both contenders, round by round in turn."""
    names = ("exact", "ours", "torch")
    workers = {name: Worker(name, model, dtype, threads, module="encoder_worker") for name in names}
    exact = workers.pop("exact")
    errors: dict[tuple[int, int, str], float] = {}
    for texts, tokens, _ in BATCHES:
        reference = vectors(exact, texts, tokens)
        for name, worker in workers.items():
            errors[texts, tokens, name] = float(np.abs(vectors(worker, texts, tokens) - reference).max())
        if not errors[texts, tokens, "ours"] <= GATE + 2 * errors[texts, tokens, "torch"] * (dtype != "f32"):
            raise SystemExit(f"{model} {dtype}: off by {errors[texts, tokens, 'ours']:.3g}, nothing timed")
    exact.stop()
    times: dict[tuple[int, int, str], list[float]] = {}
    for number in range(rounds + 1):  # round 0 warms
        for texts, tokens, n in BATCHES:
            for name, worker in workers.items():
                ms = worker.ask("time", texts=texts, tokens=tokens, n=n)["ms"]
                if number:
                    times.setdefault((texts, tokens, name), []).extend(ms)
    for worker in workers.values():
        worker.stop()
    rows = []
    for texts, tokens, _ in BATCHES:
        ours, torch = (statistics.median(times[texts, tokens, name]) for name in names[1:])
        rows.append(
            {
                "model": model,
                "dtype": dtype,
                "threads": threads,
                "texts": texts,
                "tokens": tokens,
                "ours_ms": ours,
                "torch_ms": torch,
                "ratio": torch / ours,
                "ours_error": errors[texts, tokens, "ours"],
                "torch_error": errors[texts, tokens, "torch"],
                "gflops": operations(model, texts, tokens) / ours / 1e6,
            }
        )
    return rows


def operations(model: str, texts: int, tokens: int) -> float:
    """Multiplications and additions of the projections and of attention."""
    c = ost.load(model).config
    projections = c.hidden_size * (4 * c.query_width + 2 * c.intermediate_size)
    attention = 2 * tokens * c.query_width
    return 2.0 * texts * tokens * c.num_layers * (projections + attention)


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("model", "dtype", "threads", "batch", "ours ms", "torch ms", "torch / ours", "GFLOP/s", "error")
    for row in rows:
        table.add_row(
            row["model"],
            row["dtype"],
            str(row["threads"]),
            f"{row['texts']} x {row['tokens']}",
            f"{row['ours_ms']:.2f}",
            f"{row['torch_ms']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['gflops']:.0f}",
            f"{row['ours_error']:.1e}",
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for threads in map(int, options.threads.split(",")):
        for dtype in options.dtypes.split(","):
            rows += measure(options.model, dtype, threads, options.rounds)
            show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
