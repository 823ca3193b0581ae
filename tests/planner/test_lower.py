"""Storages, outputs, in-place reuse and steps of small graphs; every plan made here is also proven."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostinato.ir.errors import OstinatoError, PlanError
from ostinato.ir.graph import Graph, Role, Value
from ostinato.ir.step import WORKSPACE, ByteRange, Step, StepKind, StepOperand
from ostinato.ir.target import CallSite, Impl, Level, Target
from ostinato.ir.types import Dim, DType, TensorType
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, WORKSPACE_BYTES, GraphMaker, fake_range, vector


def plan(graph: Graph, *, in_place: bool = True, target: Target = FAKE_TARGET) -> EntryPlan:
    """Plans and proves."""
    entry = plan_entry(graph, target, name="e", settings=PlanSettings(in_place=in_place), ops=FAKE_OPS)
    check_program(build_program({"e": (graph, entry)}), {"e": graph}, target, ops=FAKE_OPS)
    return entry


def operand(step: Step, index: int) -> StepOperand:
    found = step.operands[index]
    assert found is not None
    return found


def place(entry: EntryPlan, value: str) -> ByteRange:
    """Where the first step that names a value has it."""
    return next(o.range for step in entry.steps for o in step.operands if o is not None and o.value == value)


def test_a_chain_alternates_between_two_buffers() -> None:
    make = GraphMaker()
    x = make.input("x", 16)
    for index in range(6):
        x = make.unary(f"v{index}", x)
    entry = plan(make.graph(x))
    assert (entry.stats.arena_bytes, entry.stats.lower_bound, entry.stats.sum_bytes) == (32, 32, 80)
    assert place(entry, "v5").region.kind == "io"
    assert [slot.last - slot.first for slot in entry.slots] == [2] * 5
    assert entry.stats.gap == 0.0


def test_operands_follow_the_row_and_flags_say_what_is_read_and_written() -> None:
    make = GraphMaker()
    a, w = make.input("a", 16), make.weight("w", 16)
    t = make.binary("t", a, w)
    y = make.binary("y", t, None)
    first, second = plan(make.graph(y)).steps
    assert [None if o is None else (o.value, o.reads, o.writes, o.early) for o in first.operands] == [
        ("a", True, False, True),
        ("w", True, False, True),
        None,
        ("t", False, True, False),
    ]
    assert [None if o is None else (o.value, o.early) for o in second.operands] == [
        ("t", False),
        None,
        None,
        ("y", False),
    ]
    assert first.kind is StepKind.LAUNCH
    assert (first.node, first.kernel, first.params, first.device) == ("t", "binary_kernel", (16, 0.5), "fake:0")


def test_a_counted_axis_gives_the_kernel_its_count() -> None:
    make = GraphMaker()
    n = make.count("n", "N")
    x = make.input("x", 16, axis="N")
    counted = make.unary("y", x)
    free = make.unary("z", make.input("u", 16))
    first, second = plan(make.graph(counted, free)).steps
    assert operand(first, 1) == StepOperand(n, fake_range("io", 0, 4), True, False, True)
    assert second.operands[1] is None


def test_variadic_results_take_their_numbers_and_spare_ones_are_absent() -> None:
    make = GraphMaker()
    make.split(("left", "right"), make.unary("t", make.input("x", 32)))
    step = plan(make.graph(make.binary("y", "left", "right"))).steps[1]
    assert [None if o is None else o.value for o in step.operands] == ["t", "left", "right", None, None]


def test_workspace_lives_for_one_step_and_touches_nothing() -> None:
    make = GraphMaker()
    t = make.unary("t", make.input("x", 40), "work")
    entry = plan(make.graph(make.unary("y", t, "work")))
    for step in entry.steps:
        work = step.workspace
        assert work is not None
        assert work.size == WORKSPACE_BYTES
        assert not any(work.overlaps(o.range) for o in step.operands if o is not None and o.value != WORKSPACE)
    assert entry.stats.arena_bytes == 40 + 24
    assert [slot.values for slot in entry.slots if slot.last - slot.first == 1] == [
        (f"{WORKSPACE} of t",),
        (f"{WORKSPACE} of y",),
    ]


def test_lifetime_is_the_union_over_nested_views() -> None:
    make = GraphMaker()
    base = make.unary("base", make.input("x", 64))
    inner = make.part("inner", make.part("outer", base, 8, 56), 8, 24)
    filler = make.unary("filler", base)
    late = make.unary("late", filler)
    entry = plan(make.graph(make.binary("y", inner, make.part("head", late, 0, 16))))
    slot = next(slot for slot in entry.slots if "base" in slot.values)
    assert slot.values == ("base", "outer", "inner")
    assert (slot.first, slot.last) == (0, 4)
    assert place(entry, "inner") == fake_range("arena", slot.range.offset + 16, 16)


# outputs


def test_outputs_live_in_io_and_never_in_the_arena() -> None:
    make = GraphMaker()
    y = make.unary("y", make.input("x", 16))
    entry = plan(make.graph(y))
    assert entry.stats.arena_bytes == entry.stats.copies == 0
    assert (entry.inputs[0].range, entry.outputs[0].range) == (fake_range("io", 0, 16), fake_range("io", 16, 16))


@pytest.mark.parametrize("role", [Role.INPUT, Role.WEIGHT, Role.STATE])
def test_an_input_that_is_an_output_is_copied(role: Role) -> None:
    make = GraphMaker()
    x = make.input("x", 16, role)
    entry = plan(make.graph(x))
    (step,) = entry.steps
    assert (step.kind, step.kernel, entry.stats.copies) == (StepKind.COPY, "", 1)
    assert operand(step, 1).range == entry.outputs[0].range
    assert not operand(step, 1).range.overlaps(operand(step, 0).range)


def test_a_view_of_an_intermediate_that_is_returned_is_copied_before_it_dies() -> None:
    make = GraphMaker()
    base = make.unary("base", make.input("x", 64))
    view = make.part("view", base, 16, 40)
    z = base
    for index in range(3):
        z = make.unary(f"z{index}", z)
    entry = plan(make.graph(view, z))
    copy = entry.steps[1]
    assert copy.kind is StepKind.COPY
    assert operand(copy, 0).range.size == 24
    assert entry.stats.copies == 1


def test_a_view_that_is_all_of_a_storage_needs_no_copy() -> None:
    make = GraphMaker()
    view = make.part("view", make.unary("base", make.input("x", 64)), 0, 64)
    entry = plan(make.graph(view))
    assert entry.stats.copies == 0
    assert place(entry, "base") == entry.outputs[0].range


def test_the_same_value_twice_and_two_outputs_of_one_storage_are_both_right() -> None:
    make = GraphMaker()
    y = make.unary("y", make.input("x", 64))
    entry = plan(make.graph(y, y, make.part("half", y, 32, 64), make.part("all", y, 0, 64)))
    assert entry.stats.copies == 3
    assert len({binding.range.offset for binding in entry.outputs}) == 4


def test_updated_state_can_be_returned_as_a_copy() -> None:
    make = GraphMaker()
    s = make.update("s1", make.input("s", 32, Role.STATE), make.input("x", 8))
    entry = plan(make.graph(s))
    update, copy = entry.steps
    assert (operand(update, 0).value, operand(update, 0).reads, operand(update, 0).writes) == ("s", True, True)
    assert operand(update, 0).range == operand(copy, 0).range == fake_range("state", 0, 32)
    assert (operand(update, 0).early, operand(copy, 0).early) == (True, False)


def test_a_row_may_name_the_updated_result_instead_of_the_operand() -> None:
    make = GraphMaker()
    s = make.update("s1", make.input("s", 32, Role.STATE), make.input("x", 8), "result")
    step = plan(make.graph(make.unary("y", s))).steps[0]
    assert operand(step, 1) == StepOperand("s1", fake_range("state", 0, 32), True, True, True)


def test_part_of_a_state_can_be_updated_in_place() -> None:
    make = GraphMaker()
    s = make.input("s", 64, Role.STATE)
    x = make.input("x", 8)
    one = make.update("one", make.part("p1", s, 0, 16), x)
    two = make.update("two", make.part("p2", s, 16, 64), x)
    entry = plan(make.graph(make.binary("y", one, None), make.binary("z", two, None)))
    assert [place(entry, name) for name in ("p1", "p2")] == [fake_range("state", 0, 16), fake_range("state", 16, 48)]


# in-place


def test_in_place_at_the_last_use_only() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 32))
    b = make.unary("b", a, "in_place")  # a is read again below
    c = make.binary("c", b, a, "in_place")  # both die here: c takes a or b
    entry = plan(make.graph(make.unary("y", c)))
    assert entry.stats.in_place == 1
    assert place(entry, "b") != place(entry, "a")
    assert place(entry, "c") == place(entry, "b")
    assert plan(make.graph("y"), in_place=False).stats.in_place == 0


def test_in_place_needs_the_last_use_of_the_whole_storage() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 32))
    view = make.part("view", a, 0, 32)
    b = make.unary("b", view, "in_place")
    entry = plan(make.graph(make.binary("y", b, a)))
    assert entry.stats.in_place == 0


def test_in_place_is_refused_for_a_part_an_input_a_weight_and_an_undeclared_second_reader() -> None:
    make = GraphMaker()
    x, w = make.input("x", 32), make.weight("w", 32)
    of_input = make.unary("of_input", x, "in_place")
    of_weight = make.unary("of_weight", w, "in_place")
    t = make.unary("t", x)
    of_part = make.unary("of_part", make.part("p", t, 0, 32, 2), "strided")
    twice = make.binary("twice", make.unary("u", x), None)
    undeclared = make.binary("undeclared", twice, twice, "in_place_a")
    entry = plan(
        make.graph(*(make.unary(f"y{i}", v) for i, v in enumerate((of_input, of_weight, of_part, undeclared))))
    )
    assert entry.stats.in_place == 0


def test_one_operand_read_twice_can_be_taken_when_both_pairs_are_declared() -> None:
    make = GraphMaker()
    t = make.unary("t", make.input("x", 32))
    double = make.binary("double", t, t, "in_place")
    assert plan(make.graph(make.unary("y", double))).stats.in_place == 1


def test_only_one_result_takes_an_operands_bytes() -> None:
    make = GraphMaker()
    a, b = make.unary("a", make.input("x", 32)), make.unary("b", make.input("z", 32))
    total, normed = make.pair(("sum", "normed"), a, b, "in_place")
    entry = plan(make.graph(make.binary("y", total, normed)))
    assert entry.stats.in_place == 1
    assert place(entry, "sum") == place(entry, "a")
    assert entry.stats.arena_bytes == 96


def test_an_operand_in_another_element_order_is_never_written_in_place() -> None:
    make = GraphMaker()
    turned = make.transpose("turned", make.unary("t", make.input("x", 16)), 4)
    entry = plan(make.graph(make.unary("y", make.unary("b", turned, "in_place_strided"))))
    assert entry.stats.in_place == 0
    assert entry.stats.strided_copies == 1


def test_a_strided_view_spans_its_first_to_its_last_element() -> None:
    make = GraphMaker()
    view = make.part("view", make.unary("t", make.input("x", 16)), 8, 16, 3)
    entry = plan(make.graph(make.unary("y", view, "strided")))
    assert place(entry, "view") == fake_range("arena", 8, 7)


def test_zero_size_values_have_steps_and_no_bytes() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 0), "work")
    entry = plan(make.graph(make.unary("y", a, "in_place"), a, make.weight("w", 0)))
    assert (entry.stats.launches, entry.stats.copies, entry.io_bytes) == (2, 0, 0)
    assert entry.stats.arena_bytes == 24  # the workspace


# refusals


def test_unbound_dimensions_are_refused_by_name() -> None:
    graph = GraphMaker().graph()
    tensor = TensorType((Dim("T", 1, 512),), DType.U8)
    make = GraphMaker()
    make.input("x", 8)
    graph = replace(graph, inputs=(replace(make.inputs[0], value=Value("x", tensor)),))
    with pytest.raises(PlanError, match=r"unbound dimensions T in \[1, 512\]"):
        plan(graph)


def test_every_problem_of_a_graph_is_listed() -> None:
    make = GraphMaker()
    x = make.input("x", 16)
    make.update("u", x, x)
    make.part("odd", make.unary("t", x), 0, 16, 2)
    with pytest.raises(PlanError) as caught:
        plan(make.graph("odd"))
    text = str(caught.value)
    assert "%u: update writes %x in place, which lies in the io region" in text
    assert "output 0 %odd is a strided view" in text


def test_missing_implementations_are_listed_with_what_the_target_has() -> None:
    make = GraphMaker()
    t = make.unary("t", make.input("x", 8), "fast")
    make.node("binary", None, (t, t), {"y": vector(8)})
    with pytest.raises(PlanError) as caught:
        plan(make.graph("y"))
    assert "%t: has the implementation unary@fast; target fake has unary@plain, unary@in_place" in str(caught.value)
    assert "%y: has no implementation" in str(caught.value)


def _broken_row(operands: tuple[str, ...], params: tuple[object, ...] = (), workspace: int = 0) -> Target:
    def given(site: CallSite) -> tuple[int | float, ...]:
        del site
        return params  # type: ignore[return-value]

    def bytes_needed(site: CallSite) -> int:
        del site
        return workspace

    row = Impl(
        "binary",
        "plain",
        Level.TUNED,
        ("fake",),
        operands,
        lambda site: "k",
        given,
        lambda site: None,
        workspace=bytes_needed,
    )
    return replace(FAKE_TARGET, rows=(row,))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (_broken_row(("a", "y")), "takes no operand b, but the node has %x"),
        (_broken_row(("a", "b")), "writes no result %y"),
        (_broken_row(("a", "b", "y", "z")), "names operands"),
        (_broken_row(("a", "b", "y"), (True,)), "parameter 0 as True of type bool"),
        (_broken_row(("a", "b", "y"), workspace=-1), "workspace of -1 bytes"),
        (_broken_row(("a", "b", "y"), workspace=8), "none of its operands takes it"),
    ],
)
def test_a_row_that_leaves_something_out_is_refused(target: Target, message: str) -> None:
    make = GraphMaker()
    x = make.input("x", 8)
    with pytest.raises(OstinatoError, match=message):
        plan(make.graph(make.binary("y", x, x)), target=target)


def test_long_chains_need_no_recursion() -> None:
    make = GraphMaker()
    x = make.input("x", 16)
    for index in range(20_000):
        x = make.unary(f"v{index}", x, "in_place")
    assert plan(make.graph(x)).stats.arena_bytes == 16
