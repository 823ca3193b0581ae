"""Who uses memory now: an executable is for one call at a time, and the weights that clones share do not change while one of them runs.

A call that is in the way of another is an error, which names what to do instead: nothing queues up behind a caller's back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ostinato.ir.errors import LifecycleError
from ostinato.ir.forks import renew_after_fork

__all__ = ["OwnUse", "SharedUse"]


class SharedUse:
    """Who reads the shared regions now: runs of clones go on side by side, a change of the weights waits for nobody and is refused while one runs.

    `changes` counts the changes; what was computed before the last one is not what the weights give now.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """A new lock, and nobody who holds it: the runs that were in progress are not in this process."""
        self._lock = threading.Lock()
        self._runs: set[object] = set()  # an object a run, so that an interrupt anywhere leaves none behind
        self._change: object | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Holds the weights as they are during a run. Raises `LifecycleError` while they change."""
        run = object()
        try:
            with self._lock:
                if self._change is not None:
                    raise LifecycleError(
                        "the weights are being replaced", hint="run again when replace_weights is done"
                    )
                self._runs.add(run)
            yield
        finally:
            with self._lock:
                self._runs.discard(run)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the weights for a change. Raises `LifecycleError` while an executable that shares them runs."""
        change = object()
        try:
            with self._lock:
                if self._runs or self._change is not None:
                    raise LifecycleError(
                        "an executable that shares these weights is running", hint="replace weights between runs"
                    )
                self._change = change
                self.changes += 1
            yield
        finally:
            with self._lock:
                if self._change is change:
                    self._change = None


class OwnUse:
    """Who uses an executable's own memory now: one call, which is a run of what it shares."""

    def __init__(self, shared: SharedUse) -> None:
        self._shared = shared
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """A new lock: the thread that held it is not in this process."""
        self._lock = threading.Lock()

    @contextmanager
    def calling(self, *, wait: bool = False) -> Iterator[None]:
        """Holds the executable for one call. When another one is in progress, raises `LifecycleError`, or waits for its end."""
        if not wait and self._lock.locked():
            raise LifecycleError(
                "this executable is running another call", hint="use one executable a thread: exe.clone()"
            )
        # of two calls that begin at the same moment one may get here while the other takes the lock, and waits after all
        with self._lock, self._shared.running():
            yield
