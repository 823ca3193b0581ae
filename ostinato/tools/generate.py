"""`ostinato run`: a prompt in, text out as it is made, and the speed at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from ostinato.frontend.tokenizer import StreamDecoder
from ostinato.ir.errors import ConfigError
from ostinato.llm import LLM
from ostinato.runtime.generation import Generator
from ostinato.runtime.sampling import SamplingParams
from ostinato.tools.programs import precision_of
from ostinato.tools.schemas import RunReport

__all__ = ["generate", "read_prompt"]


def generate(
    llm: LLM,
    model: str,
    prompt: str,
    params: SamplingParams,
    *,
    chat: bool,
    load_seconds: float,
    write: Callable[[str], None],
) -> RunReport:
    """Completes one prompt, or answers it as a chat message; `write` receives the text in pieces that never end inside a character.

    Raises `ConfigError` for an empty prompt or a checkpoint without a chat template, `CapacityError` past the context.
    """
    ids = llm.chat_prompt([{"role": "user", "content": prompt}]) if chat else llm.tokenizer.encode(prompt)
    generator = Generator(llm.executable, llm.model.config.eos_token_ids)
    request = generator.request(0, ids, params)
    decoder = StreamDecoder(llm.tokenizer)
    pieces: list[str] = []

    def emit(text: str) -> None:
        if text:
            pieces.append(text)
            write(text)

    begin = time.perf_counter()
    first = begin
    for event in generator.run([request]):
        if event.token is not None:
            if len(request.tokens) == 1:
                first = time.perf_counter()
            emit(decoder.push(event.token))
    emit(decoder.flush())
    end = time.perf_counter()
    later = len(request.tokens) - 1
    executable = llm.executable
    return RunReport(
        model=model,
        mode=executable.mode,
        reason=executable.reason,
        device=f"{executable.device.name} ({executable.device.isa})",
        precision=precision_of(executable.program),
        threads=executable.device.threads,
        prompt=prompt,
        prompt_tokens=len(ids),
        text="".join(pieces),
        token_ids=tuple(request.tokens),
        finish_reason=request.finish_reason or "length",
        load_seconds=load_seconds,
        first_token_seconds=first - begin,
        seconds=end - begin,
        decode_tokens_per_second=later / (end - first) if later > 0 and end > first else None,
    )


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from `--prompt` or from the file of `--prompt-file` ("-": standard input); raises `ConfigError` for none, both, or what is not text."""
    if (prompt is None) == (file is None):
        found = "none" if prompt is None else "two"
        raise ConfigError(
            f"expected one prompt, found {found}",
            hint="use --prompt TEXT or --prompt-file FILE; --prompt-file - reads standard input",
        )
    if prompt is not None:
        return prompt
    assert file is not None
    try:
        if str(file) != "-":
            return file.read_text(encoding="utf-8")
        if sys.stdin is None:
            raise ConfigError("standard input is closed", hint="use --prompt TEXT or --prompt-file FILE")
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}", hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}", hint="check the path") from None
