"""Ostinato and Hugging Face on torch side by side: contenders are asked in turn in one run, and nothing is timed before their logits agree.

    python -m benchmarks.side_by_side [--models Q,S,smollm2] [--dtypes f32,bf16] [--threads 1,2] [--rounds 5] [--json out.json]

Prints medians, the ratio torch / ours, and for decode the share of the read limit (bytes of the weights over the measured read bandwidth).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.bandwidth import read_bandwidth
from benchmarks.models import PACKAGED, checkpoint, weight_bytes
from ostinato.ir.types import Array

ELEMENT = {"f32": 4, "bf16": 2}
GATE = 1e-3
"""Share of the logits' standard deviation: the error that fp32 may have. In bf16 ours may be that plus twice as far from fp32 as torch's bf16 is."""


class Worker:
    """A contender's process, running a module of this folder, and its line protocol."""

    def __init__(self, kind: str, model: str, dtype: str, threads: int, module: str = "worker", *more: str) -> None:
        command = [sys.executable, "-m", f"benchmarks.{module}", kind, model, dtype, str(threads), *more]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._read()

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write('{"op": "quit"}\n')
        self._process.stdin.close()
        self._process.wait(30)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with {self._process.wait()}; its messages are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def ask_once(kind: str, model: str, dtype: str, threads: int) -> Array:
    """Logits of a contender that is stopped at once."""
    worker = Worker(kind, model, dtype, threads)
    logits = np.array(worker.ask("logits")["logits"])
    worker.stop()
    return logits


def measure(model: str, dtype: str, threads: int, rounds: int, bandwidth: float) -> list[dict[str, Any]]:
    """Times decode and prefill of both contenders, round by round in turn."""
    checkpoint(model, dtype)
    exact = ask_once("exact", model, dtype, threads)
    workers = {kind: Worker(kind, model, dtype, threads) for kind in ("ours", "torch")}
    errors = {}
    for kind, worker in workers.items():
        difference = np.abs(np.array(worker.ask("logits")["logits"]) - exact)
        errors[kind] = float(difference.max() / exact.std())
    if not errors["ours"] <= GATE + 2 * errors["torch"]:
        raise SystemExit(
            f"{model} {dtype}: logits are off by {errors['ours']:.3g} standard deviations, torch's by {errors['torch']:.3g}: nothing timed"
        )
    times: dict[tuple[str, str], list[float]] = {}
    for round_number in range(rounds + 1):  # round 0 warms
        for op, n in (("decode", 16 if model == "Q" else 100), ("prefill", 2 if model == "Q" else 5)):
            for kind, worker in workers.items():
                ms = worker.ask(op, n=n)["ms"]
                if round_number:
                    times.setdefault((op, kind), []).extend(ms)
    memory = {kind: worker.ask("memory")["peak_mib"] for kind, worker in workers.items()}
    for worker in workers.values():
        worker.stop()
    rows = []
    for op in ("decode", "prefill"):
        ours, torch = (statistics.median(times[op, kind]) for kind in ("ours", "torch"))
        row = {
            "model": model,
            "dtype": dtype,
            "threads": threads,
            "op": op,
            "ours_ms": ours,
            "torch_ms": torch,
            "ratio": torch / ours,
        }
        row["ours_error"], row["torch_error"] = errors["ours"], errors["torch"]
        row["ours_peak_mib"], row["torch_peak_mib"] = memory["ours"], memory["torch"]
        row["weights_mib"] = weight_bytes(model, ELEMENT[dtype]) / 2**20
        if op == "decode":
            row["limit_share"] = weight_bytes(model, ELEMENT[dtype]) / bandwidth / (ours / 1e3)
        rows.append(row)
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(
        "model",
        "dtype",
        "threads",
        "op",
        "ours ms",
        "torch ms",
        "torch / ours",
        "of read limit",
        "ours peak MiB",
        "weights MiB",
    )
    for row in rows:
        share = f"{row['limit_share']:.0%}" if "limit_share" in row else ""
        cells = (
            row["model"],
            row["dtype"],
            row["threads"],
            row["op"],
            f"{row['ours_ms']:.2f}",
            f"{row['torch_ms']:.2f}",
        )
        table.add_row(
            *map(str, cells), f"{row['ratio']:.2f}", share, f"{row['ours_peak_mib']:.0f}", f"{row['weights_mib']:.0f}"
        )
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="Q,S,smollm2")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for threads in map(int, options.threads.split(",")):
        bandwidth = read_bandwidth(threads)
        print(f"read bandwidth, {threads} thread(s): {bandwidth / 1e9:.1f} GB/s", flush=True)
        for model in options.models.split(","):
            for dtype in ["f32"] if model == PACKAGED else options.dtypes.split(","):
                rows += measure(model, dtype, threads, options.rounds, bandwidth)
                show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
