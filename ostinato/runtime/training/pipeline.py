"""Steps on their way: submitted one behind the other, their results taken in that order.

On a device that works by itself the host fills the inputs of a step while the one before it runs. It may do so as soon as those of that one have gone over,
which the copy back of one byte behind them tells; where a step is submitted only when the one before it is known there is nothing to wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from ostinato.ir.errors import OstinatoError
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.device import Ring
from ostinato.runtime.replays import Replays
from ostinato.runtime.runners import PlannedRunner
from ostinato.runtime.training.results import StepResult

__all__ = ["StepPipeline"]


class StepPipeline:
    """At most `depth` steps of a plan on their way; each brings back the outputs `read_back`. `skipped` counts settled steps that changed nothing."""

    def __init__(self, plan: EntryPlan, depth: int, read_back: Sequence[str]) -> None:
        self._plan, self._read_back, self.depth = plan, tuple(read_back), depth
        self._way: deque[StepResult] = deque()
        self._queue: Replays | None = None
        self._uploaded: Ring | None = None
        self._untold: BaseException | None = None
        self.skipped = 0

    @property
    def pending(self) -> int:
        """Steps whose results the host does not have yet."""
        return len(self._way)

    def submit(self, runner: PlannedRunner, inputs: Mapping[str, Array], result: StepResult) -> None:
        """Submits a step on these inputs, always of the same runner until `forget`. There is room: `pending` is below `depth`."""
        if self._queue is None:
            self._queue = runner.replays(self._read_back, self.depth)
            if self.depth > 1 and inputs:
                first = min(binding.range.offset for binding in self._plan.inputs)
                self._uploaded = runner.loaded.exchange.window.ring(first, first + 1, 1)
        if self._uploaded is not None and self._way:
            self._uploaded.wait(0)
        for name, array in inputs.items():
            runner.inputs[name][...] = array
        runner.loaded.exchange.give()
        if self._uploaded is not None:
            self._uploaded.fetch(0)
        self._queue.submit()
        self._way.append(result)

    def take(self, asked: StepResult | None = None) -> None:
        """Settles the first step that is on its way. What it met is for `raise_untold`, unless it is the one that was asked for, whose reader is told."""
        assert self._queue is not None, "a step is submitted before it is taken"
        found: Mapping[str, Array] | None = None
        error: BaseException | None = None
        try:
            found = self._queue.take()
        except OstinatoError as caught:
            error = caught
        first = self._way.popleft()
        self.settle(first, found, error)
        if first is not asked:
            self._untold = self._untold or first.failed

    def settle(self, result: StepResult, found: Mapping[str, Array] | None, error: BaseException | None = None) -> None:
        """Notes what came of a step."""
        result.settle(found, error)
        self.skipped += result.skipped

    def drain(self) -> None:
        """Settles all steps."""
        while self._way:
            self.take()

    def raise_untold(self) -> None:
        """Raises what the first step met that failed and that nobody asked for, once."""
        untold, self._untold = self._untold, None
        if untold is not None:
            raise untold

    def forget(self) -> None:
        """Nothing is on its way: the next step may be of another runner."""
        assert not self._way, "steps on their way are settled first"
        self._queue, self._uploaded = None, None
