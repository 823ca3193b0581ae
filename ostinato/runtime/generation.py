"""Generation: requests in, tokens out, over packed prefill and decode entries.

Requests wait until a cache row is free. New rows prefill together, cut into chunks; then all active rows decode in one step. A finished row is free for the
next request. Tokens are chosen on the device; the host reads one int32 a row and step.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.ir.errors import BackendError, BoundsError, CapacityError, ConfigError
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack, schedule
from ostinato.runtime.forward import TextExecutable, check_tokens
from ostinato.runtime.sampling import SamplingParams

__all__ = ["Generator", "Request", "TokenEvent"]


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
        """Checks a prompt of token ids. Raises `ConfigError` for an empty one, `BoundsError`, `CapacityError` past the context."""
        where = f"prompt {index}"
        tokens = np.asarray(prompt)
        if tokens.ndim != 1 or tokens.size == 0:
            raise ConfigError("expected at least one token", node=where, hint="give a text or token ids")
        if tokens.dtype.kind not in "iu":
            raise ConfigError(f"expected integer token ids, found {tokens.dtype}", node=where)
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

    def run(self, requests: Sequence[Request]) -> Iterator[TokenEvent]:
        """Yields tokens as they are made, rows in turn. Abandoning the iterator abandons the requests."""
        waiting = deque(requests)
        free = list(range(self._executable.rows))
        active: dict[int, Request] = {}
        while waiting or active:
            fresh: list[int] = []
            while waiting and free:
                request = waiting.popleft()
                if request.params.max_tokens == 0:
                    request.finish_reason = "length"
                    yield TokenEvent(request, None)
                    continue
                row = free.pop(0)
                active[row] = request
                fresh.append(row)
            steps = self._prefill(active, fresh) if fresh else self._decode(active)
            for row, token in steps:
                request = active[row]
                self._accept(request, token)
                if request.finish_reason is not None:
                    del active[row]
                    free.append(row)
                    free.sort()
                yield TokenEvent(request, token)

    def _prefill(self, active: dict[int, Request], rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        pieces = [Piece(row, active[row].prompt, 0, True) for row in rows]
        plan = self._executable.bucket(sum(len(piece.tokens) for piece in pieces), len(pieces), "prefill")
        for step in schedule(pieces, plan.dims["N"]):
            yield from self._step(plan.name, step, active)

    def _decode(self, active: dict[int, Request]) -> Iterator[tuple[int, int]]:
        pieces = [
            Piece(row, np.array([request.tokens[-1]], np.int32), len(request.prompt) + len(request.tokens) - 1, True)
            for row, request in active.items()
        ]
        yield from self._step(self._executable.bucket(len(pieces), len(pieces), "decode").name, pieces, active)

    def _step(self, entry: str, pieces: Sequence[Piece], active: dict[int, Request]) -> list[tuple[int, int]]:
        plan = self._executable.entries[entry]
        inputs, wanted = pack(plan, pieces, self._table)
        inputs.update(_sampling_inputs([active[piece.row] for piece in wanted], plan.dims["R"]))
        tokens = self._executable.run(entry, inputs, ("token",))["token"]
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
        inputs["top_k"][row] = max(0, request.params.top_k)
        inputs["top_p"][row] = request.params.top_p
        inputs["min_p"][row] = request.params.min_p
        inputs["seed"][row] = request.seed
        inputs["sample_index"][row] = len(request.tokens)
    return inputs
