"""Plans on two lanes: correct ones are proven, and each kind of race or broken event is refused.

Steps of one lane run in list order; across lanes only an event orders them, the signaller before the waiter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Role
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from tests.planner.bench_plans import Bench, one_lane, schedule, two_lanes
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker, fake_range

GOOD = two_lanes()
Spoiled = tuple[Bench, str]


def on_lanes(good: Bench, lanes: dict[str, int], waits: dict[str, int], signals: dict[str, int]) -> Bench:
    """The same steps by hand on other lanes."""
    steps = [
        replace(
            step,
            lane=lanes[step.node],
            waits=(waits[step.node],) if step.node in waits else (),
            signals=(signals[step.node],) if step.node in signals else (),
        )
        for step in good.entry.steps
    ]
    return good.with_steps(steps)


def diamond() -> Bench:
    """a feeds b and c, both feed y; planned for one lane, so b and c lie side by side."""
    make = GraphMaker()
    a = make.unary("a", make.input("x", 17))
    b, c = make.unary("b", a), make.unary("c", a)
    return one_lane(main=make.graph(make.binary("y", b, c)))


def diamond_on_two_lanes() -> Bench:
    """By hand: c runs beside b. Event 1: a is done; 2: c is done."""
    return on_lanes(diamond(), {"a": 0, "b": 0, "c": 1, "y": 0}, {"c": 1, "y": 2}, {"a": 1, "c": 2})


# correct plans


def test_two_lanes_are_proven() -> None:
    assert GOOD.check()["main"].lanes == 2


def test_a_plan_by_hand_is_proven() -> None:
    assert diamond_on_two_lanes().check()["main"].lanes == 2


def test_waiting_more_than_needed_is_proven() -> None:
    good = diamond_on_two_lanes()
    good.with_step("b", waits=(1,)).check()
    good.with_step("b", signals=(9,)).with_step("y", waits=(2, 9)).check()


def test_events_order_what_comes_after_and_before_them_too() -> None:
    """Lane 1 waits once; all its later steps are behind the same step of lane 0."""
    make = GraphMaker()
    a = make.unary("a", make.input("x", 16))
    b = make.unary("b", a)
    c = make.unary("c", a)
    d = make.unary("d", c)
    good = one_lane(main=make.graph(make.binary("y", b, d)))
    on_lanes(good, {"a": 0, "b": 0, "c": 1, "d": 1, "y": 1}, {"c": 1}, {"b": 1}).check()


def test_three_lanes_in_a_ring_of_events_are_proven() -> None:
    make = GraphMaker()
    value = make.input("x", 16)
    for index in range(6):
        value = make.unary(f"v{index}", value)
    lanes = {f"v{index}": index % 3 for index in range(6)}
    waits = {f"v{index}": index for index in range(1, 6)}
    signals = {f"v{index}": index + 1 for index in range(5)}
    assert on_lanes(one_lane(main=make.graph(value)), lanes, waits, signals).check()["main"].lanes == 3


def test_lanes_that_share_nothing_need_no_events() -> None:
    make = GraphMaker()
    first = make.unary("first", make.input("x", 16))
    second = make.unary("second", make.input("z", 16))
    good = one_lane(main=make.graph(first, second))
    assert on_lanes(good, {"first": 0, "second": 1}, {}, {}).check()["main"].lanes == 2


# bad plans


def drop_a_wait() -> Spoiled:
    return GOOD.with_step("d", waits=()), "reads %a at fake:0/arena[0:17] without waiting for step 0"


def drop_a_signal() -> Spoiled:
    return GOOD.with_step("a", signals=()), "step 4 (d) waits for event 1, which no step above it signals"


def wait_for_another_event() -> Spoiled:
    return GOOD.with_step("g", waits=(3,)), "reads %f at fake:0/arena"


def wait_for_an_event_that_never_comes() -> Spoiled:
    return GOOD.with_step("d", waits=(7,)), "waits for event 7, which no step above it signals"


def swap_two_signals() -> Spoiled:
    return GOOD.with_step("d", signals=(4,)).with_step("f", signals=(3,)), "waits for event 3, which no step above it"


def signal_too_early() -> Spoiled:
    """Event 4 comes from d instead of f: y may read f before it is made."""
    return GOOD.with_step("f", signals=()).with_step("d", signals=(3, 4)), "without waiting for step 6"


def wait_in_a_cycle() -> Spoiled:
    return GOOD.with_step("a", waits=(3,)), "step 0 (a) waits for event 3, which no step above it signals"


def wait_for_oneself() -> Spoiled:
    return GOOD.with_step("a", waits=(1,)), "step 0 (a) waits for event 1, which no step above it signals"


def list_a_wait_above_its_signal() -> Spoiled:
    """Steps are submitted in list order: a wait for an event not yet recorded would be no wait at all."""
    return GOOD.swapped("a", "d"), "waits for event 1, which no step above it signals"


def signal_an_event_twice() -> Spoiled:
    return GOOD.with_step("c", signals=(4,)), "event 4 is signalled by step 3 and step 6"


def run_on_a_negative_lane() -> Spoiled:
    return GOOD.with_step("e", lane=-1), "lane -1"


def move_a_step_to_the_other_lane() -> Spoiled:
    return GOOD.with_step("c", lane=1), "reads %a at fake:0/arena[0:17] without waiting for step 0"


def race_on_one_byte() -> Spoiled:
    """b and c run side by side; c moves up to the last byte of b, which has 17. (The plan ends lower: y needs less.)"""
    good = diamond_on_two_lanes()
    b, c = good.operand("b", 2).range, good.operand("c", 2).range
    low, high = sorted((b.offset, c.offset))
    assert high - low == 24
    name = "c" if c.offset == high else "b"
    return good.moved(name, fake_range("arena", low + 16, 17)), "without waiting for step 1, which uses it"


def race_of_two_workspaces() -> Spoiled:
    work = GOOD.operand("a", 2).range
    return GOOD.with_workspace("b", 2, work), "writes %#workspace at fake:0/arena[72:96] without waiting for step 0"


def race_of_a_workspace_with_a_value() -> Spoiled:
    place = GOOD.operand("a", 1).range
    return GOOD.with_workspace("b", 2, replace(place, size=24)), "without waiting for step 0, which uses it"


def overwrite_what_the_other_lane_still_reads() -> Spoiled:
    """e lies in b's bytes and waits for d, the last reader of b. Without that wait the reader may come later."""
    return GOOD.with_step("e", waits=()), "writes %e at fake:0/arena[24:41] without waiting for step"


def update_state_beside_its_reader() -> Spoiled:
    make = GraphMaker()
    state = make.input("s", 16, Role.STATE)
    peek = make.unary("peek", state)
    s1 = make.update("s1", state, make.input("x", 8))
    good = one_lane(main=make.graph(peek, make.unary("y", s1)))
    return (
        on_lanes(good, {"peek": 0, "s1": 1, "y": 1}, {}, {}),
        "writes %s at fake:0/state[0:16] without waiting for step 0, which uses it",
    )


def read_state_beside_its_update() -> Spoiled:
    make = GraphMaker()
    s1 = make.update("s1", make.input("s", 16, Role.STATE), make.input("x", 8))
    good = one_lane(main=make.graph(make.unary("y", s1)))
    return on_lanes(good, {"s1": 0, "y": 1}, {}, {}), "reads %s1 at fake:0/state[0:16] without waiting for step 0"


def run_ordered_effects_side_by_side() -> Spoiled:
    make = GraphMaker()
    first = make.ordered("first", make.input("x", 16))
    second = make.ordered("second", make.input("z", 16))
    good = one_lane(main=make.graph(first, second))
    return on_lanes(good, {"first": 0, "second": 1}, {}, {}), "%second (step 1) must come after %first (step 0)"


def copy_beside_the_producer() -> Spoiled:
    make = GraphMaker()
    y = make.unary("y", make.input("x", 16))
    good = one_lane(main=make.graph(y, y))
    steps = list(good.entry.steps)
    steps[1] = replace(steps[1], lane=1)
    return good.with_steps(steps), "step 1 (copy of y): reads %y at fake:0/io[16:32] without waiting for step 0"


MUTATIONS: tuple[Callable[[], Spoiled], ...] = tuple(
    item for item in list(globals().values()) if getattr(item, "__annotations__", {}).get("return") == "Spoiled"
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_is_refused(mutation: Callable[[], Spoiled]) -> None:
    spoiled, words = mutation()
    with pytest.raises(PlanError) as caught:
        spoiled.check()
    assert words in str(caught.value), str(caught.value)


def test_the_planner_refuses_such_schedules_too() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 8))
    graph = make.graph(make.unary("y", a))
    for turns in (
        (("a", 0, (), ()), ("y", 1, (5,), ())),
        (("a", 0, (), (1,)), ("y", 1, (), (1,))),
    ):
        with pytest.raises(PlanError, match="event"):
            plan_entry(graph, FAKE_TARGET, name="e", schedule=schedule(graph, *turns), ops=FAKE_OPS)


def test_a_schedule_without_the_waits_it_needs_is_caught_by_the_checker() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 8))
    graph: Graph = make.graph(make.unary("y", a))
    turns = schedule(graph, ("a", 0, (), ()), ("y", 1, (), ()))
    plan = plan_entry(graph, FAKE_TARGET, name="main", schedule=turns, ops=FAKE_OPS)
    with pytest.raises(PlanError, match="without waiting for step 0"):
        Bench(build_program({"main": (graph, plan)}), {"main": graph}).check()
