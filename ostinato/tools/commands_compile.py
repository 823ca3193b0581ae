"""`ostinato compile`: a model compiled and loaded, or an artifact made of it; an artifact compiled again where it is stale."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.embedder import Embedder
from ostinato.frontend.model import Model, load
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import need_writable
from ostinato.llm import LLM
from ostinato.runtime.executable import Executable
from ostinato.saving.read import is_artifact
from ostinato.tools.artifacts import (
    HowToOpen,
    RecompileOption,
    TrustOption,
    WeightsOption,
    open_saved,
)
from ostinato.tools.console import emit_json, milliseconds, notice, output, progress, size
from ostinato.tools.options import (
    CaptureOption,
    ContextOption,
    DeviceOption,
    JsonOption,
    LogitsOption,
    MemoryLimitOption,
    ModelArgument,
    ModelOption,
    ModeOption,
    PolicyOption,
    PrecisionOption,
    ThreadsOption,
    chosen_model,
    parse_shapes,
)
from ostinato.tools.programs import (
    LoadProgress,
    compile_model,
    entry_stats,
    refuse_decoder_options,
    region_sizes,
    show_entries,
    show_regions,
)
from ostinato.tools.schemas import CompileReport
from ostinato.tools.stages import dump_program

__all__ = ["compile_command"]

SHAPES = "B=1,T=128,512"
_FILE = "To write an artifact (.ost)"
_SAVED = ("mode", "dump", "write_to", "standalone", "whole")
"""Parameters that an artifact reads beside its own."""


def compile_command(
    invocation: typer.Context,
    model: ModelArgument = None,
    model_option: ModelOption = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shapes",
            show_default=False,
            help=f"Buckets to compile for calls from Python, name=sizes; default: {SHAPES} or, with --output, what `run` uses.",
        ),
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(
            "--sequences",
            min=1,
            metavar="N",
            show_default=False,
            help="In place of buckets, what `run` and ostinato.LLM use for N conversations at a time.",
        ),
    ] = None,
    logits: LogitsOption = "last",
    context: ContextOption = None,
    device: DeviceOption = "auto",
    mode: ModeOption = "auto",
    capture: CaptureOption = None,
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    dump: Annotated[
        Path | None, typer.Option("--dump", show_default=False, help="Write every stage as text into this folder.")
    ] = None,
    write_to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            show_default=False,
            rich_help_panel=_FILE,
            help="Write what was compiled, to be given as MODEL; weights stay in their checkpoint.",
        ),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", rich_help_panel=_FILE, help="Put weights and tokenizer into the file.")
    ] = False,
    whole: Annotated[
        bool,
        typer.Option(
            "--hash-weights", rich_help_panel=_FILE, help="Know the weights again by all their bytes, not by samples."
        ),
    ] = False,
    weights: WeightsOption = None,
    recompile: RecompileOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compile a model for buckets of B sequences times T tokens, load it, and say what it takes; or write it to a file that commands take as MODEL.

    Example: ostinato compile smollm2 --shapes B=1,T=128,512 --dump stages

    Example: ostinato compile smollm2 --output smollm2.ost

    Example: ostinato compile smollm2.ost --recompile --output smollm2.ost
    """
    name = chosen_model(model, model_option)
    how = HowToOpen(recompile, trust, weights)
    how.check(name)
    _check(name, shapes, sequences, logits, write_to, standalone or whole)
    if write_to is not None:
        need_writable(write_to)
    begin = time.perf_counter()
    stale: tuple[str, ...] = ()
    with progress(as_json) as steps:
        steps.begin(f"compiling {name}")
        loading = LoadProgress(steps)
        if is_artifact(name):
            opened = open_saved(
                invocation, name, how, _SAVED, device=device, mode=mode, threads=threads, progress=loading
            )
            executable, stale = opened.executable, opened.stale
        else:
            settings: dict[str, Any] = {
                "device": device,
                "mode": mode,
                "capture": capture,
                "precision": precision,
                "policy": policy,
                "memory_limit": memory_limit,
                "threads": threads,
                "progress": loading,
            }
            if sequences is not None or (write_to is not None and shapes is None):
                executable = _served(load(name), sequences, context, logits, settings)
            else:
                buckets = parse_shapes(SHAPES if shapes is None else shapes)
                executable = compile_model(load(name), logits=logits, context=context, buckets=buckets, **settings)
        files = [] if dump is None else list(dump_program(executable.program, dump))
        seconds = time.perf_counter() - begin
        if write_to is not None:
            steps.begin(f"writing {write_to}")
            files.append(str(executable.save(write_to, weights=standalone, whole=whole)))
    report = CompileReport(
        model=name,
        mode=executable.mode,
        reason=executable.reason,
        entries=entry_stats(executable.program.plan),
        regions=region_sizes(executable.program.plan),
        seconds=seconds,
        files=tuple(files),
        stale=stale,
    )
    emit_json(report) if as_json else _show(report, is_artifact(name))


def _check(
    name: str, shapes: str | None, sequences: int | None, logits: str, write_to: Path | None, of_a_file: bool
) -> None:
    """Raises `ConfigError` for options that mean nothing together."""
    if shapes is not None and sequences is not None:
        raise ConfigError("--shapes and --sequences are two things to compile for", hint="give one of them")
    if of_a_file and write_to is None:
        raise ConfigError("--standalone and --hash-weights say how a file is written", hint="name it with --output")
    if write_to is not None and not is_artifact(write_to):
        raise ConfigError(f"{write_to} is not the name of an artifact", hint="end it in .ost, as commands expect it")


def _served(
    model: Model, sequences: int | None, context: int | None, logits: str, settings: dict[str, Any]
) -> Executable:
    """What `run` uses. Raises `ConfigError` for options that it does not have."""
    if model.family.encoder is not None:
        refuse_decoder_options(model, logits, context)
        if sequences is not None:
            raise ConfigError(
                f"{model.family.name} is a family of encoders, which hold no conversations", hint="leave the option out"
            )
        return Embedder(model, **settings).executable
    if logits != "last":
        raise ConfigError("--logits all is for calls from Python", hint="give --shapes with it")
    return LLM(model, max_num_seqs=sequences or 1, context=context, **settings).executable


def _show(report: CompileReport, loaded: bool) -> None:
    """The report for people."""
    show_entries(report.entries, output())
    show_regions(report.regions, output())
    done = "loaded" if loaded and not report.stale else "compiled and loaded"
    output().print(
        f"mode {report.mode}"
        + (f" ({report.reason})" if report.reason else "")
        + f"; {done} in {milliseconds(report.seconds)}"
    )
    for difference in report.stale:
        notice(f"compiled again: {difference}")
    for file in report.files:
        place = Path(file)
        output().print(
            f"wrote {file}" + (f" ({size(place.stat().st_size)})" if is_artifact(file) else ""), markup=False
        )
