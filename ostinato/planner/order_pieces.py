"""An order cut into pieces that can be reordered one by one.

A step of the core that comes after all core steps above it and before all below it stands there in every legal order, however many values cross it: the
steps between two of these are a piece, and the best order of all is the best orders of the pieces. A piece too long to search is cut further where the
fewest bytes cross; that is a restriction, and what is found then is best among the orders that keep these cuts.

A `Piece` holds masks (bit k: its step k) and bytes, nothing of where it stands, so that repeated layers give equal pieces and are worked out once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ostinato.planner.order_model import OrderModel
from ostinato.planner.order_tidy import Tidied

__all__ = ["Piece", "Span", "bits", "cut_steps", "piece_of", "segments_of"]


@dataclass(frozen=True, slots=True)
class Span:
    """A storage in a piece: which steps touch it, whether it is alive before the piece, and whether it is needed behind it."""

    touched: int
    size: int
    enters: bool
    leaves: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps 0, 1, ... of a piece.

    `needs`: the steps that must be done before each. `late`: the steps that lose nothing by waiting for the first that needs them. `grows`: bytes of a step's
    results; `works`: of its workspace. `frees`: for each storage that may die with the step, the other steps that touch it and its bytes. `takes`: for each
    in-place pair in the order of the row, a bit for the result, a bit for the operand, the other steps that touch the operand, and the bytes. `spans`: all
    storages that the piece touches.
    """

    needs: tuple[int, ...]
    late: int
    grows: tuple[int, ...]
    works: tuple[int, ...]
    frees: tuple[tuple[tuple[int, int], ...], ...]
    takes: tuple[tuple[tuple[int, int, int, int], ...], ...]
    spans: tuple[Span, ...]

    def run(self, step: int, left: int, live: int) -> tuple[int, int]:
        """Bytes alive during `step` and after it, when the steps in `left` are not done yet and `live` bytes are alive."""
        during = live + self.grows[step] + self.works[step]
        taken = 0
        for result, operand, others, size in self.takes[step]:
            if not (others & left or taken & (result | operand)):
                taken |= result | operand
                during -= size
        live += self.grows[step]
        for others, size in self.frees[step]:
            if not others & left:
                live -= size
        return during, live

    def bound(self) -> int:
        """No order has a lower peak than this, over the bytes alive before the piece: the most that must be alive when one step runs."""
        count = len(self.needs)
        above = [0] * count  # all that a step needs, directly or not
        below = [0] * count
        for step, needed in enumerate(self.needs):
            above[step] = needed
            for other in bits(needed):
                above[step] |= above[other]
            for other in bits(above[step]):
                below[other] |= 1 << step
        entering = sum(span.size for span in self.spans if span.enters)
        best = 0
        for step in range(count):
            bit, found, taken = 1 << step, self.works[step] - entering, 0
            for result, operand, others, size in self.takes[step]:
                if not (others & below[step] or taken & (result | operand)):
                    taken |= result | operand
                    found -= size
            for span in self.spans:
                made = span.enters or span.touched & above[step]
                if span.touched & bit or (made and (span.leaves or span.touched & below[step])):
                    found += span.size
            best = max(best, found)
        return best


def bits(mask: int) -> Iterator[int]:
    """The numbers of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def cut_steps(core: Sequence[Sequence[int] | None]) -> list[int]:
    """The core steps that come after all above and before all below them in every legal order; `core` lists what each needs (None: not of the core).

    All above a step lead to it when it is the only one so far without a step behind it, and all below come from it when it is the only one from there on
    without a step before it: two counts, kept while walking down and up.
    """
    count = len(core)
    first_behind = [count] * count
    last_before = [-1] * count
    for step, needed in enumerate(core):
        for other in needed or ():
            first_behind[other] = min(first_behind[other], step)
            last_before[step] = max(last_before[step], other)
    steps = [step for step, needed in enumerate(core) if needed is not None]
    ends = _open_at(steps, first_behind)
    begins = _open_at(steps[::-1], last_before)
    return [step for step in steps if ends[step] == begins[step] == 1]


def _open_at(steps: Sequence[int], closed_by: Sequence[int]) -> dict[int, int]:
    """How many steps are open once each step is reached, in that order: reached, and not closed by a step reached since."""
    closing = dict.fromkeys(steps, 0)
    found: dict[int, int] = {}
    number = 0
    for step in steps:
        closing[closed_by[step]] = closing.get(closed_by[step], 0) + 1
        number += 1 - closing[step]
        found[step] = number
    return found


def segments_of(tidied: Tidied, crossing: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Half-open ranges of at most `limit` steps that are reordered apart from each other, those with two or more of the core; `crossing` is the bytes alive
    before each step."""
    found: list[tuple[int, int]] = []
    first = 0
    for cut in (*cut_steps(tidied.core), len(tidied.core)):
        while cut - first > limit:
            place = min(range(first + limit // 2, first + limit + 1), key=crossing.__getitem__)
            found.append((first, place))
            first = place
        found.append((first, cut))
        first = cut + 1
    return [(first, last) for first, last in found if sum(item is not None for item in tidied.core[first:last]) > 1]


def piece_of(model: OrderModel, late: Sequence[bool], users: Sequence[Sequence[int]], first: int, last: int) -> Piece:
    """The steps [first, last) as a piece; `users` lists the steps that touch each storage, ascending."""
    steps = range(first, last)
    spans: dict[int, Span] = {}
    for storage in dict.fromkeys(storage for step in steps for storage in model.touches[step]):
        using = users[storage]
        inside = sum(1 << (step - first) for step in using[bisect_left(using, first) : bisect_left(using, last)])
        spans[storage] = Span(inside, model.sizes[storage], using[0] < first, using[-1] >= last)
    number = {storage: place for place, storage in enumerate(spans)}
    frees: list[tuple[tuple[int, int], ...]] = []
    takes: list[tuple[tuple[int, int, int, int], ...]] = []
    for step in steps:
        bit = 1 << (step - first)
        dying = [spans[storage] for storage in model.touches[step] if not spans[storage].leaves]
        frees.append(tuple((span.touched & ~bit, span.size) for span in dying))
        takes.append(
            tuple(
                (1 << number[result], 1 << number[operand], spans[operand].touched & ~bit, spans[operand].size)
                for result, operand in model.takes[step]
                if not spans[operand].leaves
            )
        )
    return Piece(
        tuple(sum(1 << (other - first) for other in model.before[step] if other >= first) for step in steps),
        sum(1 << (step - first) for step in steps if late[step]),
        tuple(sum(model.sizes[s] for s in model.touches[step] if model.maker[s] == step) for step in steps),
        model.workspaces[first:last],
        tuple(frees),
        tuple(takes),
        tuple(spans.values()),
    )
