"""The culprits of one difference, in the order in which they are asked for: what a side says of itself, what a walk over its steps sees, what is gone
without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostinato.ir.errors import OstinatoError
from ostinato.tools.bisect.engine import Trials
from ostinato.tools.bisect.naming import Naming
from ostinato.tools.bisect.report import Culprit
from ostinato.tools.bisect.steps import Seen, first_step, unproven, walked
from ostinato.tools.bisect.subject import Contract, Outputs, Subject
from ostinato.tools.bisect.without import Without
from ostinato.tools.compare.workload import WorkStep

__all__ = ["Culprits"]

_PLANNED = ("planned", "captured", "guarded")
_RUNS = 3
"""Of a configuration that may not repeat itself."""
_Question = Callable[[Seen], list[Culprit]]


class Culprits:
    """Asks for the culprits of one difference: between the `good` outputs of `left` and those of `right`, which break the contract."""

    def __init__(
        self,
        left: Subject,
        right: Subject,
        work: tuple[WorkStep, ...],
        good: Outputs,
        contract: Contract,
        trials: Trials,
        told: Callable[[str], None],
    ) -> None:
        self._left, self._right, self._work, self._told, self._trials = left, right, work, told, trials
        self._contract = contract
        self._naming = Naming(right, work, told)
        self._without = Without(left, right, good, contract, trials, self._naming)

    def refused(self, error: OstinatoError) -> tuple[Culprit, ...]:
        """Of a right side that raised."""
        return (self._naming.refused(error),)

    def unrepeated(self, subject: Subject) -> tuple[Culprit, ...]:
        """Of a side that does not repeat itself: the first node that is seen not to; before it, where that is why, two tenants of the same bytes."""
        node = Naming(subject, self._work, self._told).unrepeated()
        if subject is not self._right or subject.mode not in _PLANNED:
            return (node,)
        self._without.times = _RUNS
        places: list[_Question] = [self._without.bytes, self._without.in_place, self._without.early]
        named = self._first([*self._captured(), *places], Seen("", 0))
        return (*named, node, *self._naming.unproven(unproven(self._right.program)))

    def found(self) -> tuple[tuple[Culprit, ...], tuple[int, str] | None]:
        """The culprits, those most to the point first, and the first node that differs, with the number of the run."""
        culprits = self._naming.audited()
        if not culprits and not self._trials.asked(
            "memory of its own", lambda: self._without.wrong(self._right.again())
        ):
            text = "another executable of the same program agrees: something happened to the memory of this one"
            mend = "use exe.clone(), or compile again"
            return (self._naming.culprit("address", text, workaround=mend),), None
        self._told("looking at every node")
        first = self._without.first = first_step(self._left, self._right, self._work, self._contract.of_results)
        if culprits:
            return tuple(culprits), first
        seen = Seen("", 0)
        if self._right.mode != "reference":  # eager runs the same rows
            self._told("walking the steps")
            seen = walked(self._right.executable, self._work)
        named = self._first(self._questions(seen), seen) or self._without.several(seen)
        return (*named, *self._naming.nan(seen), *self._naming.unproven(unproven(self._right.program))), first

    def _questions(self, seen: Seen) -> list[_Question]:
        """What to ask, likeliest first: what the walk saw comes before what nobody saw."""
        ask = self._without
        planned = self._right.mode in _PLANNED
        places: list[_Question] = [ask.bytes, ask.in_place, ask.early] if planned else []
        if seen.spoilt is not None and planned:
            return [*places, ask.rows, ask.passes]
        if seen.wrong is not None:
            return [*places[1:2], ask.rows, ask.passes, *places[:1], *places[2:]]
        return [*self._captured(), *places, ask.passes, ask.rows]

    def _captured(self) -> list[_Question]:
        return [self._without.capture] if self._right.mode == "captured" else []

    @staticmethod
    def _first(questions: Sequence[_Question], seen: Seen) -> list[Culprit]:
        """The answer to the first question that has one."""
        return next((named for question in questions if (named := question(seen))), [])
