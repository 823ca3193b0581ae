"""`ostinato view`: a model's graphs and arenas as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.frontend.model import load
from ostinato.tools.console import count, emit_json, notice, output, progress, table
from ostinato.tools.options import (
    PLANNED_SHAPES,
    ContextOption,
    JsonOption,
    ModelArgument,
    ModelOption,
    PrecisionOption,
    ShapesOption,
    chosen_model,
    parse_shapes,
)
from ostinato.tools.programs import plan_buckets
from ostinato.tools.schemas import ViewReport
from ostinato.tools.view.pictures import DOT_MISSING, view

__all__ = ["view_command"]


def view_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    shapes: ShapesOption = PLANNED_SHAPES,
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
    write_to: Annotated[Path, typer.Option("--output", help="The folder for the pictures.")] = Path("pictures"),
    as_json: JsonOption = False,
) -> None:
    """Draw the graph of a model, repeated layers once, and its arena over time; no weight is loaded.

    Example: ostinato view smollm2 --shapes B=1,T=1,512 --output pictures
    """
    name = chosen_model(model, model_option)
    with progress(as_json) as steps:
        steps.begin(f"planning {name}")
        program = plan_buckets(load(name), parse_shapes(shapes), context=context, precision=precision)
        steps.begin("drawing")
        pictures = view(program, write_to)
    drawn = any(file.endswith(".graph.svg") for item in pictures for file in item.files)
    missing = () if drawn else (DOT_MISSING,)
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
        missing=missing,
    )
    if as_json:
        emit_json(report)
        return
    rows = [
        (
            entry.name,
            count(entry.nodes),
            count(entry.nodes_drawn),
            ", ".join(f"{times} times" for times in entry.repeats) or "none",
        )
        for entry in report.entries
    ]
    output().print(table("pictures", ("entry", "nodes", "drawn", "repeats"), rows))
    for entry in report.entries:
        for file in entry.files:
            output().print(f"wrote {file}", markup=False)
    for text in missing:
        notice(text)
