"""Rows of tokens dealt out as batches: the same seed gives the same batches, and a cursor of two numbers says which is next.

Rows are shuffled anew in every epoch by Philox (`ir/random.py`): the place of a row is the rank of the 64-bit number that key = seed and counter = (row, epoch)
give, so that no generator has a state to save. A batch never spans two epochs; rows that do not fill the last batch of an epoch wait for the next one.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ostinato.ir.checks import boolean, integer, shown
from ostinato.ir.errors import ConfigError, InputError
from ostinato.ir.random import philox4x32
from ostinato.ir.types import Array

__all__ = ["Batch", "Batches", "Cursor"]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MOST_EPOCHS = 2**32 - 1


class Batch(NamedTuple):
    """Inputs and targets, both int32 [B, T]; `target[b, t]` is the token after `input_ids[b, t]`, or -100 where nothing is learned."""

    input_ids: Array
    target: Array


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next batch: its epoch, and its number in it, both from 0."""

    epoch: int = 0
    batch: int = 0


class Batches(abc.ABC):
    """An endless iterator over batches of `batch` rows of `sequence` tokens; `cursor` is where it stands, and may be set.

    A subclass gives rows; whatever else decides the batches is here. Not for several threads at once.
    """

    def __init__(self, *, batch: int, sequence: int, seed: int, shuffle: bool) -> None:
        self.batch = integer(batch, "batch", low=1)
        self.sequence = integer(sequence, "sequence", low=1)
        self.seed = integer(seed, "seed", low=-(2**63), high=2**63 - 1)
        self.shuffle = boolean(shuffle, "shuffle")
        self._cursor = Cursor()
        self._order: tuple[int, Array] | None = None

    @property
    @abc.abstractmethod
    def rows(self) -> int:
        """Rows of an epoch."""

    @property
    @abc.abstractmethod
    def content_hash(self) -> str:
        """A hash of all tokens, whatever files or arrays they came from."""

    @abc.abstractmethod
    def _row(self, number: int) -> tuple[Array, Array]:
        """Inputs and targets of a row, int32 [sequence]."""

    def _need_rows(self, why: str) -> None:
        """Raises `InputError` where an epoch is shorter than a batch."""
        if self.rows < self.batch:
            raise InputError(
                f"{why}, a batch needs {self.batch}", hint="give more data, or a smaller batch or sequence"
            )

    @property
    def batches_per_epoch(self) -> int:
        return self.rows // self.batch

    @property
    def tokens_per_batch(self) -> int:
        return self.batch * self.sequence

    @cached_property
    def identity(self) -> str:
        """A hash of everything that decides the batches: tokens, sizes, seed and shuffling. Two datasets of one identity give the same batches."""
        text = f"{type(self).__name__} {self.content_hash} {self.batch} {self.sequence} {self.seed} {self.shuffle}"
        return xxhash.xxh3_128_hexdigest(text.encode())

    @property
    def cursor(self) -> Cursor:
        return self._cursor

    def state(self) -> dict[str, Any]:
        """Where the iterator stands, as plain JSON values: hand it to `load_state` of a dataset of the same identity to go on from here."""
        return {"epoch": self._cursor.epoch, "batch": self._cursor.batch, "identity": self.identity}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes to where `state` says. Raises `ConfigError` for what is no state of these data; the iterator then stays where it is."""
        given: object = state  # callers are not type-checked
        if not isinstance(given, Mapping) or set(given) != {"epoch", "batch", "identity"}:
            raise ConfigError(
                f"a state of data has epoch, batch and identity, found {shown(state)}",
                hint="give what state() gave",
            )
        if state["identity"] != self.identity:
            raise ConfigError(
                f"the state is of other data, sizes or another seed: {state['identity']}, these have {self.identity}",
                hint="give the tokens, batch, sequence and seed that it was saved with",
            )
        self.seek(state["epoch"], state["batch"])

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Goes to a batch. Raises `ConfigError` for one that there is not."""
        epoch = integer(epoch, "epoch", low=0, high=_MOST_EPOCHS)
        self._cursor = Cursor(epoch, integer(batch, "batch", low=0, high=self.batches_per_epoch - 1))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        made = self.peek()
        epoch, batch = self._cursor.epoch, self._cursor.batch + 1
        self._cursor = Cursor(epoch, batch) if batch < self.batches_per_epoch else Cursor(epoch + 1)
        return made

    def peek(self) -> Batch:
        """The next batch, without going on."""
        start = self._cursor.batch * self.batch
        chosen = self.order(self._cursor.epoch)[start : start + self.batch]
        made = Batch(
            np.empty((self.batch, self.sequence), dtype=np.int32), np.empty((self.batch, self.sequence), dtype=np.int32)
        )
        for place, number in enumerate(chosen):
            made.input_ids[place], made.target[place] = self._row(int(number))
        return made

    def order(self, epoch: int) -> Array:
        """The rows of an epoch in the order in which they are dealt out, int64 [rows]; the last rows % batch are left out of it."""
        if not self.shuffle:
            return np.arange(self.rows, dtype=np.int64)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, _shuffled(self.rows, self.seed, epoch))
        return self._order[1]


def _shuffled(rows: int, seed: int, epoch: int) -> Array:
    word = np.array([seed], dtype=np.int64).view(np.uint64)
    key = np.stack([word & _LOW, word >> _HALF], axis=-1).astype(np.uint32)
    counter = np.zeros((rows, 4), dtype=np.uint32)
    numbers = np.arange(rows, dtype=np.uint64)
    counter[:, 0], counter[:, 1], counter[:, 2] = numbers & _LOW, numbers >> _HALF, epoch
    words = philox4x32(counter, key).astype(np.uint64)
    ranks = (words[:, 0] << _HALF) | words[:, 1]
    return np.argsort(ranks, kind="stable").astype(np.int64)
