"""A small, repeatable piece of work for an executable: ragged prompts in chunks, then single tokens, as inputs of its packed entries.

Lengths are chosen so that buckets are only partly filled, since what lies past a length is where modes differ if they differ at all. Everything
follows from the seed and the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.batch import Piece, pack, schedule
from ostinato.runtime.forward import TextExecutable

__all__ = ["WorkStep", "make_workload", "sampling_defaults"]

SINGLE_STEPS = 2
"""Tokens of each row that are left for one-token steps after the prompt."""


@dataclass(frozen=True, slots=True)
class WorkStep:
    """One run of an entry: its inputs, and how many leading rows of `logits` mean something."""

    entry: str
    inputs: Mapping[str, Array]
    valid_rows: int


def make_workload(executable: TextExecutable, *, tokens: int, seed: int) -> tuple[WorkStep, ...]:
    """Steps for as many sequences as the executable holds, the longest of `tokens` tokens.

    Raises `ConfigError` when they do not fit its context, and for a negative seed.
    """
    if not 1 <= tokens <= executable.context:
        raise ConfigError(
            f"{tokens} tokens do not fit the context of {executable.context}",
            hint=f"use 1 to {executable.context} tokens",
        )
    rng = np.random.default_rng(integer(seed, "seed", low=0))
    lengths = [tokens, *(int(n) for n in rng.integers(1, tokens + 1, executable.rows - 1))]
    sequences = [rng.integers(0, executable.vocab_size, length, dtype=np.int32) for length in lengths]
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


def sampling_defaults(plan: EntryPlan) -> dict[str, Array]:
    """Greedy values of the sampling inputs that an entry has, by name; empty for an entry without sampling."""
    found: dict[str, Array] = {}
    for binding in plan.inputs:
        if binding.name in ("temperature", "top_k", "min_p", "seed", "sample_index"):
            found[binding.name] = np.zeros(binding.type.static_shape, binding.type.dtype.numpy)
        elif binding.name == "top_p":
            found[binding.name] = np.ones(binding.type.static_shape, binding.type.dtype.numpy)
    return found


def _steps(executable: TextExecutable, pieces: list[Piece]) -> list[WorkStep]:
    plan = executable.bucket(sum(len(piece.tokens) for piece in pieces), len(pieces))
    table = executable.block_table()
    steps = []
    for chunk in schedule(pieces, plan.dims["N"]):
        inputs, wanted = pack(plan, chunk, table)
        valid = len(wanted) if executable.logits == "last" else sum(len(piece.tokens) for piece in chunk)
        steps.append(WorkStep(plan.name, {**inputs, **sampling_defaults(plan)}, valid))
    return steps
