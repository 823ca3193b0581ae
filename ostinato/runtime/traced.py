"""Traced runs: an entry of a traced plan in place of the ordinary one, whose more outputs are noted.

The ordinary runner, its plan, table and memory stay as they are; a session hands out runners of its own while it is open (`Diversion`). A traced run is another
program: its times say nothing of the ordinary one, so whoever measures asks `refuse_traced` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from ostinato.ir.errors import LifecycleError
from ostinato.ir.graph import Graph
from ostinato.ir.types import Array
from ostinato.runtime.runners import PlannedRunner, Runner

__all__ = ["Diversion", "TracedRunner", "refuse_traced"]

Record = Callable[[str, Mapping[str, Array]], None]
"""Called with the entry and the traced values of each run that succeeded."""


class Diversion(Protocol):
    """Runners in place of an executable's own."""

    def runner(self, name: str) -> Runner:
        """The runner of an entry."""
        ...

    def renew(self) -> None:
        """What is bound or watched has changed: runners are to be made anew."""
        ...


class TracedRunner(Runner):
    """An entry of a traced plan in any mode. Rows past the valid count, where the leading axis is a counted one, are cut off: nothing is promised of them."""

    def __init__(self, inner: Runner, entry: str, graph: Graph, names: Sequence[str], record: Record) -> None:
        self.inputs = inner.inputs
        self._inner, self._entry, self._graph, self._names, self._record = inner, entry, graph, tuple(names), record
        self._counts = dict(graph.extents)

    def run(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        return self._noted(self._inner.run(self._all(outputs)))

    def again(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        return self._noted(self._inner.again(self._all(outputs)))

    def _all(self, outputs: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*outputs, *self._names)))

    def _noted(self, found: Mapping[str, Array]) -> Mapping[str, Array]:
        self._record(self._entry, {name: self._valid(name, found[name]) for name in self._names})
        return found

    def _valid(self, name: str, array: Array) -> Array:
        """A copy of the valid rows, in logical order."""
        tensor = self._graph.types[name]
        if isinstance(self._inner, PlannedRunner) and not tensor.is_natural:  # the bytes as they lie
            strides = tuple(stride * array.dtype.itemsize for stride in tensor.strides)
            array = np.lib.stride_tricks.as_strided(array, tensor.static_shape, strides, writeable=False)
        count = self._counts.get(tensor.axes[0]) if tensor.axes else None
        return np.array(array if count is None else array[: int(self.inputs[count][0])])


def refuse_traced(diversion: Diversion | None, what: str) -> None:
    """Raises `LifecycleError` where an executable is diverted: `what` would be that of the traced plan."""
    if diversion is not None:
        raise LifecycleError(
            f"this executable is being traced: {what} would be the traced plan's, not its own",
            hint="close the TraceSession first; a traced run is excluded from timing",
        )
