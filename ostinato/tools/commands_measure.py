"""The command that measures a model, `bench`. Options in, one report out."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.compiler import compile as compile_model
from ostinato.ir.errors import ConfigError
from ostinato.runtime.forward import TextExecutable
from ostinato.saving.read import is_artifact
from ostinato.tools.artifacts import (
    HowToOpen,
    RecompileOption,
    TrustOption,
    WeightsOption,
    open_saved,
)
from ostinato.tools.bench import bench, show_bench
from ostinato.tools.console import emit_json, output, progress
from ostinato.tools.options import (
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

__all__ = ["bench_command"]

_SAVED = ("tokens", "runs", "seed")
"""Parameters that an artifact reads beside its own."""


def bench_command(
    invocation: typer.Context,
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
    weights: WeightsOption = None,
    recompile: RecompileOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Time prefill and decode, beside the read bandwidth measured in the same run.

    Example: ostinato bench smollm2 --tokens 128 --threads 2
    """
    name = chosen_model(model, model_option)
    how = HowToOpen(recompile, trust, weights)
    how.check(name)
    with progress(as_json) as steps:
        steps.begin(f"loading {name}")
        loading = LoadProgress(steps)
        if is_artifact(name):
            executable = open_saved(
                invocation, name, how, _SAVED, device=device, mode="auto", threads=threads, progress=loading
            ).executable
            if not isinstance(executable, TextExecutable):
                raise ConfigError(
                    f"{name} has no prefill and decode to time", hint="`ostinato profile` times any steps"
                )
        else:
            executable = compile_model(
                name,
                buckets={"B": [1], "T": [1, tokens]},
                context=tokens + 1,
                device=device,
                precision=precision,
                policy=policy,
                memory_limit=memory_limit,
                threads=threads,
                progress=loading,
            )
        report = bench(executable, name, tokens=tokens, runs=runs, seed=seed, begin=steps.begin)
    if as_json:
        emit_json(report)
    else:
        show_bench(report, output())
