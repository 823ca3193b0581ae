"""The figures of a plan: fragmentation over time, reuse and in-place counts, against what brute force counts."""

from __future__ import annotations

import random

import pytest

from ostinato.ir.graph import Graph
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan
from ostinato.planner.plan_text import print_entry
from ostinato.planner.program import build_program
from ostinato.planner.saved import program_from_json, program_to_json
from ostinato.planner.settings import PlanSettings
from ostinato.planner.usage import StepUsage, Tenancy, reuse_count, usage_changes, usage_of
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker
from tests.planner.mutation_cases import random_graph


def planned(graph: Graph, **settings: bool) -> EntryPlan:
    chosen = PlanSettings(order="program", in_place=settings.get("in_place", True), reuse=settings.get("reuse", True))
    return plan_entry(graph, FAKE_TARGET, name="e", settings=chosen, ops=FAKE_OPS)


def brute(tenancies: list[Tenancy], steps: int) -> list[tuple[int, int]]:
    found = []
    for step in range(steps):
        alive = [t for t in tenancies if t.first <= step < t.last and t.size]
        found.append((sum(t.size for t in alive), max((t.offset + t.size for t in alive), default=0)))
    return found


def test_usage_is_what_a_look_at_every_step_finds(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        tenancies = []
        for _ in range(rng.randrange(12)):
            first = rng.randrange(10)
            tenancies.append(Tenancy(first, rng.randrange(first + 1, 12), rng.randrange(64), rng.randrange(16)))
        usage = usage_of(tenancies, 11)
        assert [(at.live, at.extent) for at in usage] == brute(tenancies, 11)
        changes = dict(usage_changes(tenancies))
        for step, at in enumerate(usage):
            last = max((other for other in changes if other <= step), default=None)
            assert at == (StepUsage(0, 0) if last is None else changes[last])


def test_the_figures_of_a_plan_are_those_of_its_slots(seed: int) -> None:
    for round_number in range(80):
        rng = random.Random(f"{seed}.{round_number}")
        plan = planned(random_graph(rng, rng.randint(3, 20)))
        stats, tenancies = plan.stats, [slot.tenancy for slot in plan.slots]
        found = brute(tenancies, stats.steps)
        assert [(at.live, at.extent) for at in plan.usage()] == found
        assert max((extent for _, extent in found), default=0) <= stats.arena_bytes
        waste = [1 - live / extent if extent else 0.0 for live, extent in found]
        assert stats.worst_fragmentation == pytest.approx(max(waste, default=0.0))
        assert not waste or waste[stats.worst_step] == pytest.approx(stats.worst_fragmentation)
        used = [item for item, (_, extent) in zip(waste, found, strict=True) if extent]
        assert stats.mean_fragmentation == pytest.approx(sum(used) / len(used) if used else 0.0)
        overlapping = [
            any(
                a.first < b.first and a.offset < b.offset + b.size and b.offset < a.offset + a.size
                for a in tenancies
                if a.size
            )
            for b in tenancies
            if b.size
        ]
        assert stats.reused == sum(overlapping)


def test_a_plan_without_reuse_reuses_nothing() -> None:
    make = GraphMaker()
    x = make.input("x", 16)
    for index in range(6):
        x = make.unary(f"v{index}", x, "in_place")
    graph = make.graph(x)
    assert (planned(graph).stats.reused, planned(graph).stats.in_place) == (0, 4)  # one class takes them all
    without = planned(graph, reuse=False).stats
    assert (without.reused, without.in_place, without.arena_bytes) == (0, 0, 80)
    moved = planned(graph, in_place=False).stats
    assert (moved.reused, moved.in_place, moved.arena_bytes) == (3, 0, 32)


def test_a_hole_below_a_live_byte_is_fragmentation() -> None:
    assert usage_of([Tenancy(0, 2, 0, 8), Tenancy(0, 4, 8, 8)], 4) == (
        StepUsage(16, 16),
        StepUsage(16, 16),
        StepUsage(8, 16),
        StepUsage(8, 16),
    )
    assert StepUsage(8, 16).fragmentation == 0.5
    assert StepUsage(0, 0).fragmentation == 0.0


def test_neighbours_and_what_lives_at_the_same_time_share_no_bytes() -> None:
    assert reuse_count([Tenancy(0, 4, 0, 8), Tenancy(1, 3, 8, 8), Tenancy(3, 5, 8, 4), Tenancy(4, 6, 4, 8)]) == 2
    assert reuse_count([Tenancy(0, 1, 0, 8), Tenancy(1, 2, 0, 0)]) == 0


def test_figures_are_printed_and_saved_and_the_same_every_time() -> None:
    make = GraphMaker()
    t = make.unary("t", make.input("x", 40), "work")
    graph = make.graph(make.unary("y", make.unary("u", t)))
    first, second = planned(graph), planned(graph)
    assert print_entry(first) == print_entry(second)
    assert f"reused={first.stats.reused}" in print_entry(first)
    assert "fragmentation worst=" in print_entry(first)
    program = build_program({"e": (graph, first)})
    assert program_to_json(program) == program_to_json(build_program({"e": (graph, second)}))
    assert program_from_json(program_to_json(program)).entries["e"].stats == first.stats
