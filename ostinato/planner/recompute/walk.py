"""Runs the steps of a model under a budget of bytes: what does not fit is dropped, and computed again when its next reader comes.

The future is known, so what is dropped first is what frees many bytes for a long time and costs little to compute again. Values that nobody reads any more
linger while there is room: something dropped later may be computed from them. Operands of the step that runs stay, but those that one of its results may lie in
can be dropped by that. What a walk gives is a script; whether it keeps the budget is for its `Trace` to say, since a step that needs more than the budget runs
all the same.

Cuts (`cut.py`) may be handed in: what one drops goes right after its last reader before the step of the cut, and what it keeps lingers until then. A walk
whose clones are far more than the steps of the graph, or cost far more, gives up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from ostinato.planner.recompute.cut import Cut
from ostinato.planner.recompute.model import RecomputeModel, Script, Turn

__all__ = ["POLICIES", "Policy", "walk"]

CLONES_PER_STEP = 1
"""Clones that a walk may run for each step of the graph before it gives up."""
MORE_WORK = 1
"""What a walk's clones may cost, as a multiple of all other work, before it gives up."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How bad it is to drop something, given what it costs to compute it again, the bytes it frees, and the steps until it is read.

    `lasting`: of the values that it would be computed from, only those count as being there that are read at that time or later anyhow.
    """

    badness: Callable[[int, int, int], float]
    lasting: bool


def _worth(cost: int, freed: int, steps: int) -> float:
    return cost / (freed * steps)


def _cheap(cost: int, freed: int, steps: int) -> float:
    del steps
    return cost / freed


def _far(cost: int, freed: int, steps: int) -> float:
    del cost, freed
    return 1 / steps


POLICIES = tuple(Policy(badness, lasting) for lasting in (False, True) for badness in (_worth, _cheap, _far))


def walk(model: RecomputeModel, budget: int, policy: Policy = POLICIES[0], cuts: Sequence[Cut] = ()) -> Script | None:
    """The script that keeps to `budget` bytes where it can; None where it would run clones without end, or one of a step that must not run twice."""
    return _Walk(model, budget, policy, cuts).run()


@dataclass(slots=True)
class _Frame:
    """A step that waits for its operands. Those that were made for it stay, those that were there before may be dropped once and made again."""

    index: int
    turn: Turn
    brought: set[int] = field(default_factory=set)


class _Walk:
    def __init__(self, model: RecomputeModel, budget: int, policy: Policy, cuts: Sequence[Cut]) -> None:
        self.model, self.budget, self.policy, self.cuts = model, budget, policy, cuts
        self.never = len(model.turns)  # where a storage is read next that nobody reads any more
        self.ahead = 0  # the first step that has not run
        # the first step ahead that reads each storage
        self.next = [uses[0] if uses else self.never for uses in model.uses]
        self.load = 0
        self.resident: dict[int, None] = {}
        self.leaving: set[int] = set()  # operands that the step which runs now overwrites
        self.dropped: set[int] = set()  # storages that were made, are not there and are read again
        self.stack: list[_Frame] = []
        self.script: list[list[int]] = [[] for _ in model.turns]

    def run(self) -> Script | None:
        turns = self.model.turns
        clones = work = 0
        most = MORE_WORK * self.model.work
        for now, step in enumerate(turns):
            self.stack = [_Frame(now, step)]
            while self.stack:
                frame = self.stack[-1]
                missing = next((storage for storage in frame.turn.reads if storage not in self.resident), None)
                if missing is not None:
                    frame.brought.add(missing)
                    maker = self.model.maker[missing]
                    if not turns[maker].may_run(now):
                        return None  # a cut let go what only stays where all of it is kept, or it was dropped for a reader that comes too late
                    self.stack.append(_Frame(maker, turns[maker]))
                elif len(self.stack) == 1:
                    self._pass(now)
                    self._execute(frame.turn, extra=0)
                elif clones == CLONES_PER_STEP * len(turns) or work > most:
                    return None
                else:
                    clones += 1
                    work += frame.turn.work
                    self.script[now].append(frame.index)
                    self._execute(frame.turn, extra=frame.turn.spill)
            for cut in self.cuts:
                for storage in cut.dropped.intersection((*step.reads, *step.makes)):
                    if now < cut.turn < self.next[storage] < self.never:
                        self._release(storage)
        return tuple(map(tuple, self.script))

    def _pass(self, now: int) -> None:
        """The step has its operands: what it reads is not ahead any more."""
        self.ahead = now + 1
        for storage in self.model.turns[now].reads:
            uses = self.model.uses[storage]
            place = bisect_left(uses, self.ahead)
            self.next[storage] = uses[place] if place < len(uses) else self.never
            if self.next[storage] == self.never:
                self.dropped.discard(storage)

    def _execute(self, turn: Turn, *, extra: int) -> None:
        """Runs the step on top of the stack."""
        sizes = self.model.sizes
        self.stack.pop()
        self._make_room(turn, sum(sizes[storage] for storage in turn.makes) + turn.workspace + extra)
        for storage in self.leaving:
            self._release(storage)
        self.leaving = set()
        for storage in turn.makes:
            if storage not in self.resident:
                self.load += sizes[storage]
            self.resident[storage] = None
            self.dropped.discard(storage)

    def _release(self, storage: int) -> None:
        if storage in self.resident:
            del self.resident[storage]
            self.load -= self.model.sizes[storage]
            if self.next[storage] != self.never:
                self.dropped.add(storage)

    def _make_room(self, turn: Turn, need: int) -> None:
        """Drops until `need` more bytes are within the budget, as far as there is something to drop."""
        sizes = self.model.sizes
        held = {storage for frame in self.stack for storage in frame.brought}
        while self.load + need > self.budget:
            wanted = self._wanted()
            idle = {s for s in self.resident if s not in held and s not in wanted and self.next[s] == self.never}
            dead = idle.difference(turn.reads)
            excess = self.load + need - self.model.taken(turn, idle | self.leaving) - self.budget
            if excess <= 0:
                return
            if excess > sum(sizes[storage] for storage in dead):
                choice = self._cheapest(turn, held | idle, wanted, dead)
                if choice is not None:
                    if choice in turn.reads:
                        self.leaving.add(choice)
                    else:
                        self._release(choice)
                    continue
            for storage in sorted(dead, key=self._worth_keeping):
                if excess > 0:
                    self._release(storage)
                    excess -= sizes[storage]
            return

    def _cheapest(
        self, turn: Turn, kept: Container[int], wanted: Mapping[int, int], dead: Container[int]
    ) -> int | None:
        """The storage that is least bad to drop; one that a waiting step has as an operand only where there is no other."""
        waited = {storage for frame in self.stack for storage in frame.turn.reads}
        taken = {operand for _, operand in turn.takes}
        choices: list[tuple[bool, float, int, int]] = []
        for storage in self.resident:
            cost = self.model.turns[self.model.maker[storage]].cost
            pinned = storage in turn.reads and storage not in taken
            if cost is None or pinned or storage in kept or storage in self.leaving:
                continue
            use = min(self.next[storage], wanted.get(storage, self.never))
            choices.append((storage in waited, self._badness(storage, use, cost, 0), storage, use))
        best: tuple[bool, float, int] | None = None
        for wait, least, storage, use in sorted(choices):  # at least so bad: its own step has to run again
            if best is not None and best[:2] <= (wait, least):
                break
            again = self._again(storage, use, dead)
            if again is not None and again[1] < self.model.sizes[storage]:
                found = (wait, self._badness(storage, use, *again), storage)
                best = found if best is None else min(best, found)
        return None if best is None else best[2]

    def _badness(self, storage: int, use: int, cost: int, held: int) -> float:
        return self.policy.badness(cost, self.model.sizes[storage] - held, max(use - self.ahead, 0) + 1)

    def _again(self, storage: int, use: int, dead: Container[int]) -> tuple[int, int] | None:
        """What it costs to make a dropped storage again, and the bytes of dead values that would have to stay for that; None where it cannot be made."""
        model = self.model
        cost = 0
        held: set[int] = set()
        steps = {model.maker[storage]}
        stack = list(steps)
        while stack:
            turn = model.turns[stack.pop()]
            if turn.cost is None or not turn.may_run(use):
                return None
            cost += turn.cost
            for read in turn.reads:
                maker = model.maker[read]
                if self._is_there(read) and (not self.policy.lasting or self._lasts(read, use)):
                    if read in dead:
                        held.add(read)
                elif maker not in steps:
                    steps.add(maker)
                    stack.append(maker)
        return cost, sum(model.sizes[read] for read in held)

    def _worth_keeping(self, storage: int) -> tuple[float, int]:
        """How much work a byte of a dead value stands for; nothing where no value made from it is read any more."""
        model = self.model
        made = (result for step in model.uses[storage] if step < self.ahead for result in model.turns[step].makes)
        if all(self.next[result] == self.never for result in made):
            return 0, storage
        turn = model.turns[model.maker[storage]]
        again = sum(model.turns[model.maker[read]].work for read in turn.reads if not self._is_there(read))
        return (turn.work + again) / model.sizes[storage] if turn.repeatable else inf, storage

    def _is_there(self, storage: int) -> bool:
        return storage in self.resident and storage not in self.leaving

    def _lasts(self, storage: int, use: int) -> bool:
        """Whether a storage is there at the step `use` anyhow."""
        uses = self.model.uses[storage]
        return (bool(uses) and uses[-1] >= use) or self.model.turns[self.model.maker[storage]].cost is None

    def _wanted(self) -> dict[int, int]:
        """Storages that something dropped is to be computed from -> the step that this is for."""
        model = self.model
        found: dict[int, int] = {}
        for cut in self.cuts:
            if self.ahead <= cut.turn:
                found.update(dict.fromkeys(cut.kept, cut.turn))
        dropped = [(self.next[s], s) for s in (*self.dropped, *self.leaving) if self.next[s] != self.never]
        steps: set[int] = set()
        for use, storage in sorted(dropped):  # soonest first, so that a step which was met already has nothing to add
            stack = [model.maker[storage]]
            while stack:
                step = stack.pop()
                if step in steps:
                    continue
                steps.add(step)
                for read in model.turns[step].reads:
                    if self._is_there(read):
                        found[read] = min(found.get(read, self.never), use)
                    else:
                        stack.append(model.maker[read])
        return found
