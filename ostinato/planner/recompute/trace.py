"""A script run by run: which instance each run reads and makes, and the bytes alive during it.

Bytes are counted as `liveness` counts them, results in the bytes of dying operands included, so the peak of a script is the lower bound of the plan of the
rewritten graph in the same order (tests hold the two together).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ostinato.planner.recompute.model import RecomputeModel, Script, Turn

__all__ = ["Instance", "Run", "Trace", "trimmed"]

EFFORT = 500_000
"""Runs that are counted through, in all, to leave clones out of a script."""

ESTIMATED = 48
"""In a script of more clones than this, those that an estimate says are needed are not tried to be left out."""


@dataclass(slots=True)
class Instance:
    """Bytes that hold one storage from the first to the last of the runs that touch them; `before`: the instance that readers would take without this one."""

    size: int
    touched: list[int]
    before: Instance | None

    def last_before(self, at: int) -> int:
        """The last run above `at` that touches it."""
        return self.touched[bisect_left(self.touched, at) - 1]


@dataclass(slots=True)
class Run:
    """One run of a step: the instances that it reads and makes."""

    reads: list[Instance]
    makes: list[Instance]


class Trace:
    """The `runs` of a script as (step, place): a step's own at its place, or a clone's right before the step `place`; which of them are `clones`, bytes `alive`
    during each, the most of these, and the step at or right before which that is."""

    def __init__(self, model: RecomputeModel, script: Script) -> None:
        self._model = model
        self.runs = [(turn, place) for place, again in enumerate(script) for turn in (*again, place)]
        self.clones = [at for at, (turn, place) in enumerate(self.runs) if turn != place]
        self.alive = self._count()
        self.peak = max(self.alive, default=0)
        self.place = self.runs[self.alive.index(self.peak)][1] if self.runs else 0

    def _count(self) -> list[int]:
        turns, sizes = self._model.turns, self._model.sizes
        latest = [0] * len(sizes)  # of each storage, the instance that a reader takes
        first: list[int] = []
        last: list[int] = []
        stored: list[int] = []
        taking: list[tuple[int, Turn, list[int]]] = []
        for at, (index, _) in enumerate(self.runs):
            turn = turns[index]
            for storage in turn.reads:
                last[latest[storage]] = at
            if turn.takes:
                taking.append((at, turn, [latest[storage] for storage in turn.reads]))
            for storage in turn.makes:
                latest[storage] = len(first)
                first.append(at)
                last.append(at)
                stored.append(sizes[storage])
        change = [0] * (len(self.runs) + 1)
        for begin, end, size in zip(first, last, stored, strict=True):
            change[begin] += size
            change[end + 1] -= size
        alive = [
            live + turns[turn].workspace + (turns[turn].spill if turn != place else 0)
            for live, (turn, place) in zip(accumulate(change), self.runs, strict=False)
        ]
        for at, turn, reads in taking:
            dying = {storage for storage, read in zip(turn.reads, reads, strict=True) if last[read] == at}
            alive[at] -= self._model.taken(turn, dying)
        return alive

    @cached_property
    def _linked(self) -> list[Run]:
        """What every run reads and makes; a read takes the latest instance of its storage."""
        turns, sizes = self._model.turns, self._model.sizes
        runs: list[Run] = []
        latest: list[Instance | None] = [None] * len(sizes)
        for at, (turn, _) in enumerate(self.runs):
            run = Run([], [])
            for storage in turns[turn].reads:
                instance = latest[storage]
                assert instance is not None, "the order of the model has every step below those it reads from"
                instance.touched.append(at)
                run.reads.append(instance)
            for storage in turns[turn].makes:
                latest[storage] = made = Instance(sizes[storage], [at], latest[storage])
                run.makes.append(made)
            runs.append(run)
        return runs

    def without(self, at: int) -> int:
        """About the most bytes alive above a clone's run if it were left out: what its readers read would live on, what only it reads would die sooner."""
        run = self._linked[at]
        changes = [(read.last_before(at), -read.size) for read in run.reads if read.touched[-1] == at]
        for made in run.makes:
            if len(made.touched) > 1:
                assert made.before is not None, "a clone stands below its original"
                changes.append((made.before.last_before(at), made.size))
        changes.sort()
        most = extra = 0
        ends = [*(start for start, _ in changes[1:]), at - 1]
        for (start, change), end in zip(changes, ends, strict=False):
            extra += change
            most = max(most, max(self.alive[start + 1 : end + 1], default=0) + extra)
        return most


def trimmed(model: RecomputeModel, script: Script, budget: int) -> Script:
    """The script without the clones that the budget can do without, the dearest taken out first, as far as the effort lasts."""
    kept = dict(enumerate((place, turn) for place, again in enumerate(script) for turn in again))
    trace = Trace(model, script)
    effort, changed = EFFORT, True
    while changed:
        changed = False
        for item in sorted(kept, key=lambda item: (-model.turns[kept[item][1]].work, item)):
            at = trace.clones[list(kept).index(item)]
            if len(kept) > ESTIMATED and trace.without(at) > budget:
                continue
            effort -= len(trace.runs)
            if effort < 0:
                return script
            shorter = _script(len(script), (run for other, run in kept.items() if other != item))
            found = Trace(model, shorter)
            if found.peak <= budget:
                del kept[item]
                script, trace, changed = shorter, found, True
    return script


def _script(steps: int, runs: Iterable[tuple[int, int]]) -> Script:
    """The script of (place, step that runs once more) pairs."""
    script: list[list[int]] = [[] for _ in range(steps)]
    for place, turn in runs:
        script[place].append(turn)
    return tuple(map(tuple, script))
