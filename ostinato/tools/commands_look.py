"""The commands that look at a model without running it: `compile`, `trace`; `plan`, `passes` and `explain` have files of their own. Options in, one report or
text out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ostinato.frontend.model import load
from ostinato.ir.text import print_graph
from ostinato.tools.console import emit_json, milliseconds, output, progress
from ostinato.tools.options import (
    CaptureOption,
    ContextOption,
    DeviceOption,
    EntryOption,
    JsonOption,
    LogitsOption,
    MemoryLimitOption,
    ModelArgument,
    ModelOption,
    ModeOption,
    PolicyOption,
    PrecisionOption,
    ShapesOption,
    ThreadsOption,
    chosen_model,
    parse_shapes,
)
from ostinato.tools.programs import (
    LoadProgress,
    compile_model,
    entry_stats,
    region_sizes,
    show_entries,
    show_regions,
    trace_model,
)
from ostinato.tools.schemas import CompileReport
from ostinato.tools.stages import dump_program

__all__ = ["compile_command", "trace_command"]


def compile_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    shapes: ShapesOption = "B=1,T=128,512",
    logits: LogitsOption = "last",
    context: ContextOption = None,
    device: DeviceOption = "auto",
    mode: ModeOption = "auto",
    capture: CaptureOption = None,
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    dump: Annotated[
        Path | None, typer.Option("--dump", show_default=False, help="Write every stage as text into this folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a model for buckets of B sequences times T tokens, load it, and say what it takes.

    Example: ostinato compile smollm2 --shapes B=1,T=128,512 --dump stages
    """
    name = chosen_model(model, model_option)
    buckets = parse_shapes(shapes)
    begin = time.perf_counter()
    with progress(as_json) as steps:
        steps.begin(f"compiling {name}")
        executable = compile_model(
            load(name),
            logits=logits,
            context=context,
            buckets=buckets,
            device=device,
            mode=mode,
            capture=capture,
            precision=precision,
            policy=policy,
            memory_limit=memory_limit,
            threads=threads,
            progress=LoadProgress(steps),
        )
    seconds = time.perf_counter() - begin
    report = CompileReport(
        model=name,
        mode=executable.mode,
        reason=executable.reason,
        entries=entry_stats(executable.program.plan),
        regions=region_sizes(executable.program.plan),
        seconds=seconds,
        files=() if dump is None else dump_program(executable.program, dump),
    )
    if as_json:
        emit_json(report)
        return
    show_entries(report.entries, output())
    show_regions(report.regions, output())
    output().print(
        f"mode {report.mode}"
        + (f" ({report.reason})" if report.reason else "")
        + f"; compiled and loaded in {milliseconds(report.seconds)}"
    )
    for file in report.files:
        output().print(f"wrote {file}", markup=False)


def trace_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    entry: EntryOption = None,
    logits: LogitsOption = "last",
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
) -> None:
    """Print the traced graph of a model in the text form.

    Example: ostinato trace smollm2 --entry forward
    """
    sys.stdout.write(
        print_graph(trace_model(chosen_model(model, model_option), entry, logits, context, precision).graph)
    )
