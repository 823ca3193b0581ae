"""Packing ragged rows into the inputs of a packed entry.

A step takes pieces of rows: some tokens of a sequence, starting at a position. Rows whose next token is wanted come first in `last`, and `row_count` says
how many they are, so that the head runs over those alone. Tokens past `token_count` and rows past `row_count` are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.ir.errors import CapacityError
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan

__all__ = ["LENGTH_INPUT", "Piece", "pack", "schedule", "tokens_of"]

LENGTH_INPUT = "rotary_length"
"""An entry with this input has keys that depend on the length of the whole row: they are of no use to a longer prompt."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`tokens` (int32) of cache row `row` at positions start, start + 1, ...; `wanted`: the logits of its last token are.

    `total` is how many tokens the row has when the last of what is known has been fed: for every chunk of a prompt the length of the whole prompt, in decode
    position + 1. Rotary kinds that depend on a length read it. 0 means that the piece is the last one known, which is start + len(tokens).
    """

    row: int
    tokens: Array
    start: int
    wanted: bool
    total: int = 0

    def __post_init__(self) -> None:
        if self.total == 0:
            object.__setattr__(self, "total", self.start + len(self.tokens))


def tokens_of(plan: EntryPlan) -> int:
    """Tokens of a step of a packed entry: one a row where it has no dimension of its own for them."""
    return plan.dims.get("N", plan.dims["R"])


def schedule(pieces: Sequence[Piece], capacity: int) -> list[list[Piece]]:
    """Cuts pieces into steps of at most `capacity` tokens, in order; only the end of a piece can be `wanted`."""
    steps: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        done = 0
        while done < len(piece.tokens):
            if room == 0:
                steps.append([])
                room = capacity
            size = min(room, len(piece.tokens) - done)
            last = done + size == len(piece.tokens)
            tokens = piece.tokens[done : done + size]
            steps[-1].append(Piece(piece.row, tokens, piece.start + done, piece.wanted and last, piece.total))
            done += size
            room -= size
    return steps


def pack(plan: EntryPlan, pieces: Sequence[Piece], block_table: Array) -> tuple[dict[str, Array], list[Piece]]:
    """Inputs of the packed entry for one step, and the wanted pieces in the order of the logits rows.

    `block_table` int32 [cache rows, W] is indexed by a piece's row. Raises `CapacityError` when tokens or rows do not fit the entry.
    """
    shapes = {binding.name: binding.type.static_shape for binding in plan.inputs}
    (tokens,), (rows, width) = shapes["input_ids"], shapes["block_table"]
    count = sum(len(piece.tokens) for piece in pieces)
    if count > tokens or len(pieces) > rows:
        raise CapacityError(
            f"{count} tokens of {len(pieces)} rows, the entry holds {tokens} tokens of {rows} rows",
            node=plan.name,
            hint="give fewer, or compile a larger bucket (B, T)",
        )
    inputs: dict[str, Array] = {
        "input_ids": np.zeros(tokens, np.int32),
        "row_of_token": np.full(tokens, -1, np.int32),
        "position": np.zeros(tokens, np.int32),
        "block_table": np.zeros((rows, width), np.int32),
        "length": np.zeros(rows, np.int32),
        "token_count": np.array([count], np.int32),
    }
    wanted: list[Piece] = []
    ends: list[int] = []
    offset = 0
    for index, piece in enumerate(pieces):
        size = len(piece.tokens)
        end = offset + size
        inputs["input_ids"][offset:end] = piece.tokens
        inputs["row_of_token"][offset:end] = index
        inputs["position"][offset:end] = np.arange(piece.start, piece.start + size)
        inputs["block_table"][index] = block_table[piece.row]
        inputs["length"][index] = piece.start + size
        if piece.wanted:
            wanted.append(piece)
            ends.append(end - 1)
        offset = end
    if LENGTH_INPUT in shapes:
        inputs[LENGTH_INPUT] = np.zeros(tokens, np.int32)
        inputs[LENGTH_INPUT][:count] = np.repeat(
            [piece.total for piece in pieces], [len(piece.tokens) for piece in pieces]
        )
    if "last" in shapes:
        inputs["last"] = np.full(rows, -1, np.int32)
        inputs["last"][: len(ends)] = ends
        inputs["row_count"] = np.array([len(ends)], np.int32)
    return inputs, wanted
