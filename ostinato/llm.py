"""`LLM`: text in, text out, with vLLM's conventions over a compiled program.

A prompt is a text, token ids, or a list of those, and a conversation goes through the checkpoint's own chat template; anything else is refused, all prompts
of a call before any of them runs. Sampling, rows and streams are the runtime's: here they only meet tokenizer and template.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator as Iteration
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Self

from ostinato.artifact import Weights, open_artifact
from ostinato.frontend.chat import listed, render
from ostinato.frontend.model import Model
from ostinato.frontend.tokenizer import StreamDecoder, Tokenizer
from ostinato.ir.checks import integer
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError
from ostinato.ir.explain import Explanation
from ostinato.ir.precision import PrecisionPolicy
from ostinato.passes.policy import Policy
from ostinato.runtime.background import AsyncEvents, Worker
from ostinato.runtime.device import Device
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.generation import Generator
from ostinato.runtime.options import check_progress, settle_route
from ostinato.runtime.output import AsyncTextStream, RequestOutput, TextStream, request_output
from ostinato.runtime.request import Request, TokenEvent
from ostinato.runtime.sampling import DefaultInt, SamplingParams
from ostinato.runtime.weights import Progress
from ostinato.served import serve_decoder
from ostinato.stages import Passes, open_device, open_model, positions_of

__all__ = ["LLM", "recommended"]

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A decoder compiled for up to `max_num_seqs` sequences of up to `context` positions.

    `model` is a directory, a `.gguf` file, the name of an installed model package, or a `Model`. `context` defaults to 2048 or what the model allows.
    `memory_limit` is the most that activations may take, in bytes or as a text like "512M": values that do not fit are computed again. `mode`,
    `capture`, `markers`, `reuse`, `levels`, `disable`, `policy`, `passes` and `validate` are those of `ostinato.compile`.
    With `enable_prefix_caching` a prompt that begins like an earlier one (and its answer) only computes the rest; results do not depend on it.
    Where no sampling parameters are given, those that the model's authors recommend hold (`default_sampling_params`).
    Raises the errors of `ostinato.load` and `ostinato.compile`.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        *,
        max_num_seqs: int = 8,
        context: int | None = None,
        memory_limit: int | str | None = None,
        reuse: bool = True,
        enable_prefix_caching: bool = True,
        device: str | Device = "auto",
        mode: str = "auto",
        precision: str | PrecisionPolicy = "auto",
        threads: int = 0,
        isa: str = "auto",
        on_fallback: str = "report",
        capture: Sequence[str] | None = None,
        markers: bool | None = None,
        levels: Mapping[str, str] | None = None,
        disable: Iterable[str] = (),
        policy: Policy | str = "balanced",
        passes: Passes = (),
        validate: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        max_num_seqs = integer(max_num_seqs, "max_num_seqs", low=1)
        route = settle_route(open_device(device, threads, isa), mode, on_fallback, capture, markers)
        check_progress(progress)
        self.model = open_model(model)
        self.context = positions_of(self.model, context)
        self._start(
            serve_decoder(
                self.model,
                route,
                max_num_seqs=max_num_seqs,
                context=self.context,
                precision=precision,
                mode=mode,
                memory_limit=memory_limit,
                reuse=reuse,
                levels=levels,
                disable=disable,
                policy=policy,
                passes=passes,
                validate=validate,
                progress=progress,
            ),
            enable_prefix_caching,
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        enable_prefix_caching: bool = True,
        device: str | Device = "auto",
        mode: str = "auto",
        trust: bool = False,
        recompile: bool = False,
        weights: Weights | None = None,
        threads: int = 0,
        progress: Progress | None = None,
    ) -> Self:
        """The `LLM` that `save` wrote, without compiling it: arguments and errors are those of `ostinato.load_executable`, and `ConfigError` for an artifact of
        something else."""
        how: dict[str, Any] = {"trust": trust, "recompile": recompile, "weights": weights, "threads": threads}
        opened = open_artifact(path, device, mode, progress=progress, **how)
        made = cls.__new__(cls)
        made.model = opened.model
        executable = opened.of_kind("llm", TextExecutable, "an LLM")
        made.context = executable.context
        made._start(executable, enable_prefix_caching)
        return made

    def save(self, path: str | os.PathLike[str], *, weights: bool = False, whole: bool = False) -> Path:
        """Writes what this compiled to one file, for `LLM.load` and the commands; see `Executable.save`."""
        return self.executable.save(path, weights=weights, whole=whole)

    def _start(self, executable: TextExecutable, enable_prefix_caching: bool) -> None:
        self.executable = executable
        self.executable.prewarm()
        end_tokens = self.model.checkpoint.end_token_ids
        self._generator = Generator(self.executable, end_tokens, reuse=enable_prefix_caching)
        self._worker = Worker(self._generator, self.executable.generating)

    def explain(self, node: str) -> Explanation:
        """Why the nodes of a name or pattern run as they do, in every step that this compiles; see `Executable.explain`."""
        return self.executable.explain(node)

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer; raises `WeightsError` when it has none."""
        return self.model.checkpoint.tokenizer()

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the model's begin and end tokens where its files ask for them: what a text as a prompt becomes."""
        return self.tokenizer.encode(text, add_special_tokens)

    def detokenize(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Raises `BoundsError` for an id outside the model's vocabulary."""
        last = self.executable.vocab_size - 1
        ids = [integer(token, "a token id", low=0, high=last, error=BoundsError) for token in token_ids]
        return self.tokenizer.decode(ids, skip_special_tokens)

    def default_sampling_params(self) -> SamplingParams:
        """What the model's authors recommend (`generation_config.json`), and vLLM's defaults for the rest; greedy where they say `do_sample: false`."""
        return SamplingParams(**recommended(self.model))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Completes texts or lists of token ids, in order. All prompts are checked before any runs.

        Raises `ConfigError`, `DTypeError`, `BoundsError` or `CapacityError` for a bad prompt, naming it; `BackendError` for logits that are not finite.
        """
        listed = _listed(prompts)
        requests = self._requests(listed, sampling_params)
        self._generator.finish(requests)
        return [self._output(prompt, request) for prompt, request in zip(listed, requests, strict=True)]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several, through the checkpoint's chat template: a list of outputs, as from `generate`.

        A message is a mapping with "role" and "content". Raises what `chat_prompt` and `generate` raise.
        """
        given = listed("messages", messages)
        conversations = given if given and not isinstance(given[0], Mapping) else [given]
        prompts = [
            self.chat_prompt(conversation, tools=tools, add_generation_prompt=add_generation_prompt)
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params)

    def tokens(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iteration[TokenEvent, None, None]:
        """Yields tokens of several requests as they are made; closing or dropping the iterator abandons the requests.

        Iterators may be open side by side and share the `max_num_seqs` rows. Raises `LifecycleError` when unfinished ones hold every row, or when another
        thread runs this LLM.
        """
        return self._generator.run(self._requests(_listed(prompts), sampling_params))

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> TextStream:
        """Pieces of text as they are made; `.output` of the stream is what came of it. Raises what `tokens` raises, at once for a bad prompt."""
        (request,) = self._requests([prompt], sampling_params)
        return TextStream(self._generator.run([request]), functools.partial(self._output, prompt, request))

    def chat_stream(self, messages: Sequence[Message], sampling_params: SamplingParams | None = None) -> TextStream:
        """`stream` of the answer to a conversation."""
        return self.stream(self.chat_prompt(messages), sampling_params)

    def astream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> AsyncTextStream:
        """`stream` for asyncio; call it inside the event loop. All streams of an LLM run in one batch, in a thread of their own.

        Requests that find no row wait for one. Cancelling the task, closing the stream or dropping it frees its row before the next step.
        """
        (request,) = self._requests([prompt], sampling_params)
        return AsyncTextStream(AsyncEvents(self._worker, request), functools.partial(self._output, prompt, request))

    def achat_stream(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> AsyncTextStream:
        """`astream` of the answer to a conversation."""
        return self.astream(self.chat_prompt(messages), sampling_params)

    async def agenerate(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> RequestOutput:
        """`generate` of one prompt for asyncio."""
        stream = self.astream(prompt, sampling_params)
        async for _ in stream:
            pass
        return stream.output

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of a conversation through the checkpoint's chat template, ready for the assistant's turn.

        Raises `ConfigError` for a checkpoint without a template, and for messages that the template refuses.
        """
        checkpoint = self.model.checkpoint
        if checkpoint.chat_template is None:
            raise ConfigError("the checkpoint has no chat template", node=str(checkpoint.path), hint="use a raw prompt")
        text = render(
            checkpoint.chat_template,
            messages,
            special_tokens=checkpoint.special_tokens,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
        )
        return self.tokenizer.encode(text, add_special_tokens=False, parse_special=True)

    def _requests(
        self, prompts: Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        if sampling_params is None:
            each = [self.default_sampling_params()] * len(prompts)
        elif isinstance(sampling_params, SamplingParams):
            each = [sampling_params] * len(prompts)
        elif isinstance(sampling_params, list | tuple) and all(
            isinstance(item, SamplingParams) for item in sampling_params
        ):
            each = list(sampling_params)
        else:
            raise ConfigError(
                f"sampling parameters are {sampling_params!r}",
                hint="give one SamplingParams for all prompts, or a list with one each",
            )
        if len(each) != len(prompts):
            raise ConfigError(
                f"{len(each)} sampling parameters for {len(prompts)} prompts", hint="give one for all, or one each"
            )
        return [self._request(i, prompt, p) for i, (prompt, p) in enumerate(zip(prompts, each, strict=True))]

    def _request(self, index: int, prompt: Prompt, params: SamplingParams) -> Request:
        ids = self._encoded(index, prompt) if isinstance(prompt, str) else prompt

        def decoder(after: Sequence[int]) -> StreamDecoder:
            return StreamDecoder(self.tokenizer, params.skip_special_tokens, after=after)

        return self._generator.request(index, ids, params, decoder if self._detokenizes(params) else None)

    def _encoded(self, index: int, prompt: str) -> list[int]:
        try:
            return self.tokenizer.encode(prompt)
        except DTypeError as error:
            raise DTypeError(error.message, node=f"prompt {index}", hint=error.hint) from None

    def _detokenizes(self, params: SamplingParams) -> bool:
        return params.detokenize and self.model.checkpoint.has_tokenizer

    def _output(self, prompt: Prompt, request: Request) -> RequestOutput:
        @functools.cache  # all log probabilities of a text name every token once a step
        def decode(token: int) -> str:
            return self.tokenizer.decode((token,), skip_special_tokens=False)

        text = prompt if isinstance(prompt, str) else None
        return request_output(request, text, decode if self._detokenizes(request.params) else None)


def recommended(model: Model) -> dict[str, Any]:
    """The sampling parameters that the checkpoint's files name, unchecked, by the names of `SamplingParams`."""
    said = model.checkpoint.generation
    named = {
        "temperature": 0.0 if said.do_sample is False else said.temperature,
        "top_k": said.top_k,
        "top_p": said.top_p,
        "min_p": said.min_p,
        "repetition_penalty": said.repetition_penalty,
        "max_tokens": None if said.max_new_tokens is None else DefaultInt(said.max_new_tokens),
    }
    return {name: value for name, value in named.items() if value is not None}


def _listed(prompts: Any) -> list[Prompt]:
    """One prompt or several as a list; raises `DTypeError` for what is neither text, token ids nor a list of those."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | bytearray | memoryview | Mapping | Set) or not isinstance(prompts, Iterable):
        raise DTypeError(
            f"prompts are a {type(prompts).__name__}",
            hint="give a text, token ids, or a list of texts or lists of token ids",
        )
    array: Any = prompts
    if hasattr(array, "ndim") and hasattr(array, "dtype"):  # an array or a tensor: of one prompt, or a row for each
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
