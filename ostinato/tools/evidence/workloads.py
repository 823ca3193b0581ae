"""What a whole-model run is: the steps of a decoder as an `LLM` plans them, a prefill of some tokens or decode steps that go on by themselves.

d1    decode steps of one row behind a prompt
d8    the same of eight rows at once
p128  a prefill of 128 tokens into an empty cache, logits of the last one

All entries of the workloads are one program over the same weights, so that a candidate meets them as a user's program would. Of a training run there is one
workload, its step (`training.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ostinato.frontend.model import CacheShape, Model
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.memory import MemoryReport
from ostinato.runtime.sampling_inputs import sampling_inputs
from ostinato.stages import Entries, Traced, trace

__all__ = [
    "DEFAULT_WORKLOADS",
    "DecoderWork",
    "Paced",
    "Work",
    "Workload",
    "entries_of",
    "median_seconds",
    "parse_workloads",
]

DEFAULT_WORKLOADS = "d1,p128"
FILLED = 128
"""Tokens that a row has before its decode steps are timed."""
STEPS = 64
"""Decode steps behind a prompt, at most; then the row goes back to its prompt."""
CHECKED_TOKENS, CHECKED_STEPS = 16, 3
"""Tokens of a prompt, and decode steps from an empty cache, whose logits are held against the reference: few, since the reference is numpy."""
BURSTS = 5
"""Stretches of a process's time whose median counts."""
Paced = Callable[[int, Callable[[], float]], float]
"""Runs so many steps, and says the seconds of one by that clock."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`kind`: "d" for decode steps of `size` rows, "p" for a prefill of `size` tokens, "t" for a training step of `size` sequences of `length` tokens."""

    kind: str
    size: int
    length: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.size}{f'x{self.length}' if self.length else ''}"

    @property
    def rows(self) -> int:
        return self.size if self.kind == "d" else 1


def parse_workloads(text: str) -> tuple[Workload, ...]:
    """`d1,p128` as workloads; raises `ConfigError` for anything else, and for one that is named twice."""
    hint = f"write decode steps of N rows as dN and a prefill of N tokens as pN: {DEFAULT_WORKLOADS}"
    found: list[Workload] = []
    for part in text.split(","):
        kind, digits = part.strip()[:1], part.strip()[1:]
        if kind not in ("d", "p") or not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
            raise ConfigError(f"{part.strip()!r} is no workload", hint=hint)
        found.append(Workload(kind, int(digits)))
    if len(set(found)) != len(found):
        raise ConfigError(f"a workload is named twice in {text!r}", hint=hint)
    return tuple(found)


def entries_of(model: Model, workloads: Sequence[Workload], precision: str) -> Entries:
    """One entry a workload, named like it. Raises `ConfigError` for an encoder and for workloads that are longer than the model's context."""
    if model.family.encoder is not None:
        raise ConfigError(
            f"{model.family.name} is a family of encoders, which neither prefill nor decode",
            hint="tune a decoder; operators that encoders share with it gain by what it shows",
        )
    context = max(FILLED + STEPS + 2, *(workload.size for workload in workloads if workload.kind == "p"), 1)
    if context > model.config.context_limit:
        raise ConfigError(
            f"the workloads need {context} positions, the model has {model.config.context_limit}",
            hint="name a shorter prefill, or a model with a longer context",
        )
    cache = CacheShape(max(workload.rows for workload in workloads), context, 1)
    traced = {"p": trace(model, "step", cache=cache, precision=precision, sampling=True)}
    traced["d"] = trace(model, "decode", cache=cache, precision=precision)
    entries: dict[str, tuple[Traced, dict[str, int]]] = {}
    for workload in workloads:
        dims = {"R": workload.size} if workload.kind == "d" else {"N": workload.size, "R": 1}
        entries[str(workload)] = (traced[workload.kind], dims)
    return entries


class Work(Protocol):
    """A program with a candidate's options, loaded, as its workloads are run."""

    @property
    def memory(self) -> MemoryReport: ...

    def checked(self, workload: Workload) -> Array:
        """What is held against the reference, which is numpy: float32, of few tokens."""
        ...

    def full(self, workload: Workload) -> Array:
        """What comes of the workload's first step as it is timed, float32."""
        ...

    def seconds(self, workload: Workload, seconds: float, clock: Callable[[], float]) -> float:
        """Seconds a step: the median over some stretches of about `seconds` in all. Warms up first."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderWork:
    """Logits of a decoder with one entry a workload."""

    executable: TextExecutable

    @property
    def memory(self) -> MemoryReport:
        return self.executable.memory

    def checked(self, workload: Workload) -> Array:
        """Logits of a few tokens in the entry of a workload, float32 [steps, rows, V]: of one short prompt, or of decode steps from an empty cache."""
        self.executable.reset_state()
        tokens = _tokens(self.executable, workload.rows, max(CHECKED_TOKENS, CHECKED_STEPS))
        if workload.kind == "p":
            count = min(CHECKED_TOKENS, workload.size)
            return _logits(self.executable, workload, [Piece(0, tokens[0, :count], 0, True)])[None]
        steps = []
        for step in range(CHECKED_STEPS):
            pieces = [Piece(row, tokens[row, step : step + 1], step, True) for row in range(workload.rows)]
            steps.append(_logits(self.executable, workload, pieces))
        return np.stack(steps)

    def full(self, workload: Workload) -> Array:
        """Logits of the workload's first step as it is timed: float32 [rows, V]."""
        _fill_state(self.executable)
        return _logits(self.executable, workload, _pieces(self.executable, workload))

    def seconds(self, workload: Workload, seconds: float, clock: Callable[[], float]) -> float:
        """`Work.seconds`."""
        _fill_state(self.executable)
        plan = self.executable.entries[str(workload)]
        inputs = _inputs(self.executable, plan, _pieces(self.executable, workload))
        paced = _decodes if workload.kind == "d" else _prefills
        return median_seconds(paced(self.executable, plan.name, inputs), seconds, clock)


def _fill_state(executable: TextExecutable) -> None:
    """Seeded numbers in every cache: what decode steps in the middle of a text find."""
    state = executable.regions.state
    for number, slot in enumerate(executable.program.plan.state):
        values = np.random.default_rng([77, number]).standard_normal(slot.type.static_shape, dtype=np.float32)
        state.write(values.astype(slot.type.dtype.numpy), slot.range.offset)


def median_seconds(run: Paced, seconds: float, clock: Callable[[], float]) -> float:
    """Seconds a step of what `run` runs: the median over some stretches of about `seconds` in all. Warms up first."""
    run(1, clock)
    once = run(1, clock)
    count = max(1, min(STEPS, round(seconds / BURSTS / max(once, 1e-6))))
    return statistics.median(run(count, clock) for _ in range(BURSTS))


def _decodes(executable: TextExecutable, entry: str, inputs: dict[str, Array]) -> Paced:
    """Seconds a step of so many steps that go on by themselves from the end of the prompt."""

    def run(count: int, clock: Callable[[], float]) -> float:
        executable.run(entry, inputs, ("token",))
        begin = clock()
        executable.replay(entry, count)
        return (clock() - begin) / count

    return run


def _prefills(executable: TextExecutable, entry: str, inputs: dict[str, Array]) -> Paced:
    """Seconds a prefill of so many in a row."""

    def run(count: int, clock: Callable[[], float]) -> float:
        begin = clock()
        for _ in range(count):
            executable.run(entry, inputs, ("token",))
        return (clock() - begin) / count

    return run


def _pieces(executable: TextExecutable, workload: Workload) -> list[Piece]:
    """What the first step of a workload is given."""
    if workload.kind == "p":
        return [Piece(0, _tokens(executable, 1, workload.size)[0], 0, True)]
    tokens = _tokens(executable, workload.rows, 1)
    return [Piece(row, tokens[row], FILLED, True) for row in range(workload.rows)]


def _tokens(executable: TextExecutable, rows: int, count: int) -> Array:
    return np.random.default_rng(5).integers(0, executable.vocab_size, (rows, count), dtype=np.int32)


def _inputs(executable: TextExecutable, plan: EntryPlan, pieces: Sequence[Piece]) -> dict[str, Array]:
    packed, _ = pack(plan, pieces, executable.block_table())
    return {**packed, **sampling_inputs(plan, ())}


def _logits(executable: TextExecutable, workload: Workload, pieces: Sequence[Piece]) -> Array:
    plan = executable.entries[str(workload)]
    return executable.run(plan.name, _inputs(executable, plan, pieces), ("logits",))["logits"][: len(pieces)]
