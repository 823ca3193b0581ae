"""Clocks of steps: how long each step of an entry takes where it runs, and how long a run that nothing disturbs.

- On a host the native table runs one step a call, and the host's clock is read between the calls.
- On a GPU that is given steps an event is recorded behind each. The device waits until all of it is submitted, so that what is between two events is its own
  work and not the host's.
- In a captured graph no event can be placed by the interface that all drivers share. There a twin of the graph is captured with a kernel between the steps that
  writes down the device's time, and it is replayed: each step is timed inside of a replay, at its place in it.

A clock has a table of its own over the memory of the executable, whose tables and graphs stay as they are. What it takes to read a clock is measured on no
steps at all and taken off.
"""

from __future__ import annotations

import abc
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import cast

import numpy as np

from ostinato.ir.errors import ConfigError
from ostinato.ir.step import KernelCall
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.captured import CapturedSteps, Segment, named_ranges
from ostinato.runtime.device import Device, DeviceEvent, DeviceStream, Graph, OrderedDevice, ResolvedStep, Table
from ostinato.runtime.loaded import LoadedSteps
from ostinato.runtime.regions import Regions

__all__ = ["StepClock", "make_clock"]

_EMPTY = 128
"""Intervals without a step that are measured."""
_FIRST_TICKS = 100_000
_HELD = 0.02
"""Seconds over which the device's clock is compared with the host's."""
_HELD_FIRST, _HELD_A_STEP, _LONGEST = 2e-3, 20e-6, 0.5
"""Seconds that the device is held: to begin with, for each step that is submitted meanwhile (some times what that takes), and at most."""
_WORD = np.dtype(np.int64)


class StepClock(abc.ABC):
    """Times runs of an entry's loaded steps. Inputs are given before each; whoever calls puts memory back."""

    method = ""
    """How steps are timed, for people."""

    def __init__(self, loaded: LoadedSteps) -> None:
        self.loaded = loaded
        self.overhead = 0.0
        self.resolution = 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes times of steps differ from an undisturbed run."""
        return ()

    @abc.abstractmethod
    def steps(self) -> list[float]:
        """One run: seconds of each step, with what the clock itself takes."""
        ...

    @abc.abstractmethod
    def whole(self) -> float:
        """One run in which nothing is timed but its beginning and its end: seconds."""
        ...


def make_clock(
    program: ProgramPlan, entry: str, device: Device, regions: Regions, mode: str, capture: Sequence[str] | None
) -> StepClock:
    """The clock of an entry in mode "planned" or "captured". Raises `ConfigError` in any other, and what capturing raises."""
    if mode not in ("planned", "captured"):
        raise ConfigError(f"mode {mode} has no planned steps to time", node=entry, hint='profile clone(mode="planned")')
    loaded = LoadedSteps(program.entries[entry], device, regions)
    if regions.stream is None:
        return _HostClock(loaded)
    ordered = cast(OrderedDevice, device)
    if mode == "planned":
        return _EventClock(loaded, ordered, regions.stream)
    ranges = named_ranges(loaded.plan, capture)
    steps = CapturedSteps(program, loaded, regions, ranges)
    return _StampClock(loaded, ordered, regions.stream, steps)


class _HostClock(StepClock):
    """The host's own, between single steps of the table."""

    method = "one call of the native table a step, by the host's clock"

    def __init__(self, loaded: LoadedSteps) -> None:
        super().__init__(loaded)
        self.overhead = statistics.median(self._timed([(0, 0)] * _EMPTY))
        reads = [perf_counter() for _ in range(_EMPTY)]
        self.resolution = min((b - a for a, b in pairwise(reads) if b > a), default=0.0)

    def steps(self) -> list[float]:
        return self._timed([(position, 1) for position in range(len(self.loaded.resolved))])

    def _timed(self, calls: Sequence[tuple[int, int]]) -> list[float]:
        run, clock = self.loaded.table.run, perf_counter
        times = [clock()]
        for first, count in calls:
            run(first, count)
            times.append(clock())
        return [b - a for a, b in pairwise(times)]

    def whole(self) -> float:
        begin = perf_counter()
        self.loaded.table.run()
        return perf_counter() - begin


class _DeviceClock(StepClock):
    """What clocks of a GPU have in common: its kernels that stamp and hold, and how fast it counts."""

    def __init__(self, loaded: LoadedSteps, device: OrderedDevice, stream: DeviceStream) -> None:
        super().__init__(loaded)
        self._device, self._stream = device, stream
        self._begin, self._end = (device.make_event(timing=True) for _ in range(2))
        self._words = device.allocate(_WORD.itemsize * (2 * len(loaded.resolved) + _EMPTY + 1))
        self._rate = self._ticks_a_second()

    def whole(self) -> float:
        self._begin.record(self._stream)
        self._submit_whole()
        self._end.record(self._stream)
        self.loaded.table.finish()
        return self._begin.milliseconds_to(self._end) * 1e-3

    @abc.abstractmethod
    def _submit_whole(self) -> None: ...

    @property
    def _early(self) -> int:
        """Steps that may start before the one in front of them is over, where nothing stands between."""
        return sum(step.launch is not None and step.launch.early for step in self.loaded.resolved)

    def _early_note(self) -> tuple[str, ...]:
        if not self._early:
            return ()
        return (f"{self._early} steps may start early in an undisturbed run; none does while steps are timed",)

    def _stamp(self, word: int) -> ResolvedStep:
        """The step that writes the time to a word."""
        stamp, _ = self._device.stopwatch()
        return _resolved(stamp, ((self._words.address + _WORD.itemsize * word, _WORD.itemsize),))

    def _holding(self, ticks: int) -> ResolvedStep:
        _, hold = self._device.stopwatch(ticks)
        return _resolved(hold, ())

    def _times(self, words: int) -> Sequence[int]:
        """What the first words say."""
        return [int(word) for word in self._words.read(_WORD, (words,))]

    def _ticks_a_second(self) -> float:
        """How fast the device counts, by the host's clock: of two waits, so that what comes before and after either is not counted."""
        short = self._waited(_FIRST_TICKS)
        long = self._waited(max(int(_HELD * short[0] / short[1]), 2 * _FIRST_TICKS))
        return (long[0] - short[0]) / (long[1] - short[1])

    def _waited(self, ticks: int) -> tuple[int, float]:
        """Ticks that a wait took, and seconds of the host: the best of three."""
        table = self._device.make_table([self._stamp(0), self._holding(ticks), self._stamp(1)], self._stream)
        found: list[tuple[int, float]] = []
        for _ in range(3):
            begin = perf_counter()
            table.run()
            seconds = perf_counter() - begin
            first, last = self._times(2)
            found.append((last - first, seconds))
        return min(found, key=lambda pair: pair[1])


class _EventClock(_DeviceClock):
    """Events behind the steps of a submission that the device begins when all of it is there."""

    method = "an event of the device behind each step, all of them submitted before the first one starts"

    def __init__(self, loaded: LoadedSteps, device: OrderedDevice, stream: DeviceStream) -> None:
        super().__init__(loaded, device, stream)
        count = len(loaded.resolved)
        self._events = [device.make_event(timing=True) for _ in range(max(count, _EMPTY) + 1)]
        ticks = int(min(_HELD_FIRST + _HELD_A_STEP * count, _LONGEST) * self._rate)
        self._hold = device.make_table([self._holding(ticks)], stream)
        empty = self._run([(0, 0)] * _EMPTY)
        self.overhead = statistics.median(empty)
        self.resolution = _smallest(empty)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._early_note()

    def steps(self) -> list[float]:
        return self._run([(position, 1) for position in range(len(self.loaded.resolved))])

    def _submit_whole(self) -> None:
        self.loaded.table.enqueue()

    def _run(self, calls: Sequence[tuple[int, int]]) -> list[float]:
        events: Sequence[DeviceEvent] = self._events
        enqueue, stream = self.loaded.table.enqueue, self._stream
        self._hold.enqueue()
        events[0].record(stream)
        for place, (first, count) in enumerate(calls, 1):
            enqueue(first, count)
            events[place].record(stream)
        self.loaded.table.finish()
        return [events[place].milliseconds_to(events[place + 1]) * 1e-3 for place in range(len(calls))]


class _StampClock(_DeviceClock):
    """Stamps between the nodes of a captured twin."""

    method = "a kernel that writes down the device's time between the nodes of a captured twin of the graph, inside its replays"

    def __init__(
        self, loaded: LoadedSteps, device: OrderedDevice, stream: DeviceStream, captured: CapturedSteps
    ) -> None:
        super().__init__(loaded, device, stream)
        self._captured = captured
        twin = _Twin(loaded, captured.segments)
        rows = [self._stamp(word) if step is None else step for word, step in twin.rows]
        self._table = device.make_table(rows, stream)
        self._graphs = [
            self._table.capture(first, count) if captured else (first, count) for first, count, captured in twin.ranges
        ]
        self._between, self._count = twin.between, twin.words
        empty = device.make_table([self._stamp(word) for word in range(_EMPTY + 1)], stream)
        replayed = empty.capture()
        ticks = self._ticks([replayed], empty, [(word, word + 1) for word in range(_EMPTY)], _EMPTY + 1)
        self.overhead = statistics.median(ticks)
        self.resolution = _smallest(ticks)

    @property
    def notes(self) -> tuple[str, ...]:
        loose = [segment.count for segment in self._captured.segments if segment.graph is None]
        note = f"{sum(loose)} steps are in no graph: they are submitted between the graphs, as the executable does it"
        return (*self._early_note(), *((note,) if loose else ()))

    def steps(self) -> list[float]:
        return self._ticks(self._graphs, self._table, self._between, self._count)

    def _submit_whole(self) -> None:
        self._captured.enqueue()

    def _ticks(
        self, parts: Sequence[Graph | tuple[int, int]], table: Table, between: Sequence[tuple[int, int]], words: int
    ) -> list[float]:
        for part in parts:
            if isinstance(part, tuple):
                table.enqueue(*part)
            else:
                part.enqueue()
        table.finish()
        times = self._times(words)
        return [(times[after] - times[before]) / self._rate for before, after in between]


class _Twin:
    """The rows of a table in which a stamp stands before and behind every step of a segment: (word, None) for a stamp, (0, step) for a step.

    `ranges` are the segments in it (first, count, captured), `between` the words of the stamps around each step. No step starts early behind a stamp.
    """

    def __init__(self, loaded: LoadedSteps, segments: Sequence[Segment]) -> None:
        self.rows: list[tuple[int, ResolvedStep | None]] = []
        self.ranges: list[tuple[int, int, bool]] = []
        self.between: list[tuple[int, int]] = []
        self.words = 0
        for segment in segments:
            first = len(self.rows)
            self._stamp()
            for step in loaded.resolved[segment.first : segment.first + segment.count]:
                launch = None if step.launch is None else replace(step.launch, early=False)
                self.rows.append((0, replace(step, launch=launch)))
                self.between.append((self.words - 1, self.words))
                self._stamp()
            self.ranges.append((first, len(self.rows) - first, segment.graph is not None))

    def _stamp(self) -> None:
        self.rows.append((self.words, None))
        self.words += 1


def _resolved(call: KernelCall, operands: tuple[tuple[int, int], ...]) -> ResolvedStep:
    return ResolvedStep(call.node, call.kind, call.kernel, operands, call.params, launch=call.launch)


def _smallest(intervals: Sequence[float]) -> float:
    """The finest difference that a clock told between intervals that are alike; their smallest where it told none."""
    distinct = sorted({interval for interval in intervals if interval > 0})
    gaps = [b - a for a, b in pairwise(distinct)]
    return min((gap for gap in gaps if gap > 1e-12), default=distinct[0] if distinct else 0.0)
