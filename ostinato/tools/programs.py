"""What the commands share between the options and the compiled program: opening, building, and the numbers of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ostinato.backend_hip.evidence.first_use import VALIDATING
from ostinato.backend_hip.target import named_target
from ostinato.compiler import compile as compile_decoder
from ostinato.compiler import compile_encoder, load_text_plan, plan_text_program
from ostinato.frontend.model import CacheShape, Model, load
from ostinato.ir.errors import ConfigError
from ostinato.passes.pipeline import settled_options
from ostinato.passes.precision import Precision
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.executable import Executable
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.options import bucket_entries
from ostinato.runtime.program import Program
from ostinato.stages import Traced, plan_settings, positions_of, trace
from ostinato.tools.console import Steps, count, many, size, table
from ostinato.tools.schemas import EntryStats

__all__ = [
    "LoadProgress",
    "compile_model",
    "device_of",
    "entry_stats",
    "how_it_runs",
    "plan_buckets",
    "precision_of",
    "refuse_decoder_options",
    "region_sizes",
    "show_entries",
    "show_regions",
    "trace_model",
]

_MOST_AT_PEAK = 4
"""Values that a table names."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Turns the loader's reports into the bar of a command."""

    steps: Steps

    def __call__(self, what: str, done: int, total: int) -> None:
        self.steps.advance(done, total, what if what == VALIDATING else f"loading {what}")


def trace_model(name: str, entry: str | None, logits: str, context: int | None, precision: str) -> Traced:
    """Traces a model's entry (None: the one that runs) for one sequence; the cache of "step" holds `context` positions."""
    model = load(name)
    chosen = entry or ("step" if model.family.encoder is None else "embed")
    if chosen == "embed":
        refuse_decoder_options(model, logits, context)
    cache = CacheShape(1, positions_of(model, context), 1)
    return trace(model, chosen, cache=cache, logits=logits, precision=precision)


def refuse_decoder_options(model: Model, logits: str, context: int | None) -> None:
    """Raises `ConfigError` for options that an encoder would leave unread."""
    given = [option for option, found in (("--logits", logits != "last"), ("--context", context is not None)) if found]
    if given:
        raise ConfigError(
            f"{model.family.name} is a family of encoders, which have no {' and no '.join(given)}",
            hint="leave the option out",
        )


def compile_model(
    model: Model, *, logits: str = "last", context: int | None = None, **settings: Any
) -> TextExecutable | EmbedExecutable:
    """`ostinato.compile` of a decoder, `ostinato.compile_encoder` of an encoder; `settings` are the arguments that both take. Raises what they raise."""
    if model.family.encoder is None:
        return compile_decoder(model, logits=logits, context=context, **settings)
    refuse_decoder_options(model, logits, context)
    return compile_encoder(model, **settings)


def plan_buckets(
    model: Model,
    buckets: Mapping[str, Sequence[int]],
    *,
    context: int | None,
    precision: str,
    policy: str = "balanced",
    target: str = "host",
    memory_limit: int | None = None,
    saved: Path | None = None,
    levels: Mapping[str, str] | None = None,
    disable: Sequence[str] = (),
    reuse: bool = True,
) -> Program:
    """Lowers, plans and checks what runs a model, for B sequences times T tokens: steps that choose tokens, or embed texts; no weight is loaded.

    `policy` is that of numerics. `target`: "host", or the architecture of a GPU, which need not be here. `memory_limit`: bytes of arena at most. `saved`: a
    plan that was written before, which is read and checked instead. `levels`, `disable` and `reuse` are as in `ostinato.compile`.

    Raises `ConfigError` for an unknown target and for unusable buckets and limits, `CapacityError` for a limit that no plan keeps, and for a saved plan what
    `Lowered.load_plan` raises.
    """
    if set(buckets) != {"B", "T"}:
        raise ConfigError(f"shapes name {sorted(buckets)}, expected B and T", hint="write --shapes B=1,T=128,512")
    device = named_target(target)
    if model.family.encoder is not None:
        refuse_decoder_options(model, "last", context)
        traced = trace(model, "embed", precision=precision)
        entries = traced.at(bucket_entries("embed", buckets["B"], buckets["T"]))
    else:
        cache = CacheShape(max(buckets["B"]), positions_of(model, context, buckets["T"]), 1)
        traced = trace(model, "step", cache=cache, precision=precision, sampling=True)
        entries = traced.at(bucket_entries("step", buckets["B"], buckets["T"]))
    settings = plan_settings(memory_limit, reuse)
    options = settled_options(None, traced.precision, levels=levels, disable=disable, policy=policy)
    if saved is None:
        return plan_text_program(entries, device, options, settings)
    return load_text_plan(saved, entries, device, options, settings)


def precision_of(program: Program) -> str:
    """The policy of precision by its text, the same in every entry."""
    options = next(iter(program.plan.entries.values())).options
    return options[Precision.name].removeprefix(f"{Precision.name}{{policy=").removesuffix("}")


def device_of(executable: Executable) -> str:
    """The device and the unit of its code, such as "cpu (avx2)"."""
    return f"{executable.device.name} ({executable.device.isa})"


def how_it_runs(executable: Executable, asked_mode: str) -> str:
    """Device, mode (and why it is another one than was asked for), precision and threads, in one line; and what was validated for it on first use."""
    as_asked = asked_mode == executable.mode or executable.reason.startswith("auto")
    reason = "" if as_asked else f" ({executable.reason})"
    device = executable.device
    threads = "" if device.captures else f", {many(device.threads, 'thread')}"
    done = executable.validations
    failed = f", {len(done.failed)} failed" if done.failed else ""
    proven = f"; validated {done.classes} rows first{failed}, in {done.seconds:.1f} s" if done.classes else ""
    return f"{device_of(executable)}, {executable.mode}{reason}, {precision_of(executable.program)}{threads}{proven}"


def entry_stats(plan: ProgramPlan) -> tuple[EntryStats, ...]:
    """The numbers of each entry. A program plan exists only once the checker has proven it, hence `checked`."""
    return tuple(_entry_stats(entry) for entry in plan.entries.values())


def _entry_stats(entry: EntryPlan) -> EntryStats:
    stats = entry.stats
    sizes = {slot.values[0]: slot.range.size for slot in entry.slots_on(entry.device)}
    return EntryStats(
        name=entry.name,
        dims=dict(entry.dims),
        steps=stats.steps,
        launches=stats.launches,
        copies=stats.copies,
        strided_copies=stats.strided_copies,
        in_place=stats.in_place,
        arena_bytes=stats.arena_bytes,
        lower_bound=stats.lower_bound,
        gap=stats.gap,
        sum_bytes=stats.sum_bytes,
        solver=stats.solver,
        peak_step=stats.peak_step,
        peak_values=stats.peak_values,
        peak_sizes=tuple(sizes.get(name, 0) for name in stats.peak_values),
        status=stats.status,
        worst_fragmentation=stats.worst_fragmentation,
        worst_step=stats.worst_step,
        mean_fragmentation=stats.mean_fragmentation,
        slots=len(sizes),
        reused=stats.reused,
        recomputed=stats.recomputed,
        extra_work=stats.extra_work,
        checked=True,
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
        ("status", [e.status.replace("_", " ") for e in entries]),
        ("found by", [e.solver for e in entries]),
        ("sum without reuse", [size(e.sum_bytes) for e in entries]),
        ("slots in reused bytes", [f"{count(e.reused)} of {count(e.slots)}" for e in entries]),
        ("fragmentation, mean", [f"{e.mean_fragmentation:.2%}" for e in entries]),
        ("fragmentation, worst", [f"{e.worst_fragmentation:.2%} at step {e.worst_step}" for e in entries]),
        ("peak", [f"at step {e.peak_step}" for e in entries]),
        ("live at the peak", [_peak(e) for e in entries]),
        ("proven", ["yes" if e.checked else "no" for e in entries]),
    ]
    if any(e.recomputed for e in entries):
        rows.insert(1, ("computed again", [_again(e) for e in entries]))
    console.print(table("entries", ("", *(e.name for e in entries)), ([name, *cells] for name, cells in rows)))


def _again(entry: EntryStats) -> str:
    return f"{count(entry.recomputed)}, {entry.extra_work:.2%} more work" if entry.recomputed else "none"


def _peak(entry: EntryStats) -> str:
    """A line for each of the largest that live at the peak."""
    lines = [
        f"{name.lstrip('#')} {size(nbytes)}" for name, nbytes in zip(entry.peak_values, entry.peak_sizes, strict=True)
    ]
    more = len(lines) - _MOST_AT_PEAK
    return "\n".join(lines if more <= 1 else [*lines[:_MOST_AT_PEAK], f"and {more} more"])


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
