"""`ostinato view`: a model, a training step or an artifact as one HTML file, or as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.frontend.model import load
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import need_writable
from ostinato.runtime.executable import PROFILE_RUNS
from ostinato.runtime.profile import Profile
from ostinato.saving.read import is_artifact
from ostinato.tools.console import Steps, count, emit_json, notice, output, progress, size, table
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
from ostinato.tools.programs import LoadProgress, compile_model, plan_buckets
from ostinato.tools.schemas import ViewReport
from ostinato.tools.train.job import is_run, plan_of_run
from ostinato.tools.view.arena import Paper
from ostinato.tools.view.pictures import DOT_MISSING, is_page, view
from ostinato.tools.view.subjects import Viewable

__all__ = ["view_command"]

_SAVED = {"model", "model_option", "before", "paper", "write_to", "as_json"}
_TRAINED = _SAVED | {"target"}
_PLANNED = _TRAINED | {"shapes", "context", "precision", "policy"}
_PROFILED = (_PLANNED - {"target"}) | {"measured", "device"}


@dataclass(slots=True)
class _Measured:
    """What was measured of a model, by entry, and of the machine."""

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    ceilings: Ceilings | None = None


@dataclass(frozen=True, slots=True)
class _Opener:
    """Turns names into what is looked at. `how` are the options that a plan and a compiled model take alike."""

    steps: Steps
    shapes: str
    target: str
    how: Mapping[str, Any]

    @contextmanager
    def planned(self, name: str) -> Iterator[Viewable]:
        """An artifact by its path, the plan of a training run, or that of a model."""
        self.steps.begin(f"planning {name}")
        if is_artifact(name):
            yield name
        elif is_run(name):
            yield plan_of_run(Path(name), self.target)
        else:
            yield plan_buckets(load(name), parse_shapes(self.shapes), target=self.target, **self.how)

    @contextmanager
    def compiled(self, name: str, device: str, measured: _Measured) -> Iterator[Viewable]:
        """A model on a device; what every entry takes goes into `measured`."""
        shapes, loading = parse_shapes(self.shapes), LoadProgress(self.steps)
        executable = compile_model(load(name), buckets=shapes, device=device, progress=loading, **self.how)
        found = profile_entries(executable, runs=PROFILE_RUNS, seed=0, begin=self.steps.begin)
        measured.profiles = {profile.entry: profile for profile in found}
        self.steps.begin("measuring the ceilings of the machine")
        measured.ceilings = measure_ceilings(executable.device, executable.mode, found)
        yield executable


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
            help="A second model, artifact or training run: the report says what differs from it.",
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
    with progress(as_json) as steps, ExitStack() as opened:
        how = {"context": context, "precision": precision, "policy": policy}
        opener = _Opener(steps, shapes, target, how)
        found = opener.compiled(name, device, times) if measured else opener.planned(name)
        subject = opened.enter_context(found)
        earlier = None if before is None else opened.enter_context(opener.planned(before))
        steps.begin("drawing")
        title = Path(name).resolve().name if page else None
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
    if measured and (is_artifact(name) or is_run(name)):
        kind, open_it = ("a training run", "train_step") if is_run(name) else ("an artifact", "load_executable")
        raise ConfigError(
            f"{name} is {kind}, --profile takes a model",
            hint=f"in Python: exe = ostinato.{open_it}(...), then ostinato.view(exe, path, profile=exe.profile())",
        )
    if measured:
        refuse_unread(invocation, "--profile runs the model where it is", _PROFILED)
    elif is_artifact(name):
        refuse_unread(invocation, f"{name} is an artifact", _SAVED)
    elif is_run(name):
        refuse_unread(invocation, f"{name} is a training run", _TRAINED)
    else:
        refuse_unread(invocation, f"{name} is planned and not run", _PLANNED, "leave them out, or add --profile")


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
