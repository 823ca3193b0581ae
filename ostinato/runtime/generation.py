"""Generation: requests in, tokens out, over packed prefill and decode entries.

Requests wait until a cache row is free. New rows prefill together, cut into chunks; then all active rows decode in one step. A finished row is free for the
next request. Tokens are chosen on the device; the host reads one int32 a row and step.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Iteration
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from ostinato.ir.errors import (
    BackendError,
    BoundsError,
    CapacityError,
    ConfigError,
    DTypeError,
    LifecycleError,
    ShapeError,
)
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack, schedule
from ostinato.runtime.binding import any_array
from ostinato.runtime.forward import TextExecutable, check_tokens
from ostinato.runtime.sampling import SamplingParams

__all__ = ["Generator", "Request", "TokenEvent"]

Execute = Callable[[str, Mapping[str, Array], Sequence[str]], dict[str, Array]]

_MAX_INT32 = 2**31 - 1


@dataclass(slots=True)
class Request:
    """A prompt with its parameters and what was generated so far. `finish_reason` is None, "length" or "stop"."""

    index: int
    prompt: Array
    params: SamplingParams
    seed: int
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A new token of a request; `token` is None when a request finished without one (max_tokens 0)."""

    request: Request
    token: int | None


class Generator:
    """Runs requests on one executable that has `prefill` and `decode` entries with sampling."""

    def __init__(self, executable: TextExecutable, end_tokens: Sequence[int]) -> None:
        self._executable = executable
        self._end_tokens = frozenset(end_tokens)
        self._table = executable.block_table()

    def request(self, index: int, prompt: Sequence[int] | Array, params: SamplingParams) -> Request:
        """Checks a prompt of token ids. Raises `ConfigError` for an empty one, `DTypeError`, `BoundsError`, `CapacityError` past the context."""
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
            raise DTypeError(f"expected integer token ids, found {tokens.dtype}", node=where)
        check_tokens(where, tokens, self._executable.vocab_size)
        if bad := [token for token in params.stop_token_ids if not 0 <= token < self._executable.vocab_size]:
            raise BoundsError(
                f"stop tokens {bad} are outside the vocabulary of {self._executable.vocab_size}", node=where
            )
        needed = len(tokens) + max(0, params.max_tokens - 1)
        if needed > self._executable.context:
            raise CapacityError(
                f"{len(tokens)} prompt tokens and {params.max_tokens} new ones need {needed} positions, the context is {self._executable.context}",
                node=where,
                hint=f"use context={needed} or fewer max_tokens",
            )
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return Request(index, tokens.astype(np.int32), params, seed)

    def run(self, requests: Sequence[Request], execute: Execute | None = None) -> Iteration[TokenEvent, None, None]:
        """Yields tokens as they are made, rows in turn. Closing or dropping the iterator abandons its requests and frees their rows.

        Several iterators may be open at once and share the rows. `execute` runs an entry (the executable's `run` by default). Raises `LifecycleError` when
        no row is free and none can become free here, or when another thread runs the executable.
        """
        waiting = deque(requests)
        active: dict[int, Request] = {}
        try:
            yield from self._rounds(waiting, active, execute or self._executable.run)
        finally:
            self._executable.free_rows.give(active)

    def finish(self, requests: Sequence[Request]) -> None:
        """Runs requests to their end as one call of the executable. Raises `LifecycleError` when another call is in progress."""
        with self._executable.exclusive(), closing(self.run(requests, self._executable.run_held)) as events:
            for _ in events:
                pass

    def _rounds(self, waiting: deque[Request], active: dict[int, Request], execute: Execute) -> Iterator[TokenEvent]:
        pool = self._executable.free_rows
        while waiting or active:
            fresh: list[int] = []
            while waiting:
                if waiting[0].params.max_tokens == 0:
                    request = waiting.popleft()
                    request.finish_reason = "length"
                    yield TokenEvent(request, None)
                    continue
                row = pool.take()
                if row is None:
                    break
                active[row] = waiting.popleft()
                fresh.append(row)
            if not active and not waiting:
                return
            if not active:
                raise LifecycleError(
                    f"all {pool.count} rows are held by unfinished generations",
                    hint="finish or close() their iterators, or make the LLM with a larger max_num_seqs",
                )
            steps = self._prefill(active, fresh, execute) if fresh else self._decode(active, execute)
            for row, token in steps:
                request = active[row]
                self._accept(request, token)
                if request.finish_reason is not None:
                    del active[row]
                    pool.give((row,))
                yield TokenEvent(request, token)

    def _prefill(self, active: dict[int, Request], rows: Sequence[int], execute: Execute) -> Iterator[tuple[int, int]]:
        pieces = [Piece(row, active[row].prompt, 0, True) for row in rows]
        plan = self._executable.bucket(sum(len(piece.tokens) for piece in pieces), len(pieces), "prefill")
        for step in schedule(pieces, plan.dims["N"]):
            yield from self._step(plan.name, step, active, execute)

    def _decode(self, active: dict[int, Request], execute: Execute) -> Iterator[tuple[int, int]]:
        pieces = [
            Piece(row, np.array([request.tokens[-1]], np.int32), len(request.prompt) + len(request.tokens) - 1, True)
            for row, request in active.items()
        ]
        entry = self._executable.bucket(len(pieces), len(pieces), "decode").name
        yield from self._step(entry, pieces, active, execute)

    def _step(
        self, entry: str, pieces: Sequence[Piece], active: dict[int, Request], execute: Execute
    ) -> list[tuple[int, int]]:
        plan = self._executable.entries[entry]
        inputs, wanted = pack(plan, pieces, self._table)
        inputs.update(_sampling_inputs([active[piece.row] for piece in wanted], plan.dims["R"]))
        tokens = execute(entry, inputs, ("token",))["token"]
        return [(piece.row, int(token)) for piece, token in zip(wanted, tokens, strict=False)]

    def _accept(self, request: Request, token: int) -> None:
        if token < 0:
            raise BackendError(
                f"the logits after {len(request.tokens)} tokens are not finite",
                node=f"prompt {request.index}",
                hint="the weights or the precision do not suit this model; `ostinato compare` finds the node",
            )
        request.tokens.append(token)
        params = request.params
        if token in params.stop_token_ids or (token in self._end_tokens and not params.ignore_eos):
            request.finish_reason = "stop"
        elif len(request.tokens) >= params.max_tokens:
            request.finish_reason = "length"


def _sampling_inputs(requests: Sequence[Request], rows: int) -> dict[str, Array]:
    """Sampling inputs of the packed entry, one row a request, padded to `rows`."""
    inputs: dict[str, Array] = {
        "temperature": np.zeros(rows, np.float32),
        "top_k": np.zeros(rows, np.int32),
        "top_p": np.ones(rows, np.float32),
        "min_p": np.zeros(rows, np.float32),
        "seed": np.zeros(rows, np.int64),
        "sample_index": np.zeros(rows, np.int32),
    }
    for row, request in enumerate(requests):
        inputs["temperature"][row] = request.params.temperature
        # beyond the vocabulary all tokens are kept
        inputs["top_k"][row] = min(max(0, request.params.top_k), _MAX_INT32)
        inputs["top_p"][row] = request.params.top_p
        inputs["min_p"][row] = request.params.min_p
        inputs["seed"][row] = request.seed
        inputs["sample_index"][row] = len(request.tokens)
    return inputs
