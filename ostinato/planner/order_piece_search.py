"""The best order of one piece: exact over its downsets as far as a budget of moves goes, beams for the rest.

A state is the set of steps done; which bytes are alive depends on nothing else, and what matters of the way there is its peak alone. The exact search takes
the state with the lowest peak first (of equal ones the most advanced), so that it ends with the lowest peak there is and never opens a state with a higher
one. A beam goes through the states by number of steps done and keeps the best few of each number; the first ranks them by peak, the next ones are sent after
targets between the proven bound and the best peak so far, below which peaks do not count and bytes alive do.

All pass through a state at once where that loses nothing, which contracts chains and whatever behaves like one. Bytes alive are submodular in the set of
steps done: what a step adds only shrinks the more is done before it. So when a run of steps, each made ready by the one before, ends with no more bytes
alive than it began with, needs no higher peak than the way so far, and no stop on the way has fewer bytes, then every order of the rest is as good or
better behind it: take it now. A state whose every next step needs a higher peak has that peak. Late steps run with the first step that needs them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from math import gcd

from ostinato.planner.order_pieces import Piece, bits
from ostinato.planner.problem import align_up

__all__ = ["Budget", "Found", "OrderLimits", "beam_order", "best_order", "exact_order"]


@dataclass(frozen=True, slots=True)
class OrderLimits:
    """What a search may cost. A move is one step tried from one state: `exact` of them for the exact search of a piece, `beam` for its beams, `total` for
    all pieces. `width`: states that a beam keeps for each number of steps done. `piece`: steps of the longest piece."""

    exact: int = 400_000
    beam: int = 200_000
    total: int = 1_200_000
    width: int = 100
    piece: int = 200


@dataclass(slots=True)
class Budget:
    """Moves that may still be tried."""

    moves: int

    def part(self, moves: int) -> Budget:
        """Up to `moves` of these, to be given back as far as they are not used."""
        taken = min(moves, max(self.moves, 0))
        self.moves -= taken
        return Budget(taken)


@dataclass(frozen=True, slots=True)
class Found:
    """An order of a piece's steps (None: none below the ceiling was found) with its peak; `bound`: no order has a lower peak (or than the floor)."""

    order: tuple[int, ...] | None
    peak: int
    bound: int


@dataclass(slots=True)
class _State:
    """Steps `left`, those of them that are `ready`, bytes `live`, the `peak` so far, and how it was reached: by `moves` from `parent`.

    `lifted`: the peak was raised to what every next move needs.
    """

    left: int
    ready: int
    live: int
    peak: int
    parent: _State | None
    moves: list[int]
    lifted: bool = False


class _Search:
    """What exact search and beams share: states and moves. A move is one step that is not late, with the late ones that it needs."""

    def __init__(self, piece: Piece, budget: Budget) -> None:
        self.piece = piece
        self.budget = budget
        self.pulls: list[int] = []  # the late steps that each step needs, through further late ones
        self.needs: list[int] = []  # the other steps that it needs, through late ones
        # for each step those that need it: a bit, and all that they need
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in piece.needs]
        for step, needed in enumerate(piece.needs):
            pulls = needed & piece.late
            for other in bits(pulls):
                pulls |= self.pulls[other]
                needed |= self.needs[other]
            needed &= ~piece.late
            self.pulls.append(pulls)
            self.needs.append(needed)
            if not piece.late >> step & 1:
                for other in bits(needed):
                    self.waiting[other].append((1 << step, needed))

    def start(self, floor: int) -> _State:
        ready = sum(1 << step for step, needed in enumerate(self.needs) if not needed) & ~self.piece.late
        return _State((1 << len(self.needs)) - 1, ready, 0, floor, None, [])

    def order_of(self, state: _State) -> tuple[int, ...]:
        """The steps on the way to a state in which none is left."""
        moves: list[list[int]] = []
        at: _State | None = state
        while at is not None:
            moves.append(at.moves)
            at = at.parent
        left = (1 << len(self.needs)) - 1
        order: list[int] = []
        for step in (step for some in reversed(moves) for step in some):
            order += [*bits(self.pulls[step] & left), step]
            left = self.left_behind(step, left)
        return (*order, *bits(left))

    def run(self, step: int, left: int, live: int) -> tuple[int, int]:
        """The most bytes alive during the move, and those after it."""
        self.budget.moves -= 1
        pulled = self.pulls[step] & left
        if not pulled:
            return self.piece.run(step, left, live)
        highest, live, left = self._run_all(pulled, left, live)
        during, live = self.piece.run(step, left, live)
        return max(highest, during), live

    def _run_all(self, steps: int, left: int, live: int) -> tuple[int, int, int]:
        highest = live
        for step in bits(steps):
            during, live = self.piece.run(step, left, live)
            highest = max(highest, during)
            left &= ~(1 << step)
        return highest, live, left

    def left_behind(self, step: int, left: int) -> int:
        return left & ~(self.pulls[step] | 1 << step)

    def enabled(self, step: int, left: int) -> int:
        """The steps that become ready with `step`, the last of what they need; `left` is what is left behind it."""
        found = 0
        for bit, needed in self.waiting[step]:
            if not needed & left:
                found |= bit
        return found

    def follow(self, state: _State, step: int, left: int, live: int, peak: int) -> _State:
        ready = state.ready & ~(1 << step) | self.enabled(step, left)
        return _State(left, ready, live, peak, state, [step])

    def settle(self, state: _State) -> list[tuple[int, int, int]]:
        """Takes every move that loses nothing; returns the moves to branch on, as (step, bytes during, bytes after)."""
        while state.ready:
            moves: list[tuple[int, int, int]] = []
            ready = state.ready
            while ready:
                step = (ready & -ready).bit_length() - 1
                ready &= ready - 1
                during, after = self.run(step, state.left, state.live)
                if during <= state.peak and self._free_run(state, step, after):
                    break
                moves.append((step, during, after))
            else:
                lowest = min(during for _, during, _ in moves)
                if lowest <= state.peak:
                    return moves
                state.peak = lowest
        if state.left:  # late steps that only a step behind the piece needs
            highest, state.live, state.left = self._run_all(state.left, state.left, state.live)
            state.peak = max(state.peak, highest)
        return []

    def _free_run(self, state: _State, step: int, live: int) -> bool:
        """Does the run that begins with `step` (which fits below the peak and leaves `live` bytes) if it ends with no more bytes than now."""
        first = step
        left = self.left_behind(step, state.left)
        enabled = self.enabled(step, left)
        ready = enabled
        moves = [step]
        while live > state.live:
            if not enabled or enabled & (enabled - 1):
                return False
            step = enabled.bit_length() - 1
            during, live = self.run(step, left, live)
            if during > state.peak:
                return False
            moves.append(step)
            left = self.left_behind(step, left)
            ready ^= enabled
            enabled = self.enabled(step, left)
            ready |= enabled
        state.left, state.ready, state.live = left, state.ready & ~(1 << first) | ready, live
        state.moves += moves
        return True


def best_order(piece: Piece, floor: int, ceiling: int, limits: OrderLimits, budget: Budget) -> Found:
    """The best order that exact search, or else beams find within limits and budget; arguments and outcome as for `exact_order`."""
    part = budget.part(limits.exact)
    found = exact_order(piece, floor, ceiling, part)
    budget.moves += part.moves
    if found.order is not None or found.bound >= ceiling:
        return found
    part = budget.part(limits.beam)
    best = beam_order(piece, found.bound, ceiling, limits.width, part)
    unit = gcd(*piece.works, *(span.size for span in piece.spans)) or 1  # divides all peaks
    low = align_up(found.bound, unit)
    while low < best.peak and part.moves > 0:
        target = low + (best.peak - low - unit) // 2 // unit * unit
        again = beam_order(piece, target, target + 1, limits.width, part)
        if again.order is None:
            low = target + unit
        else:
            best = again
    budget.moves += part.moves
    return Found(best.order, best.peak, found.bound)


def exact_order(piece: Piece, floor: int, ceiling: int, budget: Budget) -> Found:
    """The order with the lowest peak; all bytes are counted over those alive before the piece.

    Peaks up to `floor` count as equal, and only peaks below `ceiling` are of interest: if there is none, the bound is the ceiling. When the budget ends first,
    there is no order, and the bound is what was proven until then.
    """
    search = _Search(piece, budget)
    start = search.start(floor)
    heap: list[tuple[int, int, int, int, _State]] = []
    seen = {start.left: floor}  # steps left -> the lowest peak on a way there
    serial = count()

    def push(state: _State) -> None:
        heapq.heappush(heap, (state.peak, state.left.bit_count(), state.live, next(serial), state))

    push(start)
    while heap:
        peak, _, _, _, state = heapq.heappop(heap)
        if not state.left:
            return Found(search.order_of(state), peak, peak)
        if budget.moves <= 0:
            return Found(None, ceiling, peak)
        if seen[state.left] < peak and not state.lifted:
            continue
        left = state.left
        moves = search.settle(state)
        if state.left != left:
            if state.peak < seen.get(state.left, ceiling):
                seen[state.left] = state.peak
                push(state)
        elif state.peak > peak:
            if state.peak < ceiling:
                state.lifted = True
                push(state)
        else:
            for step, during, after in moves:
                left, reached = search.left_behind(step, state.left), max(peak, during)
                if reached < seen.get(left, ceiling):
                    seen[left] = reached
                    push(search.follow(state, step, left, after, reached))
    return Found(None, ceiling, ceiling)


def beam_order(piece: Piece, floor: int, ceiling: int, width: int, budget: Budget) -> Found:
    """A good order, with a peak below `ceiling` and as if any peak up to `floor` were that, or none.

    Of `width` states at most for each number of steps done, fewer where the budget is short.
    """
    search = _Search(piece, budget)
    start = search.start(floor)
    layers: dict[int, dict[int, _State]] = {start.left.bit_count(): {start.left: start}}  # by number of steps left
    for number in range(len(piece.needs), 0, -1):
        layer = sorted(layers.pop(number, {}).values(), key=lambda state: (state.peak, state.live))
        enough = budget.moves - budget.moves // number
        for place, state in enumerate(layer[:width]):
            if place and budget.moves < enough:
                break
            moves = search.settle(state)
            if state.left.bit_count() < number:
                settled = layers.setdefault(state.left.bit_count(), {})
                if state.peak < ceiling and (state.left not in settled or state.peak < settled[state.left].peak):
                    settled[state.left] = state
                continue
            for step, during, after in moves:
                left, peak = search.left_behind(step, state.left), max(state.peak, during)
                following = layers.setdefault(left.bit_count(), {})
                if peak < ceiling and (left not in following or peak < following[left].peak):
                    following[left] = search.follow(state, step, left, after, peak)
    for state in layers.get(0, {}).values():
        return Found(search.order_of(state), state.peak, floor)
    return Found(None, ceiling, floor)
