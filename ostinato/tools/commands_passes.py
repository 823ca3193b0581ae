"""`ostinato passes`: what the passes make of one bucket of a model, stage by stage. No weight is loaded, and the target need not be here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ostinato.backend_hip.target import named_target
from ostinato.ir.target import Target
from ostinato.ir.text import print_graph
from ostinato.passes.pipeline import settled_options
from ostinato.passes.runner import run_pipeline
from ostinato.stages import Traced
from ostinato.tools.console import emit_json, output, progress
from ostinato.tools.options import (
    ContextOption,
    DisableOption,
    EntryOption,
    JsonOption,
    LogitsOption,
    ModelArgument,
    ModelOption,
    PolicyOption,
    PrecisionOption,
    TargetOption,
    chosen_model,
    parse_dims,
)
from ostinato.tools.programs import trace_model
from ostinato.tools.stages import dump_stages, passes_report, show_passes

__all__ = ["DimsOption", "passes_command", "traced_bucket"]

DEFAULT_DIMS = {"step": "N=128,R=1", "decode": "R=1", "forward": "B=1,T=128", "embed": "N=128,R=1"}
DimsOption = Annotated[
    str | None,
    typer.Option(
        "--dims",
        show_default=False,
        help="Sizes of the graph's dimensions; default: N=128,R=1 for step and embed, B=1,T=128 for forward.",
    ),
]


def passes_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    entry: EntryOption = None,
    dims: DimsOption = None,
    logits: LogitsOption = "last",
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    target: TargetOption = "host",
    disable: DisableOption = None,
    stop_after: Annotated[
        str | None,
        typer.Option("--stop-after", metavar="STAGE", show_default=False, help="Run the passes up to this one only."),
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff", metavar="STAGE", show_default=False, help="Print what a stage changed; FROM:TO, what several did."
        ),
    ] = None,
    dump: Annotated[
        Path | None,
        typer.Option("--dump", show_default=False, help="Write the text after every stage into this folder."),
    ] = None,
    show_graph: Annotated[bool, typer.Option("--graph", help="Print the graph after the passes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the passes on one bucket and say what each did, and how long it took.

    Example: ostinato passes smollm2 --dims N=128,R=1 --diff fuse_swiglu

    Example: ostinato passes smollm2 --target sm_90 --disable fuse_qkv --dump stages
    """
    name = chosen_model(model, model_option)
    with progress(as_json) as steps:
        steps.begin(f"lowering {name}")
        traced, sizes, chosen = traced_bucket(name, entry, dims, logits, context, precision, target)
        options = settled_options(None, traced.precision, disable=disable or (), policy=policy)
        texts = dump is not None or diff is not None
        found = run_pipeline(traced.graph.bind(sizes), chosen, options, texts=texts, stop_after=stop_after)
    files = () if dump is None else dump_stages(found, dump)
    report = passes_report(found, name, chosen.name, diff, files)
    if as_json:
        emit_json(report)
        return
    if show_graph:
        sys.stdout.write(print_graph(found.graph))
    if report.diff is not None:
        sys.stdout.write(f"{report.diff or 'no difference'}\n")
    show_passes(report, output())


def traced_bucket(
    name: str, entry: str | None, dims: str | None, logits: str, context: int | None, precision: str, target: str
) -> tuple[Traced, dict[str, int], Target]:
    """The traced entry of a model, the sizes of its dimensions, and the target."""
    chosen = named_target(target)
    traced = trace_model(name, entry, logits, context, precision)
    return traced, parse_dims(DEFAULT_DIMS[traced.graph.name] if dims is None else dims), chosen
