"""What a report says of each side: how it ran, what it took, and from when on it is the better way."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ostinato.passes.policy import named_policy
from ostinato.tools.compare.report import BreakEven, Cause, Mismatch, ModeTiming, PairVerdict, SideReport
from ostinato.tools.compare.verdicts import Ran
from ostinato.tools.programs import device_of

__all__ = ["holds", "places_anew", "programs_of", "side_report", "timing_of"]

_SLOWER = {"captured": ("planned", "eager"), "planned": ("eager",)}
"""What a mode is measured against: the way of running the same program that takes less to make ready."""


def side_report(ran: Ran, every: Sequence[Ran], digest: str, unrepeated: Mismatch | None) -> SideReport:
    """The report of a side, `every` being all that ran."""
    run, executable = ran.run, ran.executable
    return SideReport(
        name=ran.name,
        mode="function" if executable is None else executable.mode,
        device="" if executable is None else device_of(executable),
        precision="" if executable is None else ran.precision,
        policy=str(named_policy(ran.side.policy)) if ran.side.compiled else "",
        program="" if executable is None else ran.identity[:12],
        steps=len(set(run.answers.steps)),
        seconds=statistics.median(run.seconds),
        ready_seconds=run.ready_seconds,
        repeats=run.unrepeated is None,
        digest=digest,
        unrepeated=unrepeated,
        counts=run.counts,
        break_even=_break_even(ran, every),
    )


def timing_of(ran: Ran) -> ModeTiming:
    """The times of a side."""
    seconds = ran.run.seconds
    repeats = ran.run.unrepeated is None
    return ModeTiming(mode=ran.name, seconds=statistics.median(seconds), runs=len(seconds), repeats=repeats)


def holds(pairs: Sequence[PairVerdict], sides: Sequence[SideReport], causes: Sequence[Cause]) -> bool:
    """Whether every contract holds: of pairs, of each side with itself, and of memory. How far one kernel is from its reference is told, and no contract of a
    program: its outputs are."""
    kept = not any(cause.kind in ("overwritten", "unrepeatable") for cause in causes)
    return kept and all(pair.ok for pair in pairs) and all(side.repeats for side in sides)


def programs_of(ran: Sequence[Ran]) -> list[Ran]:
    """A side of each program, in order: one that runs its plan, where there is one."""
    found: dict[str, Ran] = {}
    for item in ran:
        known = found.get(item.identity)
        if item.native and (known is None or (places_anew(known) and not places_anew(item))):
            found[item.identity] = item
    return list(found.values())


def places_anew(ran: Ran) -> bool:
    """Whether a side has no plan of its own to walk: what is found is said of one that has, where there is one."""
    return ran.executable is not None and ran.executable.mode == "eager"


def _break_even(ran: Ran, every: Sequence[Ran]) -> BreakEven | None:
    if ran.executable is None:
        return None
    for mode in _SLOWER.get(ran.executable.mode, ()):
        for other in every:
            if other.executable is not None and other.executable.mode == mode and other.identity == ran.identity:
                saved = statistics.median(other.run.seconds) - statistics.median(ran.run.seconds)
                more = max(0.0, ran.run.ready_seconds - other.run.ready_seconds)
                replays = math.ceil(more / saved) if saved > 0 else None
                return BreakEven(against=other.name, ready_seconds=more, saved_seconds=saved, replays=replays)
    return None
