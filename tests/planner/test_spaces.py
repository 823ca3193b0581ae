"""Several address spaces: nodes on other devices, the copies between them, one placement problem an arena, and the proof over all of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Role
from ostinato.ir.step import ByteRange, Region, Step, StepKind, StepOperand
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry, prepare
from ostinato.planner.order import Scheduled, program_order
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.plan_text import print_program
from ostinato.planner.problem import violations
from ostinato.planner.program import build_program
from ostinato.planner.saved import program_from_json, program_to_json
from ostinato.planner.solvers import solve
from tests.planner.fakes import DEVICE, FAKE_OPS, FAKE_TARGET, GraphMaker, fake_range
from tests.planner.mutation_cases import random_graph, random_schedule
from tests.planner.mutation_run import verdicts
from tests.planner.tagged import Judge

OTHER = "fake:1"


def there(kind: str, offset: int, size: int) -> ByteRange:
    return ByteRange(Region(OTHER, kind), offset, size)


def on(graph: Graph, **devices: str) -> tuple[Scheduled, ...]:
    """The program order on one lane, some nodes on other devices."""
    return tuple(replace(turn, device=devices.get(turn.node.name)) for turn in program_order(graph, FAKE_OPS))


def planned(graph: Graph, schedule: tuple[Scheduled, ...]) -> tuple[EntryPlan, ProgramPlan]:
    """Planned, proven, and executed on tagged bytes."""
    entry = plan_entry(graph, FAKE_TARGET, name="e", schedule=schedule, ops=FAKE_OPS)
    program = build_program({"e": (graph, entry)})
    check_program(program, {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
    assert not Judge(graph, FAKE_TARGET, FAKE_OPS).is_harmful(program, program.entries["e"])
    return entry, program


def shown(step: Step) -> str:
    """`device: node(reads) -> writes`, every operand by its device."""
    present = [operand for operand in step.operands if operand is not None]
    reads = ", ".join(f"{o.value}@{o.range.region.device[-1]}" for o in present if o.reads)
    writes = ", ".join(f"{o.value}@{o.range.region.device[-1]}" for o in present if o.writes)
    return f"{step.device[-1]}: {step.kernel or 'copy'}({reads}) -> {writes}"


def test_a_node_elsewhere_reads_and_makes_copies() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 40))
    b = make.binary("b", a, make.weight("w", 40))
    graph = make.graph(make.unary("y", b))
    entry, program = planned(graph, on(graph, b=OTHER))
    assert [shown(step) for step in entry.steps] == [
        "0: unary_kernel(x@0) -> a@0",
        "1: copy(a@0) -> a@1",
        "1: copy(w@0) -> w@1",
        "1: binary_kernel(a@1, w@1) -> b@1",
        "0: copy(b@1) -> b@0",
        "0: unary_kernel(b@0) -> y@0",
    ]
    assert entry.stats.copies == 3
    assert [(stats.device, stats.arena_bytes, stats.lower_bound) for stats in entry.stats.arenas] == [
        (DEVICE, 40, 40),  # b's copy takes a's bytes
        (OTHER, 120, 120),
    ]
    assert (program.size_of(Region(DEVICE, "arena")), program.size_of(Region(OTHER, "arena"))) == (40, 120)
    assert program.devices == (DEVICE, OTHER)


def test_all_readers_on_a_device_share_one_copy_of_the_same_bytes() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 16))
    same = make.part("same", a, 0, 16)
    b, c, d = make.unary("b", a), make.unary("c", same), make.unary("d", make.part("half", a, 8, 16))
    graph = make.graph(b, c, d)
    entry, _ = planned(graph, on(graph, b=OTHER, c=OTHER, d=OTHER))
    copies = [shown(step) for step in entry.steps if step.kind is StepKind.COPY]
    assert copies == [
        "1: copy(a@0) -> a@1",
        "0: copy(b@1) -> b@0",
        "0: copy(c@1) -> c@0",
        "1: copy(half@0) -> half@1",
        "0: copy(d@1) -> d@0",
    ]
    assert [slot.values for slot in entry.slots_on(OTHER)] == [("a", "same"), ("b",), ("c",), ("half",), ("d",)]


def test_a_copy_lives_from_its_first_reader_to_its_last_and_the_source_may_die_before() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 64))
    b = make.unary("b", a)
    filler = make.unary("f2", make.unary("f1", make.input("z", 64)))
    c = make.binary("c", b, a)
    graph = make.graph(filler, c)
    entry, _ = planned(graph, on(graph, b=OTHER, c=OTHER))
    home, other = entry.slots_on(DEVICE), entry.slots_on(OTHER)
    assert [(slot.values, slot.first, slot.last) for slot in home] == [(("a",), 0, 2), (("f1",), 3, 5)]
    assert [(slot.values, slot.first, slot.last) for slot in other] == [
        (("a",), 1, 6),
        (("b",), 2, 6),
        (("c",), 5, 7),
    ]
    assert [stats.arena_bytes for stats in entry.stats.arenas] == [64, 192]


def test_a_result_may_take_the_bytes_of_a_copy() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 32))
    b = make.unary("b", make.part("p", a, 8, 24), "in_place")
    graph = make.graph(b, make.unary("y", a))
    entry, _ = planned(graph, on(graph, b=OTHER))
    assert entry.stats.in_place == 1
    assert [slot.values for slot in entry.slots_on(OTHER)] == [("p", "b")]
    assert entry.stats.elsewhere[0].arena_bytes == 16


def test_counts_and_empty_values_follow_their_node() -> None:
    make = GraphMaker()
    count = make.count("n", "N")
    y = make.unary("y", make.input("x", 16, axis="N"))
    z = make.binary("z", make.weight("empty", 0), None)
    graph = make.graph(y, z)
    entry, _ = planned(graph, on(graph, y=OTHER, z=OTHER))
    launch = next(step for step in entry.steps if step.node == "y" and step.kernel)
    assert [o.range.region for o in launch.operands if o is not None] == [Region(OTHER, "arena")] * 3
    assert [o.value for o in launch.operands if o is not None] == ["x", count, "y"]
    empty = next(step for step in entry.steps if step.node == "z")
    assert [o.range for o in empty.operands if o is not None] == [there("arena", 0, 0)] * 2
    assert entry.stats.copies == 3


def test_workspaces_lie_on_the_device_of_their_step() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 16), "work")
    graph = make.graph(make.unary("y", make.unary("b", a, "work")))
    entry, _ = planned(graph, on(graph, b=OTHER))
    work = {step.node: step.workspace.region.device for step in entry.steps if step.workspace is not None}
    assert work == {"a": DEVICE, "b": OTHER}


def test_a_strided_view_is_copied_with_its_gaps() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 16))
    graph = make.graph(make.unary("b", make.part("odd", a, 1, 16, 4), "strided"), make.unary("y", a))
    entry, _ = planned(graph, on(graph, b=OTHER))
    copy = entry.steps[1]
    assert [o.range for o in copy.operands if o is not None] == [fake_range("arena", 1, 13), there("arena", 0, 13)]


def test_state_is_updated_at_home_and_read_elsewhere_before_and_after() -> None:
    make = GraphMaker()
    s, x = make.input("s", 32, Role.STATE), make.input("x", 8)
    before = make.unary("before", make.part("head", s, 0, 16))
    after = make.update("after", s, x)
    graph = make.graph(before, make.unary("y", after))
    entry, _ = planned(graph, on(graph, before=OTHER, y=OTHER))
    assert [shown(step) for step in entry.steps][:2] == [
        "1: copy(head@0) -> head@1",
        "1: unary_kernel(head@1) -> before@1",
    ]
    assert "1: copy(after@0) -> after@1" in [shown(step) for step in entry.steps]


def test_a_value_made_elsewhere_is_updated_there() -> None:
    make = GraphMaker()
    cache = make.unary("cache", make.input("x", 32))
    new = make.unary("new", make.input("z", 8))
    written = make.update("written", make.part("slice", cache, 8, 16), new)
    graph = make.graph(make.unary("y", written))
    entry, _ = planned(graph, on(graph, cache=OTHER, written=OTHER, y=OTHER))
    update = next(step for step in entry.steps if step.node == "written")
    operand = update.operands[0]
    assert operand is not None
    assert operand.range.region == Region(OTHER, "arena")
    with pytest.raises(PlanError, match=r"%written: update writes %slice in place, which lies on fake:1"):
        plan_entry(graph, FAKE_TARGET, name="e", schedule=on(graph, cache=OTHER), ops=FAKE_OPS)


def test_a_state_cannot_be_updated_from_another_device() -> None:
    make = GraphMaker()
    s = make.update("s1", make.input("s", 16, Role.STATE), make.input("x", 8))
    graph = make.graph(make.unary("y", s))
    with pytest.raises(PlanError, match=r"writes %s in place, which lies on fake:0; the schedule runs it on fake:1"):
        plan_entry(graph, FAKE_TARGET, name="e", schedule=on(graph, s1=OTHER), ops=FAKE_OPS)


@pytest.mark.parametrize("name", ["", "fake", "fake:x", "0"])
def test_a_device_is_named_by_class_and_number(name: str) -> None:
    make = GraphMaker()
    graph = make.graph(make.unary("y", make.input("x", 8)))
    with pytest.raises(PlanError, match="which are no devices"):
        plan_entry(graph, FAKE_TARGET, name="e", schedule=on(graph, y=name), ops=FAKE_OPS)


def test_an_implementation_row_is_not_run_on_another_class_of_device() -> None:
    make = GraphMaker()
    graph = make.graph(make.unary("y", make.input("x", 8)))
    with pytest.raises(PlanError, match="runs on host:0, lane 0, 1 captured nodes; expected fake:0"):
        planned(graph, on(graph, y="host:0"))


# lanes


def lanes(graph: Graph, *turns: tuple[str, int, str | None, tuple[int, ...], tuple[int, ...]]) -> tuple[Scheduled, ...]:
    nodes = {node.name: node for node in graph.nodes}
    return tuple(Scheduled(nodes[name], lane, waits, signals, device) for name, lane, device, waits, signals in turns)


def test_readers_on_other_lanes_wait_for_the_copy_that_the_first_one_makes() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 16))
    b, c = make.unary("b", a), make.unary("c", a)
    graph = make.graph(make.binary("y", b, c))
    schedule = lanes(
        graph,
        ("a", 0, None, (), (5,)),
        ("b", 1, OTHER, (5,), (6,)),
        ("c", 2, OTHER, (5,), (7,)),
        ("y", 0, None, (6, 7), ()),
    )
    entry, _ = planned(graph, schedule)
    copy, b_step, c_step = entry.steps[1:4]
    assert (shown(copy), copy.lane, copy.waits) == ("1: copy(a@0) -> a@1", 1, (5,))
    assert (b_step.lane, b_step.waits, b_step.signals) == (1, (), (6,))
    assert (c_step.lane, c_step.waits) == (2, (5, *copy.signals))
    assert copy.signals
    assert not set(copy.signals) & {5, 6, 7}


def test_one_lane_needs_no_event() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 16))
    graph = make.graph(make.binary("y", make.unary("b", a), make.unary("c", a)))
    entry, _ = planned(graph, on(graph, b=OTHER, c=OTHER))
    assert not any(step.waits or step.signals for step in entry.steps)


# the whole


def random_devices(rng: random.Random, graph: Graph, schedule: tuple[Scheduled, ...]) -> tuple[Scheduled, ...]:
    """Each node on one of three devices, updates where the bytes are."""
    devices = {turn.node.name: rng.choice((None, OTHER, "fake:2")) for turn in schedule if turn.node.op != "update"}
    return tuple(replace(turn, device=devices.get(turn.node.name)) for turn in schedule)


@pytest.mark.parametrize("count", [1, 2], ids=["one lane", "two lanes"])
def test_random_graphs_over_three_devices_are_proven_and_right(seed: int, count: int) -> None:
    spaces: Counter[int] = Counter()
    lost: Counter[bool] = Counter()
    for round_number in range(150):
        rng = random.Random(f"{seed}.{round_number}")
        graph = random_graph(rng, rng.randint(3, 14) if count == 1 else rng.randint(2, 5))
        turns = program_order(graph, FAKE_OPS) if count == 1 else random_schedule(rng, graph, FAKE_OPS, lanes=2)
        schedule = random_devices(rng, graph, turns)
        prepared = prepare(graph, FAKE_TARGET, schedule=schedule, ops=FAKE_OPS)
        outcomes = [solve(space.problem) for space in prepared.spaces]
        for space, outcome in zip(prepared.spaces, outcomes, strict=True):
            assert not violations(space.problem, outcome.solution)
        entry = prepared.emit(*outcomes, name="e", dims={}, options={})
        refused, harmful, said = verdicts(graph, entry)
        assert not refused, f"{seed}.{round_number}: {said}"
        assert not harmful, f"{seed}.{round_number}"
        spaces[len(prepared.spaces)] += 1
        if waiting := [index for index, step in enumerate(entry.steps) if step.waits]:
            steps, index = list(entry.steps), rng.choice(waiting)
            steps[index] = replace(steps[index], waits=steps[index].waits[1:])
            refused, harmful, said = verdicts(graph, entry.model_copy(update={"steps": tuple(steps)}))
            assert refused == harmful, f"{seed}.{round_number}: checker {refused}, harm {harmful}\n{said}"
            lost[refused] += 1
    assert spaces[3] >= 10, spaces
    assert count == 1 or min(lost[True], lost[False]) >= 3, lost


def drop_a_copy(rng: random.Random, entry: EntryPlan) -> EntryPlan | None:
    copies = [index for index, step in enumerate(entry.steps) if step.kind is StepKind.COPY]
    if not copies:
        return None
    gone = rng.choice(copies)
    steps = tuple(step for index, step in enumerate(entry.steps) if index != gone)
    stats = entry.stats.model_copy(update={"steps": len(steps), "copies": len(copies) - 1})
    return entry.model_copy(update={"steps": steps, "stats": stats})


def move_a_copy(rng: random.Random, entry: EntryPlan) -> EntryPlan | None:
    copies = [index for index, step in enumerate(entry.steps) if step.kind is StepKind.COPY]
    if not copies:
        return None
    steps = list(entry.steps)
    moved = steps.pop(rng.choice(copies))
    steps.insert(rng.randrange(len(steps) + 1), moved)
    return entry.model_copy(update={"steps": tuple(steps)})


@pytest.mark.parametrize("spoil", [drop_a_copy, move_a_copy])
def test_copies_that_are_missing_or_misplaced_are_refused_exactly_when_they_harm(
    seed: int, spoil: Callable[[random.Random, EntryPlan], EntryPlan | None]
) -> None:
    found = {True: 0, False: 0}
    for round_number in range(150):
        rng = random.Random(f"{seed}.{round_number}")
        graph = random_graph(rng, rng.randint(3, 12))
        schedule = random_devices(rng, graph, program_order(graph, FAKE_OPS))
        entry = spoil(rng, plan_entry(graph, FAKE_TARGET, name="e", schedule=schedule, ops=FAKE_OPS))
        if entry is None:
            continue
        early = [replace(step, operands=_late(step)) for step in entry.steps]  # what is early changes with the order
        refused, harmful, said = verdicts(graph, entry.model_copy(update={"steps": tuple(early)}))
        assert refused == harmful, f"{seed}.{round_number}: checker {refused}, harm {harmful}\n{said}"
        found[refused] += 1
    assert found[True] >= 40, found
    assert spoil is drop_a_copy or found[False] >= 15, found


def _late(step: Step) -> tuple[StepOperand | None, ...]:
    return tuple(None if operand is None else replace(operand, early=False) for operand in step.operands)


SPOILED: Mapping[str, tuple[Callable[[Step], Step], str]] = {
    "a launch on a device without its operands": (
        lambda step: replace(step, device="fake:2"),
        "lies on another device than fake:2",
    ),
    "a copy that runs where it reads": (
        lambda step: replace(step, device=DEVICE) if step.kind is StepKind.COPY else step,
        "runs on fake:0, lane 0, 1 captured nodes; expected fake:1",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_steps_on_the_wrong_device_are_refused(name: str) -> None:
    make = GraphMaker()
    graph = make.graph(make.unary("y", make.unary("b", make.input("x", 16))))
    entry, _ = planned(graph, on(graph, b=OTHER))
    change, words = SPOILED[name]
    index = 0 if "copy" in name else 1
    steps = list(entry.steps)
    steps[index] = change(steps[index])
    spoiled = build_program({"e": (graph, entry.model_copy(update={"steps": tuple(steps)}))})
    with pytest.raises(PlanError) as caught:
        check_program(spoiled, {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
    assert words in str(caught.value)


def test_arenas_of_a_program_are_as_large_as_the_largest_entry_device_by_device() -> None:
    plans = {}
    for name, size, device in (("small", 16, OTHER), ("large", 64, OTHER), ("alone", 32, "fake:2")):
        make = GraphMaker()
        graph = make.graph(make.unary("y", make.unary("b", make.input("x", size))))
        plans[name] = (
            graph,
            plan_entry(graph, FAKE_TARGET, name=name, schedule=on(graph, b=device), ops=FAKE_OPS),
        )
    program = build_program(plans)
    check_program(program, {name: graph for name, (graph, _) in plans.items()}, FAKE_TARGET, ops=FAKE_OPS)
    sizes = {str(item.region): item.bytes for item in program.regions if item.region.kind == "arena"}
    assert sizes == {"fake:0/arena": 64, "fake:1/arena": 128, "fake:2/arena": 64}
    assert program_from_json(program_to_json(program)) == program


def test_an_arena_that_the_steps_do_not_fit_in_is_refused_by_name() -> None:
    make = GraphMaker()
    graph = make.graph(make.unary("y", make.unary("b", make.input("x", 16))))
    entry, program = planned(graph, on(graph, b=OTHER))
    short = tuple(
        item.model_copy(update={"bytes": 16}) if item.region == Region(OTHER, "arena") else item
        for item in program.regions
    )
    with pytest.raises(PlanError, match=r"lies outside its region of 16 bytes"):
        check_program(program.model_copy(update={"regions": short}), {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
    (elsewhere,) = entry.stats.elsewhere
    lying = entry.stats.model_copy(update={"elsewhere": (elsewhere.model_copy(update={"arena_bytes": 16}),)})
    silent = entry.stats.model_copy(update={"elsewhere": ()})
    for stats, words in ((lying, "16 are stated"), (silent, "of which the statistics say nothing")):
        spoiled = {"e": entry.model_copy(update={"stats": stats})}
        with pytest.raises(PlanError, match=f"the steps use 32 bytes of fake:1/arena, {words}"):
            check_program(program.model_copy(update={"entries": spoiled}), {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)


def test_text_names_the_other_device_and_its_figures() -> None:
    make = GraphMaker()
    graph = make.graph(make.unary("y", make.unary("b", make.input("x", 16))))
    entry, program = planned(graph, on(graph, b=OTHER))
    lines = print_program(program).splitlines()
    for line in (
        f"stats  fake:1/arena=32  lower_bound=32  ratio=1.0000  sum=32  reused=0  optimal by {entry.stats.solver}",
        "peak   fake:1/arena at step 1  %x on fake:1 %b",
        "slot %x  fake:1/arena@0   +16  live [0,2)",
        "step 0 copy          read %x!:io@0            write %x:fake:1/arena@0                      on fake:1",
    ):
        assert line in lines, "\n".join(lines)
