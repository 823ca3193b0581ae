"""A small, repeatable piece of work for an executable: for a decoder ragged prompts in chunks, then single tokens, for an encoder ragged texts, as inputs of
its packed entries.

Lengths are chosen so that buckets are only partly filled, since what lies past a length is where modes differ if they differ at all. Everything
follows from the seed and the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack, schedule, tokens_of
from ostinato.runtime.encode import EmbedExecutable, pack_texts
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.sampling_inputs import sampling_inputs

__all__ = ["TEXTS", "WorkStep", "longest_sequence", "make_workload"]

TEXTS = 8
"""Texts that an encoder is given."""
SINGLE_STEPS = 2
"""Tokens of each row that are left for one-token steps after the prompt."""


@dataclass(frozen=True, slots=True)
class WorkStep:
    """One run of an entry: its inputs, the output that is looked at, and how many of its leading rows mean something."""

    entry: str
    inputs: Mapping[str, Array]
    output: str
    valid_rows: int


def make_workload(executable: TextExecutable | EmbedExecutable, *, tokens: int, seed: int) -> tuple[WorkStep, ...]:
    """Steps for as many sequences as the executable holds (at most `TEXTS` for an encoder), the longest of `tokens` tokens.

    Raises `ConfigError` when they do not fit its context, and for a negative seed.
    """
    longest = longest_sequence(executable)
    if not 1 <= tokens <= longest:
        raise ConfigError(f"{tokens} tokens do not fit the context of {longest}", hint=f"use 1 to {longest} tokens")
    rng = np.random.default_rng(integer(seed, "seed", low=0))
    count = min(executable.rows, TEXTS) if isinstance(executable, EmbedExecutable) else executable.rows
    lengths = [tokens, *(int(n) for n in rng.integers(1, tokens + 1, count - 1))]
    sequences = [rng.integers(0, executable.vocab_size, length, dtype=np.int32) for length in lengths]
    if isinstance(executable, EmbedExecutable):
        return tuple(_embed_steps(executable, sequences))
    heads = [max(1, length - SINGLE_STEPS) for length in lengths]
    pieces = [
        Piece(row, sequence[:head], 0, True) for row, (sequence, head) in enumerate(zip(sequences, heads, strict=True))
    ]
    steps = _steps(executable, pieces)
    for offset in range(SINGLE_STEPS):
        singles = [
            Piece(row, sequence[head + offset : head + offset + 1], head + offset, True)
            for row, (sequence, head) in enumerate(zip(sequences, heads, strict=True))
            if head + offset < len(sequence)
        ]
        steps += _steps(executable, singles) if singles else []
    return tuple(steps)


def longest_sequence(executable: TextExecutable | EmbedExecutable) -> int:
    """Tokens that one sequence can have."""
    return executable.tokens if isinstance(executable, EmbedExecutable) else executable.context


def _steps(executable: TextExecutable, pieces: list[Piece]) -> list[WorkStep]:
    plan = executable.bucket(sum(len(piece.tokens) for piece in pieces), len(pieces))
    table = executable.block_table()
    steps = []
    for chunk in schedule(pieces, tokens_of(plan)):
        inputs, wanted = pack(plan, chunk, table)
        valid = len(wanted) if executable.logits == "last" else sum(len(piece.tokens) for piece in chunk)
        steps.append(WorkStep(plan.name, {**inputs, **sampling_inputs(plan, ())}, "logits", valid))
    return steps


def _embed_steps(executable: EmbedExecutable, rows: list[Array]) -> Iterator[WorkStep]:
    for chosen in executable.steps([len(row) for row in rows]):
        step = [rows[index] for index in chosen]
        plan = executable.bucket(sum(len(row) for row in step), len(step))
        yield WorkStep(plan.name, pack_texts(plan, step), "normalized", len(step))
