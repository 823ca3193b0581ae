"""Generation: requests in, tokens out, over packed prefill and decode entries.

Requests wait until a cache row is free. New rows prefill together, cut into chunks and without what their row already holds; then all active rows decode
in one step. A finished row is free for the next request and keeps its tokens (`rows.py`). Tokens are chosen on the device; the host reads one int32 a row
and step.

A decode step leaves the inputs of the next one on the device. While the rows stay the same, the next step is a replay of the last, and nothing is packed; a
device that works by itself gets some replays ahead, more the longer it goes well. Tokens of a row past its end are thrown away.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Iteration
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass

import numpy as np

from ostinato.ir.errors import LifecycleError, OstinatoError
from ostinato.ir.types import Array
from ostinato.runtime.batch import LENGTH_INPUT, Piece, pack, schedule, tokens_of
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.replays import Replays
from ostinato.runtime.request import Request, TokenEvent, make_request
from ostinato.runtime.sampling import SamplingParams
from ostinato.runtime.sampling_inputs import sampling_inputs
from ostinato.runtime.transcript import TokenDecoder

__all__ = ["Batch", "Generator"]

Hold = Callable[[], AbstractContextManager[None]]
"""Holds the executable for one step."""


@dataclass(slots=True)
class _Ahead:
    """Replays of a decode step whose rows are those of `requests`, in this order; `turn` is the executable's of that step.

    `left` says how many more may be submitted before the host has new parameters for a row; up to `depth` are pending at a time, `taken` since it grew.
    """

    entry: str
    requests: list[Request]
    turn: int
    left: int
    replays: Replays
    depth: int = 1
    taken: int = 0

    def submit(self) -> None:
        """Submits what is worth it: not more than any row has tokens to make."""
        worth = max(request.limit - len(request.tokens) for request in self.requests)
        while self.left and self.replays.pending < min(self.depth, worth):
            self.replays.submit()
            self.left -= 1

    def take(self) -> dict[str, Array]:
        """The results of the first replay that is pending."""
        results = self.replays.take()
        self.taken += 1
        if self.taken == self.depth:
            self.depth, self.taken = min(2 * self.depth, self.replays.depth), 0
        return results


class Batch:
    """Requests that run together. Those without a row wait; the others take part in every round."""

    def __init__(self, executable: TextExecutable, hold: Hold, *, reuse: bool) -> None:
        self._executable = executable
        self._hold = hold
        self._reuse = reuse
        self._table = executable.block_table()
        self._waiting: deque[Request] = deque()
        self._active: dict[int, Request] = {}
        self._ahead: _Ahead | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is a request that has not ended."""
        return bool(self._waiting or self._active)

    def add(self, request: Request) -> None:
        """Queues a request."""
        self._waiting.append(request)

    def abandon(self, request: Request) -> None:
        """Drops a request, if it has not ended, and frees its row. Not in the middle of a round."""
        if request in self._waiting:
            self._waiting.remove(request)
        if request.lease is not None:
            self._leave(request)

    def close(self) -> None:
        """Drops all requests and frees their rows."""
        self._waiting.clear()
        ahead, self._ahead = self._ahead, None
        try:
            if ahead is not None:
                self._executable.runners.keep_replays(ahead.entry, ahead.replays)
        finally:  # what waits for a device may fail, or be interrupted
            for request in list(self._active.values()):
                self._leave(request)

    def round(self) -> Iterator[TokenEvent]:
        """Runs the prefill of the requests that found a row now, or else one decode step; yields what came of it.

        A request whose logits are not finite ends with an event that has its error; the others go on. Raises `LifecycleError` when no row is free and none
        can become free here, when another thread runs the executable, and when another call used the caches or replaced weights meanwhile.
        """
        fresh: list[Request] = []
        while self._waiting:
            if self._waiting[0].limit == 0:
                request = self._waiting.popleft()
                request.finish_reason = "length"
                yield TokenEvent(request, None, is_last=True)
            elif self._enter(self._waiting[0]):
                fresh.append(self._waiting.popleft())
            else:
                break
        if not self._active:
            if self._waiting:
                raise LifecycleError(
                    f"all {self._executable.free_rows.count} rows are held by unfinished generations",
                    hint="finish or close() their iterators, or make the LLM with a larger max_num_seqs",
                )
            return
        yield from self._prefill(fresh) if fresh else self._decode()

    def _enter(self, request: Request) -> bool:
        """Gives a request a row, if one is free."""
        lease = self._executable.free_rows.take(request.prompt if self._reuse else request.prompt[:0])
        if lease is None:
            return False
        request.lease, request.cached, request.stored = lease, lease.cached, lease.cached
        self._active[lease.row] = request
        return True

    def _leave(self, request: Request) -> None:
        """Gives a request's row back, with what it holds."""
        assert request.lease is not None
        del self._active[request.lease.row]
        self._executable.free_rows.give(request.lease, request.stored_tokens)
        request.lease = None

    def _prefill(self, fresh: Sequence[Request]) -> Iterator[TokenEvent]:
        pieces = [
            Piece(request.row, request.prompt[request.cached :], request.cached, True, len(request.prompt))
            for request in fresh
        ]
        plan = self._executable.bucket(sum(len(piece.tokens) for piece in pieces), len(pieces), "prefill")
        for step in schedule(pieces, tokens_of(plan)):
            yield from self._step(plan.name, step)

    def _decode(self) -> Iterator[TokenEvent]:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (results := self._go_on(ahead)) is not None:
            self._ahead = ahead
            yield from self._accepted(ahead.requests, results)
            return
        pieces = [
            Piece(row, np.array([request.tokens[-1]], np.int32), len(request.prompt) + len(request.tokens) - 1, True)
            for row, request in self._active.items()
        ]
        entry = self._executable.bucket(len(pieces), len(pieces), "decode").name
        yield from self._step(entry, pieces, goes_on=True)

    def _go_on(self, ahead: _Ahead) -> dict[str, Array] | None:
        """The results of the next replay, None where there is none: rows came or went, or somebody else gave the executable inputs."""
        running = [request for request in ahead.requests if request.lease is not None]
        runners = self._executable.runners
        with self._hold():
            try:
                self._check_rows(running)
                if ahead.turn == runners.turn and running == ahead.requests == list(self._active.values()):
                    ahead.submit()
                if ahead.replays.pending:
                    results = ahead.take()
                    for request in running:  # the token that was fed
                        request.stored = len(request.prompt) + len(request.tokens)
                    return results
            except BaseException:
                runners.keep_replays(ahead.entry, ahead.replays)
                raise
            runners.keep_replays(ahead.entry, ahead.replays)
        return None

    def _step(self, entry: str, pieces: Sequence[Piece], *, goes_on: bool = False) -> Iterator[TokenEvent]:
        plan = self._executable.entries[entry]
        inputs, wanted = pack(plan, pieces, self._table)
        requests = [self._active[piece.row] for piece in wanted]
        inputs.update(sampling_inputs(plan, requests))
        outputs = ("token", "logits") if any(r.params.logprobs is not None for r in requests) else ("token",)
        with self._hold():
            self._check_rows([self._active[piece.row] for piece in pieces])
            results = self._executable.run_held(entry, inputs, outputs)
            if goes_on:
                runners = self._executable.runners
                replays = runners.take_replays(entry, outputs)
                self._ahead = _Ahead(entry, requests, runners.turn, _left(requests), replays)
        for piece in pieces:
            self._active[piece.row].stored = piece.start + len(piece.tokens)
        yield from self._accepted(requests, results)

    def _accepted(self, requests: Sequence[Request], results: Mapping[str, Array]) -> Iterator[TokenEvent]:
        """Hands the tokens of a step to those requests that have not ended."""
        logits = results.get("logits", [None] * len(requests))
        for request, token, row in zip(requests, results["token"], logits, strict=False):
            if request.lease is not None:
                yield self._accept(request, int(token), row)

    def _check_rows(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.lease is None or not self._executable.free_rows.is_current(request.lease):
                raise LifecycleError(
                    "another call of the executable used the caches in the middle of this generation, or replaced weights",
                    hint="finish the generation first, or make that call on executable.clone()",
                )

    def _accept(self, request: Request, token: int, logits: Array | None) -> TokenEvent:
        try:
            text = request.accept(token, logits)
        except OstinatoError as error:
            self._leave(request)
            return TokenEvent(request, None, is_last=True, error=error)
        ended = request.finish_reason is not None
        if ended:
            self._leave(request)
        return TokenEvent(request, token, text, ended)


def _left(requests: Sequence[Request]) -> int:
    """Steps after the one that is run now for which what the host has packed of these requests stays right: what they may not choose changes with it."""
    held_back = [request for request in requests if request.forbidden]
    return min((request.params.min_tokens - 1 - len(request.tokens) for request in held_back), default=sys.maxsize)


class Generator:
    """Runs requests on one executable that has `prefill` and `decode` entries with sampling.

    `end_tokens` are the model's. `reuse` keeps the caches of finished requests for prompts that begin like them; models whose keys depend on the length of
    the whole row never do.
    """

    def __init__(self, executable: TextExecutable, end_tokens: Sequence[int], *, reuse: bool = True) -> None:
        self._executable = executable
        # a tokenizer may know more tokens than the model has logits for
        self._end_tokens = frozenset(token for token in end_tokens if token < executable.vocab_size)
        self._reuse = reuse and not executable.has_input(LENGTH_INPUT)

    def request(
        self,
        index: int,
        prompt: Sequence[int] | Array,
        params: SamplingParams,
        decoder: Callable[[Sequence[int]], TokenDecoder] | None = None,
    ) -> Request:
        """Checks a prompt of token ids; `decoder(prompt)` makes what turns its tokens into text. Raises what `make_request` raises."""
        return make_request(
            index,
            prompt,
            params,
            vocab_size=self._executable.vocab_size,
            context=self._executable.context,
            bias_width=self._executable.input_type("bias").static_shape[1],
            end_tokens=self._end_tokens,
            decoder=decoder,
        )

    def batch(self, hold: Hold) -> Batch:
        """An empty batch, whose steps run inside `hold()`."""
        return Batch(self._executable, hold, reuse=self._reuse)

    def run(self, requests: Sequence[Request], hold: Hold | None = None) -> Iteration[TokenEvent, None, None]:
        """Yields tokens as they are made, rows in turn. Closing or dropping the iterator abandons its requests and frees their rows.

        Several iterators may be open at once and share the rows. `hold` holds the executable for a step (by default against other threads). Raises what
        `Batch.round` raises, and `BackendError` for logits that are not finite.
        """
        batch = self.batch(hold or self._executable.generating)
        for request in requests:
            batch.add(request)
        try:
            while batch.is_busy:
                for event in batch.round():
                    if event.error is not None:
                        raise event.error
                    yield event
        finally:
            batch.close()

    def finish(self, requests: Sequence[Request]) -> None:
        """Runs requests to their end as one call of the executable. Raises `LifecycleError` when another call is in progress."""
        with self._executable.generating(), closing(self.run(requests, nullcontext)) as events:
            for _ in events:
                pass
