"""A request: a prompt with its parameters, what was generated so far, and the rules by which it ends.

What does not suit the model (ids outside its vocabulary, more positions than its context, stop strings without a tokenizer) is refused when the request is
made, so that a batch never fails for one of its prompts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.ir.errors import (
    BackendError,
    BoundsError,
    CapacityError,
    ConfigError,
    DTypeError,
    OstinatoError,
    ShapeError,
)
from ostinato.ir.types import Array
from ostinato.runtime.binding import any_array
from ostinato.runtime.logprobs import Logprob, token_logprobs
from ostinato.runtime.rows import Lease
from ostinato.runtime.sampling import DefaultInt, SamplingParams
from ostinato.runtime.token_rows import check_tokens
from ostinato.runtime.transcript import TokenDecoder, Transcript

__all__ = ["Request", "RequestMetrics", "TokenEvent", "make_request"]


@dataclass(slots=True)
class RequestMetrics:
    """When things happened, in seconds of `time.perf_counter`; None for what has not happened yet."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None

    @property
    def tokens_time(self) -> float:
        """Seconds from the first token to the last; 0 below two tokens."""
        if self.first_token_time is None or self.last_token_time is None:
            return 0.0
        return self.last_token_time - self.first_token_time

    def token_made(self) -> None:
        """Notes the time of a token."""
        self.last_token_time = time.perf_counter()
        if self.first_token_time is None:
            self.first_token_time = self.last_token_time


@dataclass(slots=True, eq=False)
class Request:
    """A prompt int32 [P] with its parameters and what was generated so far.

    `limit` is how many tokens are made at most; `end_tokens` are the model's that end it, none with `ignore_eos`. `finish_reason` is None, "length" or
    "stop"; `stop_reason` is the stop string or the stop token that ended it, None for an end token. `cached` prompt tokens were found in the cache.
    `lease` is the cache row it has now, which holds keys and values of its first `stored` tokens.
    """

    index: int
    prompt: Array
    params: SamplingParams
    seed: int
    limit: int
    end_tokens: frozenset[int]
    transcript: Transcript | None = None
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(time.perf_counter()))
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cached: int = 0
    lease: Lease | None = None
    stored: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def row(self) -> int:
        """The cache row it has; only while it is running."""
        assert self.lease is not None
        return self.lease.row

    @property
    def text(self) -> str:
        """The text so far, "" without a decoder."""
        return "" if self.transcript is None else self.transcript.text

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Tokens that may not be chosen now: those that would end it, until it has `min_tokens`."""
        if len(self.tokens) >= self.params.min_tokens:
            return ()
        return tuple(sorted(self.end_tokens | set(self.params.stop_tokens)))

    @property
    def stored_tokens(self) -> Array:
        """The tokens whose keys and values are in the cache, int32 [stored]."""
        return np.concatenate([self.prompt, np.array(self.tokens, np.int32)])[: self.stored]

    def accept(self, token: int, logits: Array | None) -> str:
        """Takes the next token (and its row of logits float32 [V], where log probabilities are asked for); returns the text that may be shown.

        Raises `BackendError` for a token below 0, which says that nothing could be chosen.
        """
        if token < 0:
            raise BackendError(
                f"the logits after {len(self.tokens)} tokens are not finite",
                node=f"prompt {self.index}",
                hint="the weights or the precision do not suit this model; `ostinato compare` finds the node",
            )
        if self.params.logprobs is not None:
            assert logits is not None
            self.logprobs.append(token_logprobs(logits, token, self.params.logprobs))
        self.tokens.append(token)
        self.metrics.token_made()
        stops = token in self.params.stop_tokens
        if stops or token in self.end_tokens:
            self.finish_reason, self.stop_reason = "stop", token if stops else None
        shown = self._write(token)
        if self.finish_reason is None and len(self.tokens) >= self.limit:
            self.finish_reason = "length"
        return shown + self._finish_text()

    def _write(self, token: int) -> str:
        """The text that the token adds; an end or stop token only adds its own where stop strings are kept."""
        if self.transcript is None or (self.finish_reason is not None and not self.params.include_stop_str_in_output):
            return ""
        shown = self.transcript.push(token, armed=self._armed)
        self._check_stopped()
        return shown

    def _finish_text(self) -> str:
        if self.transcript is None or self.finish_reason is None:
            return ""
        rest = self.transcript.finish(armed=self._armed)
        self._check_stopped()
        return rest

    @property
    def _armed(self) -> bool:
        """Whether a stop string that the last token completes counts."""
        return len(self.tokens) > self.params.min_tokens

    def _check_stopped(self) -> None:
        assert self.transcript is not None
        if self.transcript.stopped is not None:
            self.finish_reason, self.stop_reason = "stop", self.transcript.stopped


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A new token of a request, and the text that may be shown now, often none.

    `is_last` says that the request ended with it. `token` is None when a request ends without one (max_tokens 0), or failed: then `error` says why.
    """

    request: Request
    token: int | None
    text: str = ""
    is_last: bool = False
    error: OstinatoError | None = None


def make_request(
    index: int,
    prompt: Sequence[int] | Array,
    params: SamplingParams,
    *,
    vocab_size: int,
    context: int,
    bias_width: int,
    end_tokens: frozenset[int],
    decoder: Callable[[Sequence[int]], TokenDecoder] | None = None,
) -> Request:
    """A checked request for a model that takes up to `bias_width` biased tokens a row; `decoder(prompt)` makes what turns its tokens into text.

    Raises `ConfigError` for an empty prompt, stop strings without a decoder and a min_tokens that leaves no token to choose; `ShapeError`, `DTypeError` and
    `BoundsError` for what are no token ids of the vocabulary; `CapacityError` past the context and for too many biased tokens.
    """
    where = f"prompt {index}"
    tokens = any_array(where, prompt)
    if tokens.ndim != 1:
        raise ShapeError(
            f"expected one dimension of token ids, found {type(prompt).__name__} of shape {list(tokens.shape)}",
            node=where,
            hint="give a text or token ids",
        )
    if tokens.size == 0:
        raise ConfigError("expected at least one token", node=where, hint="give a text or token ids")
    if tokens.dtype.kind not in "iu":
        raise DTypeError(
            f"expected integer token ids, found {tokens.dtype}",
            node=where,
            hint="give one text or one list of token ids; `generate` takes several prompts, streams take one",
        )
    check_tokens(where, tokens, vocab_size)
    for what, named in (("stop", params.stop_tokens), ("logit_bias", tuple(token for token, _ in params.bias))):
        if bad := [token for token in named if not 0 <= token < vocab_size]:
            raise BoundsError(f"{what} tokens {bad} are outside the vocabulary of {vocab_size}", node=where)
    if decoder is None and params.stop_strings:
        raise ConfigError(
            "stop strings need a tokenizer, which the checkpoint does not have",
            node=where,
            hint="use stop_token_ids",
        )
    transcript = None
    if decoder is not None:
        text = decoder(tokens.tolist())
        transcript = Transcript(text, params.stop_strings, include_stop=params.include_stop_str_in_output)
    request = Request(
        index=index,
        prompt=tokens.astype(np.int32),
        params=params,
        seed=secrets.randbits(63) if params.seed is None else params.seed,
        limit=_limit(where, len(tokens), params, context),
        end_tokens=frozenset() if params.ignore_eos else end_tokens,
        transcript=transcript,
    )
    if len(request.forbidden) == vocab_size:
        raise ConfigError(
            f"min_tokens {params.min_tokens} holds back all {vocab_size} tokens, which all end the text",
            node=where,
            hint="leave out min_tokens, or some of stop_token_ids",
        )
    if (pairs := len(params.bias) + len(request.forbidden)) > bias_width:
        raise CapacityError(
            f"{len(params.bias)} biased tokens and {len(request.forbidden)} that min_tokens holds back are {pairs}, a row takes {bias_width}",
            node=where,
            hint="use fewer of logit_bias and stop_token_ids",
        )
    return request


def _limit(where: str, size: int, params: SamplingParams, context: int) -> int:
    """Tokens to make at most after a prompt of `size`. The last token made needs no position. A number that was asked for must fit."""
    room = context - size + 1
    made = room if params.max_tokens is None else params.max_tokens
    if isinstance(made, DefaultInt):
        made = min(made, room)
    made = max(made, params.min_tokens)
    needed = size + max(0, made - 1)
    if needed > context:
        asked = f"{size} prompt tokens" if room <= 0 else f"{size} prompt tokens and {made} new ones"
        raise CapacityError(
            f"{asked} need {needed} positions, the context is {context}",
            node=where,
            hint=f"use context={needed} or more, where the model has as many positions, or "
            + ("a shorter prompt" if room <= 0 else "fewer max_tokens"),
        )
    return made
