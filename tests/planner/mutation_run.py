"""Spoils proven plans, has each judged and checked, and counts: the loop behind the mutation tests.

The verdict of a changed plan is `unlawful` when it breaks a promise that plans make (`promises.py`, and gaps by `tagged.py`), else `harmful` when some
interleaving gives wrong bytes (`tagged.py`), else `harmless`. The checker must refuse the first two and accept the third: that is the whole assertion, made
of every mutant. Mutants that change nothing, and those that came before from the same plan, are not counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph
from ostinato.planner.check import check_program
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.program import build_program
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET
from tests.planner.mutants import NEAR_MISSES, SOUND, STRUCTURE, two_at_once
from tests.planner.mutation_cases import ENTRY, Case, Mutant
from tests.planner.promises import Promises
from tests.planner.tagged import Judge

__all__ = ["VERDICTS", "Tally", "refusal", "spoil", "verdicts"]

VERDICTS = ("harmful", "harmless", "unlawful")
_STRUCTURE_SHARE = _SOUND_SHARE = 0.08
"""How often a mutant is of the kinds that nearly always break a promise, or never do harm: the easy ones."""


@dataclass(slots=True)
class Tally:
    """Mutants counted by (kind, verdict), and every one where checker and judge disagree."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    disagreements: list[str] = field(default_factory=list)

    def total(self, verdict: str) -> int:
        return sum(count for (_, found), count in self.counts.items() if found == verdict)

    def of(self, kind: Mutant, verdict: str) -> int:
        return self.counts[kind.__name__, verdict]

    def __str__(self) -> str:
        kinds = sorted({kind for kind, _ in self.counts})
        rows = [f"{kind:36}" + "".join(f"{self.counts[kind, verdict]:>10}" for verdict in VERDICTS) for kind in kinds]
        totals = f"{'':36}" + "".join(f"{self.total(verdict):>10}" for verdict in VERDICTS)
        return "\n".join([f"{'mutant':36}" + "".join(f"{verdict:>10}" for verdict in VERDICTS), *rows, totals])


def refusal(case: Case, program: ProgramPlan) -> str | None:
    """What the checker says against a program, None where it proves it."""
    try:
        check_program(program, {ENTRY: case.graph}, case.target, ops=case.ops)
    except PlanError as error:
        return str(error)
    return None


def spoil(cases: Iterable[tuple[str, random.Random, Case]], each: int) -> Tally:
    """Tries `each` mutants of every case (its name, its random numbers, itself)."""
    tally = Tally()
    for name, rng, case in cases:
        _spoil(name, rng, case, each, tally)
    return tally


def _spoil(name: str, rng: random.Random, case: Case, each: int, tally: Tally) -> None:
    if not case.entry.steps:
        return
    carried = {item.value.name for item in case.graph.inputs if item.carried}
    judge, promises = Judge(case.graph, case.target, case.ops), Promises(case.entry, carried)
    said, verdict = refusal(case, case.program), _verdict(judge, promises, case.program)
    if said is not None or verdict != "harmless":
        tally.disagreements.append(f"{name}: the plan as planned is {verdict}, the checker says {said}")
        return
    seen = {_identity(case.program)}
    for number in range(each):
        mutant = _any_kind(rng)
        spoiled = mutant(rng, case)
        if spoiled is None or (identity := _identity(spoiled)) in seen:
            continue
        seen.add(identity)
        verdict = _verdict(judge, promises, spoiled)
        said = refusal(case, spoiled)
        tally.counts[mutant.__name__, verdict] += 1
        if (said is not None) != (verdict != "harmless"):
            found = "accepts it" if said is None else f"refuses it: {said}"
            broken = promises.broken(spoiled, spoiled.entries[ENTRY])
            tally.disagreements.append(
                f"{name}, mutant {number}, {mutant.__name__}: {verdict} ({broken}), the checker {found}"
            )


def _any_kind(rng: random.Random) -> Mutant:
    draw = rng.random()
    if draw < _STRUCTURE_SHARE:
        return rng.choice(STRUCTURE)
    if draw < _STRUCTURE_SHARE + _SOUND_SHARE:
        return rng.choice(SOUND)
    return rng.choice((*NEAR_MISSES, two_at_once))


def _verdict(judge: Judge, promises: Promises, program: ProgramPlan) -> str:
    entry = program.entries[ENTRY]
    if promises.broken(program, entry) is not None:
        return "unlawful"
    if judge.is_harmful(program, entry):
        return "harmful"
    return "unlawful" if judge.has_gaps and judge.is_harmful(program, entry, gaps=True) else "harmless"


def _identity(program: ProgramPlan) -> int:
    entry = program.entries[ENTRY]
    return hash((entry.steps, entry.slots, entry.inputs, entry.outputs, program.regions))


def verdicts(graph: Graph, entry: EntryPlan) -> tuple[bool, bool, str]:
    """Of a plan of fake operators alone: refused by the checker, harmful or with foreign bytes in a gap, and what the checker said."""
    case = Case(graph, build_program({ENTRY: (graph, entry)}), FAKE_TARGET, FAKE_OPS)
    said = refusal(case, case.program)
    harmful = Judge(graph, FAKE_TARGET, FAKE_OPS).is_harmful(case.program, case.entry, gaps=True)
    return said is not None, harmful, said or ""
