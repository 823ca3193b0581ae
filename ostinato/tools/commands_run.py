"""The command that runs a model: `run`. A prompt, a conversation, or texts for an encoder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.embedder import Embedder
from ostinato.frontend.model import Model, load
from ostinato.ir.errors import ConfigError
from ostinato.llm import LLM
from ostinato.runtime.sampling import SamplingParams
from ostinato.saving.read import is_artifact
from ostinato.tools.artifacts import (
    ARTIFACT_OPTIONS,
    HowToOpen,
    RecompileOption,
    TrustOption,
    WeightsOption,
    kind_of,
)
from ostinato.tools.chat import Conversation, converse
from ostinato.tools.console import emit_json, milliseconds, notice, output, progress, write_piece
from ostinato.tools.embed import embed, show_embeddings
from ostinato.tools.generate import answer, messages_of, only_prompt, read_prompts, run_report
from ostinato.tools.options import (
    CaptureOption,
    ContextOption,
    DeviceOption,
    JsonOption,
    MemoryLimitOption,
    ModelArgument,
    ModelOption,
    ModeOption,
    PolicyOption,
    PrecisionOption,
    SeedOption,
    ThreadsOption,
    chosen_model,
    refuse_unread,
)
from ostinato.tools.programs import LoadProgress, how_it_runs
from ostinato.tools.sampling_options import (
    COMPLETION_TOKENS,
    CONVERSATION_TOKENS,
    FrequencyPenaltyOption,
    IgnoreEosOption,
    LogprobsOption,
    MaxTokensOption,
    MinPOption,
    MinTokensOption,
    PresencePenaltyOption,
    RepetitionPenaltyOption,
    StopOption,
    StopTokenOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    sampling_params,
)

__all__ = ["run_command"]

_COMPILE_OPTIONS = frozenset(("context", "capture", "precision", "policy", "memory_limit"))
"""Parameters of `run` that say how a model is compiled, which an artifact is already."""
_EMBED_OPTIONS = frozenset(
    ("model", "model_option", "prompt", "prompt_file", "device", "mode", "threads", "as_json", *ARTIFACT_OPTIONS)
) | (_COMPILE_OPTIONS - {"context"})
"""Those that an encoder reads."""


def run_command(
    invocation: typer.Context,
    model: ModelArgument = None,
    model_option: ModelOption = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", show_default=False, help="The prompt; an encoder takes several."),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", show_default=False, help="A file that holds the prompt; -: standard input."),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Through the model's chat template: answer the prompt or, without one, converse."),
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", show_default=False, help="With --chat: the system prompt.")
    ] = None,
    max_tokens: MaxTokensOption = None,
    min_tokens: MinTokensOption = 0,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    min_p: MinPOption = None,
    repetition_penalty: RepetitionPenaltyOption = None,
    presence_penalty: PresencePenaltyOption = 0.0,
    frequency_penalty: FrequencyPenaltyOption = 0.0,
    stop: StopOption = None,
    stop_token: StopTokenOption = None,
    ignore_eos: IgnoreEosOption = False,
    logprobs: LogprobsOption = None,
    seed: SeedOption = 0,
    context: ContextOption = None,
    device: DeviceOption = "auto",
    mode: ModeOption = "auto",
    capture: CaptureOption = None,
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = 0,
    weights: WeightsOption = None,
    recompile: RecompileOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Complete a prompt, answer it or converse with --chat; text is printed as it is made. An encoder prints the embedding, or how alike prompts are.

    Example: ostinato run smollm2 --prompt "The capital of France is" --max-tokens 16

    Example: ostinato run smollm2 --chat --system "Answer in one sentence."

    Example: ostinato run smollm2.ost --prompt "The capital of France is"

    Example: ostinato run minilm --prompt "A cat." --prompt "A kitten." --prompt "A bill."
    """
    name = chosen_model(model, model_option)
    interactive = chat and not prompt and prompt_file is None
    _check_together(chat=chat, interactive=interactive, system=system, logprobs=logprobs, as_json=as_json)
    texts = [] if interactive else read_prompts(prompt, prompt_file)
    begin = time.perf_counter()
    how = HowToOpen(recompile, trust, weights)
    how.check(name)
    opened = None if is_artifact(name) else load(name)
    placed: dict[str, Any] = {
        "device": device,
        "mode": mode,
        "capture": capture,
        "precision": precision,
        "policy": policy,
        "memory_limit": memory_limit,
        "threads": threads,
    }
    if opened is None:
        refuse_unread(
            invocation, f"{name} is an artifact", {p.name or "" for p in invocation.command.params} - _COMPILE_OPTIONS
        )
    if _is_encoder(name, opened):
        refuse_unread(invocation, f"{name} is an encoder", _EMBED_OPTIONS)
        _run_encoder(opened, name, texts, placed, how, as_json)
        return
    given = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "stop": stop,
        "stop_token_ids": stop_token,
        "ignore_eos": ignore_eos,
        "logprobs": logprobs,
        "seed": seed,
    }
    tokens = CONVERSATION_TOKENS if interactive else COMPLETION_TOKENS
    params = None if opened is None else sampling_params(opened, given, tokens)  # before anything is compiled
    text = "" if interactive else only_prompt(texts)
    with progress(as_json) as steps:
        if opened is None:
            steps.begin("loading")
            llm = LLM.load(name, mode=mode, progress=LoadProgress(steps), **how.options(device, threads))
        else:
            steps.begin("compiling")
            llm = LLM(opened, max_num_seqs=1, context=context, progress=LoadProgress(steps), **placed)
    params = sampling_params(llm.model, given, tokens) if params is None else params
    load_seconds = time.perf_counter() - begin
    if interactive:
        notice(f"{name}, loaded in {milliseconds(load_seconds)}; {how_it_runs(llm.executable, mode)}")
        converse(Conversation(llm, params, system))
        return
    ids = llm.chat_prompt(messages_of(text, system)) if chat else llm.tokenize(text)
    _complete(llm, name, text, ids, params, load_seconds, mode, as_json)


def _is_encoder(name: str, model: Model | None) -> bool:
    """Whether it embeds; None is an artifact. Raises `ConfigError` for one that does not take texts."""
    if model is not None:
        return model.family.encoder is not None
    kind = kind_of(name)
    if kind not in ("llm", "embedder"):
        raise ConfigError(
            f"{name} was compiled for calls from Python, not for texts",
            hint="`ostinato compile MODEL --output FILE.ost`, without --shapes, writes what run takes",
        )
    return kind == "embedder"


def _check_together(*, chat: bool, interactive: bool, system: str | None, logprobs: int | None, as_json: bool) -> None:
    """Raises `ConfigError` for options that mean nothing without another one."""
    if system is not None and not chat:
        raise ConfigError("--system is part of a conversation", hint="use it with --chat")
    if interactive and as_json:
        raise ConfigError(
            "a conversation is not one JSON object", hint="give the message with --prompt or --prompt-file"
        )
    if logprobs is not None and not as_json:
        raise ConfigError("--logprobs are fields of the report", hint="use it with --json")


def _complete(
    llm: LLM,
    name: str,
    text: str,
    ids: list[int],
    params: SamplingParams,
    load_seconds: float,
    mode: str,
    as_json: bool,
) -> None:
    try:
        found = answer(llm, ids, params, (lambda _: None) if as_json else write_piece)
    except KeyboardInterrupt:
        if not as_json:
            write_piece("\n")  # the shell's prompt starts a line of its own
        raise
    report = run_report(llm, name, text, found, load_seconds)
    if as_json:
        emit_json(report)
        return
    write_piece("\n")
    speed = "" if report.decode_tokens_per_second is None else f", {report.decode_tokens_per_second:.1f} tokens/s"
    first = f" (first after {milliseconds(report.first_token_seconds)}{speed})" if report.token_ids else ""
    notice(
        f"{len(report.token_ids)} tokens in {milliseconds(report.seconds)}{first}; loaded in {milliseconds(report.load_seconds)}; "
        f"{how_it_runs(llm.executable, mode)}"
    )


def _run_encoder(
    model: Model | None, name: str, texts: list[str], placed: dict[str, Any], how: HowToOpen, as_json: bool
) -> None:
    begin = time.perf_counter()
    with progress(as_json) as steps:
        if model is None:
            steps.begin("loading")
            options = how.options(placed["device"], placed["threads"])
            embedder = Embedder.load(name, mode=placed["mode"], progress=LoadProgress(steps), **options)
        else:
            steps.begin("compiling")
            embedder = Embedder(model, progress=LoadProgress(steps), **placed)
    report = embed(embedder, name, texts, time.perf_counter() - begin)
    if as_json:
        emit_json(report)
        return
    show_embeddings(report, output())
    for index, count in enumerate(report.tokens):
        if count == report.max_seq_length:
            notice(f"prompt {index + 1} has {count} tokens or more: what is past them is not read")
    if report.ignored_tensors:
        notice(f"not part of an embedding and not read: {', '.join(report.ignored_tensors)}")
    vectors = f"{report.dimension} numbers, {report.pooling} pooling{', normalised' if report.normalized else ''}"
    notice(
        f"{vectors}; {milliseconds(report.seconds)}, loaded in {milliseconds(report.load_seconds)}; "
        f"{how_it_runs(embedder.executable, placed['mode'])}"
    )
