"""What the commands share between the options and the compiled program: opening, building, and the numbers of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from ostinato.compiler import Traced, plan_text_program, positions_of, trace
from ostinato.frontend.model import CacheShape, Model, load
from ostinato.ir.errors import ConfigError
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.options import bucket_entries
from ostinato.runtime.program import Program
from ostinato.tools.console import Steps, count, size, table
from ostinato.tools.schemas import EntryStats

__all__ = [
    "LoadProgress",
    "entry_stats",
    "plan_buckets",
    "precision_of",
    "region_sizes",
    "show_entries",
    "show_regions",
    "trace_model",
]


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Turns the loader's reports into the bar of a command."""

    steps: Steps

    def __call__(self, what: str, done: int, total: int) -> None:
        self.steps.advance(done, total, f"loading {what}")


def trace_model(name: str, entry: str, logits: str, context: int | None, precision: str) -> Traced:
    """Traces a model's entry for one sequence; the cache of "step" holds `context` positions."""
    model = load(name)
    cache = CacheShape(1, positions_of(model, context), 1)
    return trace(model, entry, cache=cache, logits=logits, precision=precision)


def plan_buckets(
    model: Model,
    buckets: Mapping[str, Sequence[int]],
    *,
    context: int | None,
    logits: str,
    precision: str,
    sampling: bool,
) -> Program:
    """Lowers, plans and checks packed entries of B sequences times T tokens; no weight is loaded. Raises `ConfigError` for unusable buckets."""
    if set(buckets) != {"B", "T"}:
        raise ConfigError(f"shapes name {sorted(buckets)}, expected B and T", hint="write --shapes B=1,T=128,512")
    cache = CacheShape(max(buckets["B"]), positions_of(model, context, buckets["T"]), 1)
    traced = trace(model, "step", cache=cache, logits=logits, precision=precision, sampling=sampling)
    return plan_text_program(traced, bucket_entries("step", buckets["B"], buckets["T"]))


def precision_of(program: Program) -> str:
    """ "f32" or "bf16": the dtype of activations, which is that of the cache."""
    return program.plan.state[0].type.dtype.value


def entry_stats(plan: ProgramPlan) -> tuple[EntryStats, ...]:
    """The numbers of each entry. A program plan exists only once the checker has proven it, hence `checked`."""
    return tuple(
        EntryStats(
            name=entry.name,
            dims=dict(entry.dims),
            steps=entry.stats.steps,
            launches=entry.stats.launches,
            copies=entry.stats.copies,
            strided_copies=entry.stats.strided_copies,
            in_place=entry.stats.in_place,
            arena_bytes=entry.stats.arena_bytes,
            lower_bound=entry.stats.lower_bound,
            gap=entry.stats.gap,
            sum_bytes=entry.stats.sum_bytes,
            solver=entry.stats.solver,
            peak_step=entry.stats.peak_step,
            peak_values=entry.stats.peak_values,
            checked=True,
        )
        for entry in plan.entries.values()
    )


def region_sizes(plan: ProgramPlan) -> dict[str, int]:
    """Bytes of each region under its printed name, such as "host:0/arena"."""
    return {str(item.region): item.bytes for item in plan.regions}


def show_entries(entries: Sequence[EntryStats], console: Console) -> None:
    """Entries side by side, one column each."""
    rows = [
        ("steps", [count(e.steps) for e in entries]),
        ("strided copies", [count(e.strided_copies) for e in entries]),
        ("results in place", [count(e.in_place) for e in entries]),
        ("arena", [size(e.arena_bytes) for e in entries]),
        ("lower bound", [size(e.lower_bound) for e in entries]),
        ("gap", [f"{e.gap:.2%}" for e in entries]),
        ("sum without reuse", [size(e.sum_bytes) for e in entries]),
        ("solver", [e.solver for e in entries]),
        ("peak at step", [count(e.peak_step) for e in entries]),
        ("proven", ["yes" if e.checked else "no" for e in entries]),
    ]
    console.print(table("entries", ("", *(e.name for e in entries)), ([name, *cells] for name, cells in rows)))


def show_regions(regions: Mapping[str, int], console: Console) -> None:
    """Bytes of the regions by printed name."""
    rows = [(name, size(nbytes), count(nbytes)) for name, nbytes in regions.items()]
    console.print(
        table(
            "regions",
            ("region", "size", "bytes"),
            [*rows, ("all", size(sum(regions.values())), count(sum(regions.values())))],
        )
    )
