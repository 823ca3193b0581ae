"""`ostinato train`: a run from a configuration file, planned first, gone on from where it stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ostinato.frontend.model import Model
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import write_text
from ostinato.llm import LLM
from ostinato.runtime.sampling import SamplingParams
from ostinato.runtime.training.checkpoint import Checkpoints
from ostinato.runtime.training.optimizer import MOST_STEPS
from ostinato.tools.console import Steps, count, emit_json, milliseconds, notice, output, progress, size
from ostinato.tools.options import EXIT_FAILED, EXIT_INTERRUPTED, JsonOption
from ostinato.tools.programs import LoadProgress
from ostinato.tools.train.config import TrainConfig, read_config
from ostinato.tools.train.curve import curve_to_svg
from ostinato.tools.train.data import batches_of
from ostinato.tools.train.job import CHECKPOINTS, CURVE, METRICS, export, opened, planned, settings_of
from ostinato.tools.train.loop import Run, restore, stoppable
from ostinato.tools.train.metrics import Line, Metrics
from ostinato.tools.train.report import TrainPlanReport, TrainReport
from ostinato.tools.train.step import make_step

__all__ = ["train_command"]

_LINES = 20
"""Lines of progress where there is no terminal to draw a bar on."""


def train_command(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG.toml", show_default=False, help="The configuration; docs/train.md shows one."),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say whether a step fits, and where its bytes go; load nothing.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="NAME",
            show_default=False,
            help="With --dry-run: host (the CPU), or the architecture of a GPU, which need not be here: gfx942, sm_90.",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="BYTES",
            show_default=False,
            help="With --dry-run: what the device has for all of a step, such as 24GiB.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the latest checkpoint, or begin where there is none.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, max=MOST_STEPS, show_default=False, help="Train to this step, whatever the file says."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model from a configuration file; Ctrl-C saves a checkpoint, --resume goes on with the same bits.

    Example: ostinato train run.toml --dry-run

    Example: ostinato train run.toml --resume
    """
    begin = time.perf_counter()
    read = read_config(config)
    if steps is not None:
        read = read.model_copy(update={"train": read.train.model_copy(update={"steps": steps})})
        read.made_optimizer()
    for name, given in (("--target", target), ("--memory", memory)):
        if given is not None and not dry_run:
            raise ConfigError(f"{name} says what to plan for", hint="use it with --dry-run")
    if dry_run:
        with progress(as_json) as shown:
            shown.begin("planning")
            plan = planned(read, target or "host", memory, lambda: time.perf_counter() - begin)
        emit_json(plan) if as_json else _show_plan(plan)
        if not plan.fits:
            raise typer.Exit(EXIT_FAILED)
        return
    report = _train(read, str(config), resume or read.train.resume, as_json)
    emit_json(report) if as_json else _show(report, str(config))
    if report.stopped:
        raise typer.Exit(EXIT_INTERRUPTED)


def _train(config: TrainConfig, name: str, resume: bool, as_json: bool) -> TrainReport:
    """The run, from opening the model to the picture of the loss."""
    checkpoints = Checkpoints(config.folder / CHECKPOINTS, keep=config.train.keep)
    with (
        checkpoints.locked(),
        progress(as_json) as shown,
        stoppable(lambda: notice("stopping after this step")) as stop,
    ):
        if not resume and (latest := checkpoints.latest()) is not None:
            raise ConfigError(
                f"{config.folder} has a run that is at {latest.name}",
                hint=f"`ostinato train {name} --resume` goes on with it; a new run needs another train.folder",
            )
        shown.begin("opening the model and the data")
        model, optimizer = opened(config), config.made_optimizer()
        data = batches_of(config, model)
        _check_sample(config, model)
        shown.begin("planning and loading")
        step = make_step(config, model, optimizer, LoadProgress(shown))
        run = Run(
            step=step,
            data=data,
            checkpoints=checkpoints,
            steps=config.train.steps,
            checkpoint_every=config.train.checkpoint_every,
            optimizer=optimizer.described(),
            seed=config.train.seed,
            settings=settings_of(config, model),
        )
        resumed = run.done if resume and restore(run) else None
        if run.done > run.steps:
            raise ConfigError(
                f"the run is at step {run.done}, past the {run.steps} steps asked for", hint="raise steps"
            )
        with _watched(config, run, shown, as_json) as metrics:
            outcome = run.train(stop)
        exported = None
        if not outcome.stopped and config.train.export != "no":
            shown.begin("exporting")
            exported = export(config, model, step.parameters())
        sample = None if exported is None or config.train.sample is None else _sample(config, exported)
    trained = outcome.step - (resumed or 0)
    losses = [line for line in metrics.lines if line.loss is not None]
    return TrainReport(
        model=str(model.checkpoint.path),
        parameters=model.checkpoint.parameters,
        steps=run.steps,
        done=outcome.step,
        stopped=outcome.stopped,
        resumed_at=resumed,
        loss=losses[-1].loss if losses else None,
        skipped=len(metrics.lines) - len(losses),
        tokens=outcome.step * data.tokens_per_batch,
        seconds=outcome.seconds,
        tokens_per_second=trained * data.tokens_per_batch / outcome.seconds if trained else None,
        checkpoint=str(outcome.checkpoint),
        exported=None if exported is None else str(exported),
        files=(str(config.folder / METRICS), str(config.folder / CURVE)),
        sample=sample,
    )


@contextmanager
def _watched(config: TrainConfig, run: Run, shown: Steps, as_json: bool) -> Iterator[Metrics]:
    """The lines of the run and their picture, and what is shown of them meanwhile."""
    metrics = Metrics(config.folder / METRICS, run.done)
    first, every = run.done, max(1, (run.steps - run.done) // _LINES)
    terminal = Console(stderr=True).is_terminal

    def line(made: Line) -> None:
        metrics.add(made)
        done = made.step - first
        speed = done * run.data.tokens_per_batch / made.seconds
        left = (run.steps - made.step) * made.seconds / done
        loss = "no number, skipped" if made.loss is None else f"{made.loss:.4f}"
        text = (
            f"step {made.step} of {run.steps}, loss {loss}, lr {made.learning_rate:.3g}, {count(round(speed))} tokens/s"
        )
        shown.advance(made.step, run.steps, f"{text}, {_clock(left)} left")
        if not (as_json or terminal) and (done % every == 0 or made.step == run.steps):
            notice(text)

    def drawn(path: Path) -> None:
        write_text(config.folder / CURVE, curve_to_svg(f"{config.folder.name}: {path.name}", metrics.points()))

    run.on_line, run.on_checkpoint = line, drawn
    try:
        yield metrics
    finally:
        metrics.close()


def _check_sample(config: TrainConfig, model: Model) -> None:
    """Raises `ConfigError` for a text that the model has no positions for: before the training that it comes after."""
    wanted = config.train.sample
    if wanted is None or config.train.export == "no":
        return
    prompt, limit = len(model.checkpoint.tokenizer().encode(wanted.prompt)), model.config.context_limit
    if prompt + wanted.max_tokens > limit:
        raise ConfigError(
            f"train.sample: {prompt} tokens of prompt and {wanted.max_tokens} more, the model has {limit} positions",
            hint="lower max_tokens",
        )


def _sample(config: TrainConfig, model: Path) -> str:
    """What the trained model writes after the prompt of the configuration."""
    wanted = config.train.sample
    assert wanted is not None
    llm = LLM(model, max_num_seqs=1, device=config.train.device, threads=config.train.threads)
    params = SamplingParams(max_tokens=wanted.max_tokens, temperature=wanted.temperature, seed=config.train.seed)
    (found,) = llm.generate(wanted.prompt, params)
    return wanted.prompt + found.text


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _show(report: TrainReport, name: str) -> None:
    console = output()
    for file in (*report.files, report.checkpoint, *([report.exported] if report.exported else [])):
        console.print(f"wrote {file}", markup=False)
    loss = "" if report.loss is None else f", loss {report.loss:.4f}"
    speed = "" if report.tokens_per_second is None else f", {count(round(report.tokens_per_second))} tokens/s"
    console.print(f"step {report.done} of {report.steps}{loss}; {milliseconds(report.seconds)}{speed}", markup=False)
    if report.sample is not None:
        console.print(report.sample, markup=False)
    if report.stopped:
        notice(f"stopped at step {report.done}; go on with: ostinato train {name} --resume")


def _show_plan(report: TrainPlanReport) -> None:
    console = output()
    console.print(str(report.memory), markup=False)
    pieces = f"the head in {report.chunks} pieces, " if report.chunks > 1 else ""
    again = f"{report.memory.recomputed} values computed twice, {report.extra_work:.2%} more work"
    console.print(f"{pieces}{again}", markup=False)
    if report.fits:
        limit = "" if report.memory_limit is None else f" within {size(report.memory_limit)} of arena"
        console.print(f"fits{limit}: {count(report.memory.total)} bytes in all, for {report.target}", markup=False)
    else:
        console.print(f"{count(report.missing_bytes)} bytes short\n{report.message}", markup=False)
