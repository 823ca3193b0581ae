"""Why sides differ: the nodes that are found at fault, each looked for once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ostinato.runtime.executable import Executable
from ostinato.tools.compare.diverge import Divergence, Seen, first_divergence
from ostinato.tools.compare.examine import Examination, examine, find_unrepeatable
from ostinato.tools.compare.judgement import tolerance_of
from ostinato.tools.compare.report import AddressFinding, Cause, NonFinite, OperatorTable, PairVerdict
from ostinato.tools.compare.sides import Side, Sides
from ostinato.tools.compare.summary import places_anew
from ostinato.tools.compare.verdicts import Ran, is_exact
from ostinato.tools.compare.workload import WorkStep

__all__ = ["Causes", "affordable"]

_BUDGET = 400_000_000
"""Weights times steps that references are asked for, of larger models those of the first steps only: numpy takes a second for some hundred million."""
_OTHER_PLANS = ("no-reuse", "guarded")
_LEAST_REPLAYS = 3
_MOST_FINDINGS = 4
_OTHERWISE = "every node up to there gives what its reference gives: the graphs compute different things (`ostinato bisect` finds the pass)"
_ROUNDED = "the graph is the same and every node up to there gives what its reference gives: roundings add up to more than is allowed (`--tolerance`)"
_OTHER_DTYPES = "every node up to there gives what its reference gives: one side rounds where the other does not, by more than is allowed (`--tolerance`)"


def affordable(executable: Executable) -> int:
    """Steps that numpy can work out in some seconds, one at least: its time goes with the weights that a step reads."""
    elements = sum(slot.type.elements for slot in executable.program.plan.weights)
    return max(1, _BUDGET // max(1, elements))


class Causes:
    """Looks for what is wrong with sides. `steps` gives the work of an executable, `tolerance` replaces that of the precision, `said` is told what is done."""

    def __init__(
        self,
        sides: Sides,
        steps: Callable[[Any], list[WorkStep]],
        poison: bool,
        tolerance: float | None,
        said: Callable[[str], None],
    ) -> None:
        self._sides, self._steps_of, self._poison, self._tolerance, self._said = sides, steps, poison, tolerance, said
        self._examined: dict[tuple[int, str], tuple[int, Examination]] = {}
        self.found: list[Cause] = []
        self.non_finite: list[NonFinite] = []
        self.addresses: list[AddressFinding] = []

    def divergence(self, pair: PairVerdict, left: Ran, right: Ran, until: int) -> PairVerdict:
        """The pair with the first node at which it parts within the first `until` steps, and what is wrong with the programs of its sides."""
        native = sorted((ran for ran in (left, right) if ran.native), key=places_anew)
        exact = is_exact(left, right)
        causes = [] if exact else [self.examine(ran, until).cause for ran in native]
        for ran in native:
            self._audit(ran)
        if left.executable is None or right.executable is None:
            return pair.model_copy(update={"note": "a function has no nodes"})
        cause = causes[0] if causes else None
        if len(native) == 1 and left.identity == right.identity and cause is not None and cause.kind == "kernel":
            # the oracle of the same program: a node that is wrong by itself is where they part
            expected, found = cause.expected, cause.found
            values = (found, expected) if left.native else (expected, found)
            return _with(pair, Divergence(cause.place, *values))
        self._said(f"looking for the first node at which {left.name} and {right.name} part")
        tolerance = 0.0 if exact else tolerance_of((left.precision, right.precision), self._tolerance)
        seen = [Seen(self._sides, ran.side, self._poison) for ran in (left, right)]
        mine, theirs = (self._steps(ran)[:until] for ran in (left, right))
        parted = first_divergence(seen[0], seen[1], mine, theirs, tolerance)
        captured = [item.captured for item in seen]
        within = parted.place is not None and captured[0] != captured[1]
        if parted.place is None and any(captured):
            # not what captures do: what the steps do, in the places that they have
            seen = [Seen(self._sides, _submitted(ran.side), self._poison) for ran in (left, right)]
            parted = first_divergence(seen[0], seen[1], mine, theirs, tolerance)
        if exact:
            for ran in native:
                self._examine_exactly(ran, until, parted)
            if within and not self.found:
                self.found.append(_captured(parted, left.name if captured[0] else right.name, captured[0]))
        for ran in native:
            if not (self.found or self.non_finite or self.addresses):
                self.unrepeatable(ran, _LEAST_REPLAYS, until)
        blamed = self.found or self.non_finite or self.addresses
        if not exact and not blamed and parted.place is not None:
            same, alike = left.identity == right.identity, left.precision == right.precision
            parted = replace(parted, note=_ROUNDED if same else _OTHERWISE if alike else _OTHER_DTYPES)
        return _with(pair, parted)

    def _examine_exactly(self, ran: Ran, until: int, parted: Divergence) -> None:
        """What is wrong at the node where two ways to run one program part: only that node's reference is asked. All nodes' where that says nothing."""
        place = parted.place
        if place is not None:
            work = self._steps(ran)[: place.step + 1]
            only = (place.step, place.node)
            self._keep(examine(self._fresh(ran.side), ran.name, work, poison=self._poison, only=only))
        if not (self.found or self.non_finite or self.addresses):
            self.examine(ran, until)

    def _keep(self, found: Examination) -> None:
        if found.cause is not None and not _known(found.cause, self.found):
            self.found.append(found.cause)
        if found.non_finite is not None and found.non_finite.place not in [item.place for item in self.non_finite]:
            self.non_finite.append(found.non_finite)

    def examine(self, ran: Ran, steps: int) -> Examination:
        """A side's program, node by node, over that many steps of the work at least."""
        plan = ran.side.mode if ran.side.mode in _OTHER_PLANS else "planned"
        key = (id(self._sides.program(ran.side).program), plan)
        done, known = self._examined.get(key, (0, None))
        if known is not None and done >= steps:
            return known
        self._said(f"checking every node of {ran.name} against its reference")
        work = self._steps(ran)[:steps]
        found = examine(self._fresh(ran.side), ran.name, work, poison=self._poison)
        if found.non_finite is None and not np.isfinite(ran.run.answers.values).all() and self._poison:
            unread = examine(self._fresh(ran.side), ran.name, work, state_poison=True)
            found = Examination(found.operators, found.cause, unread.non_finite)
        self._examined[key] = (steps, found)
        self._keep(found)
        return found

    def unrepeatable(self, ran: Ran, replays: int, steps: int) -> None:
        """The node that does not give the same twice within the first steps, where there is one."""
        if ran.executable is None or not ran.native:
            return
        self._said(f"looking for a node of {ran.name} that does not repeat itself")
        work = self._steps(ran)[:steps]
        found = find_unrepeatable(self._fresh(ran.side), ran.name, work, max(_LEAST_REPLAYS, replays))
        if found is not None and not _known(found, self.found):
            self.found.append(found)

    def _audit(self, ran: Ran) -> None:
        """Addresses and numbers of the executable that ran which no longer hold."""
        if ran.executable is None or ran.executable.mode not in ("planned", "captured"):
            return
        for entry in dict.fromkeys(step.entry for step in self._steps(ran)):
            findings = ran.executable.audit(entry).findings
            shown = [
                AddressFinding(side=ran.name, kind=item.kind, name=item.name, message=item.message, hint=item.hint)
                for item in findings[:_MOST_FINDINGS]
            ]
            self.addresses += [found for found in shown if found not in self.addresses]
            if len(findings) > len(shown):
                more = f"{len(findings) - len(shown)} more findings of entry {entry}"
                hint = "`ostinato audit` lists them all"
                self.addresses.append(AddressFinding(side=ran.name, kind="audit", name=entry, message=more, hint=hint))
            if findings:
                return

    def table(self, ran: Ran) -> OperatorTable:
        """The errors of a side's operators over the first steps of the work."""
        assert ran.executable is not None, "it is asked of executables"
        steps = min(2, affordable(ran.executable), len(self._steps(ran)))
        return OperatorTable(side=ran.name, steps=steps, rows=self.examine(ran, steps).operators)

    def _fresh(self, side: Side) -> Executable:
        """A new executable that is walked: over the plan of its side."""
        opened = self._sides.open(side)
        return opened if opened.mode == "planned" else opened.clone("planned")

    def _steps(self, ran: Ran) -> list[WorkStep]:
        assert ran.executable is not None, "it is asked of executables"
        return self._steps_of(ran.executable)


def _submitted(side: Side) -> Side:
    """The side with its steps submitted one by one."""
    return replace(side, mode="planned", capture=None) if side.mode in ("auto", "captured") else side


def _captured(found: Divergence, side: str, left: bool) -> Cause:
    assert found.place is not None
    within, outside = (found.left, found.right) if left else (found.right, found.left)
    return Cause(kind="capture", side=side, place=found.place, expected=outside, found=within)


def _with(pair: PairVerdict, found: Divergence) -> PairVerdict:
    place = found.place
    pair = pair.model_copy(update={"note": found.note})
    if place is None:
        return pair
    text = f"{place.value} (step {place.step}, {place.entry})"
    line = "" if place.file is None else f" at {place.file}:{place.line}"
    return pair.model_copy(
        update={
            "first_divergent_node": text + line,
            "divergence": place,
            "left_value": found.left,
            "right_value": found.right,
        }
    )


def _known(cause: Cause, found: Sequence[Cause]) -> bool:
    return any(
        (item.kind, item.place.node, item.place.entry) == (cause.kind, cause.place.node, cause.place.entry)
        for item in found
    )
