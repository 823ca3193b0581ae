"""The commands that measure a model: `compare`, `bench`. Options in, one report out."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.compiler import compile as compile_model
from ostinato.tools.bench import bench, show_bench
from ostinato.tools.compare import compare, show_comparison
from ostinato.tools.console import emit_json, output, progress
from ostinato.tools.options import (
    EXIT_FAILED,
    DeviceOption,
    JsonOption,
    MemoryLimitOption,
    ModelArgument,
    ModelOption,
    PolicyOption,
    PrecisionOption,
    SeedOption,
    ThreadsOption,
    chosen_model,
)
from ostinato.tools.programs import LoadProgress

__all__ = ["bench_command", "compare_command"]


def compare_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    modes: Annotated[
        str,
        typer.Option(
            "--modes", help="Modes to compare, separated by commas; no-reuse is one here, captured one of GPUs."
        ),
    ] = "reference,eager,planned",
    replays: Annotated[
        int, typer.Option("--replays", min=1, help="Runs of each mode; all must give the same bits.")
    ] = 3,
    poison: Annotated[
        bool, typer.Option("--poison/--no-poison", help="Fill unused memory with NaN before each run.")
    ] = True,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, show_default=False, help="Length of the sequence; default 16.")
    ] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Run the modes of a model side by side: bit-equal, within contract, or the first node that differs.

    Example: ostinato compare smollm2 --modes eager,planned --replays 20
    """
    name = chosen_model(model, model_option)
    with progress(as_json) as steps:
        steps.begin(f"loading {name}")
        report = compare(
            name,
            [mode.strip() for mode in modes.split(",") if mode.strip()],
            replays=replays,
            poison=poison,
            seed=seed,
            tokens=tokens,
            device=device,
            precision=precision,
            policy=policy,
            memory_limit=memory_limit,
            threads=threads,
            report_progress=lambda mode: steps.begin(f"running {mode}"),
        )
    emit_json(report) if as_json else show_comparison(report, output())
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def bench_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Tokens of the prefill, and in the cache of the decode step.")
    ] = 128,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed runs of each; the median counts.")] = 10,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Time prefill and decode, beside the read bandwidth measured in the same run.

    Example: ostinato bench smollm2 --tokens 128 --threads 2
    """
    name = chosen_model(model, model_option)
    with progress(as_json) as steps:
        steps.begin(f"loading {name}")
        executable = compile_model(
            name,
            buckets={"B": [1], "T": [1, tokens]},
            context=tokens + 1,
            device=device,
            precision=precision,
            policy=policy,
            memory_limit=memory_limit,
            threads=threads,
            progress=LoadProgress(steps),
        )
        report = bench(executable, name, tokens=tokens, runs=runs, seed=seed, begin=steps.begin)
    if as_json:
        emit_json(report)
    else:
        show_bench(report, output())
