"""`ostinato audit`: loads a model, captures it where the device captures, and says what its graphs and step tables were given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from ostinato.frontend.model import load
from ostinato.runtime.audit import AuditedPointer, AuditReport
from ostinato.runtime.executable import Executable
from ostinato.saving.read import is_artifact
from ostinato.tools.artifacts import (
    HowToOpen,
    RecompileOption,
    TrustOption,
    WeightsOption,
    open_saved,
)
from ostinato.tools.audit.report import AddressAuditReport, AuditedEntry
from ostinato.tools.console import emit_json, many, output, progress, size, table
from ostinato.tools.options import (
    EXIT_FAILED,
    CaptureOption,
    ContextOption,
    DeviceOption,
    JsonOption,
    LogitsOption,
    ModelArgument,
    ModelOption,
    ModeOption,
    PolicyOption,
    PrecisionOption,
    ThreadsOption,
    chosen_model,
    parse_shapes,
)
from ostinato.tools.programs import LoadProgress, compile_model

__all__ = ["audit_command", "show_audit"]

_ROWS = 24
_SAVED = ("mode", "every")
"""Parameters that an artifact reads beside its own."""


def audit_command(
    invocation: typer.Context,
    model: ModelArgument = None,
    model_option: ModelOption = None,
    shapes: Annotated[str, typer.Option("--shapes", help="Buckets to compile, name=sizes: B=1,T=1,128.")] = "B=1,T=16",
    logits: LogitsOption = "last",
    context: ContextOption = None,
    device: DeviceOption = "auto",
    mode: ModeOption = "auto",
    capture: CaptureOption = None,
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    threads: ThreadsOption = 0,
    every: Annotated[
        bool, typer.Option("--all", help=f"Show every pointer, not the first {_ROWS} of an entry.")
    ] = False,
    weights: WeightsOption = None,
    recompile: RecompileOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Every pointer and number that captured graphs and step tables were given, by name and line, and what of it does not hold.

    Example: ostinato audit smollm2 --shapes B=1,T=16 --json
    """
    name = chosen_model(model, model_option)
    how = HowToOpen(recompile, trust, weights)
    how.check(name)
    with progress(as_json) as steps:
        steps.begin(f"compiling {name}")
        loading = LoadProgress(steps)
        executable: Executable
        if is_artifact(name):
            executable = open_saved(
                invocation, name, how, _SAVED, device=device, mode=mode, threads=threads, progress=loading
            ).executable
        else:
            executable = compile_model(
                load(name),
                logits=logits,
                context=context,
                buckets=parse_shapes(shapes),
                device=device,
                mode=mode,
                capture=capture,
                precision=precision,
                policy=policy,
                threads=threads,
                progress=loading,
            )
        steps.begin("auditing")
        found = [executable.audit(entry) for entry in executable.entries]
    report = AddressAuditReport(
        model=name,
        mode=executable.mode,
        reason=executable.reason,
        ok=all(each.ok for each in found),
        entries=tuple(map(AuditedEntry.of, found)),
    )
    if as_json:
        emit_json(report)
    else:
        for each in found:
            show_audit(each, output(), None if every else _ROWS)
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def show_audit(report: AuditReport, console: Console, rows: int | None = _ROWS) -> None:
    """The audit of an entry for people: its pointers (the first `rows`, None for all), what its numbers are made of, and the findings."""
    shown = report.pointers[:rows]
    what = many(report.graphs, "captured graph") if report.graphs else "the step table"
    title = f"{report.entry} on {report.device}: {what}, {many(len(report.pointers), 'pointer')}"
    console.print(
        table(title, ("value", "region", "address", "bytes", "steps", "read", "written", "from"), _rows(shown))
    )
    if len(shown) < len(report.pointers):
        console.print(f"and {len(report.pointers) - len(shown)} more (--all, or --json)")
    made = sum(scalar.source.endswith("made by the row") for scalar in report.scalars)
    console.print(
        f"{many(len(report.scalars), 'scalar')}, all constants of the plan: {len(report.scalars) - made} equal to an attribute, extent or dimension, "
        f"{made} made by rows; what changes lies in {many(len(report.slots), 'device slot')}"
    )
    for finding in report.findings:
        console.print(str(finding), markup=False, highlight=False)
    console.print("everything holds" if report.ok else f"{many(len(report.findings), 'finding')}")


def _rows(pointers: Sequence[AuditedPointer]) -> list[tuple[str, ...]]:
    return [
        (
            pointer.name,
            pointer.region.rpartition("/")[2],
            f"{pointer.address:#x}",
            size(pointer.nbytes),
            f"{pointer.first}-{pointer.last}",
            str(len(pointer.reads)),
            str(len(pointer.writes)),
            _first(pointer.source),
        )
        for pointer in pointers
    ]


def _first(source: str) -> str:
    """The first of several tensors, and how many more."""
    first, *others = source.split(", ")
    return f"{first} and {len(others)} more" if others else first
