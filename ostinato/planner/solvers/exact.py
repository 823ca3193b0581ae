"""The exact search in its shortest form: what the native one must agree with on small problems.

Only canonical solutions are looked at, those in which no buffer can move lower while the others stay: placed in ascending order of offset (then of place in
the problem), each buffer of such a solution lies at its floor, the lowest aligned offset above the placed buffers that it meets and clear of fixed ones. So a
node of the search only chooses who comes next, and everything left whose turn has passed waits until its floor rises. Three tests end a branch: a buffer
would end as high as the best known solution; the lowest floor in a section of time plus what is left to place there would; a buffer lies at or above the
lowest possible end of another, which could then move below it. The search starts from the greedy portfolio's solution and ends with a proof.

Source: M. D. Moffitt, "MiniMalloc", ASPLOS 2023, which this follows without its order of preference and its inference of sections.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ostinato.planner.problem import Problem, Solution, align_up
from ostinato.planner.solvers.best_fit import best_fit
from ostinato.planner.solvers.outcome import NO_LIMITS, Limits, Outcome, StopTest, status_of

__all__ = ["exact"]

DEFAULT_NODES = 200_000
"""Search nodes of a solve without limits: some seconds."""

MOST_BUFFERS = 1000
"""Problems beyond it keep the greedy solution: the search looks at every pair of buffers."""


@dataclass(slots=True)
class _Node:
    """Floors of what is left (None: placed), the turn that the last placed buffer took, and who may come next, best last."""

    floors: list[int | None]
    turn: tuple[int, int]
    next: list[int]


class _Search:
    """Depth first, with an explicit stack: `offsets` holds those of the buffers placed on the way to the last node."""

    def __init__(self, problem: Problem, best: Solution) -> None:
        self.best = best
        self.offsets = [0 if buffer.offset is None else buffer.offset for buffer in problem.buffers]
        self.buffers = problem.buffers
        self.movable = [i for i, b in enumerate(problem.buffers) if b.offset is None and b.size]
        alive = {
            i: [j for j, b in enumerate(problem.buffers) if b.size and b.overlaps(problem.buffers[i])]
            for i in self.movable
        }
        self.meets = {i: [j for j in alive[i] if problem.buffers[j].offset is None and j != i] for i in self.movable}
        fixed = {
            i: [problem.buffers[j] for j in alive[i] if problem.buffers[j].offset is not None] for i in self.movable
        }
        self.blocked = {i: sorted((b.offset or 0, (b.offset or 0) + b.size) for b in fixed[i]) for i in self.movable}
        starts = {problem.buffers[i].lower for i in self.movable}
        self.sections = [
            [i for i in self.movable if problem.buffers[i].lower <= start < problem.buffers[i].upper]
            for start in starts
        ]
        self.pinned = max((b.offset + b.size for b in problem.buffers if b.offset is not None), default=0)
        floors: list[int | None] = [None] * len(problem.buffers)
        for i in self.movable:
            floors[i] = self.free_from(i, 0)
        self.stack = [self.node(floors, (-1, -1))]
        self.nodes = 1

    def free_from(self, index: int, offset: int) -> int:
        """The lowest offset from `offset` on that is aligned and clear of fixed buffers."""
        buffer = self.buffers[index]
        offset = align_up(offset, buffer.alignment)
        for low, high in self.blocked[index]:
            if low < offset + buffer.size and offset < high:
                offset = align_up(high, buffer.alignment)
        return offset

    def node(self, floors: list[int | None], turn: tuple[int, int]) -> _Node:
        left = [(floor, i) for i, floor in enumerate(floors) if floor is not None]
        lowest_end = min((floor + self.buffers[i].size for floor, i in left), default=0)
        ready = [place for place in left if place > turn and place[0] < lowest_end]
        return _Node(floors, turn, [i for _, i in sorted(ready, reverse=True)])

    def step(self) -> None:
        """One choice at the last node: a new node, a better solution, or the end of a branch."""
        node = self.stack[-1]
        if not node.next or not self.fits(node.floors):
            self.stack.pop()
            return
        index = node.next.pop()
        floor = node.floors[index]
        assert floor is not None
        self.offsets[index] = floor
        floors = list(node.floors)
        floors[index] = None
        top = floor + self.buffers[index].size
        for other in self.meets[index]:
            below = floors[other]
            if below is not None and below < top:
                floors[other] = self.free_from(other, top)
        if all(floors[i] is None for i in self.movable):
            self.offer()
        elif self.fits(floors):
            self.stack.append(self.node(floors, (floor, index)))
            self.nodes += 1

    def fits(self, floors: Sequence[int | None]) -> bool:
        """Whether what is left may still end below the best height."""
        for section in self.sections:
            left = [(floor, self.buffers[i].size) for i in section if (floor := floors[i]) is not None]
            if left and min(left)[0] + sum(size for _, size in left) >= self.best.height:
                return False
        return True

    def offer(self) -> None:
        ends = (self.offsets[i] + self.buffers[i].size for i in self.movable)
        height = max(self.pinned, *ends)
        if height < self.best.height:
            self.best = Solution(tuple(self.offsets), height)


def exact(problem: Problem, limits: Limits = NO_LIMITS, stop: StopTest | None = None) -> Outcome:
    """The lowest solution there is, proven, unless `limits` or `stop` end the search before; meant for some dozens of buffers."""
    greedy = best_fit(problem)
    if greedy.solution.height <= greedy.bound.height or len(problem.buffers) > MOST_BUFFERS:
        return replace(greedy, solver="exact")
    nodes = DEFAULT_NODES if limits.nodes is None and limits.seconds is None else limits.nodes
    deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
    search = _Search(problem, greedy.solution)
    stopped = False
    bound = greedy.bound.height
    while search.stack and search.best.height > bound and (nodes is None or search.nodes <= nodes) and not stopped:
        search.step()
        stopped = (deadline is not None and time.monotonic() >= deadline) or (stop is not None and stop())
    if not search.stack:
        bound = search.best.height
    status = status_of(problem, search.best.height, bound, stopped=stopped)
    return Outcome(search.best, replace(greedy.bound, height=bound), "exact", status, search.nodes)
