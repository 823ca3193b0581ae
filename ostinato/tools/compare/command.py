"""The command `compare`: options in, one report out, as tables, JSON, Markdown or a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from ostinato.ir.errors import ConfigError
from ostinato.ir.files import need_writable, write_text
from ostinato.tools.artifacts import HowToOpen, RecompileOption, TrustOption, WeightsOption
from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.page import comparison_page
from ostinato.tools.compare.report import CompareReport
from ostinato.tools.compare.show import comparison_markdown, show_comparison
from ostinato.tools.console import emit_json, notice, output, progress
from ostinato.tools.options import (
    EXIT_FAILED,
    ContextOption,
    DeviceOption,
    JsonOption,
    LongestOption,
    MemoryLimitOption,
    ModelArgument,
    ModelOption,
    OwnShapesOption,
    PolicyOption,
    PrecisionOption,
    SeedOption,
    ThreadsOption,
    ToleranceOption,
    chosen_model,
    parse_shapes,
)

__all__ = ["compare_command"]

_DEFAULT_MODES = "reference,eager,planned"
_FIRST = "planned"
"""What a single `--side` is compared with."""


def compare_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    modes: Annotated[
        str | None,
        typer.Option(
            "--modes",
            show_default=_DEFAULT_MODES,
            help="Modes to compare, separated by commas: reference, eager, planned, guarded, no-reuse (a plan without reuse), captured (GPUs).",
        ),
    ] = None,
    side: Annotated[
        list[str] | None,
        typer.Option(
            "--side",
            metavar="SIDE",
            show_default=False,
            help="One more side, several settings with commas: policy=strict, levels.linear=reference, disable=fuse_qkv (or *), device=hip:0,mode=captured, "
            "a file MODEL.ost, or python=FILE.py:NAME for a function of your own. May be given several times.",
        ),
    ] = None,
    replays: Annotated[
        int, typer.Option("--replays", min=1, help="Runs of each side; all must give the same bits.")
    ] = 3,
    processes: Annotated[
        int, typer.Option("--processes", min=0, help="Fresh processes that compile again and must give the same bits.")
    ] = 0,
    poison: Annotated[
        bool, typer.Option("--poison/--no-poison", help="Fill unused memory with NaN before each step.")
    ] = True,
    edges: Annotated[
        bool,
        typer.Option("--edges/--no-edges", help="Beside chance: one token, one id, extreme ids, just a bucket's size."),
    ] = True,
    operators: Annotated[
        bool, typer.Option("--operators/--no-operators", help="The table of errors of every operator.")
    ] = True,
    tokens: LongestOption = None,
    tolerance: ToleranceOption = None,
    shapes: OwnShapesOption = None,
    context: ContextOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    weights: WeightsOption = None,
    recompile: RecompileOption = False,
    trust: TrustOption = False,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            metavar="FILE",
            show_default=False,
            help="Write the report there: a page (.html), tables (.md) or JSON (.json). May be given several times.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run sides of a model beside each other: bit-equal, within contract, or the first node that differs and what is wrong with it.

    Example: ostinato compare smollm2 --modes eager,planned --side policy=strict --replays 20 --output report.html
    """
    name = chosen_model(model, model_option)
    places = [(path, _form(path)) for path in files or ()]
    for path, _ in places:
        need_writable(path)
    asked = [item.strip() for item in (modes or "").split(",") if item.strip()]
    if not asked:
        asked = [] if side and len(side) > 1 else [_FIRST] if side else _DEFAULT_MODES.split(",")
    with progress(as_json) as steps:
        steps.begin(f"loading {name}")
        report = compare(
            name,
            [*asked, *(side or ())],
            replays=replays,
            processes=processes,
            poison=poison,
            edges=edges,
            operators=operators,
            seed=seed,
            tokens=tokens,
            tolerance=tolerance,
            buckets=None if shapes is None else parse_shapes(shapes),
            context=context,
            device=device,
            precision=precision,
            policy=policy,
            memory_limit=memory_limit,
            threads=threads,
            **HowToOpen(recompile, trust, weights).given,
            report_progress=steps.begin,
        )
    written = [write_text(path, form(report)) for path, form in places]
    if as_json:
        emit_json(report)
    else:
        show_comparison(report, output())
        for file in written:
            notice(f"wrote {file}")
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def _json(report: CompareReport) -> str:
    return report.model_dump_json(indent=2) + "\n"


_FORMS: Mapping[str, Callable[[CompareReport], str]] = {
    ".html": comparison_page,
    ".md": comparison_markdown,
    ".json": _json,
}


def _form(path: Path) -> Callable[[CompareReport], str]:
    """How a report is written to a file of that name. Raises `ConfigError` for an ending that says nothing."""
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise ConfigError(f"{path} is no name of a report", hint=f"end it in one of {', '.join(_FORMS)}")
    return form
