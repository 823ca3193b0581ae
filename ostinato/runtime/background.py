"""Generation for asyncio: one thread runs the requests of all streams in one batch, and hands tokens to the event loops that wait for them.

The thread lives while there is work. It waits for the executable where a synchronous call has it; a synchronous call that meets it running a step is
refused, like any other from two threads. A request that is abandoned leaves its row before the next step.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager

from ostinato.ir.errors import LifecycleError
from ostinato.ir.forks import renew_after_fork
from ostinato.runtime.generation import Batch, Generator
from ostinato.runtime.request import Request, TokenEvent

__all__ = ["AsyncEvents", "Worker"]

Deliver = Callable[[TokenEvent | BaseException], None]
"""Takes an event of a request, or what ended it. Called by the thread; must not block."""


class Worker:
    """Runs submitted requests in a thread. `hold(wait=True)` holds the executable for one step. Safe to use from several threads."""

    def __init__(self, generator: Generator, hold: Callable[..., AbstractContextManager[None]]) -> None:
        self._generator = generator
        self._hold = functools.partial(hold, wait=True)
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """No thread, and nobody who waits for it: the requests go on in the process that they were made in."""
        # reentrant: a dropped stream abandons its request wherever the collector finds it
        self._lock = threading.RLock()
        self._new: list[Request] = []
        self._gone: list[Request] = []
        self._listeners: dict[Request, Deliver] = {}
        self._thread: threading.Thread | None = None

    def submit(self, request: Request, deliver: Deliver) -> None:
        """Queues a request; `deliver` hears of it until it has ended."""
        with self._lock:
            self._new.append(request)
            self._listeners[request] = deliver
            if self._thread is None or not self._thread.is_alive():  # it could not be started
                self._thread = threading.Thread(target=self._run, name="ostinato-generation")
                self._thread.start()

    def abandon(self, request: Request) -> None:
        """Drops a request, if it has not ended; nothing more is delivered for it."""
        with self._lock:
            if self._listeners.pop(request, None) is not None:
                self._gone.append(request)

    def _run(self) -> None:
        batch = self._generator.batch(self._hold)
        while self._admit(batch):
            try:
                for event in batch.round():
                    self._tell(event.request, event, last=event.is_last)
            except BaseException as error:  # whatever ends the batch is told to everyone who waits for it
                batch.close()
                with self._lock:
                    self._new.clear()
                    waiting = list(self._listeners)
                for request in waiting:
                    self._tell(request, error, last=True)
        batch.close()

    def _admit(self, batch: Batch) -> bool:
        """Adds new requests and drops abandoned ones. False when nothing is left: then the thread is no longer the worker's."""
        with self._lock:
            new, gone = self._new, self._gone
            self._new, self._gone = [], []
            for request in new:
                batch.add(request)
            for request in gone:
                batch.abandon(request)
            if not batch.is_busy:
                self._thread = None
            return batch.is_busy

    def _tell(self, request: Request, event: TokenEvent | BaseException, *, last: bool) -> None:
        with self._lock:
            deliver = self._listeners.pop(request, None) if last else self._listeners.get(request)
        if deliver is None:
            return
        try:
            deliver(event)
        except RuntimeError:  # the event loop is closed: nobody waits any more
            self.abandon(request)


class AsyncEvents(AsyncIterator[TokenEvent]):
    """The events of one request, for the running event loop. Closing it, dropping it, or cancelling a wait for the next event abandons the request.

    Several tasks may wait for the next event: each is given to one of them, and the end to all. Raises `LifecycleError` outside an event loop and when
    unfinished synchronous generations hold every row, and `BackendError` for logits that are not finite.
    """

    def __init__(self, worker: Worker, request: Request) -> None:
        self._worker = worker
        self._request = request
        self._ended = False
        self._queue: asyncio.Queue[TokenEvent | BaseException | None] = asyncio.Queue()  # None where it has ended
        try:
            # not self: what the worker keeps must not keep this alive
            loop, queue = asyncio.get_running_loop(), self._queue
        except RuntimeError:
            raise LifecycleError(
                "an asynchronous stream belongs to a running event loop, and none runs here",
                hint="call it inside a coroutine, or use the synchronous one",
            ) from None

        def deliver(event: TokenEvent | BaseException) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

        worker.submit(request, deliver)

    async def __anext__(self) -> TokenEvent:
        if self._ended:
            raise StopAsyncIteration
        try:
            event = await self._queue.get()
        except asyncio.CancelledError:
            self.close()
            raise
        if event is None:  # another task took the last event, or closed it
            self._end()
            raise StopAsyncIteration
        failure = event if isinstance(event, BaseException) else event.error
        if failure is not None:
            self._end()
            raise failure
        assert isinstance(event, TokenEvent)
        if event.is_last:
            self._end()
        return event

    def close(self) -> None:
        """Abandons the request, if it has not ended."""
        self._end()
        self._worker.abandon(self._request)

    def _end(self) -> None:
        """Gives nothing more, and wakes the next task that waits."""
        self._ended = True
        self._queue.put_nowait(None)

    def __del__(self) -> None:
        self.close()
