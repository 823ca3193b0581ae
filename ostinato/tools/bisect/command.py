"""The command `bisect`: options in, one report out, and a repro bundle where `--output` names a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.tools.artifacts import HowToOpen, RecompileOption, TrustOption, WeightsOption
from ostinato.tools.bisect.search import bisect
from ostinato.tools.bisect.show import show_bisection
from ostinato.tools.compare.sides import Side
from ostinato.tools.console import emit_json, output, progress
from ostinato.tools.options import (
    EXIT_FAILED,
    ContextOption,
    DeviceOption,
    ExtensionOption,
    JsonOption,
    LongestOption,
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
from ostinato.tools.repro.extension import extended

__all__ = ["bisect_command"]

_SIDE = "a mode, settings with commas between (policy=strict, levels.linear=reference, disable=fuse_qkv), or MODEL.ost"


def bisect_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    left: Annotated[str, typer.Option("--left", metavar="SIDE", help=f"The side that is right: {_SIDE}.")] = "eager",
    right: Annotated[
        str, typer.Option("--right", metavar="SIDE", help="The side that is wrong, written alike.")
    ] = "auto",
    tokens: LongestOption = None,
    runs: Annotated[
        int, typer.Option("--runs", min=2, help="Runs of each side, to see whether it repeats itself.")
    ] = 3,
    tolerance: ToleranceOption = None,
    shapes: OwnShapesOption = None,
    context: ContextOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    threads: ThreadsOption = 0,
    weights: WeightsOption = None,
    recompile: RecompileOption = False,
    trust: TrustOption = False,
    bundle: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", show_default=False, help="Write the repro bundle there: a new folder."),
    ] = None,
    extension: ExtensionOption = "",
    as_json: JsonOption = False,
) -> None:
    """Name what makes two ways to run a model differ: the node, pass, row, bytes or captured step; and reduce it to a bundle.

    Example: ostinato bisect smollm2 --left eager --right disable=fuse_qkv --output repro/
    """
    name = chosen_model(model, model_option)
    with extended(extension), progress(as_json) as steps:
        steps.begin(f"loading {name}")
        report = bisect(
            name,
            left,
            right,
            base=Side(device=device, precision=precision, policy=policy, threads=threads),
            buckets=parse_shapes(shapes) if shapes else None,
            context=context,
            tokens=tokens,
            seed=seed,
            runs=runs,
            tolerance=tolerance,
            **HowToOpen(recompile, trust, weights).given,
            output=bundle,
            extension=extension,
            report_progress=steps.begin,
        )
    emit_json(report) if as_json else show_bisection(report, output())
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)
