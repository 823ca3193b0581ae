"""Scripts for ever smaller budgets of bytes, which depend on nothing but the model: whatever limit is asked for finds the same ones.

So a limit takes the cheapest of those below it, and more bytes never cost work: a higher limit has all the scripts of a lower one, and more. Budgets lie
between the peak where nothing runs twice and what no script goes below, evenly, and closer at the lower end. Scripts are searched for on some, the rungs; those
of a budget between two rungs are those of the lower one without the clones that it can do without. The scripts of a budget are found when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from ostinato.planner.problem import align_up
from ostinato.planner.recompute.cut import Bounds, Cuts
from ostinato.planner.recompute.model import RecomputeModel, Script
from ostinato.planner.recompute.trace import Trace, trimmed
from ostinato.planner.recompute.walk import POLICIES, walk

__all__ = ["Ladder"]

BETWEEN = 3
"""Parts that each step from rung to rung is cut into."""
HALVINGS = 2
"""Times that the last step down is cut in half."""
CHEAP = 1000
"""A script that adds less than this part to the work of the graph is not bettered."""
CUTS = 4
"""Steps at which one walk is given a cut: the peak, then each that a walk leaves above the budget."""
LARGE = 1500
"""In a model of more steps, such as many micro-batches are, less is tried."""


@dataclass(frozen=True, slots=True)
class _Effort:
    """What is tried: `rungs` budgets from the top to the bottom, for each a walk by so many `policies`, walks with `cuts` or none, and `kept` scripts that are
    gone on with."""

    rungs: int
    policies: int
    cuts: bool
    kept: int


FULL, LESS = _Effort(24, len(POLICIES), True, 3), _Effort(8, 2, False, 1)


class Ladder:
    """`budgets` in bytes, falling, the last one `least`, below which there is no script."""

    def __init__(self, model: RecomputeModel) -> None:
        self._model, self._whole = model, Trace(model, model.nothing)
        self._effort = LESS if len(model.turns) > LARGE else FULL
        self._bounds, self._cuts = Bounds(model, self._whole.place), Cuts(model)
        self.least = self._bounds.least
        span = self._whole.peak - self.least
        spared = (turn.workspace for turn in model.turns), (turn.spill for turn in model.turns)
        unit = gcd(*model.sizes, *(size for sizes in spared for size in sizes)) or 1  # divides all peaks
        parts = self._effort.rungs * BETWEEN
        rungs = {align_up(span * part // parts, unit) for part in range(0, parts, BETWEEN)}
        rungs |= {align_up(span // self._effort.rungs >> part, unit) for part in range(1, HALVINGS + 1)}
        above = rungs | {align_up(span * part // parts, unit) for part in range(BETWEEN, parts)}
        self.budgets = tuple(self.least + part for part in sorted(above, reverse=True) if part < span)
        self._below = dict(pairwise(self.budgets))
        self._rungs = {self.least + part for part in rungs}
        self._scripts: dict[int, list[Script]] = {}

    def work(self, budget: int) -> int:
        """What the scripts of a budget and of those below cost at least."""
        return self._bounds.work(budget)

    def scripts(self, budget: int) -> list[Script]:
        """Scripts that keep to one of the budgets, the cheapest first; none where none was found."""
        wanted = [budget]
        while wanted[-1] not in self._rungs and wanted[-1] not in self._scripts:
            wanted.append(self._below[wanted[-1]])
        for item in reversed(wanted):
            if item in self._scripts:
                continue
            given = self._found(item) if item in self._rungs else self._scripts[self._below[item]]
            self._scripts[item] = sorted(
                {trimmed(self._model, script, item): None for script in given}, key=self._model.cost
            )
        return self._scripts[budget]

    def _found(self, budget: int) -> list[Script]:
        model = self._model
        costs: dict[Script, int] = {}
        for script, peak in self._proposals(budget):
            if peak <= budget:
                costs[script] = model.cost(script)
                if costs[script] * CHEAP <= model.work:
                    break
        return sorted(costs, key=lambda script: costs[script])[: self._effort.kept]

    def _proposals(self, budget: int) -> Iterator[tuple[Script, int]]:
        """Scripts that may keep to a budget, with their peaks: walks by every policy, then walks with a cut at the peak and at every step that is still above
        the budget. Nothing more where the first two walks run clones without end."""
        ended = False
        for number, policy in enumerate(POLICIES[: self._effort.policies]):
            if number == 2 and not ended:
                return
            script = walk(self._model, budget, policy)
            if script is not None:
                ended = True
                yield script, Trace(self._model, script).peak
        for cut in self._cuts.at(self._whole.place, budget) if self._effort.cuts else ():
            cuts = {cut.turn: cut}
            while True:
                script = walk(self._model, budget, cuts=tuple(cuts.values()))
                if script is None:
                    break
                trace = Trace(self._model, script)
                yield script, trace.peak
                more = self._cuts.at(trace.place, budget)
                if trace.peak <= budget or trace.place in cuts or len(cuts) == CUTS or not more:
                    break
                cuts[trace.place] = more[0]
