"""Small, repeatable work: sequences of token ids, some of chance and some at the edges, and what an executable is given for them.

A case says what is fed (whole sequences, and how much of each as a prompt), not how: each executable packs it for its own buckets, in chunks where it must, and
its results are told apart by row and position. So executables with other buckets, and functions that know none, are asked the same. Lengths are chosen so that
buckets are only partly filled, since what lies past a length is where ways to run differ if they differ at all. Everything follows from the seed and the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack, schedule, tokens_of
from ostinato.runtime.encode import EmbedExecutable, pack_texts
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.sampling_inputs import sampling_inputs

__all__ = [
    "DEFAULT_TOKENS",
    "TEXTS",
    "Case",
    "Room",
    "WorkStep",
    "longest_sequence",
    "make_cases",
    "make_workload",
    "room_of",
    "steps_of",
]

DEFAULT_TOKENS = 16
"""Of the longest sequence, or as many as the context has."""
TEXTS = 8
"""Texts that an encoder is given."""
EDGE_ROWS = 4
"""Rows of the edges."""
SINGLE_STEPS = 2
"""Tokens of each row that are left for one-token steps after the prompt."""


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences (int32 ids), one a row. The first `heads` tokens of each are its prompt, the others are fed one by one."""

    name: str
    sequences: tuple[Array, ...]
    heads: tuple[int, ...]

    @property
    def rounds(self) -> int:
        """How often rows are fed: the prompts, then tokens one by one."""
        return 1 + max(len(row) - head for row, head in zip(self.sequences, self.heads, strict=True))


@dataclass(frozen=True, slots=True)
class Room:
    """What cases must fit: sequences at once, tokens of the longest, ids, and the tokens that a step of each bucket takes, in ascending order."""

    rows: int
    longest: int
    vocab_size: int
    buckets: tuple[int, ...]
    encoder: bool = False

    def shared(self, other: Room) -> Room:
        """Room for what fits both. Raises `ConfigError` for a decoder and an encoder, which give no like results."""
        if self.encoder != other.encoder:
            raise ConfigError("one side is a decoder and one an encoder", hint="compare models of one kind")
        return Room(
            min(self.rows, other.rows),
            min(self.longest, other.longest),
            min(self.vocab_size, other.vocab_size),
            self.buckets,
            self.encoder,
        )


@dataclass(frozen=True, slots=True)
class WorkStep:
    """One run of an entry: its inputs, the output that is looked at, and how many of its leading rows mean something: those of `places`, (row, position)."""

    entry: str
    inputs: Mapping[str, Array]
    output: str
    valid_rows: int
    places: tuple[tuple[int, int], ...] = ()


def make_cases(room: Room, *, tokens: int, seed: int, edges: bool = True) -> tuple[Case, ...]:
    """Work for that room, the longest sequence of `tokens` tokens: "random", ragged rows of chance ids; and with `edges`

    - "edges": a row of one token, the same token all along, the smallest and the largest id in turn, and as many tokens as there may be. Where twice as many
      rows fit, the first case is "random and edges": an interpreter pays for steps, not for rows;
    - "full bucket" and "past the bucket", of the smallest and the largest: as many tokens as a step of it takes, and one more.

    Where fewer rows fit, they come one after the other. Raises `ConfigError` when they do not fit, and for a negative seed.
    """
    if not 1 <= tokens <= room.longest:
        raise ConfigError(
            f"{tokens} tokens do not fit the context of {room.longest}", hint=f"use 1 to {room.longest} tokens"
        )
    rng = np.random.default_rng(integer(seed, "seed", low=0))

    def chance(length: int) -> Array:
        return rng.integers(0, room.vocab_size, length, dtype=np.int32)

    count = min(room.rows, TEXTS) if room.encoder else room.rows
    singles = 0 if room.encoder else SINGLE_STEPS
    together = edges and count >= 2 * EDGE_ROWS
    ragged = count - EDGE_ROWS if together else count
    lengths = [tokens, *(int(n) for n in rng.integers(1, tokens + 1, ragged - 1))]
    rows = [chance(length) for length in lengths]
    if not edges:
        return (_case("random", rows, singles),)
    extremes = np.where(np.arange(tokens) % 2, room.vocab_size - 1, 0).astype(np.int32)
    extra = [chance(1), np.full(tokens, chance(1)[0], np.int32), extremes, chance(tokens)]
    if together:
        cases = [_case("random and edges", rows + extra, singles)]
    else:
        cases = [_case("random", rows, singles)]
        for first in range(0, EDGE_ROWS, count):
            number = "" if count >= EDGE_ROWS else f" {first // count + 1}"
            cases.append(_case(f"edges{number}", extra[first : first + count]))
    for bucket in dict.fromkeys((room.buckets[0], room.buckets[-1])):
        for name, total in ((f"full bucket of {bucket}", bucket), (f"past the bucket of {bucket}", bucket + 1)):
            if total <= count * tokens:
                sizes = [min(tokens, total - first) for first in range(0, total, tokens)]
                cases.append(_case(name, [chance(size) for size in sizes]))
    return tuple(cases)


def _case(name: str, rows: Sequence[Array], singles: int = 0) -> Case:
    return Case(name, tuple(rows), tuple(max(1, len(row) - singles) for row in rows))


def room_of(executable: TextExecutable | EmbedExecutable) -> Room:
    """What fits an executable."""
    encoder = isinstance(executable, EmbedExecutable)
    buckets = tuple(sorted({tokens_of(plan) for plan in executable.entries.values()}))
    return Room(executable.rows, longest_sequence(executable), executable.vocab_size, buckets, encoder)


def longest_sequence(executable: TextExecutable | EmbedExecutable) -> int:
    """Tokens that one sequence can have."""
    return executable.tokens if isinstance(executable, EmbedExecutable) else executable.context


def steps_of(executable: TextExecutable | EmbedExecutable, case: Case) -> tuple[WorkStep, ...]:
    """The runs of an executable that a case takes, from an empty cache."""
    if isinstance(executable, EmbedExecutable):
        return tuple(_embed_steps(executable, case.sequences))
    pieces = [
        Piece(row, sequence[:head], 0, True)
        for row, (sequence, head) in enumerate(zip(case.sequences, case.heads, strict=True))
    ]
    steps = _steps(executable, pieces)
    for offset in range(case.rounds - 1):
        singles = [
            Piece(row, sequence[head + offset : head + offset + 1], head + offset, True)
            for row, (sequence, head) in enumerate(zip(case.sequences, case.heads, strict=True))
            if head + offset < len(sequence)
        ]
        steps += _steps(executable, singles)
    return tuple(steps)


def make_workload(executable: TextExecutable | EmbedExecutable, *, tokens: int, seed: int) -> tuple[WorkStep, ...]:
    """The steps of the case "random" for an executable, the longest sequence of `tokens` tokens. Raises what `make_cases` raises."""
    (case,) = make_cases(room_of(executable), tokens=tokens, seed=seed, edges=False)
    return steps_of(executable, case)


def _steps(executable: TextExecutable, pieces: list[Piece]) -> list[WorkStep]:
    plan = executable.bucket(sum(len(piece.tokens) for piece in pieces), len(pieces))
    table = executable.block_table()
    steps = []
    for chunk in schedule(pieces, tokens_of(plan)):
        inputs, wanted = pack(plan, chunk, table)
        if executable.logits == "last":
            places = tuple((piece.row, piece.start + len(piece.tokens) - 1) for piece in wanted)
        else:
            places = tuple((piece.row, piece.start + i) for piece in chunk for i in range(len(piece.tokens)))
        steps.append(WorkStep(plan.name, {**inputs, **sampling_inputs(plan, ())}, "logits", len(places), places))
    return steps


def _embed_steps(executable: EmbedExecutable, rows: Sequence[Array]) -> Iterator[WorkStep]:
    for chosen in executable.steps([len(row) for row in rows]):
        step = [rows[index] for index in chosen]
        plan = executable.bucket(sum(len(row) for row in step), len(step))
        places = tuple((index, len(rows[index]) - 1) for index in chosen)
        yield WorkStep(plan.name, pack_texts(plan, step), "normalized", len(step), places)
