"""Packing ragged rows into the inputs of a packed entry.

A step takes pieces of rows: some tokens of a sequence, starting at a position. Rows whose next token is wanted come first in `last`, and `row_count` says
how many they are, so that the head runs over those alone. Tokens past `token_count` and rows past `row_count` are never read.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.ir.errors import CapacityError
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan

__all__ = ["Piece", "RowPool", "pack", "schedule"]


@dataclass(frozen=True, slots=True)
class Piece:
    """`tokens` (int32) of cache row `row` at positions start, start + 1, ...; `wanted`: the logits of its last token are."""

    row: int
    tokens: Array
    start: int
    wanted: bool


class RowPool:
    """The cache rows 0 to count - 1, lent out one by one, the lowest free one first. Safe to use from several threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        # a dropped iterator gives its rows back wherever the collector finds it, in here too: hence reentrant
        self._lock = threading.RLock()

    @property
    def held(self) -> int:
        """Rows that are lent out."""
        return self.count - len(self._free)

    def take(self) -> int | None:
        """A free row, None when all are lent out."""
        with self._lock:
            return heapq.heappop(self._free) if self._free else None

    def give(self, rows: Iterable[int]) -> None:
        """Takes rows back."""
        with self._lock:
            for row in rows:
                heapq.heappush(self._free, row)


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
            steps[-1].append(
                Piece(piece.row, piece.tokens[done : done + size], piece.start + done, piece.wanted and last)
            )
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
            f"{count} tokens of {len(pieces)} rows, the entry holds {tokens} tokens of {rows} rows", node=plan.name
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
    if "last" in shapes:
        inputs["last"] = np.full(rows, -1, np.int32)
        inputs["last"][: len(ends)] = ends
        inputs["row_count"] = np.array([len(ends)], np.int32)
    return inputs, wanted
