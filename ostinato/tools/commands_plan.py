"""`ostinato plan`: the memory of a model planned and proven, or a placement problem in a CSV file solved. What is given decides which."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ostinato.backend_hip.target import named_target
from ostinato.frontend.model import load
from ostinato.ir.checks import byte_count
from ostinato.ir.files import need_writable, write_text
from ostinato.planner.saved import program_to_json
from ostinato.runtime.program import Program
from ostinato.saving.read import is_artifact
from ostinato.tools.artifacts import planned_program
from ostinato.tools.completion import models_and
from ostinato.tools.console import emit_json, milliseconds, output, progress
from ostinato.tools.options import (
    EXIT_FAILED,
    PLANNED_SHAPES,
    ContextOption,
    JsonOption,
    MemoryLimitOption,
    ModelOption,
    PolicyOption,
    PrecisionOption,
    ShapesOption,
    TargetOption,
    chosen_model,
    parse_shapes,
    refuse_unread,
)
from ostinato.tools.placement import DEFAULT_SECONDS, limits_of, place_file, show_placement
from ostinato.tools.programs import entry_stats, plan_buckets, region_sizes, show_entries, show_regions
from ostinato.tools.schemas import PlanReport
from ostinato.tools.stages import export_problems
from ostinato.tools.train.job import is_run, plan_of_run

__all__ = ["plan_command"]

_PROBLEM = "For a placement problem (.csv)"
_SHARED = frozenset(("model", "model_option", "write_to", "as_json"))
_PROBLEM_OPTIONS = _SHARED | {"capacity", "seconds", "nodes", "threads", "seed", "solver", "picture"}
_MODEL_OPTIONS = _SHARED | {"shapes", "context", "precision", "policy", "target", "memory_limit", "saved", "problems"}
_SAVED_OPTIONS = _SHARED | {"problems"}
_RUN_OPTIONS = _SAVED_OPTIONS | {"target"}
"""Parameters that a placement problem, a model, an artifact and a training run read."""


def plan_command(
    invocation: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|PROBLEM.csv",
            show_default=False,
            autocompletion=models_and(".csv", ".toml"),
            help="A model (a directory, a .gguf file, smollm2, minilm), an artifact (.ost), a training run (.toml), or a placement problem: "
            "id,lower,upper,size[,alignment][,offset].",
        ),
    ] = None,
    model_option: ModelOption = None,
    shapes: ShapesOption = PLANNED_SHAPES,
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    target: TargetOption = "host",
    memory_limit: MemoryLimitOption = None,
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
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity",
            metavar="SIZE",
            show_default=False,
            rich_help_panel=_PROBLEM,
            help="Fail above this height: a number, or such as 64K or 1.5MiB.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--time",
            min=0,
            metavar="SECONDS",
            show_default=False,
            rich_help_panel=_PROBLEM,
            help=f"Search no longer; default: {DEFAULT_SECONDS:g}, or none with --nodes. A proof ends it sooner.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=0,
            metavar="N",
            show_default=False,
            rich_help_panel=_PROBLEM,
            help="Search no more nodes. With this limit alone the same file and seed give the same answer.",
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            min=0,
            metavar="N",
            rich_help_panel=_PROBLEM,
            help="Threads of the search; 0: one for each processor.",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", rich_help_panel=_PROBLEM, help="Seed of the search.")] = 0,
    solver: Annotated[
        str,
        typer.Option(
            "--solver",
            metavar="NAME",
            rich_help_panel=_PROBLEM,
            help="native; or best_fit (greedy) and exact, short ones in Python to compare with.",
        ),
    ] = "native",
    picture: Annotated[
        Path | None,
        typer.Option(
            "--svg",
            show_default=False,
            rich_help_panel=_PROBLEM,
            help="Draw the placement. (`ostinato view` draws a model's.)",
        ),
    ] = None,
    write_to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            show_default=False,
            help="Write the plan as JSON; of a .csv, the problem with the offsets found.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan the memory of a model and prove the plan, or solve a placement problem.

    Example: ostinato plan smollm2 --shapes B=1,T=1,512 --output plan.json

    Example: ostinato plan smollm2 --target gfx942

    Example: ostinato plan run.toml --target sm_90

    Example: ostinato plan problem.csv --capacity 1MiB --time 20 --svg placed.svg
    """
    name = chosen_model(model, model_option)
    if name.lower().endswith(".csv"):
        refuse_unread(invocation, f"{name} is a placement problem", _PROBLEM_OPTIONS)
        with progress(as_json) as steps:
            placed = place_file(
                Path(name),
                capacity=None if capacity is None else byte_count(capacity, "--capacity"),
                solver=solver,
                limits=limits_of(seconds, nodes, threads, seed),
                write_to=write_to,
                picture=picture,
                steps=steps,
            )
        emit_json(placed) if as_json else show_placement(placed, output())
        if not placed.fits:
            raise typer.Exit(EXIT_FAILED)
        return
    stored = is_artifact(name)
    if is_run(name):
        refuse_unread(invocation, f"{name} is a training run", _RUN_OPTIONS, "write them into its file")
    elif stored:
        refuse_unread(invocation, f"{name} is an artifact", _SAVED_OPTIONS)
    else:
        refuse_unread(invocation, f"{name} is a model", _MODEL_OPTIONS)
    limit = None if memory_limit is None else byte_count(memory_limit, "--memory-limit")
    if write_to is not None:
        need_writable(write_to)
    begin = time.perf_counter()
    with progress(as_json) as steps:
        steps.begin(f"planning {name}")
        program: Program
        if stored:
            program = planned_program(name)
        elif is_run(name):
            program = plan_of_run(Path(name), named_target(target)).program
        else:
            program = plan_buckets(
                load(name),
                parse_shapes(shapes),
                context=context,
                precision=precision,
                policy=policy,
                target=target,
                memory_limit=limit,
                saved=saved,
            )
    seconds_taken = time.perf_counter() - begin
    files = [] if problems is None else export_problems(program.plan, problems)
    if write_to is not None:
        files.append(write_text(write_to, program_to_json(program.plan, program.graphs)))
    report = PlanReport(
        model=name,
        target=program.target.name,
        memory_limit=limit,
        entries=entry_stats(program.plan),
        regions=region_sizes(program.plan),
        seconds=seconds_taken,
        files=tuple(files),
    )
    emit_json(report) if as_json else _show(report, Path(name) if stored else saved)


def _show(report: PlanReport, saved: Path | None) -> None:
    """The report for people; `saved` is the file that the plan is of."""
    show_entries(report.entries, output())
    show_regions(report.regions, output())
    done = "planned and proven" if saved is None else f"the plan of {saved} proven"
    made = "" if report.model == str(saved) else "traced, lowered, "
    output().print(f"{made}{done} for {report.target} in {milliseconds(report.seconds)}", markup=False)
    for file in report.files:
        output().print(f"wrote {file}", markup=False)
