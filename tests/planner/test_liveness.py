"""Happens-before and the lifetimes it gives, against reachability by brute force."""

from __future__ import annotations

import random

from ostinato.planner.liveness import HappensBefore
from ostinato.planner.order import Action


def random_actions(rng: random.Random, count: int, lanes: int) -> list[Action]:
    """Steps on random lanes with random events, each signalled once and above its waits."""
    actions: list[Action] = []
    for position in range(count):
        above = [event for event in range(position) if rng.random() < 0.15]
        actions.append(Action(None, f"v{position}", -1, rng.randrange(lanes), tuple(above), (position,)))
    return actions


def reachable(actions: list[Action]) -> list[set[int]]:
    """For each step, all steps that are done before it starts."""
    before: list[set[int]] = []
    for position, action in enumerate(actions):
        direct = {p for p in range(position) if actions[p].lane == action.lane} | set(action.waits)
        before.append(direct.union(*(before[p] for p in direct)) if direct else set())
    return before


def test_order_and_intervals_are_those_of_reachability(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        actions = random_actions(rng, rng.randint(1, 12), rng.randint(1, 4))
        order, before = HappensBefore(actions), reachable(actions)
        steps = range(len(actions))
        for b in steps:
            assert {a for a in steps if order.before(a, b)} == before[b]
            assert order.earliest(b) == min(a for a in steps if a not in before[b])
            assert order.latest(b) == max(a for a in steps if b not in before[a])


def test_disjoint_intervals_are_used_one_after_the_other(seed: int) -> None:
    """What makes interval lifetimes sound on any number of lanes."""
    rng = random.Random(seed)
    for _ in range(100):
        actions = random_actions(rng, 10, 3)
        order = HappensBefore(actions)
        for a in range(10):
            for b in range(10):
                if order.latest(a) < order.earliest(b):
                    assert order.before(a, b)


def test_one_lane_is_the_sequence() -> None:
    order = HappensBefore([Action(None, f"v{i}") for i in range(5)])
    assert [(order.earliest(i), order.latest(i)) for i in range(5)] == [(i, i) for i in range(5)]
    assert order.all_before([0, 1, 2], 3)
