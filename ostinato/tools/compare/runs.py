"""A side run on the work: what it gave, whether it repeats itself, and what that took.

Each replay runs all cases from a fresh state. With `poison` everything that a run may not depend on is filled with NaN: arena, old inputs and outputs before
every step, caches before every replay. What is built on first use (kernels, captured graphs) is built before the first replay and timed apart.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ostinato.ir.types import Array
from ostinato.runtime.captured import CapturedRunner
from ostinato.runtime.device import Buffer, Device
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.executable import Executable
from ostinato.runtime.forward import TextExecutable
from ostinato.tools.compare.differences import bits_equal, first_changed
from ostinato.tools.compare.functions import answers_of
from ostinato.tools.compare.report import SideCounts
from ostinato.tools.compare.workload import Case, WorkStep, steps_of

__all__ = [
    "Answers",
    "Counted",
    "Key",
    "SideRun",
    "Unrepeated",
    "counts_of",
    "poison_memory",
    "run_function",
    "run_side",
]

Key = tuple[int, int, int]
"""Case, row and position."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a side gave: float32 [n, width], a row for each of `keys`, and which step of the side gave it."""

    keys: tuple[Key, ...]
    values: Array
    steps: tuple[int, ...]
    output: str

    @property
    def digest(self) -> str:
        """Hexadecimal sha256 of keys and bits."""
        found = hashlib.sha256(repr(self.keys).encode())
        found.update(np.ascontiguousarray(self.values).tobytes())
        return found.hexdigest()

    def rows(self, keys: Sequence[Key]) -> Array:
        """The values at these keys."""
        place = {key: index for index, key in enumerate(self.keys)}
        return self.values[[place[key] for key in keys]]


@dataclass(frozen=True, slots=True)
class Unrepeated:
    """The first value that a replay gave otherwise than the first one."""

    replay: int
    key: Key
    step: int
    index: int
    first: float
    found: float


@dataclass(frozen=True, slots=True)
class SideRun:
    """A side's answers, the time of each replay, the time of making it ready, and what a replay of all steps takes."""

    answers: Answers
    unrepeated: Unrepeated | None
    seconds: tuple[float, ...]
    ready_seconds: float
    counts: SideCounts | None


def run_side(
    executable: TextExecutable | EmbedExecutable, cases: Sequence[Case], *, replays: int, poison: bool
) -> SideRun:
    """Runs a side `replays` times. Raises what runs raise."""
    with counting(executable) as counted:
        return _run(executable, counted, cases, replays, poison)


def _run(
    executable: TextExecutable | EmbedExecutable, counted: Counted, cases: Sequence[Case], replays: int, poison: bool
) -> SideRun:
    begin = time.perf_counter()
    executable.prewarm()
    ready = time.perf_counter() - begin
    work = [(number, step) for number, case in enumerate(cases) for step in steps_of(executable, case)]
    steps = [step for _, step in work]
    if executable.mode != "reference":
        executable.run(steps[0].entry, steps[0].inputs, (steps[0].output,))  # pages are mapped, vendors are warm
    first: list[Array] = []
    unrepeated: Unrepeated | None = None
    seconds: list[float] = []
    keys = [(number, *place) for number, step in work for place in step.places]
    owners = tuple(index for index, step in enumerate(steps) for _ in step.places)
    for replay in range(replays):
        executable.reset_state()
        if poison:
            poison_memory(executable, state=True)
        counted.reset()
        found, spent = _replayed(executable, steps, poison)
        seconds.append(spent)
        if replay == 0:
            first = found
        elif unrepeated is None:
            unrepeated = _first_change(replay, keys, owners, np.concatenate(first), np.concatenate(found))
    answers = Answers(tuple(keys), np.concatenate(first).astype(np.float32, copy=False), owners, steps[0].output)
    return SideRun(answers, unrepeated, tuple(seconds), ready, counts_of(executable, steps, counted))


def run_function(
    function: Callable[..., Any], name: str, cases: Sequence[Case], like: Answers, *, replays: int
) -> SideRun:
    """Asks a function of the caller's for what another side gave. Raises what `answers_of` raises."""
    places: list[list[tuple[int, int]]] = [[] for _ in cases]
    for case, row, position in like.keys:
        places[case].append((row, position))
    keys = tuple((number, *place) for number, wanted in enumerate(places) for place in wanted)
    width = like.values.shape[1]
    first: Array | None = None
    unrepeated: Unrepeated | None = None
    seconds: list[float] = []
    for replay in range(replays):
        begin = time.perf_counter()
        found = np.concatenate(
            [answers_of(function, case, wanted, width, name) for case, wanted in zip(cases, places, strict=True)]
        )
        seconds.append(time.perf_counter() - begin)
        if first is None:
            first = found
        elif unrepeated is None:
            unrepeated = _first_change(replay, keys, tuple(key[0] for key in keys), first, found)
    assert first is not None, "there is at least one replay"
    answers = Answers(keys, first, tuple(key[0] for key in keys), like.output)
    return SideRun(answers, unrepeated, tuple(seconds), 0.0, None)


def poison_memory(executable: Executable, *, state: bool) -> None:
    """Fills with NaN (every byte 0xFF) what a run may not depend on: the arena, old inputs and outputs, and with `state` cache that it has not written itself.
    The state of training (parameters, moments) is no cache: a step reads all of it."""
    regions = executable.regions
    training = bool(executable.program.plan.parameters)
    for buffer in (regions.arena, regions.io, *((regions.state,) if state and not training else ())):
        buffer.fill(0xFF)


def _replayed(executable: Executable, steps: Sequence[WorkStep], poison: bool) -> tuple[list[Array], float]:
    spent, found = 0.0, []
    for step in steps:
        if poison:
            poison_memory(executable, state=False)
        begin = time.perf_counter()
        values = executable.run(step.entry, step.inputs, (step.output,))[step.output]
        spent += time.perf_counter() - begin
        found.append(values[: step.valid_rows])
    return found, spent


def _first_change(
    replay: int, keys: Sequence[Key], owners: Sequence[int], first: Array, found: Array
) -> Unrepeated | None:
    if bits_equal(first, found):
        return None
    row, index = first_changed(first, found)
    return Unrepeated(replay, keys[row], owners[row], index, float(first[row, index]), float(found[row, index]))


class Counted:
    """A device that counts what is allocated on it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.allocations = self.allocated_bytes = 0
        self.launched = self._device.launches

    def allocate(self, nbytes: int, alignment: int = 256, *, zeroed: bool = True) -> Buffer:
        """What `Device.allocate` gives."""
        self.allocations += 1
        self.allocated_bytes += nbytes
        return self._device.allocate(nbytes, alignment, zeroed=zeroed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


@contextmanager
def counting(executable: Executable) -> Iterator[Counted]:
    """Has an executable ask a device that counts for what its runners need from now on."""
    device = executable.device
    counted = Counted(device)
    executable.runners.device = cast(Device, counted)
    try:
        yield counted
    finally:
        executable.runners.device = device


def counts_of(executable: Executable, steps: Sequence[WorkStep], counted: Counted) -> SideCounts | None:
    """What the last replay took, and the program's bytes; None for the interpreter, which has no steps."""
    if executable.mode == "reference":
        return None
    plans = [executable.entries[step.entry].stats for step in steps]
    launches = submissions = counted.launches - counted.launched
    nodes = 0
    if executable.mode != "eager":
        launches = sum(plan.steps - plan.copies for plan in plans)
        submissions = sum(plan.steps for plan in plans) if executable.mode == "guarded" else len(steps)
    if executable.mode == "captured":
        submissions = 0
        for step in steps:
            runner = executable.runner(step.entry)
            assert isinstance(runner, CapturedRunner), "a captured executable has captured runners"
            submissions += sum(1 if part.graph is not None else part.count for part in runner.steps.segments)
            nodes += sum(part.graph.node_count for part in runner.steps.segments if part.graph is not None)
    memory = executable.memory
    return SideCounts(
        launches=launches,
        submissions=submissions,
        graph_nodes=nodes,
        steps=sum(plan.steps for plan in plans),
        copies=sum(plan.copies for plan in plans),
        strided_copies=sum(plan.strided_copies for plan in plans),
        allocations=counted.allocations,
        allocated_bytes=counted.allocated_bytes,
        arena_bytes=memory.arena,
        weight_bytes=memory.weights,
        device_bytes=memory.total,
    )
