"""Replays: runs of an entry that is given nothing new, because its last node left the inputs of the next step where the next step reads them.

Replays of a device that works while its host goes on are submitted some at a time; each leaves the outputs that are asked for in a slot of a ring in host
memory, and the host waits for one slot while the device is at work on the next. Elsewhere a replay runs when its outputs are taken.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ostinato.ir.types import Array
from ostinato.planner.plan import Binding
from ostinato.runtime.device import Ring, Table, Window

__all__ = ["LazyReplays", "QueuedReplays", "Replays"]


class Replays(abc.ABC):
    """Replays of one entry, taken in the order in which they were submitted. `pending` were submitted and not taken; at most `depth` may be. `runner` is whose
    they are, where somebody keeps them."""

    def __init__(self, outputs: Sequence[str], depth: int) -> None:
        self.outputs = tuple(outputs)
        self.depth = depth
        self.pending = 0
        self.runner: object = None

    def submit(self) -> None:
        """One more replay."""
        assert self.pending < self.depth, "a replay is taken before its slot is used again"
        self._begin()
        self.pending += 1

    @abc.abstractmethod
    def _begin(self) -> None:
        """Sets a replay on its way, where it does not wait until it is taken."""
        ...

    @abc.abstractmethod
    def take(self) -> dict[str, Array]:
        """Copies of the outputs of the first replay that is pending, when it is done. Raises what a run raises."""
        ...

    @abc.abstractmethod
    def drop(self) -> None:
        """Takes what is pending and throws it away."""
        ...


class LazyReplays(Replays):
    """Replays that run when they are taken, one at a time."""

    def __init__(self, again: Callable[[Sequence[str]], Mapping[str, Array]], outputs: Sequence[str]) -> None:
        """`again` runs the entry once more."""
        super().__init__(outputs, 1)
        self._again = again

    def _begin(self) -> None:
        """Nothing yet."""

    def take(self) -> dict[str, Array]:
        assert self.pending, "a replay is submitted before it is taken"
        self.pending -= 1
        return {name: np.array(array) for name, array in self._again(self.outputs).items()}

    def drop(self) -> None:
        self.pending = 0


class QueuedReplays(Replays):
    """Replays that a device works off one after the other."""

    def __init__(
        self, enqueue: Callable[[], None], table: Table, window: Window, outputs: Sequence[Binding], depth: int
    ) -> None:
        """`enqueue` submits all steps of `table`; the outputs lie in the memory that `window` stands for."""
        super().__init__([binding.name for binding in outputs], depth)
        self._enqueue, self._table = enqueue, table
        self._rings: dict[str, tuple[Binding, Ring]] = {
            binding.name: (binding, window.ring(binding.range.offset, binding.range.end, depth)) for binding in outputs
        }
        self._submitted = 0

    def _begin(self) -> None:
        self._enqueue()
        for _, ring in self._rings.values():
            ring.fetch(self._submitted % self.depth)
        self._submitted += 1

    def take(self) -> dict[str, Array]:
        slot = self._await_first()
        if not self.pending:
            self._table.finish()  # what has gone wrong is told by the table, when all is done
        return {
            name: np.array(ring.view(slot, binding.type.dtype.numpy, binding.type.static_shape))
            for name, (binding, ring) in self._rings.items()
        }

    def drop(self) -> None:
        while self.pending:
            self._await_first()

    def _await_first(self) -> int:
        """The slot of the first replay that is pending, which it no longer is."""
        assert self.pending, "a replay is submitted before it is taken"
        slot = (self._submitted - self.pending) % self.depth
        for _, ring in self._rings.values():
            ring.wait(slot)
        self.pending -= 1
        return slot
