"""The memory of a training step: what plans take against what none can go below, and what a limit costs, by plan and by the clock.

    python -m benchmarks.training.memory plans [--steps S:4x128:f32:host,Q:1x512:bf16:sm_90,D:1x512:bf16:sm_90] [--parts 80,60,50] [--json FILE]
    python -m benchmarks.training.memory steps [--device cpu|cuda] [--model S] [--batch 4] [--sequence 128] [--chunks 4] [--layers 0,3,6] [--json FILE]

`plans` needs neither weights nor a device: every model is an outline. Per step: nodes, arena and its bound (the most bytes alive at a step, or a clique that
proves more), whether the placement is proven to be as small as can be, bytes saved for the backward, and seconds from the trace to the proven plan; below it
the same within parts of that arena, with the pieces of the head, the steps that run twice and the work that they add.

`steps` times ours with its head in one piece and in `--chunks`, in all of its arena and in parts of it, beside torch with some layers checkpointed, taking
turns in one run. Nothing is timed before our losses within a limit are those without one to the bit, and all others near them. Device bytes are those beyond
parameters, gradients and moments (ours keep gradients in the arena, which they count), and all of the device's by the library's own counters; on a CPU only
the peak of a whole process is known of torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.models import CONFIGS, checkpoint, outline
from benchmarks.side_by_side import Worker
from ostinato.backend_hip.target import named_target
from ostinato.frontend.training import TrainingShape
from ostinato.ir.errors import CapacityError
from ostinato.planner.memory_report import memory_answer
from ostinato.stages import open_model
from ostinato.training import PlannedTraining, Recipe, plan_training

__all__ = ["PlanRow", "plan_rows"]

MIB = 1 << 20
LOSSES = 5
NEAR = 1e-4
"""Share of the loss by which torch's may differ from ours, in float32."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A step within a part of its arena (1 for all of it); with `arena` 0 nothing that was found keeps to it."""

    step: str
    part: float
    nodes: int = 0
    arena: int = 0
    bound: int = 0
    status: str = ""
    saved: int = 0
    chunks: int = 1
    recomputed: int = 0
    extra_work: float = 0.0
    seconds: float = 0.0
    missing: int = 0


def plan_rows(step: str, parts: tuple[float, ...]) -> Iterator[PlanRow]:
    """Plans of a step such as "S:4x128:f32:host", in all of its arena and in parts of it."""
    name, shape, precision, target = step.split(":")
    batch, sequence = map(int, shape.split("x"))
    recipe = Recipe(TrainingShape(batch, sequence), precision=precision)
    chosen = named_target(target)
    with tempfile.TemporaryDirectory() as folder:
        model = open_model(outline(name, "bf16" if precision == "bf16" else "f32", Path(folder)))
        whole = 0
        for part in (1.0, *parts):
            begin = time.perf_counter()
            try:
                planned = plan_training(model, recipe, target=chosen, memory_limit=int(whole * part) or None)
            except CapacityError as error:
                seconds = time.perf_counter() - begin
                yield PlanRow(step, part, missing=error.missing_bytes or 0, seconds=seconds)
                continue
            row = _row(step, part, planned, time.perf_counter() - begin)
            whole = whole or row.arena
            yield row


def _row(step: str, part: float, planned: PlannedTraining, seconds: float) -> PlanRow:
    (entry,) = planned.planned.program.entries.values()
    stats = entry.stats
    answer = memory_answer(planned.planned.program, planned.graph)
    return PlanRow(
        step,
        part,
        len(planned.graph.nodes),
        stats.arena_bytes,
        stats.lower_bound,
        stats.status,
        answer.saved,
        planned.step.recipe.shape.pieces,
        stats.recomputed,
        stats.extra_work,
        seconds,
    )


def _plans(options: argparse.Namespace) -> None:
    columns = ("step", "arena %", "nodes", "MiB", "bound MiB", "placement", "saved MiB", "pieces", "twice", "work +%")
    table = Table(*columns, "plan s", title="memory of training steps, by plan")
    parts = tuple(float(part) / 100 for part in options.parts.split(",") if part)
    for step in options.steps.split(","):
        for row in plan_rows(step, parts):
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps({field: getattr(row, field) for field in row.__slots__}) + "\n")
            head = (step, f"{row.part:.0%}", str(row.nodes or ""))
            if not row.arena:
                why = f"{row.missing / MIB:.1f} MiB missing"
                table.add_row(*head, "", "", why, "", "", "", "", f"{row.seconds:.1f}")
                continue
            sizes = (f"{row.arena / MIB:.1f}", f"{row.bound / MIB:.1f}", row.status, f"{row.saved / MIB:.1f}")
            table.add_row(
                *head, *sizes, str(row.chunks), str(row.recomputed), f"{row.extra_work:.1%}", f"{row.seconds:.1f}"
            )
    Console(width=150).print(table)


def _steps(options: argparse.Namespace) -> None:
    folder = checkpoint(options.model, options.precision, options.folder)
    more = (options.device, str(options.batch), str(options.sequence))
    workers: dict[str, Worker] = {}
    losses: dict[str, list[float]] = {}

    def start(label: str, kind: str, *limits: str) -> None:
        try:
            worker = Worker(kind, folder, options.precision, options.threads, "training.worker", *more, *limits)
            losses[label] = worker.ask("losses", n=LOSSES)["losses"]
        except RuntimeError as error:
            print(f"{label}: {error}", flush=True)
            return
        workers[label] = worker

    if options.chunks > 1:
        start("ours in one piece", "ours", "", "1")
    start("ours", "ours", "", str(options.chunks))
    whole = workers["ours"].ask("memory")["arena"]
    for part in map(int, options.parts.split(",")):
        start(f"ours {part} %", "ours", str(whole * part // 100), str(options.chunks))
    for layers in map(int, options.layers.split(",")):
        start(f"torch eager, {layers} layers again" if layers else "torch eager", f"torch eager+{layers}")
    near = NEAR if options.precision == "f32" else 2e-2
    for label, found in losses.items():
        if label.endswith("%") and found != losses["ours"]:
            raise SystemExit(f"{label}: losses {found}, without a limit {losses['ours']}: nothing timed")
        off = max(abs(a - b) / abs(b) for a, b in zip(found, losses["ours"], strict=True))
        if not off <= near:
            raise SystemExit(f"{label}: losses are off by {off:.3g}: nothing timed")
    times: dict[str, list[float]] = {label: [] for label in workers}
    for number in range(options.rounds + 1):  # round 0 warms
        for label, worker in workers.items():
            ms = worker.ask("time", n=options.repeats)["ms"]
            if number:
                times[label].append(ms)
    columns = (
        "contender",
        "ms a step",
        "/ all of it",
        "arena MiB",
        "pieces",
        "twice",
        "work +%",
        "device MiB",
        "all MiB",
        "process MiB",
    )
    table = Table(*columns, title=f"{options.model}, {options.batch} x {options.sequence} tokens")
    for label, worker in workers.items():
        memory = worker.ask("memory")
        worker.stop()
        base = "ours" if label.startswith("ours") else next(other for other in times if other.startswith("torch"))
        ratio = statistics.median(a / b for a, b in zip(times[label], times[base], strict=True))
        row = {"contender": label, "ms": statistics.median(times[label]), "ratio": ratio, **memory}
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
        ours = "arena" in memory
        cells = (
            label,
            f"{row['ms']:.1f}",
            f"{ratio:.3f}",
            f"{memory['arena'] / MIB:.1f}" if ours else "",
            str(memory["chunks"]) if ours else "",
            str(memory["recomputed"]) if ours else "",
            f"{memory['extra_work']:.1%}" if ours else "",
            f"{memory['peak_bytes'] / MIB:.1f}" if memory["peak_bytes"] >= 0 else "",
            f"{memory['device_bytes'] / MIB:.1f}" if memory["device_bytes"] >= 0 else "",
            f"{memory['process_peak_bytes'] / MIB:.0f}",
        )
        table.add_row(*cells)
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("plans", "steps"))
    parser.add_argument("--json", type=Path, help="a line a row, added to the file")
    parser.add_argument("--parts", default="80,60,50", help="percents of the arena")
    parser.add_argument("--steps", default="S:4x128:f32:host,Q:1x512:bf16:sm_90,D:1x512:bf16:sm_90")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", choices=tuple(CONFIGS), default="S")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--chunks", type=int, default=4, help="pieces of our head, in all rows")
    parser.add_argument("--layers", default="0,3,6", help="of torch, checkpointed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2, help="steps in a row, each time it is a contender's turn")
    parser.add_argument("--folder", type=Path, help="where a checkpoint is made or found (default: the user's cache)")
    options = parser.parse_args()
    (_plans if options.what == "plans" else _steps)(options)


if __name__ == "__main__":
    main()
