"""Timing of steps that are submitted and waited for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Clock", "Timed", "burst", "count_for", "in_turn", "median"]

Clock = Callable[[], float]
"""Seconds: `time.perf_counter`, or `time.process_time` for work of one thread on a machine that others share."""


@dataclass(frozen=True, slots=True)
class Timed:
    """`step` submits one step, `wait` returns when all that was submitted is done, `reset` puts inputs back to where a burst starts."""

    reset: Callable[[], object]
    step: Callable[[], object]
    wait: Callable[[], object]


def burst(timed: Timed, count: int, *, waiting: bool = False, clock: Clock = time.perf_counter) -> float:
    """Milliseconds a step of `count` steps in a row, waited for at their end, or with `waiting` after each; of several, one more comes before them."""
    if count > 1:
        timed.reset()
        timed.step()
        timed.wait()
    timed.reset()
    timed.wait()
    begin = clock()
    for _ in range(count):
        timed.step()
        if waiting:
            timed.wait()
    timed.wait()
    return (clock() - begin) * 1e3 / count


def count_for(timed: Timed, seconds: float, most: int) -> int:
    """How many steps take about so long; warms up."""
    taken = burst(timed, 1)
    if taken < 100:
        taken = min(burst(timed, 3) for _ in range(3))
    return max(1, min(most, round(seconds * 1e3 / max(taken, 1e-3))))


def in_turn(
    contenders: Sequence[Timed],
    rounds: int,
    *,
    seconds: float = 0.05,
    most: int = 100,
    clock: Clock = time.perf_counter,
) -> list[tuple[list[float], list[float]]]:
    """Of each contender the milliseconds a step in every round, in a row and waited for one by one.

    In a round each has its turn; every other round goes backwards, so that none is always behind the same one.
    """
    counts = [count_for(timed, seconds, most) for timed in contenders]
    found: list[tuple[list[float], list[float]]] = [([], []) for _ in contenders]
    for number in range(rounds):
        turns = range(len(contenders))
        for index in turns if number % 2 == 0 else reversed(turns):
            for times, waiting in zip(found[index], (False, True), strict=True):
                times.append(burst(contenders[index], counts[index], waiting=waiting, clock=clock))
    return found


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
