"""The commands `ostinato profile` and `ostinato breakeven`. Options in, one report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.frontend.model import load
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import need_writable, write_text
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.profile import chrome_json
from ostinato.tools.console import Steps, emit_json, output, progress
from ostinato.tools.options import (
    CaptureOption,
    ContextOption,
    DeviceOption,
    JsonOption,
    MemoryLimitOption,
    ModelArgument,
    ModelOption,
    ModeOption,
    PolicyOption,
    PrecisionOption,
    SeedOption,
    ThreadsOption,
    chosen_model,
    parse_shapes,
)
from ostinato.tools.profile.breakeven import RUNS, breakeven
from ostinato.tools.profile.ceilings import measure_ceilings
from ostinato.tools.profile.measure import profile_entries, profile_report, step_inputs
from ostinato.tools.profile.show import show_breakeven, show_profile
from ostinato.tools.programs import LoadProgress, compile_model

__all__ = ["breakeven_command", "profile_command"]

ProfiledShapes = Annotated[str, typer.Option("--shapes", help="Buckets to compile, name=sizes: B=1,T=1,128.")]
EntriesOption = Annotated[
    str | None, typer.Option("--entry", show_default=False, help="Only the entry of this name, as `compile` lists it.")
]
CachedOption = Annotated[
    int | None,
    typer.Option(
        "--cached",
        min=0,
        show_default=False,
        help="Tokens in the cache before the step; default: none, and for one-token steps as many as the largest bucket has.",
    ),
]
_BY = ("operator", "layer", "step")


def profile_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    shapes: ProfiledShapes = "B=1,T=1,128",
    entry: EntriesOption = None,
    cached: CachedOption = None,
    mode: ModeOption = "auto",
    capture: CaptureOption = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed runs; the middle half of them counts.")] = 20,
    by: Annotated[
        str, typer.Option("--by", help="What the table lists: operator, layer, or the slowest step.")
    ] = "operator",
    top: Annotated[int, typer.Option("--top", min=1, help="Most rows of a table.")] = 20,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            show_default=False,
            help="Write the steps as a trace for Perfetto or chrome://tracing.",
        ),
    ] = None,
    seed: SeedOption = 0,
    context: ContextOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Time every step of a model where it runs, against what was measured that this machine can do.

    Example: ostinato profile smollm2 --shapes B=1,T=1,128 --by layer --output trace.json
    """
    name = chosen_model(model, model_option)
    if by not in _BY:
        raise ConfigError(f"--by {by} is unknown", hint=f"use one of {', '.join(_BY)}")
    if file is not None:
        need_writable(file)
    with progress(as_json) as steps:
        executable = _compiled(
            steps,
            name,
            shapes,
            context=context,
            mode=mode,
            capture=capture,
            device=device,
            precision=precision,
            policy=policy,
            memory_limit=memory_limit,
            threads=threads,
        )
        profiles = profile_entries(executable, runs=runs, seed=seed, cached=cached, entry=entry, begin=steps.begin)
        steps.begin("measuring what the machine can do")
        ceilings = measure_ceilings(executable.device, executable.mode, profiles)
    files = () if file is None else (write_text(file, chrome_json(profiles)),)
    report = profile_report(executable, name, profiles, ceilings, files)
    emit_json(report) if as_json else show_profile(report, output(), by=by, top=top)


def breakeven_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    shapes: ProfiledShapes = "B=1,T=1,128",
    entry: EntriesOption = None,
    cached: CachedOption = None,
    capture: CaptureOption = None,
    runs: Annotated[int, typer.Option("--runs", min=8, help="Runs of each mode, in turn.")] = RUNS,
    seed: SeedOption = 0,
    context: ContextOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Say from how many runs on planning and capturing pay, or that they gain nothing here.

    Example: ostinato breakeven smollm2 --shapes B=1,T=1,128
    """
    name = chosen_model(model, model_option)
    with progress(as_json) as steps:
        executable = _compiled(
            steps,
            name,
            shapes,
            context=context,
            mode="auto",
            capture=capture,
            device=device,
            precision=precision,
            policy=policy,
            memory_limit=memory_limit,
            threads=threads,
        )
        names = list(executable.entries) if entry is None else [executable.entry(entry)]
        found = [
            breakeven(
                executable,
                one,
                step_inputs(executable, one, seed=seed, cached=cached),
                runs=runs,
                begin=steps.begin,
            )
            for one in names
        ]
    entries = tuple(measured for one in found for measured in one.entries)
    report = found[0].model_copy(update={"model": name, "entries": entries})
    emit_json(report) if as_json else show_breakeven(report, output())


def _compiled(steps: Steps, name: str, shapes: str, **settings: object) -> TextExecutable | EmbedExecutable:
    steps.begin(f"loading {name}")
    return compile_model(load(name), buckets=parse_shapes(shapes), progress=LoadProgress(steps), **settings)  # type: ignore[arg-type]
