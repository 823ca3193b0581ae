"""A whole training step, Ostinato's beside torch's: contenders take turns in one run, and nothing is timed before their losses agree.

    python -m benchmarks.training [--device cpu|cuda] [--model S] [--batch 4] [--sequence 128] [--precision f32] [--threads 1,2] [--rounds 7] [--steps 3]
        [--contenders "ours,torch eager,torch compile"] [--memory-limit 64M] [--json FILE]

Each contender is a process of its own with the same checkpoint, batches, AdamW (no decay) and learning rate. The gate: the losses of the first steps are
those of torch eager, within 1e-4 of the loss in float32 and 2e-2 in bf16. Printed are medians over the rounds, the ratio to ours within a round (median), and
bytes at the peak beyond parameters, gradients and moments.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.models import CONFIGS, checkpoint
from benchmarks.side_by_side import Worker

GATES = {"f32": 1e-4, "bf16": 2e-2}
"""Share of the loss by which a contender's may differ from torch eager's."""
GATED_STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", choices=tuple(CONFIGS), default="S")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--precision", choices=tuple(GATES), default="f32")
    parser.add_argument("--threads", default="1", help="numbers of threads of the CPU, like 1,2 (default 1)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="in a row, each time it is a contender's turn")
    parser.add_argument("--contenders", default="ours,torch eager,torch compile")
    parser.add_argument("--memory-limit", default="", help="of our arena, like 64M")
    parser.add_argument("--folder", type=Path, help="where a checkpoint is made or found (default: the user's cache)")
    parser.add_argument("--json", type=Path, help="a line a contender, added to the file")
    options = parser.parse_args()
    for threads in map(int, options.threads.split(",")):
        _measure(options, threads)


def _measure(options: argparse.Namespace, threads: int) -> None:
    dtype = "bf16" if options.precision == "bf16" else "f32"
    folder = checkpoint(options.model, dtype, options.folder)
    names = options.contenders.split(",")
    workers: dict[str, Worker] = {}
    firsts: dict[str, float] = {}
    losses: dict[str, list[float]] = {}
    more = (options.device, str(options.batch), str(options.sequence), options.memory_limit)
    for name in names:
        try:
            worker = Worker(name, folder, options.precision, threads, "training.worker", *more)
            answer = worker.ask("losses", n=GATED_STEPS)
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
            continue
        workers[name], losses[name], firsts[name] = worker, answer["losses"], answer["first_seconds"]
        print(f"{name}: losses {[round(loss, 5) for loss in losses[name]]}, first {firsts[name]:.1f} s", flush=True)
    exact = losses.get("torch eager")
    if exact is None:
        raise SystemExit("torch eager did not run: there is nothing to hold the losses against")
    for name, found in losses.items():
        off = max(abs(a - b) / abs(b) for a, b in zip(found, exact, strict=True))
        if not off <= GATES[options.precision]:
            raise SystemExit(f"{name}: losses are off by {off:.3g}: nothing timed")
    times: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(options.rounds + 1):  # round 0 warms
        for name, worker in workers.items():
            ms = worker.ask("time", n=options.steps)["ms"]
            if number:
                times[name].append(ms)
    memory = {name: worker.ask("memory") for name, worker in workers.items()}
    for worker in workers.values():
        worker.stop()
    _show(options, threads, times, memory, firsts)


def _show(
    options: argparse.Namespace,
    threads: int,
    times: dict[str, list[float]],
    memory: dict[str, dict[str, Any]],
    firsts: dict[str, float],
) -> None:
    on = f"{threads} thread(s)" if options.device == "cpu" else options.device
    title = f"{options.model}, {options.batch} x {options.sequence} tokens, {options.precision}, {on}"
    columns = ("contender", "ms a step", "/ ours", "first result s", "peak MiB beyond state", "process peak MiB")
    table = Table(*columns, title=title)
    ours = next((found for name, found in times.items() if name.startswith("ours")), None)
    for name, found in times.items():
        ratio = None if ours is None else statistics.median(a / b for a, b in zip(found, ours, strict=True))
        peak = memory[name]["peak_bytes"]
        row: dict[str, Any] = {
            "model": options.model,
            "batch": options.batch,
            "sequence": options.sequence,
            "precision": options.precision,
            "device": options.device,
            "threads": threads,
            "contender": name,
            "memory_limit": options.memory_limit,
            "ms": statistics.median(found),
            "over_ours": ratio,
            "first_seconds": firsts[name],
            **memory[name],
        }
        cells = (
            name,
            f"{row['ms']:.2f}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{firsts[name]:.1f}",
            "" if peak < 0 else f"{peak / 2**20:.0f}",
            f"{memory[name]['process_peak_bytes'] / 2**20:.0f}",
        )
        table.add_row(*cells)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
