"""The judge of harm on plans small enough to see by eye: what it must call harmful, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ostinato.ir.graph import Graph, GraphInput, Role, Value
from ostinato.ir.ops import OP
from ostinato.ir.step import ByteRange, StepOperand
from ostinato.ir.types import DType, TensorType
from ostinato.planner.plan import ProgramPlan
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker, fake_range
from tests.planner.mutation_cases import ENTRY, Case, plan_case
from tests.planner.promises import Promises
from tests.planner.tagged import Judge
from tests.planner.tagged_values import bytes_of_values


def is_harmful(case: Case, program: ProgramPlan, *, gaps: bool = False) -> bool:
    return Judge(case.graph, FAKE_TARGET, FAKE_OPS).is_harmful(program, program.entries[ENTRY], gaps=gaps)


def moved(case: Case, value: str, place: ByteRange) -> ProgramPlan:
    """A value's slot at another place."""
    number = next(number for number, slot in enumerate(case.entry.slots) if value in slot.values)
    return case.moved({number: place.offset})


def on_lanes(case: Case, lanes: dict[str, int], waits: dict[str, int], signals: dict[str, int]) -> ProgramPlan:
    steps = [
        replace(
            step,
            lane=lanes.get(step.node, 0),
            waits=(waits[step.node],) if step.node in waits else (),
            signals=(signals[step.node],) if step.node in signals else (),
        )
        for step in case.entry.steps
    ]
    return case.with_steps(steps)


# values


def test_views_are_bytes_of_their_source() -> None:
    make = GraphMaker()
    x = make.input("x", 24)
    make.part("p", x, 2, 22, 3)
    make.part("q", "p", 1, 6, 2)
    make.part("dense", x, 8, 16)
    make.transpose("turned", x, 4)
    found = bytes_of_values(make.graph(make.unary("y", x)), FAKE_OPS)
    assert (found["p"].content, found["p"].first, found["p"].span) == ("x", 2, 19)
    assert found["p"].runs == tuple((start, 1) for start in range(0, 19, 3))
    assert (found["q"].content, found["q"].first, found["q"].runs) == ("x", 5, ((0, 1), (6, 1), (12, 1)))
    assert (found["dense"].first, found["dense"].runs, found["dense"].has_gaps) == (8, ((0, 8),), False)
    assert (found["turned"].first, found["turned"].runs) == (0, ((0, 24),))
    assert found["turned"].order != found["x"].order
    assert found["y"].order == found["x"].order


def test_a_layout_is_an_order_of_bytes() -> None:
    plain, turned = (TensorType((2, 3), DType.F32, ("B", "T"), layout) for layout in ("BT", "TB"))
    inputs = tuple(GraphInput(Value(name, tensor), Role.INPUT) for name, tensor in (("a", plain), ("b", turned)))
    found = bytes_of_values(Graph("g", inputs, (), ("a",)), OP)
    assert found["a"].runs == found["b"].runs == ((0, 24),)
    assert found["a"].order != found["b"].order


def test_values_larger_than_memory_cost_nothing() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 2**40))
    case = plan_case(make.graph(make.unary("y", make.unary("b", a))), FAKE_TARGET, FAKE_OPS)
    assert not is_harmful(case, case.program)
    assert is_harmful(case, moved(case, "b", fake_range("arena", 2**40 - 8, 2**40)))
    assert not is_harmful(case, moved(case, "b", fake_range("arena", 2**41, 2**40)))


# one lane


def two_readers() -> Case:
    """a (17 bytes) is read by b and by y."""
    make = GraphMaker()
    a = make.unary("a", make.input("x", 17))
    b = make.unary("b", a)
    return plan_case(make.graph(make.binary("y", a, b)), FAKE_TARGET, FAKE_OPS)


@pytest.mark.parametrize(("offset", "harmful"), [(16, True), (24, False), (8, True), (2**32, False)])
def test_one_byte_is_enough(offset: int, harmful: bool) -> None:
    case = two_readers()
    assert is_harmful(case, moved(moved_case(case, "a", 0), "b", fake_range("arena", offset, 17))) == harmful


def moved_case(case: Case, value: str, offset: int) -> Case:
    return replace(case, program=moved(case, value, fake_range("arena", offset, 0)))


def test_bytes_between_elements_are_nobodys_but_promised() -> None:
    """A strided operand has gaps: what lies there is not read, but belongs to the operand."""
    make = GraphMaker()
    a = make.unary("a", make.input("x", 24))
    part = make.part("p", a, 0, 24, 16)  # bytes 0 and 16
    b = make.unary("b", "x", size=8)
    y = make.unary("y", part, "strided")
    case = moved_case(plan_case(make.graph(y, make.unary("z", b)), FAKE_TARGET, FAKE_OPS), "a", 0)
    between = moved(case, "b", fake_range("arena", 8, 8))
    assert not is_harmful(case, between)
    assert is_harmful(case, between, gaps=True)
    assert is_harmful(case, moved(case, "b", fake_range("arena", 16, 8)))


def test_a_result_may_take_its_operand_only_where_the_row_says_so() -> None:
    for row, harmful in (("plain", True), ("in_place", False)):
        make = GraphMaker()
        a = make.unary("a", make.input("x", 16))
        case = plan_case(make.graph(make.unary("y", make.unary("b", a, row))), FAKE_TARGET, FAKE_OPS)
        place = next(slot.range for slot in case.entry.slots if "a" in slot.values)
        assert is_harmful(case, moved(case, "b", place)) == harmful, row


# lanes


def side_by_side() -> Case:
    """b and c both read a; y reads both."""
    make = GraphMaker()
    a = make.unary("a", make.input("x", 16))
    b, c = make.unary("b", a), make.unary("c", a)
    return plan_case(make.graph(make.binary("y", b, c)), FAKE_TARGET, FAKE_OPS)


ON_TWO_LANES: dict[str, tuple[dict[str, int], dict[str, int], bool]] = {
    "all events": ({"c": 1, "y": 2}, {"a": 1, "c": 2}, False),
    "c does not wait for a": ({"y": 2}, {"a": 1, "c": 2}, True),
    "y does not wait for c": ({"c": 1}, {"a": 1, "c": 2}, True),
    "an event that never comes": ({"c": 1, "y": 7}, {"a": 1, "c": 2}, True),
    "each waits for the other": ({"a": 2, "c": 1}, {"a": 1, "c": 2}, True),
}


@pytest.mark.parametrize("events", ON_TWO_LANES)
def test_every_interleaving_counts(events: str) -> None:
    waits, signals, harmful = ON_TWO_LANES[events]
    case = side_by_side()
    assert is_harmful(case, on_lanes(case, {"c": 1}, waits, signals)) == harmful


def test_dead_results_of_two_lanes_may_not_share_bytes_while_they_are_made() -> None:
    """Nobody reads them, but each kernel may use its result's bytes as it likes until it is done."""
    make = GraphMaker()
    x = make.input("x", 16)
    make.unary("a", x)
    make.unary("b", x)
    case = plan_case(make.graph(make.unary("y", x)), FAKE_TARGET, FAKE_OPS)
    shared = replace(case, program=moved(moved_case(case, "a", 0), "b", fake_range("arena", 0, 16)))
    assert not is_harmful(case, shared.program)
    assert is_harmful(case, on_lanes(shared, {"b": 1}, {}, {}))


def test_ordered_effects_keep_their_order() -> None:
    make = GraphMaker()
    x = make.input("x", 8)
    first, second = make.ordered("first", x), make.ordered("second", x)
    case = plan_case(make.graph(first, second), FAKE_TARGET, FAKE_OPS)
    assert not is_harmful(case, case.program)
    assert is_harmful(case, case.with_steps(case.entry.steps[::-1]))
    assert is_harmful(case, on_lanes(case, {"second": 1}, {}, {}))
    assert not is_harmful(case, on_lanes(case, {"second": 1}, {"second": 1}, {"first": 1}))


# promises


BREAKS: dict[str, Callable[[Case], ProgramPlan]] = {
    "b: the call": lambda case: case.with_step(1, kernel="another"),
    "b: alignment": lambda case: moved(case, "b", fake_range("arena", 33, 17)),
    "every node has one step": lambda case: case.with_steps(case.entry.steps[:-1]),
    "b: a slot lists b": lambda case: case.with_entry(slots=[s for s in case.entry.slots if "b" not in s.values]),
    "b: events above, lanes from 0": lambda case: case.with_step(1, waits=(1,)),
    "y: early": lambda case: case.with_operand(2, 0, replace(_operand(case, 2, 0), early=True)),
}


def _operand(case: Case, step: int, number: int) -> StepOperand:
    found = case.entry.steps[step].operands[number]
    assert found is not None
    return found


@pytest.mark.parametrize("promise", BREAKS)
def test_a_broken_promise_is_named(promise: str) -> None:
    case = two_readers()
    promises = Promises(case.entry)
    assert promises.broken(case.program, case.entry) is None
    spoiled = BREAKS[promise](case)
    assert promises.broken(spoiled, spoiled.entries[ENTRY]) == promise
