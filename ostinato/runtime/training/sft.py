"""Examples of which only a part is learned, such as the answers of conversations, as training data.

An example is its tokens and, for each, whether it is learned. The target of a token is the one after it where that is learned, and -100 elsewhere, so a
prompt is read and not learned. Rows are padded on the right with targets of -100; causal attention never looks there. `pack` puts several examples into a
row, one after the other: fewer steps, but an example then sees those before it in its row. `frontend/conversation.py` makes examples of conversations and a
chat template.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xxhash

from ostinato.ir.checks import boolean, integer, shown
from ostinato.ir.errors import BoundsError, ConfigError, InputError
from ostinato.ir.example import IGNORED, Example
from ostinato.ir.types import Array
from ostinato.runtime.training.batches import Batches

__all__ = ["ExampleDataset"]

_OPEN_ROWS = 64


class ExampleDataset(Batches):
    """Batches of examples padded to `sequence` tokens, with `pack` several to a row where they fit.

    An example of more than `sequence` + 1 tokens is refused, or with `truncate` loses its end. `pad` is the input where there is no token. Raises
    `InputError` for examples that are too long, have nothing left to learn or do not fill a batch, `BoundsError` for tokens outside [0, vocab_size),
    `ConfigError` for bad sizes.
    """

    def __init__(
        self,
        examples: Iterable[Example],
        *,
        batch: int,
        sequence: int,
        vocab_size: int,
        seed: int = 0,
        shuffle: bool = True,
        pack: bool = False,
        truncate: bool = False,
        pad: int = 0,
    ) -> None:
        super().__init__(batch=batch, sequence=sequence, seed=seed, shuffle=shuffle)
        vocab = integer(vocab_size, "vocab_size", low=1)
        pad = integer(pad, "pad", low=0, high=vocab - 1)
        truncate = boolean(truncate, "truncate")
        if not isinstance(examples, Iterable):
            raise ConfigError(f"examples are {shown(examples)}, expected a list of them")
        given: list[Any] = list(examples)
        prepared = [self._prepared(i, example, vocab, truncate) for i, example in enumerate(given)]
        groups = (
            _packed([ids.size for ids, _ in prepared], self.sequence) if boolean(pack, "pack") else _alone(prepared)
        )
        self._inputs = np.full((len(groups), self.sequence), pad, dtype=np.int32)
        self._targets = np.full((len(groups), self.sequence), IGNORED, dtype=np.int32)
        for row, group in enumerate(groups):
            place = 0
            for number in group:
                ids, target = prepared[number]
                self._inputs[row, place : place + ids.size] = ids
                self._targets[row, place : place + ids.size] = target
                place += ids.size
        self.examples = len(prepared)
        self._need_rows(f"{len(prepared)} examples fill {len(groups)} rows of {self.sequence} tokens")

    @property
    def rows(self) -> int:
        return len(self._inputs)

    @property
    def content_hash(self) -> str:
        digest = xxhash.xxh3_128(self._inputs.astype("<i4", copy=False).data)
        digest.update(self._targets.astype("<i4", copy=False).data)
        return digest.hexdigest()

    @property
    def learned(self) -> int:
        """Tokens that are learned in an epoch."""
        return int((self._targets != IGNORED).sum())

    def _row(self, number: int) -> tuple[Array, Array]:
        return self._inputs[number], self._targets[number]

    def _prepared(self, number: int, example: Any, vocab: int, truncate: bool) -> tuple[Array, Array]:
        where = f"example {number}"
        if not isinstance(example, Example):
            raise ConfigError(f"{where} is a {type(example).__name__}, expected an Example")
        outside = (example.ids < 0) | (example.ids >= vocab)
        if outside.any():
            first = int(np.argmax(outside))
            raise BoundsError(
                f"token {first} is {int(example.ids[first])}, outside the vocabulary of {vocab}", node=where
            )
        ids, target = example.shifted()
        if ids.size > self.sequence:
            if not truncate:
                raise InputError(
                    f"{ids.size + 1} tokens are more than a row of {self.sequence} and its last target hold",
                    node=where,
                    hint="raise sequence, shorten the example, or pass truncate=True to cut its end off",
                )
            ids, target = ids[: self.sequence], target[: self.sequence]
            if not (target != IGNORED).any():
                raise InputError(
                    f"its first {self.sequence + 1} tokens have none that is learned", node=where, hint="raise sequence"
                )
        return ids, target

    def __repr__(self) -> str:
        return (
            f"<{self.examples} examples: {self.batches_per_epoch} batches of {self.batch} x {self.sequence} an epoch>"
        )


def _alone(prepared: Sequence[object]) -> list[list[int]]:
    return [[number] for number in range(len(prepared))]


def _packed(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Which examples share a row: each goes, in order, into the first of the last few rows with room for it."""
    groups: list[list[int]] = []
    free: list[list[int]] = []  # of rows that may still take some: number and tokens left
    for number, length in enumerate(lengths):
        row = next((row for row in free if row[1] >= length), None)
        if row is None:
            row = [len(groups), room]
            groups.append([])
            free.append(row)
        groups[row[0]].append(number)
        row[1] -= length
        free = [row for row in free if row[1] > 0][-_OPEN_ROWS:]
    return groups
