"""A script run by run: which instance each run reads and makes, and the bytes alive during it.

Bytes are counted as `liveness` counts them, results in the bytes of dying operands included, so the peak of a script is the lower bound of the plan of the
rewritten graph in the same order (tests hold the two together).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from ostinato.planner.recompute.model import RecomputeModel, Script

__all__ = ["Instance", "Run", "Trace", "trimmed"]

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
    """One run of the step `turn`: its own, at its `place`, or a clone's, right before the step `place`."""

    turn: int
    place: int
    reads: list[Instance] = field(default_factory=list)
    makes: list[Instance] = field(default_factory=list)


class Trace:
    """The runs of a script, which of them are `clones`, bytes `alive` during each, the most of these, and the step at or right before which that is."""

    def __init__(self, model: RecomputeModel, script: Script) -> None:
        self.runs = [Run(turn, place) for place, again in enumerate(script) for turn in (*again, place)]
        self.clones = [at for at, run in enumerate(self.runs) if run.turn != run.place]
        self._link(model)
        self.alive = self._count(model)
        self.peak = max(self.alive, default=0)
        self.place = self.runs[self.alive.index(self.peak)].place if self.runs else 0

    def _link(self, model: RecomputeModel) -> None:
        """A read takes the latest instance of its storage."""
        latest: list[Instance | None] = [None] * len(model.sizes)
        for at, run in enumerate(self.runs):
            turn = model.turns[run.turn]
            for storage in turn.reads:
                instance = latest[storage]
                assert instance is not None, "the order of the model has every step below those it reads from"
                instance.touched.append(at)
                run.reads.append(instance)
            for storage in turn.makes:
                made = Instance(model.sizes[storage], [at], latest[storage])
                latest[storage] = made
                run.makes.append(made)

    def _count(self, model: RecomputeModel) -> list[int]:
        live = 0
        alive: list[int] = []
        for at, run in enumerate(self.runs):
            turn = model.turns[run.turn]
            live += sum(instance.size for instance in run.makes)
            during = live + turn.workspace + (turn.spill if run.turn != run.place else 0)
            if turn.takes:
                dying = {s for s, instance in zip(turn.reads, run.reads, strict=True) if instance.touched[-1] == at}
                during -= model.taken(turn, dying)
            alive.append(during)
            live -= sum(instance.size for instance in (*run.reads, *run.makes) if instance.touched[-1] == at)
        return alive

    def without(self, at: int) -> int:
        """About the most bytes alive above a clone's run if it were left out: what its readers read would live on, what only it reads would die sooner."""
        run = self.runs[at]
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
    """The script without the clones that the budget can do without, the dearest taken out first."""
    kept = dict(enumerate((place, turn) for place, again in enumerate(script) for turn in again))
    trace = Trace(model, script)
    changed = True
    while changed:
        changed = False
        for item in sorted(kept, key=lambda item: (-model.turns[kept[item][1]].work, item)):
            at = trace.clones[list(kept).index(item)]
            if len(kept) > ESTIMATED and trace.without(at) > budget:
                continue
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
