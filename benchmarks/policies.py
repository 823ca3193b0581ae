"""What a policy costs: the same step under several policies of numerics and of precision, side by side over one model, in turns.

    python -m benchmarks.policies [--device cpu|hip|emulated] [--model Q] [--workloads d1,d8,p512] [--policies balanced,batch_invariant]
        [--precisions bf16,bf16_results] [--mode planned|captured] [--rounds 9] [--threads 1] [--json FILE]

Contenders are all pairs of a policy and a precision; the first one is what the others are held against: time (median over the rounds of the ratio within a
round), steps, vendor's products among them, bytes of the arena, and logits, by the largest and the root mean square difference (0 where the bits are the same).
On one thread of a CPU times are CPU time of the process. Workloads are those of `benchmarks/workloads.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from benchmarks.models import CONFIGS, PACKAGED, checkpoint
from benchmarks.steps import LoadedStep, WeightPool, open_benchmark_device, plan_workload
from benchmarks.timing import in_turn, median
from benchmarks.workloads import Shape, Workload
from ostinato.frontend.model import Model
from ostinato.ir.step import StepKind
from ostinato.passes.pipeline import PipelineOptions
from ostinato.planner.settings import PlanSettings
from ostinato.runtime.device import Device
from ostinato.stages import open_model

__all__ = ["Row", "main", "measure"]

_COLUMNS = ("policy", "precision", "ms", "/ first", "steps", "vendor", "arena bytes", "largest off", "rms off")


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a contender: milliseconds of a step among many in a row, and over the first contender's in the same round; see the module text."""

    workload: str
    device: str
    mode: str
    policy: str
    precision: str
    ms: float
    over_first: float
    steps: int
    vendor: int
    arena_bytes: int
    largest: float
    root_mean_square: float


def measure(
    workload: Workload,
    model: Model,
    device: Device,
    mode: str,
    contenders: Sequence[tuple[str, str]],
    rounds: int,
    pool: WeightPool,
) -> list[Row]:
    """A row for each contender (policy, precision)."""
    shape = Shape.read(model.checkpoint.path)
    steps: list[LoadedStep] = []
    for policy, precision in contenders:
        options = PipelineOptions(precision).extended(policy=policy)
        program = plan_workload(workload, model, device.target, options, PlanSettings())
        steps.append(LoadedStep(workload, program, device, pool.of(program), mode, shape=shape))
    logits = [step.outputs()["logits"].astype(np.float64) for step in steps]
    clock = perf_counter if device.captures or device.threads > 1 else process_time
    turns = in_turn([step.timed for step in steps], rounds, clock=clock)
    rows = []
    for (policy, precision), step, found, (times, _) in zip(contenders, steps, logits, turns, strict=True):
        off = np.abs(found - logits[0])
        rows.append(
            Row(
                workload=str(workload),
                device=device.name,
                mode=mode,
                policy=policy,
                precision=precision,
                ms=median(times),
                over_first=median([mine / first for mine, first in zip(times, turns[0][0], strict=True)]),
                steps=len(step.plan.steps),
                vendor=sum(item.kind is StepKind.GEMM for item in step.plan.steps),
                arena_bytes=step.plan.stats.arena_bytes,
                largest=float(off.max()),
                root_mean_square=float(np.sqrt((off**2).mean())),
            )
        )
    return rows


def show(rows: Sequence[Row], console: Console) -> None:
    for workload in dict.fromkeys(row.workload for row in rows):
        table = Table(*(Column(name, no_wrap=True) for name in _COLUMNS), title=workload)
        for row in (row for row in rows if row.workload == workload):
            figures = (
                f"{row.ms:.4f}",
                f"{row.over_first:.3f}",
                str(row.steps),
                str(row.vendor),
                f"{row.arena_bytes:,}",
            )
            table.add_row(row.policy, row.precision, *figures, f"{row.largest:.5f}", f"{row.root_mean_square:.5f}")
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__.partition("\n")[0])
    shows = "emulated shows that it runs and says nothing about time (default cpu)"
    parser.add_argument("--device", default="cpu", choices=("cpu", "hip", "emulated"), help=shows)
    parser.add_argument("--model", default="Q", choices=(*CONFIGS, PACKAGED), help="random weights (default Q)")
    parser.add_argument("--dtype", default="bf16", choices=("f32", "bf16"), help="of the checkpoint (default bf16)")
    parser.add_argument(
        "--workloads", default="d1,d8,p512", help="decode steps of so many rows, prefills of so many tokens"
    )
    parser.add_argument("--policies", default="balanced,batch_invariant", help="of numerics (default both of these)")
    parser.add_argument(
        "--precisions", default="bf16", help="separated by semicolons where they name kinds (default bf16)"
    )
    parser.add_argument("--mode", choices=("planned", "captured"), help="default: captured on a GPU, planned on a CPU")
    parser.add_argument("--rounds", type=int, default=9, help="how often the contenders take turns (default 9)")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU (default 1)")
    parser.add_argument("--folder", type=Path, help="where a checkpoint is made or found (default: the user's cache)")
    parser.add_argument("--json", metavar="FILE", help="a line a row, added to the file")
    options = parser.parse_args()
    separator = ";" if ";" in options.precisions or "[" in options.precisions else ","
    contenders = list(product(options.policies.split(","), options.precisions.split(separator)))
    device = open_benchmark_device(options.device, options.threads)
    mode = options.mode or ("captured" if device.captures else "planned")
    model = open_model(checkpoint(options.model, options.dtype, options.folder))
    pool, console, rows = WeightPool(device), Console(width=140), list[Row]()
    for name in options.workloads.split(","):
        found = measure(Workload.parse(name), model, device, mode, contenders, options.rounds, pool)
        show(found, console)
        rows += found
        if options.json:
            with Path(options.json).open("a") as file:
                file.writelines(json.dumps(asdict(row)) + "\n" for row in found)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
