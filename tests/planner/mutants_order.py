"""Mutants of the order of steps: exchanged, moved, dropped, repeated; events lost, added and moved; lanes changed.

A mutant is a function of a proven case that returns a changed program, None where it does not apply. Whether it does harm is the judge's to say.
"""

from __future__ import annotations

import random
from dataclasses import replace

from ostinato.ir.step import Step
from ostinato.planner.plan import ProgramPlan
from tests.planner.mutation_cases import Case

__all__ = [
    "all_on_one_lane",
    "another_order",
    "event_to_spare",
    "lane_below_zero",
    "neighbours_exchanged",
    "signal_dropped",
    "signal_moved",
    "step_dropped",
    "step_moved",
    "step_on_another_lane",
    "step_repeated",
    "wait_added",
    "wait_dropped",
    "wait_for_another_event",
]


# steps


def neighbours_exchanged(rng: random.Random, case: Case) -> ProgramPlan | None:
    steps = list(case.entry.steps)
    if len(steps) < 2:
        return None
    first = rng.randrange(len(steps) - 1)
    steps[first : first + 2] = steps[first + 1], steps[first]
    return case.with_steps(steps)


def step_moved(rng: random.Random, case: Case) -> ProgramPlan | None:
    steps = list(case.entry.steps)
    if len(steps) < 2:
        return None
    step = steps.pop(rng.randrange(len(steps)))
    steps.insert(rng.randrange(len(steps) + 1), step)
    return case.with_steps(steps)


def another_order(rng: random.Random, case: Case) -> ProgramPlan | None:
    """An order that keeps every producer above its readers, whatever that does to reused bytes."""
    left = list(case.entry.steps)
    steps: list[Step] = []
    while left:
        made = {o.value for step in left for o in step.operands if o is not None and o.writes}
        ready = [
            step
            for step in left
            if not any(o is not None and o.reads and not o.writes and o.value in made for o in step.operands)
        ]
        chosen = rng.choice(ready or left[:1])
        left.remove(chosen)
        steps.append(chosen)
    return case.with_steps(steps)


def step_dropped(rng: random.Random, case: Case) -> ProgramPlan | None:
    steps = list(case.entry.steps)
    steps.pop(rng.randrange(len(steps)))
    return case.with_steps(steps)


def step_repeated(rng: random.Random, case: Case) -> ProgramPlan | None:
    steps = list(case.entry.steps)
    steps.insert(rng.randrange(len(steps) + 1), replace(rng.choice(steps), signals=()))
    return case.with_steps(steps)


# events and lanes


def _waiting(case: Case) -> list[int]:
    return [position for position, step in enumerate(case.entry.steps) if step.waits]


def _signalling(case: Case) -> list[int]:
    return [position for position, step in enumerate(case.entry.steps) if step.signals]


def wait_dropped(rng: random.Random, case: Case) -> ProgramPlan | None:
    if not _waiting(case):
        return None
    position = rng.choice(_waiting(case))
    waits = list(case.entry.steps[position].waits)
    waits.pop(rng.randrange(len(waits)))
    return case.with_step(position, waits=tuple(waits))


def wait_added(rng: random.Random, case: Case) -> ProgramPlan | None:
    """For an event that some step gives, above or below."""
    if not _signalling(case):
        return None
    event = rng.choice(case.entry.steps[rng.choice(_signalling(case))].signals)
    position = rng.randrange(len(case.entry.steps))
    return case.with_step(position, waits=(*case.entry.steps[position].waits, event))


def wait_for_another_event(rng: random.Random, case: Case) -> ProgramPlan | None:
    if not _waiting(case):
        return None
    position = rng.choice(_waiting(case))
    events = [event for step in case.entry.steps for event in step.signals]
    waits = list(case.entry.steps[position].waits)
    waits[rng.randrange(len(waits))] = rng.choice(events)
    return case.with_step(position, waits=tuple(waits))


def signal_moved(rng: random.Random, case: Case) -> ProgramPlan | None:
    """An event comes from another step, mostly of the same lane: too early, or later than needed."""
    if not _signalling(case):
        return None
    steps = list(case.entry.steps)
    position = rng.choice(_signalling(case))
    event = rng.choice(steps[position].signals)
    steps[position] = replace(steps[position], signals=tuple(e for e in steps[position].signals if e != event))
    same = [other for other, step in enumerate(steps) if step.lane == steps[position].lane]
    other = rng.choice(same) if rng.random() < 0.8 else rng.randrange(len(steps))
    steps[other] = replace(steps[other], signals=(*steps[other].signals, event))
    return case.with_steps(steps)


def signal_dropped(rng: random.Random, case: Case) -> ProgramPlan | None:
    return case.with_step(rng.choice(_signalling(case)), signals=()) if _signalling(case) else None


def event_to_spare(rng: random.Random, case: Case) -> ProgramPlan | None:
    """A signal that nobody needs, and sometimes waits for it."""
    steps = list(case.entry.steps)
    position = rng.randrange(len(steps))
    steps[position] = replace(steps[position], signals=(*steps[position].signals, 1000))
    for later in range(position + 1, len(steps)):
        if rng.random() < 0.3:
            steps[later] = replace(steps[later], waits=(*steps[later].waits, 1000))
    return case.with_steps(steps)


def step_on_another_lane(rng: random.Random, case: Case) -> ProgramPlan | None:
    if not case.entry.steps:
        return None
    position = rng.randrange(len(case.entry.steps))
    return case.with_step(position, lane=1 if case.entry.steps[position].lane == 0 else 0)


def all_on_one_lane(rng: random.Random, case: Case) -> ProgramPlan | None:
    lane = rng.randrange(3)
    return case.with_steps([replace(step, lane=lane) for step in case.entry.steps])


def lane_below_zero(rng: random.Random, case: Case) -> ProgramPlan | None:
    return case.with_step(rng.randrange(len(case.entry.steps)), lane=-1)
