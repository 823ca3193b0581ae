"""`ostinato view`: a model, a training step or an artifact as one HTML file, or as pictures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.frontend.model import load
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import need_writable
from ostinato.ir.graph import Graph
from ostinato.ir.verify import verify
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.executable import PROFILE_RUNS
from ostinato.runtime.profile import Profile
from ostinato.tools.console import Steps, count, emit_json, notice, output, progress, size, table
from ostinato.tools.named import Kind, Planning, kind_of, open_named
from ostinato.tools.options import (
    PLANNED_SHAPES,
    ContextOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    ModelOrRunArgument,
    PolicyOption,
    PrecisionOption,
    ShapesOption,
    TargetOption,
    chosen_model,
    parse_shapes,
    refuse_unread,
)
from ostinato.tools.profile.ceilings import Ceilings, measure_ceilings
from ostinato.tools.profile.measure import profile_entries
from ostinato.tools.programs import LoadProgress, compile_model
from ostinato.tools.schemas import ViewReport
from ostinato.tools.view.arena import Paper
from ostinato.tools.view.pictures import DOT_MISSING, is_page, view
from ostinato.tools.view.subjects import Viewable

__all__ = ["view_command"]

_SAVED = {"model", "model_option", "before", "paper", "write_to", "as_json"}
_TRAINED = _SAVED | {"target"}
_PLANNED = _TRAINED | {"shapes", "context", "precision", "policy"}
_PROFILED = (_PLANNED - {"target"}) | {"measured", "device"}
_A: Mapping[Kind, str] = {
    "artifact": "an artifact",
    "training run": "a training run",
    "file": "a file",
    "folder": "a dump",
    "model": "a model",
}


@dataclass(slots=True)
class _Measured:
    """What was measured of a model, by entry, and of the machine."""

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    ceilings: Ceilings | None = None


def _planned(name: str, planning: Planning, steps: Steps) -> Viewable:
    """What a name stands for, as `ostinato diff` takes it. Raises `ConfigError` for a plan that has no graph to be drawn in."""
    steps.begin(f"planning {name}")
    found = open_named(name, planning)
    if isinstance(found, ProgramPlan):
        raise ConfigError(
            f"{name} is a plan without graphs, which cannot be drawn",
            hint="give the model, its artifact, or the folder that `ostinato compile --dump` wrote",
        )
    if isinstance(found, Graph):
        verify(found)
    return found


def _compiled(name: str, planning: Planning, device: str, steps: Steps, measured: _Measured) -> Viewable:
    """A model on a device; what every entry takes goes into `measured`."""
    executable = compile_model(
        load(name),
        buckets=planning.shapes,
        device=device,
        progress=LoadProgress(steps),
        context=planning.context,
        precision=planning.dtype,
        policy=planning.policy,
    )
    found = profile_entries(executable, runs=PROFILE_RUNS, seed=0, begin=steps.begin)
    measured.profiles = {profile.entry: profile for profile in found}
    steps.begin("measuring the ceilings of the machine")
    measured.ceilings = measure_ceilings(executable.device, executable.mode, found)
    return executable


def view_command(
    invocation: typer.Context,
    model: ModelOrRunArgument = None,
    model_option: ModelOption = None,
    shapes: ShapesOption = PLANNED_SHAPES,
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    target: TargetOption = "host",
    measured: Annotated[
        bool, typer.Option("--profile", help="Load the model, measure every step, and show the times in the report.")
    ] = False,
    device: DeviceOption = "auto",
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="MODEL",
            show_default=False,
            help="A second one, as `ostinato diff` takes it (smollm2,policy=strict): the report says what differs from it.",
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            "--paper",
            metavar="WIDTHxHEIGHT",
            show_default=False,
            help="Draw the arenas to be printed in that size, in millimetres.",
        ),
    ] = None,
    write_to: Annotated[
        Path, typer.Option("--output", help="A file that ends in .html for the report, or a folder for pictures.")
    ] = Path("report.html"),
    as_json: JsonOption = False,
) -> None:
    """Show a model, a training run or an artifact in one HTML file: graph, decisions, arena over time, steps and addresses; only --profile loads weights.

    Example: ostinato view smollm2 --output report.html

    Example: ostinato view run.toml --output training.html

    Example: ostinato view smollm2 --shapes B=1,T=1,512 --output pictures

    Example: ostinato view smollm2 --paper 160x90 --output pictures
    """
    name = chosen_model(model, model_option)
    page = is_page(write_to)
    printed = None if paper is None else Paper.parse(paper)
    if printed is not None and page:
        raise ConfigError("--paper is for pictures, not for the report", hint="--output FOLDER")
    for option, given in (("--profile", measured), ("--before", before is not None)):
        if given and not page:
            raise ConfigError(f"{option} is for the report, {write_to} is no .html file", hint="--output report.html")
    _refuse(invocation, name, measured)
    if page:
        need_writable(write_to)
    times = _Measured()
    planning = Planning(parse_shapes(shapes), policy=policy, dtype=precision, target=target, context=context)
    with progress(as_json) as steps:
        subject = _compiled(name, planning, device, steps, times) if measured else _planned(name, planning, steps)
        earlier = None if before is None else _planned(before, planning, steps)
        steps.begin("drawing")
        title = Path(os.path.abspath(name)).name if page else None
        measures: dict[str, Any] = {"profile": times.profiles or None, "ceilings": times.ceilings}
        pictures = view(subject, write_to, title=title, before=earlier, paper=printed, **measures)
    drawn = page or any(file.endswith(".graph.svg") for item in pictures for file in item.files)
    report = ViewReport(
        model=name,
        entries=tuple(
            ViewReport.Entry(
                name=item.name,
                nodes=item.nodes,
                nodes_drawn=item.nodes_drawn,
                repeats=tuple(repeat.count for repeat in item.repeats),
                files=item.files,
            )
            for item in pictures
        ),
        missing=() if drawn else (DOT_MISSING,),
    )
    emit_json(report) if as_json else _show(report)


def _refuse(invocation: typer.Context, name: str, measured: bool) -> None:
    """Raises `ConfigError` for options that would be left unread."""
    kind = kind_of(name)
    if measured and kind != "model":
        open_it = "train_step" if kind == "training run" else "load_executable"
        raise ConfigError(
            f"{name} is {_A[kind]}, --profile takes a model",
            hint=f"in Python: exe = ostinato.{open_it}(...), then ostinato.view(exe, path, profile=exe.profile())",
        )
    if measured:
        refuse_unread(invocation, "--profile runs the model where it is", _PROFILED)
    elif kind == "model":
        refuse_unread(invocation, f"{name} is planned and not run", _PLANNED, "leave them out, or add --profile")
    else:
        refuse_unread(invocation, f"{name} is {_A[kind]}", _TRAINED if kind == "training run" else _SAVED)


def _show(report: ViewReport) -> None:
    rows = [
        (
            entry.name,
            count(entry.nodes),
            count(entry.nodes_drawn),
            ", ".join(f"{times} times" for times in entry.repeats) or "none",
        )
        for entry in report.entries
    ]
    output().print(table(f"view of {report.model}", ("entry", "nodes", "drawn", "repeats"), rows))
    for file in dict.fromkeys(file for entry in report.entries for file in entry.files):
        output().print(f"wrote {file} ({size(Path(file).stat().st_size)})", markup=False)
    for text in report.missing:
        notice(text)
