"""Every kind of bad plan that the checker must refuse: one function, one fault, on one lane. (Two lanes: `test_check_lanes.py`.)

Each spoils a proven program and names words that the refusal must contain, so that a plan is refused for its own fault and not by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Node
from ostinato.ir.step import ByteRange, Region, StepKind
from ostinato.planner.plan import RegionSize
from tests.planner.bench_plans import Bench, one_lane
from tests.planner.fakes import DEVICE, GraphMaker, fake_range

GOOD = one_lane()
Spoiled = tuple[Bench, str]


def test_the_unspoiled_program_is_proven() -> None:
    reports = GOOD.check()
    assert {name: report.steps for name, report in reports.items()} == {"main": 16, "side": 3}
    assert reports["main"].reads == 26


# steps


def drop_a_step() -> Spoiled:
    steps = [step for step in GOOD.entry.steps if step.node != "o1"]
    return GOOD.with_steps(steps), "node %o1 has no step"


def repeat_a_step() -> Spoiled:
    return GOOD.with_steps([*GOOD.entry.steps, GOOD.step("z")]), "%z ran already"


def run_a_view() -> Spoiled:
    return GOOD.with_step("m", node="p"), "%p is a view, which runs nothing"


def run_a_node_of_no_graph() -> Spoiled:
    return GOOD.with_step("m", node="nobody"), "%nobody is no node of the graph"


def run_before_the_producer() -> Spoiled:
    return GOOD.swapped("a", "b"), "reads %a"


def swap_ordered_effects() -> Spoiled:
    return GOOD.swapped("o1", "o2"), "%o2 (step 9) must come after %o1 (step 10)"


def read_state_before_its_update() -> Spoiled:
    return GOOD.swapped("s1", "from_state"), "reads %s1 at fake:0/state[0:64]"


def run_another_kernel() -> Spoiled:
    return GOOD.with_step("m", kernel="unary_kernel"), "runs kernel unary_kernel"


def change_a_parameter() -> Spoiled:
    return GOOD.with_step("m", params=(15, 0.5)), "has parameters (15, 0.5)"


def change_the_type_of_a_parameter() -> Spoiled:
    return GOOD.with_step("m", params=(16.0, 0.5)), "has parameters (16.0, 0.5)"


def change_the_kind_of_a_step() -> Spoiled:
    return GOOD.with_step("m", kind=StepKind.GEMM), "is a gemm step"


def change_the_device() -> Spoiled:
    return GOOD.with_step("m", device="host:1"), "runs on host:1"


def reach_into_another_device() -> Spoiled:
    """Memory that exists, on a device that a launch cannot reach without a copy."""
    other = Region("fake:1", "arena")
    there = GOOD.with_program(regions=(*GOOD.program.regions, RegionSize(region=other, bytes=64)))
    return there.moved("m", ByteRange(other, 0, 16)), "%m at fake:1/arena[0:16] lies on another device than fake:0"


def take_the_device_of_its_operands_alone() -> Spoiled:
    """The step and its operands agree, the entry is planned for another device."""
    other = Region("fake:1", "arena")
    there = GOOD.with_program(regions=(*GOOD.program.regions, RegionSize(region=other, bytes=64)))
    return there.with_step("m", device="fake:1"), "lies on another device than fake:1"


def plan_for_another_device() -> Spoiled:
    return GOOD.with_entry(device="fake:1"), "fake on fake:1 aligned to 8, expected fake on fake:0 aligned to 8"


def capture_two_nodes() -> Spoiled:
    return GOOD.with_step("m", node_count=2), "2 captured nodes"


# operands


def leave_an_operand_out() -> Spoiled:
    return GOOD.with_step("m", operands=GOOD.step("m").operands[:-1]), "has 3 operands, the row lists 4"


def make_an_operand_absent() -> Spoiled:
    operands = GOOD.step("m").operands
    return GOOD.with_step("m", operands=(operands[0], None, *operands[2:])), "operand 1 is absent, expected %c"


def drop_the_count() -> Spoiled:
    operands = GOOD.step("a").operands
    return GOOD.with_step("a", operands=(*operands[:2], None, operands[3])), "operand 2 is absent, expected %n"


def count_with_another_input() -> Spoiled:
    x = GOOD.operand("t", 0).range
    return GOOD.with_operand(
        "a", 2, range=replace(x, size=4)
    ), "reads %n at fake:0/io[8:12], but fake:0/io[8:12] holds byte 0 of %x"


def fill_a_spare_operand() -> Spoiled:
    operands = GOOD.step("b").operands
    return GOOD.with_step(
        "left", operands=(*GOOD.step("left").operands[:3], operands[0], None)
    ), "operand 3 is %a, expected absent"


def swap_two_operands() -> Spoiled:
    total, normed, *rest = GOOD.step("last").operands
    return GOOD.with_step("last", operands=(normed, total, *rest)), "operand 0 is %normed, the row says %total"


def name_another_value() -> Spoiled:
    return GOOD.with_operand("last", 0, value="normed"), "operand 0 is %normed, the row says %total"


def hide_a_read() -> Spoiled:
    return GOOD.with_operand("m", 0, reads=False), "reads=False writes=False, expected reads=True writes=False"


def hide_the_write_of_an_update() -> Spoiled:
    return GOOD.with_operand("s1", 0, writes=False), "reads=True writes=False, expected reads=True writes=True"


def claim_a_late_read_to_be_early() -> Spoiled:
    return GOOD.with_operand("from_state", 0, early=True), "reads %s1 early, but step 7 writes"


def shrink_a_size() -> Spoiled:
    place = GOOD.operand("m", 0).range
    return GOOD.with_operand("m", 0, range=replace(place, size=15)), "has 15 bytes, expected 16"


def grow_a_size() -> Spoiled:
    place = GOOD.operand("m", 0).range
    return GOOD.with_operand("m", 0, range=replace(place, size=17)), "has 17 bytes, expected 16"


# places


def read_beside_the_value() -> Spoiled:
    place = GOOD.operand("m", 0).range
    return GOOD.with_operand(
        "m", 0, range=replace(place, offset=place.offset - 8)
    ), "reads %left at fake:0/arena[72:88]"


def shift_a_view_within_its_base() -> Spoiled:
    return GOOD.with_operand("r", 0, range=fake_range("arena", 16, 16)), "reads %p at fake:0/arena[16:32]"


def place_off_the_alignment() -> Spoiled:
    return GOOD.moved("m", fake_range("arena", 95, 16)), "is not aligned to 8 bytes"


def place_past_the_end() -> Spoiled:
    return GOOD.moved("m", fake_range("arena", 104, 16)), "lies outside its region of 112 bytes"


def place_past_two_to_the_32() -> Spoiled:
    return GOOD.moved("m", fake_range("arena", 96 + 2**32, 16)), "lies outside its region"


def place_before_the_start() -> Spoiled:
    return GOOD.moved("m", fake_range("arena", -8, 16)), "lies outside its region"


def place_in_an_unknown_region() -> Spoiled:
    return GOOD.moved("m", fake_range("symmetric", 0, 16)), "lies outside its region of no bytes"


def overwrite_a_live_value() -> Spoiled:
    return GOOD.moved("m", fake_range("arena", 64, 16)), "reads %right at fake:0/arena[64:80]"


def reuse_at_the_wrong_time() -> Spoiled:
    """o1 lands on r, which o2 reads one step later."""
    return GOOD.moved("o1", fake_range("arena", 80, 16)), "reads %r at fake:0/arena[80:96]"


def overlap_results_of_one_step() -> Spoiled:
    return GOOD.moved("normed", fake_range("arena", 88, 16)), "which it also writes"


# workspace


def shrink_the_workspace() -> Spoiled:
    return GOOD.with_operand("t", 2, range=fake_range("arena", 32, 16)), "has 16 bytes, expected 24"


def place_workspace_over_its_result() -> Spoiled:
    place = GOOD.operand("t", 1).range
    return GOOD.with_workspace(
        "t", 2, replace(place, size=24)
    ), "over %#workspace at fake:0/arena[0:24], which it also writes"


def place_workspace_over_its_operand() -> Spoiled:
    last = GOOD.operand("y", 0).range
    return GOOD.with_workspace(
        "y", 2, fake_range("arena", last.end - 24, 24)
    ), "over %last at fake:0/arena[96:112], which it also reads"


def place_workspace_over_a_live_value() -> Spoiled:
    place = GOOD.operand("b", 3).range
    return GOOD.with_workspace(
        "y", 2, replace(place, size=24)
    ), "reads %b at fake:0/arena[32:64], but fake:0/arena[32:56] holds workspace"


def place_workspace_over_an_input() -> Spoiled:
    return GOOD.with_operand("t", 2, range=fake_range("io", 8, 24)), "which only its owner may change"


# in-place


def take_bytes_that_the_row_does_not_give() -> Spoiled:
    place = GOOD.operand("r", 1).range
    return GOOD.moved("r", place), "over %right at fake:0/arena[64:80], which it also reads"


def take_bytes_that_are_read_again() -> Spoiled:
    make = GraphMaker()
    t = make.unary("t", make.input("x", 32))
    a = make.unary("a", t, "in_place")
    good = one_lane(main=make.graph(make.binary("y", a, t)))
    return good.moved(
        "a", good.operand("t", 2).range
    ), "reads %t at fake:0/arena[0:32], but fake:0/arena[0:32] holds byte 0 of %a"


def take_bytes_in_another_element_order() -> Spoiled:
    """The row takes strided views and gives their bytes away, but element i of this view is not byte i of the result."""
    make = GraphMaker()
    turned = make.transpose("turned", make.unary("t", make.input("x", 16)), 4)
    good = one_lane(main=make.graph(make.unary("y", make.unary("a", turned, "in_place_strided"))))
    return good.moved("a", good.operand("a", 0).range), "over %turned at fake:0/arena[0:16], which it also reads"


def take_only_part_of_the_bytes() -> Spoiled:
    return GOOD.moved("a", fake_range("arena", 8, 32)), "writes %a at fake:0/arena[8:40] over %t at fake:0/arena[0:32]"


# outputs and copies


def leave_a_copy_out() -> Spoiled:
    steps = [step for step in GOOD.entry.steps if not (step.kernel == "" and step.node == "p")]
    return GOOD.with_steps(steps), "output 2 %p at fake:0/io[120:136] is not intact at the end"


def copy_too_late() -> Spoiled:
    steps = list(GOOD.entry.steps)
    steps.append(steps.pop(GOOD.index("copy of p")))
    return GOOD.with_steps(steps), "reads %p at fake:0/arena[8:24]"


def copy_from_elsewhere() -> Spoiled:
    return GOOD.with_operand("copy of p", 0, range=fake_range("arena", 16, 16)), "reads %p at fake:0/arena[16:32]"


def copy_with_a_parameter() -> Spoiled:
    return GOOD.with_step("copy of p", params=(1,)), "no kernel and no parameters"


def copy_onto_itself() -> Spoiled:
    place = GOOD.operand("copy of p", 0).range
    return GOOD.with_operand("copy of p", 1, range=replace(place, offset=place.offset + 8)), "overlap"


def move_an_output() -> Spoiled:
    """The binding says one place, the step writes another."""
    y = replace(GOOD.operand("y", 1).range, offset=88)
    z = GOOD.operand("z", 3).range
    outputs = tuple(b.model_copy(update={"range": y}) if b.name == "y" else b for b in GOOD.entry.outputs)
    assert z.overlaps(y)
    return GOOD.with_entry(outputs=outputs), "overlaps"


def let_two_outputs_share_bytes() -> Spoiled:
    place = GOOD.entry.outputs[1].range
    outputs = tuple(
        b.model_copy(update={"range": replace(place, size=16)}) if b.name == "y" else b for b in GOOD.entry.outputs
    )
    return GOOD.moved("y", replace(place, size=16)).with_entry(outputs=outputs), "is not intact at the end"


def overwrite_an_output() -> Spoiled:
    """total passes through the bytes of output p, which was copied there before."""
    return GOOD.moved(
        "total", GOOD.entry.outputs[2].range
    ), "output 2 %p at fake:0/io[120:136] is not intact at the end"


def reach_over_two_bindings() -> Spoiled:
    return GOOD.moved("z", fake_range("io", 80, 32)), "lies in no single input or output"


def write_over_an_input() -> Spoiled:
    return GOOD.moved("total", fake_range("io", 8, 16)), "which only its owner may change"


def write_over_a_weight() -> Spoiled:
    return GOOD.moved("total", fake_range("weights", 0, 16)), "which only its owner may change"


def write_over_a_constant() -> Spoiled:
    return GOOD.moved("total", fake_range("constants", 0, 16)), "which only its owner may change"


def write_over_state() -> Spoiled:
    return GOOD.moved("total", fake_range("state", 0, 16)), "which only its owner may change"


def update_state_elsewhere() -> Spoiled:
    return GOOD.with_operand("s1", 0, range=fake_range("arena", 0, 64)), "state %s1 at fake:0/state[0:64] is not intact"


# shared regions


def read_another_weight() -> Spoiled:
    return GOOD.with_operand("a", 1, range=fake_range("weights", 32, 32)), "holds byte 0 of %bias"


def overlap_two_weights() -> Spoiled:
    w, bias = GOOD.program.weights
    return GOOD.with_program(
        weights=(w, replace(bias, range=fake_range("weights", 16, 32)))
    ), "%bias at fake:0/weights[16:48] overlaps %w"


def change_the_parts_of_a_weight() -> Spoiled:
    w, bias = GOOD.program.weights
    parts = (replace(w.parts[0], transform="reorder_rows"),)
    return GOOD.with_program(weights=(replace(w, parts=parts), bias)), "weight %w: u8[32] is not in the plan"


def leave_a_weight_out() -> Spoiled:
    return GOOD.with_program(weights=GOOD.program.weights[1:]), "weight %w: u8[32] is not in the plan"


def list_a_weight_twice() -> Spoiled:
    w, bias = GOOD.program.weights
    return GOOD.with_program(weights=(w, replace(bias, name="w"))), "%w appears 2 times in weights"


def change_a_constant() -> Spoiled:
    (slot,) = GOOD.program.constants
    changed = slot.model_copy(update={"data": bytes(16)})
    return GOOD.with_program(constants=(changed,)), "constant %c: u8[16] is not in the plan"


def shorten_a_constant() -> Spoiled:
    (slot,) = GOOD.program.constants
    return GOOD.with_program(constants=(slot.model_copy(update={"data": bytes(15)}),)), "has 15 bytes of data"


def place_a_weight_off_the_alignment() -> Spoiled:
    w, bias = GOOD.program.weights
    return GOOD.with_program(weights=(w, replace(bias, range=fake_range("weights", 31, 32)))), "is not aligned"


def shrink_the_state_region() -> Spoiled:
    return GOOD.with_region("state", 63), "outside the fake:0/state region of 63 bytes"


def shrink_the_io_region() -> Spoiled:
    return GOOD.with_region("io", 200), "needs 232 bytes of io, the region has 200"


def forget_a_region() -> Spoiled:
    regions = tuple(item for item in GOOD.program.regions if item.region.kind != "constants")
    return GOOD.with_program(regions=regions), "outside the fake:0/constants region of 0 bytes"


def list_a_region_twice() -> Spoiled:
    return GOOD.with_program(regions=(*GOOD.program.regions, GOOD.program.regions[0])), "arena is listed 2 times"


def have_a_region_of_less_than_nothing() -> Spoiled:
    return GOOD.with_region("constants", -1), "region fake:0/constants has -1 bytes"


def have_a_reserved_region() -> Spoiled:
    reserved = RegionSize(region=Region(DEVICE, "symmetric"), bytes=64)
    return GOOD.with_program(regions=(*GOOD.program.regions, reserved)), "symmetric is of a reserved kind"


def place_a_weight_in_another_kind_of_region() -> Spoiled:
    w, bias = GOOD.program.weights
    return GOOD.with_program(weights=(replace(w, range=fake_range("arena", 0, 32)), bias)), "outside the fake:0/weights"


# identity


def belong_to_another_graph() -> Spoiled:
    return GOOD.with_entry(graph_hash="0" * 64), "the plan belongs to graph 000"


def check_against_a_changed_graph() -> Spoiled:
    graph = GOOD.graphs["main"]
    nodes: tuple[Node, ...] = tuple(replace(n, impl="in_place_a") if n.name == "z" else n for n in graph.nodes)
    return replace(GOOD, graphs={**GOOD.graphs, "main": replace(graph, nodes=nodes)}), "the plan belongs to graph"


def be_made_for_another_target() -> Spoiled:
    return GOOD.with_entry(target="other"), "is for target other"


def be_made_for_another_alignment() -> Spoiled:
    return GOOD.with_entry(alignment=4), "aligned to 4, expected fake on fake:0 aligned to 8"


def have_another_version() -> Spoiled:
    return GOOD.with_program(version=0), "plan version 0"


def call_an_entry_by_another_name() -> Spoiled:
    return GOOD.with_entry(name="other"), "entry main calls itself other"


def hold_an_unknown_entry() -> Spoiled:
    return replace(GOOD, graphs={"main": GOOD.graphs["main"]}), "the plan has entries"


def bind_inputs_in_another_order() -> Spoiled:
    return GOOD.with_entry(inputs=GOOD.entry.inputs[::-1]), "the plan's inputs"


def forget_an_output() -> Spoiled:
    return GOOD.with_entry(outputs=GOOD.entry.outputs[:-1]), "the plan's outputs"


def lose_the_implementation() -> Spoiled:
    rows = tuple(row for row in GOOD.target.rows if row.identity != "pair@plain")
    return replace(GOOD, target=replace(GOOD.target, rows=rows)), "pair@plain is no row of target fake"


def use_a_row_that_refuses_the_node() -> Spoiled:
    rows = tuple(
        replace(row, accepts=lambda site: "only on Sundays") if row.op == "pair" else row for row in GOOD.target.rows
    )
    return replace(GOOD, target=replace(GOOD.target, rows=rows)), "does not take this node: only on Sundays"


# what a plan says of itself


def state_a_smaller_arena() -> Spoiled:
    stats = GOOD.entry.stats.model_copy(update={"arena_bytes": 104, "lower_bound": 104})
    return GOOD.with_entry(stats=stats), "the steps use 112 bytes of fake:0/arena, 104 are stated"


def state_a_bound_above_the_arena() -> Spoiled:
    stats = GOOD.entry.stats.model_copy(update={"lower_bound": 113})
    return GOOD.with_entry(stats=stats), "the bound 113 is above"


def state_another_number_of_steps() -> Spoiled:
    stats = GOOD.entry.stats.model_copy(update={"copies": 3})
    return GOOD.with_entry(stats=stats), "(16, 14, 3) steps, launches, copies are stated"


def list_a_slot_elsewhere() -> Spoiled:
    slots = tuple(
        slot.model_copy(update={"range": fake_range("arena", 0, 16)}) if slot.values == ("m",) else slot
        for slot in GOOD.entry.slots
    )
    return GOOD.with_entry(slots=slots), "which no slot of the plan lists for it"


MUTATIONS: tuple[Callable[[], Spoiled], ...] = tuple(
    item
    for name, item in list(globals().items())
    if callable(item)
    and getattr(item, "__annotations__", {}).get("return") == "Spoiled"
    and not name.startswith("test")
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_is_refused(mutation: Callable[[], Spoiled]) -> None:
    spoiled, words = mutation()
    with pytest.raises(PlanError) as caught:
        spoiled.check()
    assert words in str(caught.value), str(caught.value)


def test_there_are_at_least_thirty_kinds() -> None:
    assert len(MUTATIONS) >= 30


def test_all_violations_are_listed_together() -> None:
    bad = GOOD.with_step("m", kernel="k", params=()).with_operand("last", 0, value="normed")
    with pytest.raises(PlanError) as caught:
        bad.check()
    text = str(caught.value)
    assert "3 violations" in text
    assert text.count("\n  main: step") == 3
