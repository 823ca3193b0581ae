"""Parameters in plans: slots of the state region made of tensors, updated where they lie, one truth for all entries; and sums that grow in their own bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, GraphInput, Role
from ostinato.ir.step import ByteRange, StepKind
from ostinato.ir.types import TensorType
from ostinato.ir.weights import WeightPart
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan_text import print_program
from ostinato.planner.program import build_program
from ostinato.planner.saved import program_from_json, program_to_json
from tests.planner.bench_plans import Bench, one_lane
from tests.planner.fakes import DEVICE, FAKE_OPS, FAKE_TARGET, GraphMaker, fake_range, vector


def _train() -> Graph:
    """Two parameters, one with a moment; a gradient that is returned is written first and added to twice."""
    make = GraphMaker("train")
    x = make.input("x", 16)
    p, q = make.parameter("p", 16), make.parameter("q", 24)
    moment = make.input("moment", 16, Role.STATE)
    y = make.binary("y", x, p)
    wide = make.binary("wide", make.unary("z", y, size=24), q)
    first = make.unary("first", y)
    second = make.update("second", first, make.unary("more", wide, size=16))
    grad = make.update("grad", second, y, "both")
    m1 = make.update("moment.next", moment, grad)
    p1 = make.update("p.next", p, grad, "result")
    make.update("q.next", q, wide)
    return make.graph(grad, make.unary("seen", make.binary("sum", m1, p1)))


def _forward() -> Graph:
    make = GraphMaker("forward")
    q = make.parameter("q", 24)
    p = make.parameter("p", 16)
    return make.graph(make.binary("y", make.input("x", 16), p), make.unary("z", q))


GOOD = one_lane(train=_train(), forward=_forward())
STEP = GOOD.program.entries["train"]


def _spoiled(bench: Bench) -> str:
    with pytest.raises(PlanError) as caught:
        bench.check()
    return str(caught.value)


def test_parameters_lie_in_the_state_region_and_entries_share_them() -> None:
    GOOD.check()
    program = GOOD.program
    assert [(slot.name, slot.range.region.kind, slot.parts) for slot in program.parameters] == [
        ("p", "state", (WeightPart("p", 0, 16),)),
        ("q", "state", (WeightPart("q", 0, 24),)),
    ]
    assert [binding.name for binding in program.state] == ["moment"]
    assert program.weights == ()
    places = [*(slot.range for slot in program.parameters), program.state[0].range]
    assert not any(a.overlaps(b) for a in places for b in places if a is not b)
    read = {
        operand.value: operand.range
        for step in program.entries["forward"].steps
        for operand in step.operands
        if operand is not None and operand.value in ("p", "q")
    }
    assert read == {slot.name: slot.range for slot in program.parameters}


def test_a_returned_sum_grows_in_the_bytes_of_the_output() -> None:
    """First producer, two updates, no copy and no second place."""
    place = STEP.outputs[0].range
    assert (place.region.kind, STEP.stats.copies) == ("io", 0)
    touched = {o.value: o.range for step in STEP.steps for o in step.operands if o is not None and o.writes}
    assert touched["first"] == touched["grad"] == place
    updates = [step for step in STEP.steps if step.node in ("second", "grad")]
    assert all(place in [o.range for o in step.operands if o is not None and o.reads and o.writes] for step in updates)
    assert not any(place.overlaps(slot.range) for slot in STEP.slots)


def test_saved_and_printed_plans_have_the_parameters() -> None:
    assert program_from_json(program_to_json(GOOD.program)) == GOOD.program
    lines = [line.split() for line in print_program(GOOD.program).splitlines()]
    assert [line[1] for line in lines if line and line[0] == "parameter"] == ["%p", "%q"]
    other = GOOD.with_program(parameters=GOOD.program.parameters[::-1]).program.hashes
    assert other.shared != GOOD.program.hashes.shared
    assert other.entries == GOOD.program.hashes.entries


Spoil = Callable[[], tuple[Bench, str]]


def _train_steps(*without: str) -> Bench:
    kept = [step for step in STEP.steps if step.node not in without]
    return _with_train(STEP.model_copy(update={"steps": tuple(kept)}))


def _with_train(entry: object) -> Bench:
    return GOOD.with_program(entries={**GOOD.program.entries, "train": entry})


def an_update_is_missed() -> tuple[Bench, str]:
    return _train_steps("p.next"), "parameter %p.next at fake:0/state[0:16] is not intact at the end"


def a_moment_is_not_updated() -> tuple[Bench, str]:
    return _train_steps("moment.next"), "state %moment.next"


def a_contribution_is_missed() -> tuple[Bench, str]:
    return _train_steps("grad"), "output 0 %grad at fake:0/io"


def a_parameter_is_read_behind_its_update() -> tuple[Bench, str]:
    steps = [step for step in STEP.steps if step.node != "q.next"]
    late = next(step for step in STEP.steps if step.node == "q.next")
    at = next(index for index, step in enumerate(steps) if step.node == "wide")
    return _with_train(STEP.model_copy(update={"steps": (*steps[:at], late, *steps[at:])})), "reads %q at fake:0/state"


def an_update_goes_elsewhere() -> tuple[Bench, str]:
    """Into the bytes of the other parameter, which has room."""
    q = GOOD.program.parameters[1].range
    return _moved(
        "p.next", replace(q, size=16)
    ), "reads %p at fake:0/state[16:32], but fake:0/state[16:32] holds byte 0 of %q"


def a_parameter_is_written_by_no_update() -> tuple[Bench, str]:
    p = GOOD.program.parameters[0].range
    return _moved("first", p), "writes %first to fake:0/state[0:16], which only its owner may change"


def slots_overlap() -> tuple[Bench, str]:
    p, q = GOOD.program.parameters
    return GOOD.with_program(
        parameters=(p, replace(q, range=fake_range("state", 8, 24)))
    ), "%q at fake:0/state[8:32] overlaps %p"


def a_slot_lies_over_a_moment() -> tuple[Bench, str]:
    p, q = GOOD.program.parameters
    moment = GOOD.program.state[0].range
    return GOOD.with_program(parameters=(p, replace(q, range=replace(moment, size=24)))), "overlaps"


def a_slot_has_other_parts() -> tuple[Bench, str]:
    p, q = GOOD.program.parameters
    other = replace(p, parts=(WeightPart("q", 0, 16),))
    return GOOD.with_program(
        parameters=(other, q)
    ), "parameter %p: u8[16] is not in the plan with that type and content"


def a_slot_is_listed_with_the_weights() -> tuple[Bench, str]:
    p, q = GOOD.program.parameters
    return GOOD.with_program(parameters=(q,), weights=(p,)), "parameter %p: u8[16] is not in the plan"


def a_slot_is_missing() -> tuple[Bench, str]:
    return GOOD.with_program(parameters=GOOD.program.parameters[:1]), "parameter %q: u8[24] is not in the plan"


def a_slot_is_packed() -> tuple[Bench, str]:
    p, q = GOOD.program.parameters
    turned = TensorType((4, 4), p.type.dtype, ("A", "B"), "BA")
    return GOOD.with_program(parameters=(replace(p, type=turned), q)), "parameter %p lies packed"


def a_state_has_the_name_of_a_parameter() -> tuple[Bench, str]:
    (moment,) = GOOD.program.state
    return GOOD.with_program(state=(moment.model_copy(update={"name": "p"}),)), "%p appears 2 times in state"


def _moved(value: str, place: ByteRange) -> Bench:
    """The train entry with the step of a node using that place for its value."""
    steps = [
        replace(
            step,
            operands=tuple(
                replace(o, range=place)
                if o is not None and o.writes and (o.value == value or step.node == value)
                else o
                for o in step.operands
            ),
        )
        if step.node == value
        else step
        for step in STEP.steps
    ]
    return _with_train(STEP.model_copy(update={"steps": tuple(steps)}))


@pytest.mark.parametrize(
    "spoil",
    [
        an_update_is_missed,
        a_moment_is_not_updated,
        a_contribution_is_missed,
        a_parameter_is_read_behind_its_update,
        an_update_goes_elsewhere,
        a_parameter_is_written_by_no_update,
        slots_overlap,
        a_slot_lies_over_a_moment,
        a_slot_has_other_parts,
        a_slot_is_listed_with_the_weights,
        a_slot_is_missing,
        a_slot_is_packed,
        a_state_has_the_name_of_a_parameter,
    ],
)
def test_the_checker_refuses(spoil: Spoil) -> None:
    bench, words = spoil()
    found = _spoiled(bench)
    assert words in found, found


def test_entries_that_disagree_about_a_parameter_are_refused() -> None:
    def entries(item: GraphInput) -> None:
        other = Graph("forward", (item,), (), ("p",))
        pairs = {"train": _train(), "forward": other}
        build_program({n: (graph, plan_entry(graph, FAKE_TARGET, name=n, ops=FAKE_OPS)) for n, graph in pairs.items()})

    item = next(item for item in _train().inputs if item.value.name == "p")
    with pytest.raises(PlanError, match=r"parameter %p is made of p\[0:16\] none in train and of other\[0:16\]"):
        entries(replace(item, parts=(WeightPart("other", 0, 16),)))
    with pytest.raises(PlanError, match="%p is a parameter in train and a weight in forward"):
        entries(replace(item, role=Role.WEIGHT))
    with pytest.raises(PlanError, match=r"parameter %p is u8\[16\] in train and u8\[8\] in forward"):
        entries(replace(item, value=replace(item.value, type=vector(8)), parts=(WeightPart("p", 0, 8),)))


def test_what_is_returned_behind_an_update_of_a_parameter_is_a_copy() -> None:
    """The parameter stays where it is."""
    make = GraphMaker()
    p = make.parameter("p", 16)
    graph = make.graph(make.update("p1", p, make.input("x", 16)))
    entry = plan_entry(graph, FAKE_TARGET, name="e", ops=FAKE_OPS)
    assert [step.kind for step in entry.steps] == [StepKind.LAUNCH, StepKind.COPY]
    one_lane(e=graph).check()
    assert DEVICE in str(entry.steps[1].operands)
