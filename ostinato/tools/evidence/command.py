"""The commands of `ostinato evidence`. Options in, one report out."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ostinato.backend_hip.evidence.gates import PAIRS
from ostinato.backend_hip.evidence.ledger import Ledger, shipped_records
from ostinato.backend_hip.vendor_screen import MOST_CANDIDATES
from ostinato.frontend.model import Model
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import need_writable
from ostinato.saving.facts import environment_of
from ostinato.stages import open_device, open_model
from ostinato.tools.console import emit_json, output, progress
from ostinato.tools.evidence.measure import Setting, training_setting
from ostinato.tools.evidence.screening import screen_model, show_screening
from ostinato.tools.evidence.shelf import Shelf, environments, open_shelf
from ostinato.tools.evidence.show import show_export, show_list, show_prune, show_record
from ostinato.tools.evidence.tune import show_tuning, tune
from ostinato.tools.evidence.validating import rows_asked_for, show_validation, validate_rows
from ostinato.tools.evidence.workloads import DEFAULT_WORKLOADS, parse_workloads
from ostinato.tools.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    DeviceOption,
    JsonOption,
    ModelArgument,
    ModelOption,
    PrecisionOption,
    SeedOption,
    ThreadsOption,
    chosen_model,
    refuse_unread,
)
from ostinato.tools.train.job import is_run

__all__ = ["evidence_commands"]

_OF_A_RUN = {"model", "model_option", "only", "pairs", "seconds", "as_json"}
"""Parameters that are read where a training run is tuned; its file says the others."""

WorkloadsOption = Annotated[
    str, typer.Option("--workloads", help="Decode steps of N rows (dN) and prefills of N tokens (pN).")
]
KindOption = Annotated[
    str | None, typer.Option("--kind", show_default=False, help="Only records of this kind: validation or timing.")
]
FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FILE", show_default=False, help="Read a file that `export` wrote instead of the ledger."
    ),
]


def evidence_commands() -> typer.Typer:
    """List, show, validate, tune, prune and export the evidence ledger.

    Example: ostinato evidence ls
    """
    app = typer.Typer(
        no_args_is_help=True, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
    )
    for name, function in (
        ("ls", ls_command),
        ("show", show_command),
        ("validate", validate_command),
        ("tune", tune_command),
        ("screen", screen_command),
        ("prune", prune_command),
        ("export", export_command),
    ):
        app.command(name)(function)
    return app


def ls_command(
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", show_default=False, help="Only records that have this in their id, subject or detail."
        ),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also shipped records that hold here.")] = False,
    kind: KindOption = None,
    file: FromOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """List the records of the ledger and of the library: what each is of, and whether it holds on this machine.

    Example: ostinato evidence ls linear
    """
    report = open_shelf(open_device(device), file).of_kind(kind).listed(pattern, everything=everything)
    emit_json(report) if as_json else show_list(report, output())


def show_command(
    name: Annotated[
        str, typer.Argument(metavar="ID", show_default=False, help="A record by its id, or by how that begins.")
    ],
    file: FromOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show a record whole, where it stands on this machine, and of a timing what the gate says of its candidate.

    Example: ostinato evidence show 3f9a
    """
    report = open_shelf(open_device(device), file).shown(name)
    emit_json(report) if as_json else show_record(report, output())


def prune_command(
    now: Annotated[
        bool, typer.Option("--yes", help="Do it; without this it is only said what would be taken out.")
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Take stale records, failed validations and lines that are no records out of the ledger. Rejected candidates and what is of other devices stay.

    Example: ostinato evidence prune --yes
    """
    ledger = Ledger()
    lines = ledger.lines()
    shelf = Shelf(tuple((record, "yours") for record in lines.records), environments(open_device(device)))
    report = shelf.pruned(ledger, lines, dry=not now)
    emit_json(report) if as_json else show_prune(report, output())


def export_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", show_default=False, help="Where to write the records, as JSON lines.")
    ],
    pattern: Annotated[
        str,
        typer.Option(
            "--only",
            metavar="TEXT",
            show_default=False,
            help="Records that have this in their id, subject, detail or architecture.",
        ),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that ship with the library.")] = False,
    kind: KindOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Write the records of the ledger that hold, to be read on another machine. No record that names a place of this one is among them.

    Example: ostinato evidence export records.jsonl
    """
    if os.path.realpath(file) == os.path.realpath(Ledger().path):
        raise ConfigError(
            f"{file} is the ledger itself", hint="records are taken out of it by `ostinato evidence prune`"
        )
    need_writable(file)
    report = open_shelf(open_device(device), None).of_kind(kind).exported(file, pattern, everything=everything)
    emit_json(report) if as_json else show_export(report, output())


def validate_command(
    ops: Annotated[
        list[str] | None,
        typer.Option(
            "--ops", metavar="NAME", show_default=False, help="Operators to validate; may be given several times."
        ),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            "--rows",
            metavar="NAME",
            show_default=False,
            help="Rows to validate, by name or as operator@row; may be given several times.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every layout, stride and count that samples have, not one for each dtype.")
    ] = False,
    isa: Annotated[
        str, typer.Option("--isa", help="The kernel unit of the CPU: portable, avx2, avx512, avx512_bf16.")
    ] = "auto",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Validate implementation rows on this machine and record it: fresh random values and edge cases, held against the oracle.

    What a program needs is validated without being asked, the first time; this is for all of it beforehand, or again.

    Example: ostinato evidence validate --ops linear --ops rms_norm
    """
    opened = open_device(device, isa=isa)
    with progress(as_json) as steps:
        report = validate_rows(opened, rows_asked_for(opened, ops or (), rows or ()), every=everything, steps=steps)
    emit_json(report) if as_json else show_validation(report, output())
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def tune_command(
    invocation: typer.Context,
    model: ModelArgument = None,
    model_option: ModelOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="TEXT",
            show_default=False,
            help="Candidates with this in their name; may be given several times.",
        ),
    ] = None,
    workloads: WorkloadsOption = DEFAULT_WORKLOADS,
    pairs: Annotated[
        int, typer.Option("--pairs", min=1, help=f"Pairs of fresh processes; a gate counts {PAIRS} and more.")
    ] = 5,
    seconds: Annotated[
        float, typer.Option("--time", min=0.01, max=3600.0, metavar="SECONDS", help="For each workload in a process.")
    ] = 1.0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure what there is to choose on whole-model runs, record it, and hold it against the gate of defaults.

    Each optional pass is left out, and each other validated row put first, beside the default. Outputs are checked before anything is timed. What passes the
    gate is used by policy balanced on this machine. Ctrl-C keeps what was measured. With the configuration of a training run in the place of the model it is
    the whole step of that run which is measured.

    Example: ostinato evidence tune smollm2 --only fuse_ --pairs 9

    Example: ostinato evidence tune run.toml --only fuse_updates
    """
    name = chosen_model(model, model_option)
    if is_run(name):
        refuse_unread(invocation, f"{name} is a training run", _OF_A_RUN, "write them into its file")
        source: AbstractContextManager[tuple[Setting, Model]] = training_setting(Path(name), pairs, seconds)
    else:
        asked = Setting(name, device, threads, precision, parse_workloads(workloads), pairs, seconds)
        source = nullcontext((asked, open_model(name)))
    with source as (setting, opened_model), progress(as_json) as steps:
        opened = open_device(setting.device, setting.threads)
        report = tune(
            setting,
            opened_model,
            opened,
            environment_of(opened),
            Ledger(),
            only=only or (),
            known=shipped_records(),
            steps=steps,
        )
    emit_json(report) if as_json else show_tuning(report, output())
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def screen_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    workloads: WorkloadsOption = DEFAULT_WORKLOADS,
    candidates: Annotated[
        int,
        typer.Option(
            "--candidates", min=1, max=MOST_CANDIDATES, help="Algorithms to ask the vendor for, of each product."
        ),
    ] = MOST_CANDIDATES,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Try the algorithms of a GPU vendor's library for the products of a model, and record the fastest of those that are right.

    The complete result of each is held against the oracle before it is timed.

    Example: ostinato evidence screen path/to/model --workloads p512 --device hip
    """
    name = chosen_model(model, model_option)
    asked = parse_workloads(workloads)
    with progress(as_json) as steps:
        report = screen_model(
            name, open_model(name), open_device(device), asked, precision, candidates=candidates, seed=seed, steps=steps
        )
    emit_json(report) if as_json else show_screening(report, output())
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)
