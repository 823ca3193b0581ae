"""`LLM`: text in, text out, with vLLM's conventions over a compiled program."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ostinato.compiler import (
    load_text_program,
    open_model,
    plan_text_program,
    positions_of,
    trace,
)
from ostinato.frontend.chat import render
from ostinato.frontend.model import CacheShape, Model
from ostinato.frontend.tokenizer import StreamDecoder, Tokenizer
from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError, DTypeError
from ostinato.runtime.device import Device
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.generation import Generator, Request, TokenEvent
from ostinato.runtime.sampling import SamplingParams
from ostinato.runtime.weights import Progress

__all__ = ["LLM", "RequestOutput"]

Prompt = str | Sequence[int]
PREFILL_TOKENS = 512
"""Tokens of one prefill step; longer prompts are cut into chunks of this size."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a request gave. `finish_reason` is "stop" (an end or stop token, which is the last of `token_ids`) or "length"."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str


class LLM:
    """A decoder compiled for up to `max_num_seqs` sequences of up to `context` positions.

    `model` is a directory, a `.gguf` file, the name of an installed model package, or a `Model`. `context` defaults to 2048 or what the model allows.
    Raises the errors of `ostinato.load` and `ostinato.compile`.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        *,
        max_num_seqs: int = 8,
        context: int | None = None,
        device: str | Device = "auto",
        mode: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        isa: str = "auto",
        on_fallback: str = "report",
        progress: Progress | None = None,
    ) -> None:
        max_num_seqs = integer(max_num_seqs, "max_num_seqs", low=1)
        self.model = open_model(model)
        self.context = positions_of(self.model, context)
        traced = trace(
            self.model, "step", cache=CacheShape(max_num_seqs, self.context, 1), precision=precision, sampling=True
        )
        tokens = min(PREFILL_TOKENS, self.context * max_num_seqs)
        buckets = {
            f"prefill[N={tokens},R={max_num_seqs}]": {"N": tokens, "R": max_num_seqs},
            f"decode[R={max_num_seqs}]": {"N": max_num_seqs, "R": max_num_seqs},
        }
        program = plan_text_program(traced, buckets)
        self.executable: TextExecutable = load_text_program(program, device, mode, threads, isa, on_fallback, progress)
        self._generator = Generator(self.executable, self.model.config.eos_token_ids)

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer; raises `WeightsError` when it has none."""
        return self.model.checkpoint.tokenizer()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Completes texts or lists of token ids, in order. All prompts are checked before any runs.

        Raises `ConfigError`, `DTypeError`, `BoundsError` or `CapacityError` for a bad prompt, naming it.
        """
        listed = _listed(prompts)
        requests = self._requests(listed, params)
        if self.model.checkpoint.has_tokenizer:
            _ = self.tokenizer  # one that is not supported is an error before anything runs
        self._generator.finish(requests)
        return [self._output(prompt, request) for prompt, request in zip(listed, requests, strict=True)]

    def tokens(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[TokenEvent]:
        """Yields tokens of several requests as they are made; closing or dropping the iterator abandons the requests.

        Iterators may be open side by side and share the `max_num_seqs` rows. Raises `LifecycleError` when unfinished ones hold every row, or when another
        thread runs this LLM.
        """
        return self._generator.run(self._requests(_listed(prompts), params))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Yields pieces of text as they are made; a piece never ends inside a character."""
        decoder = StreamDecoder(self.tokenizer)
        with closing(self._generator.run(self._requests([prompt], params))) as events:
            for event in events:
                if event.token is not None and (text := decoder.push(event.token)):
                    yield text
        if rest := decoder.flush():
            yield rest

    def chat_prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation through the checkpoint's chat template, ready for the assistant's turn."""
        checkpoint = self.model.checkpoint
        if checkpoint.chat_template is None:
            raise ConfigError("the checkpoint has no chat template", node=str(checkpoint.path), hint="use a raw prompt")
        text = render(
            checkpoint.chat_template, messages, special_tokens=checkpoint.special_tokens, add_generation_prompt=True
        )
        return self.tokenizer.encode(text, add_special_tokens=False, parse_special=True)

    def _requests(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        if params is None or isinstance(params, SamplingParams):
            each = [params or SamplingParams()] * len(prompts)
        elif isinstance(params, list | tuple) and all(isinstance(item, SamplingParams) for item in params):
            each = list(params)
        else:
            raise ConfigError(
                f"sampling parameters are {params!r}",
                hint="give one SamplingParams for all prompts, or a list with one each",
            )
        if len(each) != len(prompts):
            raise ConfigError(
                f"{len(each)} sampling parameters for {len(prompts)} prompts", hint="give one for all, or one each"
            )
        return [
            self._generator.request(i, self._ids(prompt), p)
            for i, (prompt, p) in enumerate(zip(prompts, each, strict=True))
        ]

    def _ids(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _output(self, prompt: Prompt, request: Request) -> RequestOutput:
        text = ""
        if isinstance(prompt, str) or self.model.checkpoint.has_tokenizer:
            text = self.tokenizer.decode(request.tokens, skip_special_tokens=True)
        return RequestOutput(
            prompt if isinstance(prompt, str) else None,
            tuple(int(token) for token in request.prompt),
            text,
            tuple(request.tokens),
            request.finish_reason or "length",
        )


def _listed(prompts: Any) -> list[Prompt]:
    """One prompt or several as a list; raises `DTypeError` for what is neither text, token ids nor a list of those."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | bytearray | Mapping | Set) or not isinstance(prompts, Iterable):
        raise DTypeError(
            f"prompts are a {type(prompts).__name__}",
            hint="give a text, token ids, or a list of texts or lists of token ids",
        )
    array: Any = prompts
    if hasattr(array, "ndim"):  # an array or a tensor: of one prompt, or a row for each
        if array.ndim == 0:
            raise DTypeError(f"prompts are one {array.dtype} number", hint="give a list of token ids")
        texts = getattr(array.dtype, "kind", "") in ("U", "O")
        return [array] if array.ndim == 1 and not texts else list(array)
    listed = list(prompts)
    single = bool(listed) and all(_is_number(item) for item in listed)
    return [listed] if single else listed


def _is_number(item: object) -> bool:
    """One element of a prompt of token ids; whether it is an integer is checked with its prompt."""
    return isinstance(item, int | float) or (hasattr(item, "__index__") and getattr(item, "ndim", 0) == 0)
