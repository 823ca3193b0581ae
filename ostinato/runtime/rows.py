"""The cache rows: who holds which, and what the free ones still hold.

Keys and values of a token follow from it and the tokens before it, so a row that was given back is worth keeping: a prompt that begins like the tokens in
it needs only the rest computed. That is every next turn of a conversation.

A prompt takes the free row that shares the longest beginning with it, unless that would throw away more tokens than it saves: two conversations that
share a system prompt keep a row each. Otherwise it takes an empty row, else the one that was given back longest ago.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ostinato.ir.forks import renew_after_fork
from ostinato.ir.types import Array

__all__ = ["Lease", "RowPool"]

_NOTHING = np.zeros(0, np.int32)


Stamp = tuple[int, int]
"""How often the rows were forgotten, and how often what their contents follow from has changed."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Lease:
    """A row on loan, for as long as this object lives.

    The cache holds keys and values of the first `cached` tokens of the prompt that it was taken for, as of `stamp`.
    """

    row: int
    cached: int
    stamp: Stamp


class RowPool:
    """The cache rows 0 to count - 1, lent out one by one. Safe to use from several threads.

    A row whose lease is gone is free, whether it was given back or not: an interrupt between taking a row and noting it loses no more than what it held.
    `changes` counts changes of the weights, which make keys and values computed before them useless.
    """

    def __init__(self, count: int, changes: Callable[[], int] = lambda: 0) -> None:
        self.count = count
        self._changes = changes
        self._forgotten = 0
        self._clock = 0
        # lists of fixed length: a dropped iterator gives its row back wherever the collector finds it, in the middle of a method here too
        self._kept: list[Array | None] = [_NOTHING] * count  # tokens of a free row, None on loan
        self._leases: list[weakref.ref[Lease] | None] = [None] * count
        self._stamps: list[Stamp] = [(0, 0)] * count
        self._given = [0] * count
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """A new lock."""
        self._lock = threading.RLock()

    @property
    def held(self) -> int:
        """Rows that are lent out."""
        return sum(self._is_lent(row) for row in range(self.count))

    def take(self, prompt: Array) -> Lease | None:
        """A free row for a prompt int32 [P], None when all are lent out. An empty prompt reuses nothing.

        At most P - 1 tokens count as cached: the last one is computed for its logits.
        """
        with self._lock:
            now = self._now
            best: tuple[int, int, int] | None = None
            chosen, cached = -1, 0
            for row in range(self.count):
                if self._is_lent(row):
                    continue
                kept = self._kept[row]
                if kept is None or self._stamps[row] != now:
                    kept = _NOTHING
                shared = _common(kept, prompt[:-1])
                worth = shared if 2 * shared >= len(kept) else 0
                score = (worth, int(not len(kept)), -self._given[row])
                if best is None or score > best:
                    best, chosen, cached = score, row, shared
            if best is None:
                return None
            lease = Lease(chosen, cached, now)
            self._leases[chosen] = weakref.ref(lease)
            self._kept[chosen] = None
            return lease

    def give(self, lease: Lease, tokens: Array) -> None:
        """Takes a row back whose cache holds these tokens."""
        with self._lock:
            self._clock += 1
            self._given[lease.row] = self._clock
            self._stamps[lease.row] = lease.stamp
            self._kept[lease.row] = tokens

    def forget(self) -> None:
        """Says that the caches may hold anything now: what rows are known to hold, lent ones included, is so no longer."""
        with self._lock:
            self._forgotten += 1

    def is_current(self, lease: Lease) -> bool:
        """Whether the row still holds what its holder put there."""
        return lease.stamp == self._now

    def _is_lent(self, row: int) -> bool:
        lease = self._leases[row]
        return self._kept[row] is None and lease is not None and lease() is not None

    @property
    def _now(self) -> Stamp:
        return self._forgotten, self._changes()


def _common(kept: Array, prompt: Array) -> int:
    """Length of the common beginning."""
    size = min(len(kept), len(prompt))
    different = np.flatnonzero(kept[:size] != prompt[:size])
    return int(different[0]) if different.size else size
