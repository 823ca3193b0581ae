"""The native solver: everything the planner knows about placing buffers, in C++ (`native/driver.h` tells the course of a solve).

Greedy orders first. Where they miss the bound, dives whose target rises and searches at the bound, by orders that learn from their failures; beside them
searches between the bound and the best, a proof that nothing is lower than the best, one that the bound itself is out of reach, and local search, which is
alone where a problem is too large for the others.
Anything proven ends up in `Outcome.bound`, which a capacity above or below it then decides.

Refuses what does not fit 64 bits: a size, a time, an offset, or a sum of sizes that live together.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from ostinato.planner import _solver
from ostinato.planner.problem import MAX_INTEGER, Bound, Buffer, Problem, ProblemError, Solution, alive_at
from ostinato.planner.solvers.outcome import NO_LIMITS, Limits, Outcome, StopTest, status_of

__all__ = ["native"]

DEFAULT_NODES = 20_000
"""Nodes that a solve without limits may take, and two more for each buffer: about 50 ms. They matter only where the greedy orders miss the bound."""

MAX_NODES = 2**62
MAX_THREADS = 1024


def native(problem: Problem, limits: Limits = NO_LIMITS, stop: StopTest | None = None) -> Outcome:
    """The lowest placement found within `limits`; `stop` is asked about every 50 ms whether to end with what there is.

    Raises `ProblemError` for numbers beyond 64 bits and what a signal handler raises, such as `KeyboardInterrupt`, with no thread left running.
    """
    buffers = problem.buffers
    nodes, seconds = limits.nodes, limits.seconds
    if nodes is None and seconds is None:
        nodes = DEFAULT_NODES + 2 * len(buffers)
    try:
        offsets, height, bound, time, spent, stopped, finder = _solver.solve(
            _numbers(buffers, "lower", (b.lower for b in buffers)),
            _numbers(buffers, "upper", (b.upper for b in buffers)),
            _numbers(buffers, "size", (b.size for b in buffers)),
            _numbers(buffers, "alignment", (b.alignment for b in buffers)),
            _numbers(buffers, "offset", (-1 if b.offset is None else b.offset for b in buffers)),
            -1 if problem.capacity is None else min(problem.capacity, MAX_INTEGER),
            -1 if nodes is None else min(nodes, MAX_NODES),
            -1.0 if seconds is None else seconds,
            min(limits.threads, MAX_THREADS),
            limits.seed & (2**64 - 1),
            stop,
        )
    except OverflowError as error:
        raise ProblemError(str(error)) from None
    peak = Bound(bound, time, tuple(b.id for b in alive_at(buffers, time)))
    status = status_of(problem, height, bound, stopped=stopped)
    return Outcome(Solution(tuple(offsets), height), peak, f"native/{finder}", status, spent)


def _numbers(buffers: tuple[Buffer, ...], field: str, values: Iterable[int]) -> array[int]:
    try:
        return array("q", values)
    except OverflowError:
        pass
    for buffer in buffers:
        number = getattr(buffer, field)
        if number is not None and not -MAX_INTEGER - 1 <= number <= MAX_INTEGER:
            raise ProblemError(f"buffer {buffer.id}: {field} {number} does not fit 64 bits", field=field)
    raise AssertionError(f"{field}: an overflow that no buffer explains")
