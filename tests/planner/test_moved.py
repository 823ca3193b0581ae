"""Storages at other bytes: a plan in which some are apart is proven, and one in which two have the same is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ostinato as ost
from ostinato.planner.check import check_program
from ostinato.planner.moved import apart, moved, storages_of, with_entries
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.runtime.program import Program
from tests.frontend.small_families import small_model


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> ost.TextExecutable:
    model = small_model("llama", tmp_path_factory.mktemp("llama"), 3)
    return ost.compile(model, buckets={"B": [1], "T": [8]}, context=16, device="cpu", threads=1, mode="planned")


@pytest.fixture(scope="module")
def program(executable: ost.TextExecutable) -> Program:
    return executable.program


def only(program: Program) -> EntryPlan:
    (entry,) = program.plan.entries.values()
    return entry


def checked(program: Program, entry: EntryPlan) -> ProgramPlan:
    plan = with_entries(program.plan, {entry.name: entry})
    check_program(plan, program.graphs, program.target, sources=program.originals)
    return plan


def test_each_slot_alone_can_be_apart(program: Program) -> None:
    entry = only(program)
    graph = program.graphs[entry.name]
    for storages in storages_of(entry, graph).values():
        found = apart(entry, graph, [storages])
        checked(program, found)
        (slot,) = [slot for slot in found.slots if set(slot.values) & set(storages)]
        assert not any(slot is not other and slot.range.overlaps(other.range) for other in found.slots)
        untouched = {slot.values: slot.range for slot in found.slots if slot.values != slot.values[:0]}
        kept = [slot for slot in entry.slots if not set(slot.values) & set(storages)]
        assert all(untouched[slot.values] == slot.range for slot in kept), "nobody else moves"


def test_all_apart_no_byte_serves_twice_and_nothing_lies_in_place(
    program: Program, executable: ost.TextExecutable
) -> None:
    entry = only(program)
    graph = program.graphs[entry.name]
    every = [(name,) for group in storages_of(entry, graph).values() for name in group]
    found = apart(entry, graph, every)
    assert len(every) > len(entry.slots), "some results lie in an operand's bytes"
    assert (found.stats.reused, len(found.slots)) == (0, len(every))
    assert found.stats.arena_bytes > entry.stats.arena_bytes
    plan = checked(program, found)
    other = ost.TextExecutable(
        replace(program, plan=plan), executable.device, executable.regions.shared, mode="planned"
    )
    ids = [[1, 5, 9, 2]]
    assert other(ids)["logits"].tobytes() == executable(ids)["logits"].tobytes()


def test_places_are_part_of_the_plans_identity(program: Program) -> None:
    entry = only(program)
    graph = program.graphs[entry.name]
    name = next(iter(storages_of(entry, graph)))
    found = apart(entry, graph, [(name,)])
    end = -(-entry.stats.arena_bytes // entry.alignment) * entry.alignment
    assert found.options["moved"] == f"{name}@{end}"
    assert found.hash != entry.hash
    assert apart(entry, graph, []) is entry


def test_two_that_live_at_a_time_on_the_same_bytes_are_not_proven(program: Program) -> None:
    entry = only(program)
    graph = program.graphs[entry.name]
    first, second = next(
        (a, b)
        for a in entry.slots
        for b in entry.slots
        if a is not b and a.first < b.first < a.last - 1 and a.range.size <= b.range.size
    )
    storages = storages_of(entry, graph)[second.values[0]]
    wrong = moved(entry, graph, dict.fromkeys(storages, first.range.offset))
    with pytest.raises(ost.PlanError, match="is not proven"):
        checked(program, wrong)


def test_names_and_places_that_are_none_are_refused(program: Program) -> None:
    entry = only(program)
    graph = program.graphs[entry.name]
    with pytest.raises(ost.PlanError, match="no storages in the arena"):
        apart(entry, graph, [("logits",)])  # lies in io
    name = next(iter(storages_of(entry, graph)))
    for offset in (-256, 100, 1 << 70):
        with pytest.raises(ost.PlanError, match="are to begin at"):
            moved(entry, graph, {name: offset})
