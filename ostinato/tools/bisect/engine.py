"""Searching for what makes a difference: a counted, remembered question `differs(decisions in force)`, delta debugging and binary search over it.

`smallest` takes a set of decisions with which the difference is there, while it is not with none of them, and returns a subset of which each is needed: with
those alone in force the difference stays, without any one of them it goes (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002,
the algorithm ddmin). A single culprit costs about 2 log2(n) questions. `first` is a binary search over prefixes, about log2(n) questions.

A configuration that cannot be built or run answers "no": it does not show the difference. How often that was is counted. Rows and passes of the user's run in
it, and may raise anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

__all__ = ["Trials", "first", "smallest"]

Differs = Callable[[frozenset[str]], bool]


class Trials:
    """Asks whether a configuration shows the difference, each configuration once. `count` are those that were run, `refused` those of them that could not be.

    `told` hears of each before it is run.
    """

    def __init__(self, told: Callable[[str], None] | None = None) -> None:
        self.count = 0
        self.refused = 0
        self._told = told

    def asked(self, what: str, differs: Callable[[], bool]) -> bool:
        """One configuration, called `what`."""
        self.count += 1
        if self._told is not None:
            self._told(f"trial {self.count}: {what}")
        try:
            return differs()
        except Exception:  # rows and passes are the user's
            self.refused += 1
            return False

    def question(self, what: str, differs: Differs) -> Differs:
        """`differs` over sets of decisions in force, remembered. `what` is how one such set is called, with {} for how many there are in it."""
        known: dict[frozenset[str], bool] = {}

        def ask(kept: frozenset[str]) -> bool:
            if kept not in known:
                known[kept] = self.asked(what.format(len(kept)), lambda: differs(kept))
            return known[kept]

        return ask


def smallest(decisions: Sequence[str], differs: Differs) -> tuple[str, ...]:
    """A subset of which each is needed for the difference, in the order given; () where the difference is there without any, or is not with all."""
    if not decisions or differs(frozenset()) or not differs(frozenset(decisions)):
        return ()
    kept, parts = list(decisions), 2
    while len(kept) > 1:
        size, more = divmod(len(kept), parts)
        cuts = [index * size + min(index, more) for index in range(parts + 1)]
        subsets = [kept[a:b] for a, b in pairwise(cuts)]
        found = next((subset for subset in subsets if differs(frozenset(subset))), None)
        if found is not None:
            kept, parts = found, 2
            continue
        rest = ([name for name in kept if name not in subset] for subset in subsets)
        fewer = next((others for others in rest if differs(frozenset(others))), None) if parts > 2 else None
        if fewer is not None:
            kept, parts = fewer, max(parts - 1, 2)
        elif parts < len(kept):
            parts = min(2 * parts, len(kept))
        else:
            break
    return tuple(kept)


def first(count: int, differs: Callable[[int], bool]) -> int | None:
    """The smallest k in [1, count] with which the difference is there, where it is there for all larger ones too; None where it is not with `count`, 0 where
    it is with 0."""
    if not differs(count):
        return None
    if count == 0 or differs(0):
        return 0
    low, high = 0, count  # not with low, with high
    while high - low > 1:
        middle = (low + high) // 2
        if differs(middle):
            high = middle
        else:
            low = middle
    return high
