"""What a request gave, as users see it: whole, or as a stream of text with the whole at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from collections.abc import Generator as Iteration
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from ostinato.runtime.background import AsyncEvents
from ostinato.runtime.logprobs import Logprob
from ostinato.runtime.request import Request, RequestMetrics, TokenEvent

__all__ = ["AsyncTextStream", "RequestOutput", "TextStream", "request_output"]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a request gave (vLLM's names).

    `finish_reason` is "stop" (an end token, a stop token, a stop string) or "length"; None while it is not finished. `stop_reason` is the stop string or
    the stop token, None otherwise. `token_ids` hold every token made, also those of a stop string that `text` ends before. `logprobs` hold for each token
    the likeliest ones and itself, by token id; `cumulative_logprob` is the sum over the tokens themselves. The keys and values of `num_cached_tokens`
    tokens of the prompt were still in the cache.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    stop_reason: str | int | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    cumulative_logprob: float | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = field(default=None, compare=False)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


def request_output(request: Request, prompt: str | None, decode: Callable[[int], str] | None) -> RequestOutput:
    """The state of a request; `decode` gives the text of one token for log probabilities."""
    tokens = tuple(request.tokens)
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    total: float | None = None
    if request.params.logprobs is not None:
        logprobs = tuple(_decoded(entry, decode) for entry in request.logprobs[: len(tokens)])
        total = sum(entry[token].logprob for entry, token in zip(logprobs, tokens, strict=True))
    return RequestOutput(
        prompt=prompt,
        prompt_token_ids=tuple(request.prompt.tolist()),
        text=request.text,
        token_ids=tokens,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        logprobs=logprobs,
        cumulative_logprob=total,
        num_cached_tokens=request.cached,
        metrics=replace(request.metrics),
    )


def _decoded(entry: dict[int, Logprob], decode: Callable[[int], str] | None) -> dict[int, Logprob]:
    if decode is None:
        return dict(entry)
    return {token: replace(found, decoded_token=decode(token)) for token, found in entry.items()}


class TextStream(Iterator[str]):
    """Pieces of text as they are made; a piece never ends inside a character or inside what may become a stop string.

    Closing or dropping it abandons the request. `output` is what the request gave so far.
    """

    def __init__(self, events: Iteration[TokenEvent, None, None], output: Callable[[], RequestOutput]) -> None:
        self._events = events
        self._output = output

    @property
    def output(self) -> RequestOutput:
        return self._output()

    def __next__(self) -> str:
        for event in self._events:
            if event.text:
                return event.text
        raise StopIteration

    def close(self) -> None:
        """Abandons the request, if it has not ended."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncTextStream(AsyncIterator[str]):
    """`TextStream` for asyncio: other tasks run while a piece is made. Cancelling a wait for the next piece abandons the request."""

    def __init__(self, events: AsyncEvents, output: Callable[[], RequestOutput]) -> None:
        self._events = events
        self._output = output

    @property
    def output(self) -> RequestOutput:
        return self._output()

    async def __anext__(self) -> str:
        async for event in self._events:
            if event.text:
                return event.text
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Abandons the request, if it has not ended."""
        self._events.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._events.close()
