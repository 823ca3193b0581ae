"""The loop of a run: batches into steps, a line a step, a checkpoint now and then, and an end that loses nothing.

A step is read one step late, so that a device that works by itself always has the next one. Ctrl-C, and the signal that ends a process, let the step that
runs come to its end, write a checkpoint and stop; a second one stops at once, with the last checkpoint as it was.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from ostinato.ir.types import Array
from ostinato.runtime.training.batches import Batches
from ostinato.runtime.training.checkpoint import Checkpoints, Snapshot
from ostinato.tools.train.metrics import Line, finite

__all__ = ["Outcome", "Result", "Run", "Step", "restore", "stoppable"]

_LATE = 1
"""Steps whose results are still on their way when the next one is submitted."""


class Result(Protocol):
    """What a step gives; the properties wait for it."""

    @property
    def loss(self) -> float: ...

    @property
    def learning_rate(self) -> float: ...

    @property
    def gradient_norm(self) -> float: ...


class Step(Protocol):
    """A whole training step, and what it goes on from: parameters under the names of the checkpoint, and the optimizer's state. `number` counts the steps so
    far, skipped ones too: a run that goes on draws the masks of dropout that it would have drawn."""

    number: int

    def __call__(self, input_ids: Array, target: Array) -> Result: ...

    def parameters(self) -> Mapping[str, Array]: ...

    def optimizer_state(self) -> Mapping[str, Array]: ...

    @property
    def computed_by(self) -> Mapping[str, str]: ...

    def load(self, parameters: Mapping[str, Array], state: Mapping[str, Array]) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: after which step, whether it was stopped before its last one, and the checkpoint that it ended with."""

    step: int
    stopped: bool
    checkpoint: Path
    seconds: float


@dataclass(slots=True)
class Run:
    """One run: what it needs, and how far it is (`done` steps, `restored` where it came from a checkpoint).

    `settings` are what its results depend on, for the checkpoint.
    """

    step: Step
    data: Batches
    checkpoints: Checkpoints
    steps: int
    checkpoint_every: int
    optimizer: Mapping[str, Any]
    seed: int
    settings: Mapping[str, Any]
    done: int = 0
    restored: int | None = None
    on_line: Callable[[Line], None] = field(default=lambda line: None)
    on_checkpoint: Callable[[Path], None] = field(default=lambda path: None)

    def snapshot(self) -> Snapshot:
        """What the run goes on from now."""
        return Snapshot(
            step=self.done,
            parameters=self.step.parameters(),
            state=self.step.optimizer_state(),
            optimizer=self.optimizer,
            seed=self.seed,
            data=self.data.state(),
            configs=self.settings,
            computed_by=self.step.computed_by,
        )

    def train(self, stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Runs to the last step, or to the end of the one during which `stop` began to say so. Raises what steps and checkpoints raise."""
        begin, latest = time.perf_counter(), None
        waiting: deque[tuple[int, int, Result]] = deque()

        def read(keep: int) -> None:
            while len(waiting) > keep:
                number, epoch, result = waiting.popleft()
                line = Line(
                    step=number,
                    loss=finite(result.loss),
                    learning_rate=result.learning_rate,
                    gradient_norm=finite(result.gradient_norm),
                    epoch=epoch,
                    tokens=number * self.data.tokens_per_batch,
                    seconds=time.perf_counter() - begin,
                )
                self.on_line(line)

        while self.done < self.steps and not stop():
            epoch = self.data.cursor.epoch
            result = self.step(*self.data.peek())
            next(self.data)  # only now: a step that was refused has not used its batch up
            self.done += 1
            waiting.append((self.done, epoch, result))
            read(_LATE)
            latest = None
            if self.checkpoint_every and self.done % self.checkpoint_every == 0:
                read(0)
                latest = self._save()
        read(0)
        if latest is None:
            latest = self._save()
        return Outcome(self.done, self.done < self.steps, latest, time.perf_counter() - begin)

    def _save(self) -> Path:
        current = self.checkpoints.latest()
        if current is None or self.restored != self.done:  # else the run went on and had nothing to do
            current = self.checkpoints.save(self.snapshot())
        self.on_checkpoint(current)
        return current


def restore(run: Run) -> bool:
    """Goes to the latest checkpoint of the run's folder; False where there is none. Everything is checked before anything changes.

    Raises `StaleArtifact` for a checkpoint of another run and `WeightsError` for a damaged one.
    """
    found = run.checkpoints.load(run.snapshot())
    if found is None:
        return False
    assert found.data is not None, "a run saves where its data are"
    before = run.data.state()
    run.data.load_state(found.data)
    try:
        run.step.load(found.parameters, found.state)
        run.step.number = found.step
    except BaseException:
        run.data.load_state(before)
        raise
    run.done = run.restored = found.step
    return True


@contextlib.contextmanager
def stoppable(on_stop: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Within it Ctrl-C and SIGTERM are a wish that the given function tells of; the second one is an interrupt. Elsewhere than in the main thread it does
    nothing."""
    wished = False

    def wish(number: int, frame: FrameType | None) -> None:
        nonlocal wished
        del number, frame
        if wished:
            raise KeyboardInterrupt
        wished = True
        on_stop()

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: wished
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
