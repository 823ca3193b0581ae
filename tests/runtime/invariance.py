"""Rows of tokens fed to a packed executable in any company: cut into any chunks, beside any others, in any bucket; and what each of them got."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack

__all__ = ["Row", "company", "logits_of"]


@dataclass(frozen=True)
class Row:
    """Tokens of one sequence, the first `prompt` of them known from the start, fed in `chunks` (none: at once); the others follow one by one."""

    tokens: Array
    prompt: int
    chunks: tuple[int, ...] = ()

    def pieces(self, row: int) -> Iterator[Piece]:
        done = 0
        for size in (*self.chunks, self.prompt - sum(self.chunks)):
            if size:
                yield Piece(row, self.tokens[done : done + size], done, True, self.prompt)
            done += size
        for at in range(self.prompt, len(self.tokens)):
            yield Piece(row, self.tokens[at : at + 1], at, True)


def logits_of(executable: ost.TextExecutable, rows: Sequence[Row]) -> list[Array]:
    """Logits [tokens, V] of every row, all of them fed side by side: a row that is done with its prompt decodes beside those that are not.

    The executable gives the logits of every position (`logits="all"`).
    """
    waiting = [row.pieces(number) for number, row in enumerate(rows)]
    found: list[list[Array]] = [[] for _ in rows]
    while pieces := [piece for piece in (next(left, None) for left in waiting) if piece is not None]:
        plan = executable.bucket(sum(len(piece.tokens) for piece in pieces), len(pieces))
        inputs, _ = pack(plan, pieces, executable.block_table())
        logits = executable.run(plan.name, inputs)["logits"]
        ends = np.cumsum([len(piece.tokens) for piece in pieces])
        for piece, end in zip(pieces, ends, strict=True):
            found[piece.row].append(logits[end - len(piece.tokens) : end])
    return [np.concatenate(parts) for parts in found]


def company(rng: np.random.Generator, row: Row, vocabulary: int, longest: int, size: int = 8) -> tuple[list[Row], int]:
    """`row` in other chunks among random others of other lengths, and its place among them."""
    rows = [_random_row(rng, vocabulary, longest) for _ in range(size - 1)]
    place = int(rng.integers(size))
    rows.insert(place, Row(row.tokens, row.prompt, _chunks(rng, row.prompt)))
    return rows, place


def _random_row(rng: np.random.Generator, vocabulary: int, longest: int) -> Row:
    prompt = int(rng.integers(1, longest - 1))
    more = int(rng.integers(0, longest - prompt))
    return Row(rng.integers(0, vocabulary, prompt + more, dtype=np.int32), prompt, _chunks(rng, prompt))


def _chunks(rng: np.random.Generator, prompt: int) -> tuple[int, ...]:
    if prompt < 2 or rng.random() < 0.5:
        return ()
    first = int(rng.integers(1, prompt))
    return (first,) if prompt - first < 2 else (first, int(rng.integers(1, prompt - first)))
