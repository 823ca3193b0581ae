"""The commands `ostinato profile` and `ostinato breakeven`. Options in, one report out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.frontend.model import load
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import need_writable, write_text
from ostinato.runtime.executable import Executable
from ostinato.runtime.profile import chrome_json
from ostinato.saving.read import is_artifact
from ostinato.tools.artifacts import (
    HowToOpen,
    RecompileOption,
    TrustOption,
    WeightsOption,
    open_saved,
)
from ostinato.tools.completion import among
from ostinato.tools.console import Steps, emit_json, output, progress
from ostinato.tools.options import (
    CaptureOption,
    DeviceOption,
    JsonOption,
    MemoryLimitOption,
    ModelOption,
    ModelOrRunArgument,
    ModeOption,
    PolicyOption,
    PrecisionOption,
    SeedOption,
    ThreadsOption,
    chosen_model,
    parse_shapes,
    refuse_unread,
)
from ostinato.tools.profile.breakeven import RUNS, breakeven
from ostinato.tools.profile.ceilings import measure_ceilings
from ostinato.tools.profile.measure import needed_context, profile_entries, profile_report, step_inputs
from ostinato.tools.profile.show import show_breakeven, show_profile
from ostinato.tools.programs import LoadProgress, compile_model
from ostinato.tools.train.config import read_config
from ostinato.tools.train.job import is_run, sketched
from ostinato.tools.train.step import make_step

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
NeededContext = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=1,
        show_default=False,
        help="Positions of the cache for each sequence; default: as many as the steps fill, so that what is counted is what is read.",
    ),
]
_COMMON = {"model", "model_option", "entry", "runs", "by", "top", "file", "seed", "as_json"}
"""Options that mean something whatever is profiled."""
_BY = ("operator", "layer", "step")


def profile_command(
    invocation: typer.Context,
    model: ModelOrRunArgument = None,
    model_option: ModelOption = None,
    shapes: ProfiledShapes = "B=1,T=1,128",
    entry: EntriesOption = None,
    cached: CachedOption = None,
    mode: ModeOption = "auto",
    capture: CaptureOption = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed runs; the middle half of them counts.")] = 20,
    by: Annotated[
        str,
        typer.Option(
            "--by", autocompletion=among(*_BY), help="What the table lists: operator, layer, or the slowest step."
        ),
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
    context: NeededContext = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    weights: WeightsOption = None,
    recompile: RecompileOption = False,
    trust: TrustOption = False,
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
    settings = {"context": context, "mode": mode, "capture": capture, "precision": precision}
    settings |= {"policy": policy, "memory_limit": memory_limit, "threads": threads}
    how = HowToOpen(recompile, trust, weights)
    with _opened(invocation, name, how, shapes, cached, device, as_json, **settings) as (executable, steps):
        profiles = profile_entries(executable, runs=runs, seed=seed, cached=cached, entry=entry, begin=steps.begin)
        steps.begin("measuring what the machine can do")
        ceilings = measure_ceilings(executable.device, executable.mode, profiles)
    files = () if file is None else (write_text(file, chrome_json(profiles)),)
    report = profile_report(executable, name, profiles, ceilings, files)
    emit_json(report) if as_json else show_profile(report, output(), by=by, top=top)


def breakeven_command(
    invocation: typer.Context,
    model: ModelOrRunArgument = None,
    model_option: ModelOption = None,
    shapes: ProfiledShapes = "B=1,T=1,128",
    entry: EntriesOption = None,
    cached: CachedOption = None,
    capture: CaptureOption = None,
    runs: Annotated[int, typer.Option("--runs", min=8, help="Runs of each mode, in turn.")] = RUNS,
    seed: SeedOption = 0,
    context: NeededContext = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    weights: WeightsOption = None,
    recompile: RecompileOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say from how many runs on planning and capturing pay, or that they gain nothing here.

    Example: ostinato breakeven smollm2 --shapes B=1,T=1,128
    """
    name = chosen_model(model, model_option)
    settings = {"context": context, "mode": "auto", "capture": capture, "precision": precision}
    settings |= {"policy": policy, "memory_limit": memory_limit, "threads": threads}
    how = HowToOpen(recompile, trust, weights)
    with _opened(invocation, name, how, shapes, cached, device, as_json, **settings) as (executable, steps):
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


@contextmanager
def _opened(
    invocation: typer.Context,
    name: str,
    how: HowToOpen,
    shapes: str,
    cached: int | None,
    device: str,
    as_json: bool,
    **settings: Any,
) -> Iterator[tuple[Executable, Steps]]:
    """A model compiled, an artifact loaded, or the step of a training run, whose parameters nothing trains. Raises `ConfigError` for options that would be left
    unread."""
    how.check(name)
    with progress(as_json) as steps:
        steps.begin(f"loading {name}")
        loading = LoadProgress(steps)
        if is_artifact(name):
            where = {"device": device, "mode": settings["mode"], "threads": settings["threads"]}
            opened = open_saved(invocation, name, how, _COMMON | {"mode", "cached"}, progress=loading, **where)
            yield opened.executable, steps
        elif is_run(name):
            refuse_unread(invocation, f"{name} is a training run", _COMMON)
            config = read_config(Path(name))
            with sketched(config) as model:
                yield make_step(config, model, config.made_optimizer(), loading), steps
        else:
            model, buckets = load(name), parse_shapes(shapes)
            if model.family.encoder is None and settings["context"] is None:
                settings["context"] = needed_context(buckets, cached, model.config.context_limit)
            yield compile_model(model, buckets=buckets, device=device, progress=loading, **settings), steps
