"""Profiles every entry of a compiled model on inputs like those of a real step, and holds each step against the ceilings of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.encode import EmbedExecutable, pack_texts
from ostinato.runtime.executable import Executable
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.profile import Profile
from ostinato.runtime.sampling_inputs import sampling_inputs
from ostinato.tools.profile.ceilings import Ceilings
from ostinato.tools.profile.report import ProfileReport
from ostinato.tools.profile.roofline import StepRoof, TotalRoof, roofline, totals
from ostinato.tools.programs import precision_of

__all__ = ["needed_context", "profile_entries", "profile_report", "step_inputs"]


def profile_entries(
    executable: Executable,
    *,
    runs: int,
    seed: int,
    cached: int | None = None,
    entry: str | None = None,
    begin: Callable[[str], None] = lambda text: None,
) -> tuple[Profile, ...]:
    """Profiles of an entry, or of all, with random tokens. Raises what `Executable.profile` and `step_inputs` raise; `begin` hears which entry is timed."""
    found = []
    for name in [executable.entry(entry)] if entry is not None else executable.entries:
        begin(f"profiling {name}")
        found.append(executable.profile(name, step_inputs(executable, name, seed=seed, cached=cached), runs=runs))
    return tuple(found)


def step_inputs(
    executable: Executable, name: str, *, seed: int = 0, cached: int | None = None
) -> Mapping[str, Array] | None:
    """Inputs of an entry of a decoder or an encoder, all its rows and tokens in use; None for other executables, whose example inputs do.

    Tokens of a decoder stand behind `cached` others in the cache: by default none, or where an entry has one token a row as many as the largest entry has.
    Raises `ConfigError` where they do not fit the context.
    """
    plan = executable.entries[name]
    rng = np.random.default_rng(integer(seed, "seed", low=0))
    if isinstance(executable, EmbedExecutable):
        width = plan.dims["N"] // plan.dims["R"]
        return pack_texts(plan, list(rng.integers(0, executable.vocab_size, (plan.dims["R"], width), dtype=np.int32)))
    if not isinstance(executable, TextExecutable) or "N" not in plan.dims:
        return None
    width = plan.dims["N"] // plan.dims["R"]
    longest = max(one.dims["N"] // one.dims["R"] for one in executable.entries.values() if "N" in one.dims)
    start = min(longest, executable.context - width) if width == 1 else 0
    start = start if cached is None else integer(cached, "cached", low=0)
    if start + width > executable.context:
        raise ConfigError(
            f"{width} tokens behind {start} do not fit the context of {executable.context}",
            node=name,
            hint="ask for fewer cached tokens, or compile with a larger context",
        )
    ids = rng.integers(0, executable.vocab_size, (plan.dims["R"], width), dtype=np.int32)
    pieces = [Piece(row, tokens, start, True) for row, tokens in enumerate(ids)]
    inputs, _ = pack(plan, pieces, executable.block_table())
    return {**inputs, **sampling_inputs(plan, ())}


def needed_context(buckets: Mapping[str, Sequence[int]], cached: int | None, limit: int) -> int | None:
    """Positions that the steps of `step_inputs` fill, as far as the model's `limit` allows; None for buckets that have no tokens, which compiling refuses."""
    widths = [width for width in buckets.get("T", ()) if width > 0]
    if not widths:
        return None
    longest = max(widths)
    before = (longest if 1 in widths else 0) if cached is None else cached
    most = before + longest if cached is not None else max(longest, before + (1 in widths))
    return max(min(most, limit), 1)


def profile_report(
    executable: Executable, model: str, profiles: Sequence[Profile], ceilings: Ceilings, files: tuple[str, ...] = ()
) -> ProfileReport:
    """What `ostinato profile` prints."""
    return ProfileReport(
        model=model,
        device=executable.device.name,
        mode=executable.mode,
        reason=executable.reason,
        precision=precision_of(executable.program),
        threads=executable.device.threads,
        runs=profiles[0].runs,
        bandwidth_bytes_per_second=ceilings.bandwidth,
        ceilings=tuple(
            ProfileReport.Ceiling(input=given, weight=weight, flops_per_second=rate)
            for (given, weight), rate in ceilings.flops.items()
        ),
        shortest_step_seconds=ceilings.step_seconds,
        entries=tuple(_entry(profile, roofline(profile, ceilings)) for profile in profiles),
        files=files,
    )


def _entry(profile: Profile, roofs: Sequence[StepRoof]) -> ProfileReport.Entry:
    operators = sorted(totals(roofs, lambda step: step.op), key=lambda total: (-total.seconds, total.name))
    return ProfileReport.Entry(
        entry=profile.entry,
        steps=tuple(_step(roof) for roof in roofs),
        operators=tuple(_total(total) for total in operators),
        layers=tuple(_total(total) for total in totals(roofs, lambda step: step.layer)),
        whole_seconds=profile.whole_seconds,
        whole_best_seconds=profile.whole_best,
        sum_seconds=profile.sum_seconds,
        overhead_seconds=profile.overhead_seconds,
        resolution_seconds=profile.resolution_seconds,
        method=profile.method,
        notes=profile.notes,
    )


def _step(roof: StepRoof) -> ProfileReport.Step:
    step = roof.step
    return ProfileReport.Step(
        position=step.position,
        node=step.node,
        layer=step.layer,
        op=step.op,
        impl=step.impl,
        kernel=step.kernel,
        step_kind=step.kind,
        line=step.line,
        launch=step.launch,
        dtypes=step.dtypes,
        seconds=step.seconds,
        best_seconds=step.best,
        bytes_read=step.bytes_read,
        bytes_written=step.bytes_written,
        flops=step.flops,
        bound=roof.bound,
        limit_seconds=roof.limit_seconds,
        share=roof.share,
    )


def _total(total: TotalRoof) -> ProfileReport.Total:
    return ProfileReport.Total(
        name=total.name,
        steps=total.steps,
        seconds=total.seconds,
        nbytes=total.nbytes,
        flops=total.flops,
        bound=total.bound,
        limit_seconds=total.limit_seconds,
        share=total.share,
    )
