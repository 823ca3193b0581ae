"""The commands that look at a model without running it: `plan`, `compile`, `trace`, `passes`. Options in, one report or text out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ostinato.frontend.model import load
from ostinato.ir.files import write_text
from ostinato.ir.text import print_graph
from ostinato.planner.saved import program_to_json
from ostinato.tools.console import emit_json, milliseconds, output, progress
from ostinato.tools.options import (
    EXIT_FAILED,
    PLANNED_SHAPES,
    ContextOption,
    DeviceOption,
    EntryOption,
    JsonOption,
    LogitsOption,
    MemoryLimitOption,
    ModelArgument,
    ModelOption,
    ModeOption,
    PrecisionOption,
    ShapesOption,
    ThreadsOption,
    chosen_model,
    parse_dims,
    parse_shapes,
    refuse_unread,
)
from ostinato.tools.placement import place_file, show_placement
from ostinato.tools.programs import (
    LoadProgress,
    compile_model,
    entry_stats,
    plan_buckets,
    region_sizes,
    show_entries,
    show_regions,
    trace_model,
)
from ostinato.tools.schemas import CompileReport, PlanReport
from ostinato.tools.stages import dump_program, export_problems, lower_stages, show_passes

__all__ = ["compile_command", "passes_command", "plan_command", "trace_command"]

DEFAULT_DIMS = {"step": "N=128,R=1", "forward": "B=1,T=128", "embed": "N=128,R=1"}


_PROBLEM_OPTIONS = frozenset(("model", "model_option", "capacity", "solver", "write_to", "picture", "as_json"))
_MODEL_OPTIONS = frozenset(
    (
        "model",
        "model_option",
        "shapes",
        "context",
        "precision",
        "memory_limit",
        "write_to",
        "saved",
        "problems",
        "as_json",
    )
)
"""Parameters of `plan` that a placement problem reads, and those that a model reads."""


def plan_command(
    invocation: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL|PROBLEM.csv", show_default=False, help="A model, or a placement problem as CSV."),
    ] = None,
    model_option: ModelOption = None,
    shapes: ShapesOption = PLANNED_SHAPES,
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
    memory_limit: MemoryLimitOption = None,
    capacity: Annotated[
        int | None, typer.Option("--capacity", min=0, show_default=False, help="CSV: fail above this height.")
    ] = None,
    solver: Annotated[str, typer.Option("--solver", help="CSV: the solver.")] = "native",
    write_to: Annotated[
        Path | None,
        typer.Option(
            "--output", show_default=False, help="Write the plan as JSON; CSV: the problem with the offsets found."
        ),
    ] = None,
    saved: Annotated[
        Path | None,
        typer.Option("--check", show_default=False, help="Prove a plan that --output wrote instead of planning."),
    ] = None,
    problems: Annotated[
        Path | None,
        typer.Option(
            "--export-problem", show_default=False, help="Write the placement problems as CSV into this folder."
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--svg", show_default=False, help="CSV: draw the placement; for a model see `view`.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan the memory of a model and prove the plan, or solve a placement problem.

    Example: ostinato plan smollm2 --shapes B=1,T=1,512 --output plan.json

    Example: ostinato plan problem.csv --capacity 1048576
    """
    name = chosen_model(model, model_option)
    if name.lower().endswith(".csv"):
        refuse_unread(invocation, f"{name} is a placement problem", _PROBLEM_OPTIONS)
        placed = place_file(Path(name), capacity=capacity, solver=solver, write_to=write_to, picture=picture)
        emit_json(placed) if as_json else show_placement(placed, output())
        if placed.status in ("over_capacity", "infeasible"):
            raise typer.Exit(EXIT_FAILED)
        return
    refuse_unread(invocation, f"{name} is a model", _MODEL_OPTIONS)
    begin = time.perf_counter()
    with progress(as_json) as steps:
        steps.begin(f"planning {name}")
        program = plan_buckets(
            load(name),
            parse_shapes(shapes),
            context=context,
            precision=precision,
            memory_limit=memory_limit,
            saved=saved,
        )
    seconds = time.perf_counter() - begin
    files = [] if problems is None else export_problems(program.plan, problems)
    if write_to is not None:
        files.append(write_text(write_to, program_to_json(program.plan, program.graphs)))
    report = PlanReport(
        model=name,
        target=program.target.name,
        entries=entry_stats(program.plan),
        regions=region_sizes(program.plan),
        seconds=seconds,
        files=tuple(files),
    )
    if as_json:
        emit_json(report)
        return
    show_entries(report.entries, output())
    show_regions(report.regions, output())
    done = "planned and proven" if saved is None else f"the plan of {saved} proven"
    output().print(f"traced, lowered, {done} in {milliseconds(report.seconds)}", markup=False)
    for file in report.files:
        output().print(f"wrote {file}", markup=False)


def compile_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    shapes: ShapesOption = "B=1,T=128,512",
    logits: LogitsOption = "last",
    context: ContextOption = None,
    device: DeviceOption = "auto",
    mode: ModeOption = "auto",
    precision: PrecisionOption = "auto",
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
            precision=precision,
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


def passes_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    entry: EntryOption = None,
    dims: Annotated[
        str | None,
        typer.Option(
            "--dims",
            show_default=False,
            help="Sizes of the graph's dimensions; default: N=128,R=1 for step and embed, B=1,T=128 for forward.",
        ),
    ] = None,
    logits: LogitsOption = "last",
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
    show_graph: Annotated[bool, typer.Option("--graph", help="Print the graph after the passes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the passes on one bucket and say what each did.

    Example: ostinato passes smollm2 --dims N=128,R=1 --graph
    """
    name = chosen_model(model, model_option)
    traced = trace_model(name, entry, logits, context, precision)
    report, text = lower_stages(traced, name, parse_dims(DEFAULT_DIMS[traced.graph.name] if dims is None else dims))
    if as_json:
        emit_json(report)
        return
    if show_graph:
        sys.stdout.write(text)
    show_passes(report, output())
