"""Real graphs: one prefill or decode step of Q, D and L, planned from nothing but their shapes.

For each: nodes and steps, the arena, its lower bound, what the solver knows, and the time that planning takes (storage, order, lifetimes, placement,
steps and figures; the median of some runs). The proof is another stage and timed beside it. No weight exists: the checkpoints are outlines.

    python -m benchmarks.planner.models [Q D L] [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ostinato as ost
from benchmarks.models import outline
from ostinato.planner.check import check_program
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.stages import Lowered

__all__ = ["SHAPES", "Timed", "lowered_model", "time_plan"]

CONTEXT = 4096
SHAPES: dict[str, tuple[int, int]] = {"p512": (512, 1), "p2048": (2048, 1), "d1": (1, 1), "d64": (64, 64)}
"""Tokens N and sequences R of a step: prefills of one sequence, decodes of a token each."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan, the median seconds of planning it, and the seconds of proving it."""

    plan: EntryPlan
    plan_seconds: float
    check_seconds: float


def lowered_model(name: str, shapes: Sequence[str] = tuple(SHAPES)) -> Iterator[tuple[str, Lowered]]:
    """Each shape's lowered graph of a model in bf16, with sampling on the device."""
    with tempfile.TemporaryDirectory() as folder:
        model = ost.load(outline(name, "bf16", Path(folder)))
        rows = max(SHAPES[shape][1] for shape in shapes)
        traced = ost.trace(model, "step", cache=ost.CacheShape(rows, CONTEXT, 1), sampling=True)
        for shape in shapes:
            tokens, sequences = SHAPES[shape]
            yield shape, traced.lower(dims={"N": tokens, "R": sequences}, name=shape)


def time_plan(lowered: Lowered, runs: int) -> Timed:
    """Plans `runs` times, and proves the plan once."""
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        graph, plan = lowered.fit_entry()
        seconds.append(time.perf_counter() - begin)
    program = build_program({lowered.name: (graph, plan)})
    begin = time.perf_counter()
    check_program(program, {lowered.name: graph}, lowered.target)
    return Timed(plan, statistics.median(seconds), time.perf_counter() - begin)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["Q", "D", "L"])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args(arguments)
    head = ("nodes", "steps", "arena", "bound", "height/bound", "sum", "plan ms", "check ms")
    print(f"{'':9}" + "".join(f"{name:>15}" for name in head) + "  status")
    for name in options.models:
        for shape, lowered in lowered_model(name):
            timed = time_plan(lowered, options.runs)
            stats = timed.plan.stats
            cells = (
                f"{len(lowered.graph.nodes)}",
                f"{stats.steps}",
                f"{stats.arena_bytes:,}",
                f"{stats.lower_bound:,}",
                f"{1 + stats.gap:.4f}",
                f"{stats.sum_bytes:,}",
                f"{1e3 * timed.plan_seconds:.1f}",
                f"{1e3 * timed.check_seconds:.1f}",
            )
            print(
                f"{name} {shape:7}" + "".join(f"{cell:>15}" for cell in cells) + f"  {stats.status} by {stats.solver}"
            )


if __name__ == "__main__":
    main()
