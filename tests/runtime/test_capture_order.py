"""The order of a captured graph: hazards and paths against brute force on random plans and graphs, and long graphs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ostinato.runtime.capture_order import Access, Hazard, hazards_of, order_of, unordered_pairs
from tests.runtime.capture_plans import Captured, random_plan

Edges = list[tuple[int, int]]


def paths(count: int, edges: Edges) -> list[list[bool]]:
    """reach[a][b]: a path of edges leads from a to b (Floyd and Warshall)."""
    reach = [[False] * count for _ in range(count)]
    for a, b in edges:
        reach[a][b] = True
    for middle in range(count):
        for a in range(count):
            if reach[a][middle]:
                reach[a] = [x or y for x, y in zip(reach[a], reach[middle], strict=True)]
    return reach


def conflict(first: Access, second: Access) -> bool:
    meet = max(first.start, second.start) < min(first.end, second.end)
    return meet and (first.writes or second.writes)


def conflicts(steps: list[list[Access]]) -> set[tuple[int, int]]:
    """Every pair of steps that touch the same byte, one of them writing."""
    return {
        (i, j) for j in range(len(steps)) for i in range(j) if any(conflict(a, b) for a in steps[i] for b in steps[j])
    }


def judge(captured: Captured) -> bool:
    """Whether all nodes of all steps that conflict are in order, by brute force."""
    owners = [i for i, count in enumerate(captured.facts.node_counts) for _ in range(count)]
    accesses = [
        [Access(o.value, o.range.offset, o.range.end, o.reads, o.writes) for o in step.operands if o is not None]
        for step in captured.entry.steps
    ]
    reach = paths(len(captured.nodes), list(captured.edges))
    return all(
        reach[a][b]
        for i, j in conflicts(accesses)
        for a in range(len(owners))
        for b in range(len(owners))
        if owners[a] == i and owners[b] == j
    )


def test_random_edges_are_judged_as_by_brute_force(rng: np.random.Generator) -> None:
    """Legal extra edges change nothing; whether edges may go is what the judge says."""
    verdicts = {True: 0, False: 0}
    for _ in range(300):
        good = random_plan(rng, int(rng.integers(2, 9)))
        count = len(good.nodes)
        good.examine().check()
        every = [(a, b) for b in range(count) for a in range(b)]
        extra = [edge for edge in every if rng.random() < 0.3]
        kept = [edge for edge in good.edges if rng.random() < 0.8]
        made = replace(good, edges=tuple(sorted({*kept, *extra})))
        replace(good, edges=tuple(sorted({*good.edges, *extra}))).examine().check()
        report, proven = made.examine(), judge(made)
        assert (not report.findings) == proven
        assert {finding.rule for finding in report.findings} <= {11}
        verdicts[proven] += 1
    assert min(verdicts.values()) > 30


def test_hazards_stand_for_every_conflict(rng: np.random.Generator) -> None:
    for _ in range(200):
        steps = [
            [
                Access("x", start, start + int(rng.integers(0, 6)), *[(True, False), (False, True), (True, True)][how])
                for start, how in zip(rng.integers(0, 12, 3).tolist(), rng.integers(0, 3, 3).tolist(), strict=True)
            ]
            for _ in range(int(rng.integers(2, 9)))
        ]
        found = [(hazard.earlier, hazard.later) for hazard in hazards_of(steps)]
        wanted = conflicts(steps)
        assert set(found) <= wanted
        assert len(found) == len(set(found))
        reach = paths(len(steps), found)
        assert all(reach[a][b] for a, b in wanted)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [((0, 1), (1, 0), "read after write"), ((1, 0), (0, 1), "write after read"), ((0, 1), (0, 1), "write after write")],
)
def test_each_kind_of_hazard_has_its_name(first: tuple[int, int], second: tuple[int, int], kind: str) -> None:
    steps = [[Access("a", 0, 8, *map(bool, first))], [Access("b", 7, 9, *map(bool, second))]]
    assert hazards_of(steps) == [Hazard(0, 1, kind, "b", 7)]
    assert hazards_of([steps[0], [Access("b", 8, 9, *map(bool, second))]]) == []


def test_reading_the_same_bytes_is_no_hazard() -> None:
    assert hazards_of([[Access("w", 0, 8, True, False)]] * 3) == []


def test_paths_are_those_of_brute_force(rng: np.random.Generator) -> None:
    for _ in range(100):
        count = int(rng.integers(1, 12))
        names = rng.permutation(count).tolist()  # numbers that say nothing about the order
        edges = [(names[a], names[b]) for b in range(count) for a in range(b) if rng.random() < 0.25]
        order, reach = order_of(count, edges), paths(count, edges)
        assert sorted(order) == list(range(count))
        place = {node: position for position, node in enumerate(order)}
        assert all(place[a] < place[b] for a, b in edges)
        wanted = {b: [a for a in range(count) if a != b] for b in range(count)}
        assert set(unordered_pairs(order, edges, wanted)) == {
            (a, b) for a in range(count) for b in range(count) if a != b and not reach[a][b]
        }


def test_nodes_on_and_behind_a_cycle_have_no_place() -> None:
    assert order_of(5, [(0, 1), (1, 2), (2, 1), (2, 3)]) == [0, 4]


@pytest.mark.parametrize("lanes", [1, 2, 100])
def test_ten_thousand_nodes_are_asked_once_each(lanes: int) -> None:
    """A chain, two chains and a hundred; every node is asked for the one before it on its own chain and the first of all."""
    count = 10_000
    edges = [(a, a + lanes) for a in range(count - lanes)]
    wanted = {b: [b - lanes, b % lanes] for b in range(lanes, count)}
    order = order_of(count, edges)
    assert unordered_pairs(order, edges, wanted) == []
    cut = [edge for edge in edges if edge[0] != 5_000]
    lost = unordered_pairs(order_of(count, cut), cut, wanted)
    assert (5_000, 5_000 + lanes) in lost
    assert all(b > 5_000 for _, b in lost)


def test_ten_thousand_steps_that_share_a_byte_give_a_line_of_hazards() -> None:
    steps = [[Access("x", 0, 8, True, True), Access("w", 8, 16, True, False)] for _ in range(10_000)]
    assert [(h.earlier, h.later) for h in hazards_of(steps)] == list(pairwise(range(10_000)))
