"""The search: it finds exactly the decisions that are needed together, with few questions, and remembers what it asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ostinato.ir.errors import BackendError
from ostinato.tools.bisect.engine import Trials, first, smallest


class Planted:
    """The difference is there when all culprits of any one group are in force."""

    def __init__(self, *groups: set[str]) -> None:
        self.groups, self.asked = groups, 0

    def __call__(self, kept: frozenset[str]) -> bool:
        self.asked += 1
        return any(group <= kept for group in self.groups)


NAMES = [f"slot {number}" for number in range(200)]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_culprits_are_found_together_in_few_questions(size: int, rng: np.random.Generator) -> None:
    for _ in range(10):
        culprits = {NAMES[int(i)] for i in rng.choice(len(NAMES), size, replace=False)}
        trials, planted = Trials(), Planted(culprits)
        found = smallest(NAMES, trials.question("{} slots", planted))
        assert set(found) == culprits
        assert list(found) == sorted(found, key=NAMES.index)
        assert trials.count == planted.asked < 40 * size, "delta debugging takes about size * log n"


def test_a_single_culprit_takes_two_questions_a_halving() -> None:
    trials = Trials()
    assert smallest(NAMES, trials.question("{}", Planted({"slot 77"}))) == ("slot 77",)
    assert trials.count <= 2 + 2 * 8


def test_of_several_causes_one_is_found_whole() -> None:
    groups = ({"slot 3", "slot 150"}, {"slot 40", "slot 41", "slot 42"})
    found = set(smallest(NAMES, Trials().question("{}", Planted(*groups))))
    assert found in groups


@pytest.mark.parametrize(
    ("groups", "questions"), [((), 2), ((set[str](),), 1)], ids=["never there", "there without any of them"]
)
def test_what_no_decision_makes_is_nobodys(groups: Sequence[set[str]], questions: int) -> None:
    planted = Planted(*groups)
    assert smallest(NAMES, Trials().question("{}", planted)) == ()
    assert planted.asked == questions
    assert smallest((), planted) == ()


def test_a_configuration_is_run_once_and_told_of() -> None:
    said: list[str] = []
    trials, planted = Trials(said.append), Planted({"a"})
    ask = trials.question("{} of them", planted)
    assert [ask(frozenset("ab")), ask(frozenset("ba")), ask(frozenset("b"))] == [True, True, False]
    assert (planted.asked, trials.count, trials.refused) == (2, 2, 0)
    assert said == ["trial 1: 2 of them", "trial 2: 1 of them"]


def test_what_cannot_be_run_shows_no_difference_and_is_counted() -> None:
    def refusing(kept: frozenset[str]) -> bool:
        if len(kept) == 1:
            raise BackendError("no row takes this node")
        return {"c", "f"} <= kept

    trials = Trials()
    assert set(smallest("abcdefgh", trials.question("{}", refusing))) == {"c", "f"}
    before = trials.refused
    assert not trials.asked("a row of the user's that raises", lambda: 1 // int("0") > 0)
    assert trials.refused == before + 1
    assert 0 < trials.refused < trials.count


@pytest.mark.parametrize("wanted", [1, 2, 17, 99, 100])
def test_the_shortest_prefix_is_found_by_halves(wanted: int) -> None:
    asked: list[int] = []

    def differs(count: int) -> bool:
        asked.append(count)
        return count >= wanted

    assert first(100, differs) == wanted
    assert len(asked) == len(set(asked)) <= 9


def test_prefixes_that_never_or_always_differ() -> None:
    assert first(100, lambda count: False) is None
    assert first(100, lambda count: True) == 0
    assert first(0, lambda count: False) is None
