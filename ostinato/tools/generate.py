"""`ostinato run`: a prompt in, text out as it is made, and the speed at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ostinato.ir.errors import ConfigError
from ostinato.ir.files import not_text, read_text
from ostinato.llm import LLM
from ostinato.runtime.logprobs import Logprob
from ostinato.runtime.output import RequestOutput
from ostinato.runtime.sampling import SamplingParams
from ostinato.tools.programs import device_of, precision_of
from ostinato.tools.schemas import RunReport, TokenChoice

__all__ = ["answer", "messages_of", "only_prompt", "read_prompts", "run_report", "tokens_per_second"]


def answer(
    llm: LLM, ids: Sequence[int], params: SamplingParams, write: Callable[[str], None], *, interruptible: bool = False
) -> RequestOutput:
    """Completes token ids; `write` receives the text in pieces. Where it is `interruptible`, Ctrl-C ends the answer and nothing else.

    Raises what `LLM.stream` raises.
    """
    with llm.stream(ids, params) as stream:
        try:
            for piece in stream:
                write(piece)
        except KeyboardInterrupt:
            if not interruptible:
                raise
    return stream.output


def tokens_per_second(output: RequestOutput) -> float | None:
    """From the first token to the last; None below two tokens."""
    took = 0.0 if output.metrics is None else output.metrics.tokens_time
    return (len(output.token_ids) - 1) / took if took > 0 else None


def messages_of(prompt: str, system: str | None, said: Sequence[dict[str, str]] = ()) -> list[dict[str, str]]:
    """A conversation up to this prompt: the system prompt, the messages `said` before, and it."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, *said, {"role": "user", "content": prompt}]


def run_report(llm: LLM, model: str, prompt: str, found: RequestOutput, load_seconds: float) -> RunReport:
    """The report of one answer."""
    executable, metrics = llm.executable, found.metrics
    assert metrics is not None
    begin, first, last = metrics.arrival_time, metrics.first_token_time, metrics.last_token_time
    return RunReport(
        model=model,
        mode=executable.mode,
        reason=executable.reason,
        device=device_of(executable),
        precision=precision_of(executable.program),
        threads=executable.device.threads,
        prompt=prompt,
        prompt_tokens=len(found.prompt_token_ids),
        text=found.text,
        token_ids=found.token_ids,
        finish_reason=found.finish_reason or "interrupted",
        stop_reason=found.stop_reason,
        logprobs=None if found.logprobs is None else tuple(_choices(entry) for entry in found.logprobs),
        load_seconds=load_seconds,
        first_token_seconds=0.0 if first is None else first - begin,
        seconds=0.0 if last is None else last - begin,
        decode_tokens_per_second=tokens_per_second(found),
    )


def _choices(entry: Mapping[int, Logprob]) -> tuple[TokenChoice, ...]:
    return tuple(
        TokenChoice(token=token, text=found.decoded_token, logprob=found.logprob, rank=found.rank)
        for token, found in entry.items()
    )


def read_prompts(prompts: Sequence[str] | None, file: Path | None) -> list[str]:
    """The prompts of `--prompt`, or the one in the file of `--prompt-file` ("-": standard input); raises `ConfigError` for none, both, or what is not text."""
    if bool(prompts) == (file is not None):
        found = "both" if prompts else "neither"
        raise ConfigError(
            f"expected a prompt or a file, found {found}",
            hint="use --prompt TEXT or --prompt-file FILE (- is standard input), or --chat alone to converse",
        )
    if prompts:
        return list(prompts)
    assert file is not None
    if str(file) != "-":
        return [read_text(file)]
    if sys.stdin is None:
        raise ConfigError("standard input is closed", hint="use --prompt TEXT or --prompt-file FILE")
    try:
        return [sys.stdin.buffer.read().decode("utf-8")]
    except UnicodeDecodeError as error:
        raise not_text("standard input", error) from None


def only_prompt(prompts: Sequence[str]) -> str:
    """The one prompt that a decoder completes; raises `ConfigError` for several."""
    if len(prompts) != 1:
        raise ConfigError(f"expected one prompt, found {len(prompts)}", hint="a decoder completes one prompt a run")
    return prompts[0]
