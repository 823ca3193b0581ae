"""The commands that run a model: `run`, `compare`, `bench`. Options in, one report out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ostinato.compiler import compile as compile_model
from ostinato.frontend.model import load
from ostinato.llm import LLM
from ostinato.runtime.sampling import SamplingParams
from ostinato.tools.bench import bench, show_bench
from ostinato.tools.compare import compare, show_comparison
from ostinato.tools.console import emit_json, milliseconds, notice, output, progress, write_piece
from ostinato.tools.generate import generate, read_prompt
from ostinato.tools.options import (
    EXIT_FAILED,
    ContextOption,
    DeviceOption,
    JsonOption,
    ModelArgument,
    ModelOption,
    ModeOption,
    PrecisionOption,
    SeedOption,
    ThreadsOption,
    chosen_model,
)
from ostinato.tools.programs import LoadProgress

__all__ = ["bench_command", "compare_command", "run_command"]


def run_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", show_default=False, help="The prompt.")] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", show_default=False, help="A file that holds the prompt; -: standard input."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Give the prompt as a message through the model's chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=0, help="Tokens to make at most.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens up to this mass.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Keep this many of the likeliest tokens; 0: all.")] = 0,
    min_p: Annotated[
        float, typer.Option("--min-p", help="Keep tokens of at least this share of the likeliest one's probability.")
    ] = 0.0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's end token.")] = False,
    seed: SeedOption = 0,
    context: ContextOption = None,
    device: DeviceOption = "auto",
    mode: ModeOption = "auto",
    precision: PrecisionOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Complete a prompt, or answer it with --chat; text is printed as it is made.

    Example: ostinato run smollm2 --chat --prompt "Why is the sky blue?" --max-tokens 64
    """
    name = chosen_model(model, model_option)
    text = read_prompt(prompt, prompt_file)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        ignore_eos=ignore_eos,
    )
    begin = time.perf_counter()
    with progress(as_json) as steps:
        steps.begin(f"opening {name}")
        opened = load(name)
        steps.begin("compiling")
        llm = LLM(
            opened,
            max_num_seqs=1,
            context=context,
            device=device,
            mode=mode,
            precision=precision,
            threads=threads,
            progress=LoadProgress(steps),
        )
    load_seconds = time.perf_counter() - begin
    try:
        report = generate(
            llm,
            name,
            text,
            params,
            chat=chat,
            load_seconds=load_seconds,
            write=(lambda _: None) if as_json else write_piece,
        )
    except KeyboardInterrupt:
        if not as_json:
            write_piece("\n")  # the shell's prompt starts a line of its own
        raise
    if as_json:
        emit_json(report)
        return
    write_piece("\n")
    speed = "" if report.decode_tokens_per_second is None else f", {report.decode_tokens_per_second:.1f} tokens/s"
    first = f" (first after {milliseconds(report.first_token_seconds)}{speed})" if report.token_ids else ""
    other_mode = f" ({report.reason})" if mode not in ("auto", report.mode) else ""
    notice(
        f"{len(report.token_ids)} tokens in {milliseconds(report.seconds)}{first}; loaded in {milliseconds(report.load_seconds)}; "
        f"{report.device}, {report.mode}{other_mode}, {report.precision}, {report.threads} threads"
    )


def compare_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    modes: Annotated[
        str, typer.Option("--modes", help="Modes to compare, separated by commas.")
    ] = "reference,eager,planned",
    replays: Annotated[
        int, typer.Option("--replays", min=1, help="Runs of each mode; all must give the same bits.")
    ] = 3,
    poison: Annotated[
        bool, typer.Option("--poison/--no-poison", help="Fill unused memory with NaN before each run.")
    ] = True,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, show_default=False, help="Length of the sequence; default 16.")
    ] = None,
    seed: SeedOption = 0,
    precision: PrecisionOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Run the modes of a model side by side: bit-equal, within contract, or the first node that differs.

    Example: ostinato compare smollm2 --modes eager,planned --replays 20
    """
    name = chosen_model(model, model_option)
    with progress(as_json) as steps:
        steps.begin(f"loading {name}")
        report = compare(
            name,
            [mode.strip() for mode in modes.split(",") if mode.strip()],
            replays=replays,
            poison=poison,
            seed=seed,
            tokens=tokens,
            precision=precision,
            threads=threads,
            report_progress=lambda mode: steps.begin(f"running {mode}"),
        )
    emit_json(report) if as_json else show_comparison(report, output())
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def bench_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Tokens of the prefill, and in the cache of the decode step.")
    ] = 128,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed runs of each; the median counts.")] = 10,
    seed: SeedOption = 0,
    precision: PrecisionOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Time prefill and decode, beside the read bandwidth measured in the same run.

    Example: ostinato bench smollm2 --tokens 128 --threads 2
    """
    name = chosen_model(model, model_option)
    with progress(as_json) as steps:
        steps.begin(f"loading {name}")
        executable = compile_model(
            name,
            buckets={"B": [1], "T": [1, tokens]},
            context=tokens + 1,
            precision=precision,
            threads=threads,
            progress=LoadProgress(steps),
        )
        report = bench(executable, name, tokens=tokens, runs=runs, seed=seed, begin=steps.begin)
    if as_json:
        emit_json(report)
    else:
        show_bench(report, output())
