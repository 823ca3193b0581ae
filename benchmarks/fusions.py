"""What each fusion takes out of a step, counted from plans alone, and what compiling costs, pass by pass. No device and no weights are needed.

    python -m benchmarks.fusions [--models Q,D] [--workloads p512,d1] [--targets host:f32,host:bf16,sm_90:bf16] [--passes all|none|NAMES] [--json FILE]

For every model, workload and target: all fusions on, each of them off in turn, all of them off. Casts, strided copies (nodes that only move bytes), launches
(products by a vendor's library among them) and steps of any kind are those of a layer, on average; "step" counts all steps of the entry. The time is from the
trace to the proven plan, the best of three; its parts follow for the variant that has all fusions.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Column, Table

from benchmarks.models import CONFIGS, outline
from benchmarks.steps import traced_workload
from benchmarks.workloads import Workload
from ostinato.backend_hip.target import named_target
from ostinato.frontend.model import Model
from ostinato.ir.graph import Graph
from ostinato.ir.step import StepKind
from ostinato.ir.target import Target
from ostinato.passes.pipeline import PipelineOptions, pipeline
from ostinato.planner.plan import EntryPlan
from ostinato.stages import open_model

__all__ = ["FUSIONS", "Counts", "Seconds", "counted", "variants"]

FUSIONS = tuple(item.name for item in pipeline() if item.optional and item.name != "cse")
"""The passes that make a step shorter, in the order in which they run."""
_LAYER = re.compile(r"^layers\.\d+\.")
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Counts:
    """What a layer of a step has, on average, and the whole step."""

    casts: float
    copies: float
    launches: float
    steps: float
    step: int
    arena_bytes: int


@dataclass(frozen=True, slots=True)
class Seconds:
    """What compiling took: `passes` are those of the pipeline by name, its own checks in them."""

    trace: float
    lower: float
    plan: float
    passes: dict[str, float]

    @property
    def total(self) -> float:
        return self.trace + self.lower + self.plan


@dataclass(frozen=True, slots=True)
class Row:
    """A variant of a step."""

    model: str
    workload: str
    target: str
    precision: str
    variant: str
    counts: Counts
    seconds: Seconds


def variants(passes: Sequence[str] = FUSIONS) -> Iterator[tuple[str, frozenset[str]]]:
    """Names of variants and the passes that they leave out."""
    yield "all on", frozenset()
    for name in passes:
        yield f"without {name}", frozenset({name})
    yield "all off", frozenset(FUSIONS)


def counted(graph: Graph, plan: EntryPlan, layers: int) -> Counts:
    """Counts of a lowered graph and its plan."""
    kinds = [step.kind for step in plan.steps if _LAYER.match(step.node)]
    made = [node for node in graph.nodes if _LAYER.match(node.name)]
    launches = sum(kind in (StepKind.LAUNCH, StepKind.GEMM) for kind in kinds)
    return Counts(
        casts=sum(node.op == "cast" for node in made) / layers,
        copies=sum(node.op == "contiguous" for node in made) / layers,
        launches=launches / layers,
        steps=len(kinds) / layers,
        step=len(plan.steps),
        arena_bytes=plan.stats.arena_bytes,
    )


def compiled(workload: Workload, model: Model, target: Target, options: PipelineOptions) -> tuple[Counts, Seconds]:
    """A workload from the trace to the proven plan."""
    begin = perf_counter()
    traced, dims = traced_workload(workload, model, options.precision)
    is_traced = perf_counter()
    lowered = traced.lower(target, dims=dims, options=options)
    is_lowered = perf_counter()
    planned = lowered.plan()
    planned.check()
    done = perf_counter()
    (plan,) = planned.program.entries.values()
    passes = {stage.name: stage.seconds for stage in lowered.report.stages}
    seconds = Seconds(is_traced - begin, is_lowered - is_traced, done - is_lowered, passes)
    return counted(planned.graph, plan, model.config.num_layers), seconds


def measured(
    models: Sequence[str], workloads: Sequence[Workload], targets: Sequence[str], passes: Sequence[str], folder: Path
) -> Iterator[Row]:
    for name in models:
        for text in targets:
            target_name, _, precision = text.partition(":")
            place = folder / f"{name}-{precision}"
            place.mkdir(exist_ok=True)
            model, target = open_model(outline(name, precision, place)), named_target(target_name)
            for workload in workloads:
                for variant, disable in variants(passes):
                    options = PipelineOptions(precision, disable)
                    found = [compiled(workload, model, target, options) for _ in range(_REPEATS if not disable else 1)]
                    counts, seconds = min(found, key=lambda item: item[1].total)
                    yield Row(name, str(workload), target_name, precision, variant, counts, seconds)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """A table of counts for each model, workload and target, and one of the seconds of their passes."""
    keys = dict.fromkeys((row.model, row.workload, row.target, row.precision) for row in rows)
    for key in keys:
        mine = [row for row in rows if (row.model, row.workload, row.target, row.precision) == key]
        columns = ("casts", "copies", "launches", "steps", "step", "arena bytes", "s")
        title = "{} {} on {}, {}: a layer".format(*key)
        table = Table("variant", *(Column(name, justify="right") for name in columns), title=title)
        for row in mine:
            c = row.counts
            per_layer = (f"{value:.2f}" for value in (c.casts, c.copies, c.launches, c.steps))
            table.add_row(row.variant, *per_layer, str(c.step), f"{c.arena_bytes:,}", f"{row.seconds.total:.2f}")
        yield table
    first = [row for row in rows if row.variant == "all on"]
    times = Table("ms", *(Column(f"{r.model} {r.workload} {r.target} {r.precision}", justify="right") for r in first))
    names = dict.fromkeys(name for row in first for name in row.seconds.passes)
    times.add_row("trace", *(f"{row.seconds.trace * 1e3:.0f}" for row in first))
    for name in names:
        times.add_row(f"  {name}", *(f"{row.seconds.passes.get(name, 0.0) * 1e3:.1f}" for row in first))
    times.add_row("plan and check", *(f"{row.seconds.plan * 1e3:.0f}" for row in first))
    times.add_row("all", *(f"{row.seconds.total * 1e3:.0f}" for row in first))
    yield times


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="Q,D", help=f"of {', '.join(CONFIGS)}")
    parser.add_argument("--workloads", default="p512,d1")
    parser.add_argument("--targets", default="host:f32,host:bf16,sm_90:bf16", help="target:precision")
    parser.add_argument("--passes", default="all", help="which are left out in turn")
    parser.add_argument("--json", help="a file for a line of JSON a row")
    given = parser.parse_args(arguments)
    passes = {"all": FUSIONS, "none": ()}.get(given.passes, tuple(given.passes.split(",")))
    if unknown := sorted(set(passes) - set(FUSIONS)):
        parser.error(f"unknown passes {', '.join(unknown)}; there are {', '.join(FUSIONS)}")
    workloads = [Workload.parse(text) for text in given.workloads.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measured(given.models.split(","), workloads, given.targets.split(","), passes, Path(folder)))
    if given.json:
        Path(given.json).write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    console = Console(width=None if sys.stdout.isatty() else 200)
    for table in tables(rows):
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
