"""What lives outside the arena, what passes through, and bytes that several values share: each kind of graph that planners were seen to get wrong.

Every plan made here is proven, executed on tagged bytes, and looked at.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.errors import PlanError, ShapeError, TextError, VerificationError
from ostinato.ir.graph import Graph, GraphInput, Role, Value
from ostinato.ir.step import StepKind
from ostinato.ir.text import parse_graph, print_graph
from ostinato.ir.types import Dim, DType, TensorType
from ostinato.ir.verify import verify
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker, fake_range
from tests.planner.mutation_cases import Case, plan_case
from tests.planner.mutation_run import spoil
from tests.planner.tagged import Judge


def planned(graph: Graph) -> EntryPlan:
    entry = plan_entry(graph, FAKE_TARGET, name="e", ops=FAKE_OPS)
    program = build_program({"e": (graph, entry)})
    check_program(program, {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
    assert not Judge(graph, FAKE_TARGET, FAKE_OPS).is_harmful(program, program.entries["e"])
    return program.entries["e"]


def held(entry: EntryPlan) -> set[str]:
    """Every value with bytes in the arena."""
    return {value for slot in entry.slots for value in slot.values}


def test_inputs_weights_state_constants_and_outputs_are_never_planned() -> None:
    make = GraphMaker()
    x, w, c = make.input("x", 64), make.weight("w", 64), make.constant("c", bytes(64))
    s = make.input("s", 64, Role.STATE)
    t = make.binary("t", make.binary("u", x, w), c)
    make.update("s1", s, t)
    entry = planned(make.graph(make.binary("y", t, None)))
    assert held(entry) == {"u", "t"}
    kinds = {o.value: o.range.region.kind for step in entry.steps for o in step.operands if o is not None}
    assert kinds == {
        "x": "io",
        "w": "weights",
        "c": "constants",
        "s": "state",
        "u": "arena",
        "t": "arena",
        "y": "io",
    }
    assert entry.stats.arena_bytes == 128


def test_a_graph_that_does_nothing_but_hand_on_is_copies_without_an_arena() -> None:
    make = GraphMaker()
    outputs = [
        make.input("x", 16),
        make.weight("w", 24),
        make.constant("c", bytes(range(8))),
        make.input("s", 32, Role.STATE),
    ]
    entry = planned(make.graph(*outputs, "x"))
    assert [step.kind for step in entry.steps] == [StepKind.COPY] * 5
    assert (entry.stats.arena_bytes, entry.slots) == (0, ())
    assert len({binding.range.offset for binding in (*entry.inputs, *entry.outputs)}) == 6  # nothing is aliased


def test_a_part_of_an_input_is_an_output() -> None:
    make = GraphMaker()
    part = make.part("part", make.input("x", 64), 16, 40)
    (step,) = planned(make.graph(part, part)).steps[:1]
    source, target = step.operands
    assert source is not None
    assert target is not None
    assert (source.range, target.range) == (fake_range("io", 16, 24), fake_range("io", 64, 24))


def test_a_value_that_is_returned_and_read_stays_whole_in_its_output() -> None:
    make = GraphMaker()
    a = make.unary("a", make.input("x", 32))
    b = make.binary("b", make.unary("f", make.input("z", 32)), a, "in_place")  # must not take a's bytes
    entry = planned(make.graph(a, make.unary("y", b)))
    assert held(entry) == {"f", "b"}
    assert entry.stats.copies == 0


def test_a_nested_view_that_is_returned_keeps_the_storage_alive_until_it_is_copied() -> None:
    make = GraphMaker()
    base = make.unary("base", make.input("x", 64))
    inner = make.part("inner", make.part("outer", base, 8, 56), 8, 24)
    filler = make.unary("g", make.unary("f", make.input("z", 64)))
    entry = planned(make.graph(filler, inner))
    copy = next(step for step in entry.steps if step.kind is StepKind.COPY)
    assert copy.node == "inner"
    base_slot = next(slot for slot in entry.slots if "base" in slot.values)
    assert copy.operands[0] is not None
    assert copy.operands[0].range.offset == base_slot.range.offset + 16


def test_two_views_of_one_value_are_two_outputs() -> None:
    make = GraphMaker()
    base = make.unary("base", make.input("x", 64))
    entry = planned(make.graph(make.part("low", base, 0, 32), make.part("high", base, 32, 64)))
    assert entry.stats.copies == 2
    assert [binding.range for binding in entry.outputs] == [fake_range("io", 64, 32), fake_range("io", 96, 32)]


def test_slices_of_a_state_are_written_one_after_the_other() -> None:
    """As a cache is: each token into its own bytes, the rest untouched."""
    make = GraphMaker()
    s, x = make.input("s", 64, Role.STATE), make.input("x", 16)
    rows = [make.update(f"u{i}", make.part(f"p{i}", s, 16 * i, 16 * i + 16), x) for i in range(3)]
    entry = planned(make.graph(make.binary("y", make.binary("a", rows[0], rows[1]), rows[2])))
    written = [o.range for step in entry.steps for o in step.operands if o is not None and o.writes]
    assert written[:3] == [fake_range("state", 16 * i, 16) for i in range(3)]


def test_slices_of_a_value_of_the_graph_are_written_in_its_own_bytes() -> None:
    make = GraphMaker()
    base = make.unary("base", make.input("x", 64))
    new = make.unary("new", make.input("z", 8))
    low = make.update("low1", make.part("low", base, 0, 32), new)
    high = make.part("high", base, 32, 64)
    entry = planned(make.graph(make.binary("y", low, high)))
    (slot,) = [slot for slot in entry.slots if "base" in slot.values]
    assert set(slot.values) == {"base", "low", "low1", "high"}
    assert slot.range.size == 64


def test_a_written_slice_is_written_again_through_a_nested_view() -> None:
    make = GraphMaker()
    base = make.unary("base", make.input("x", 64))
    once = make.update("once", make.part("p", base, 16, 48), make.input("z", 8))
    twice = make.update("twice", make.part("q", once, 8, 16), "z")
    entry = planned(make.graph(make.unary("y", twice), make.unary("rest", make.part("tail", base, 48, 64))))
    place = {o.value: o.range for step in entry.steps for o in step.operands if o is not None}
    assert (place["q"].offset - place["base"].offset, place["q"].size) == (24, 8)


def sliced_graph(rng: random.Random) -> Graph:
    """A state and two values in slices, each slice read, written in place, cut again and returned in any order."""
    make = GraphMaker()
    x = make.input("x", 8)
    bases = [make.input("s", 48, Role.STATE), make.unary("a", x, size=48), make.unary("b", "a", "work")]
    slices = [make.part(f"{base}{at}", base, at, at + 16) for base in bases for at in (0, 16, 32)]
    results: list[str] = []
    for index in range(rng.randint(3, 9)):
        at = rng.randrange(len(slices))
        kind = rng.random()
        if kind < 0.5:
            impl = rng.choice(("plain", "result", "both"))
            slices[at] = make.update(f"u{index}", slices[at], rng.choice([x, *results]), impl)
        elif kind < 0.8:
            results.append(make.unary(f"r{index}", slices[at], rng.choice(("plain", "in_place", "work")), size=None))
        elif make.types[slices[at]].elements == 16:
            slices[at] = make.part(f"h{index}", slices[at], 8, 16)
    return make.graph(*results[:2], *rng.sample(slices, 2))


def test_random_slices_are_proven_and_their_faults_refused_exactly_when_they_harm(seed: int) -> None:
    def cases() -> Iterator[tuple[str, random.Random, Case]]:
        for number in range(60):
            rng = random.Random(f"{seed}.{number}")
            yield f"seed {seed}, case {number}", rng, plan_case(sliced_graph(rng), FAKE_TARGET, FAKE_OPS)

    tally = spoil(cases(), 20)
    assert not tally.disagreements, "\n".join(tally.disagreements[:5])
    assert min(tally.total("harmful"), tally.total("harmless")) >= 150, str(tally)


def test_an_updated_slice_that_is_returned_is_copied_after_the_update() -> None:
    make = GraphMaker()
    s = make.input("s", 64, Role.STATE)
    one = make.update("one", make.part("p", s, 8, 24), make.input("x", 8))
    update, copy = planned(make.graph(one)).steps
    assert (update.node, copy.kind) == ("one", StepKind.COPY)
    assert copy.operands[0] is not None
    assert copy.operands[0].range == fake_range("state", 8, 16)


def test_two_calls_of_other_sizes_share_one_slab_and_no_caller_memory() -> None:
    """Bytes of one entry's outputs are never another entry's inputs, whatever sizes come after one another."""
    graphs = {}
    for size in (64, 16, 128):
        make = GraphMaker()
        graphs[f"n{size}"] = make.graph(make.unary("y", make.unary("t", make.input("x", size))))
    plans = {name: (graph, plan_entry(graph, FAKE_TARGET, name=name, ops=FAKE_OPS)) for name, graph in graphs.items()}
    program = build_program(plans)
    check_program(program, graphs, FAKE_TARGET, ops=FAKE_OPS)
    assert {str(item.region): item.bytes for item in program.regions}["fake:0/arena"] == 128
    for entry in program.entries.values():
        assert not entry.inputs[0].range.overlaps(entry.outputs[0].range)


# a dimension without an upper bound


OPEN = TensorType((Dim("T", 1, None), 4), DType.F32)


def open_graph() -> Graph:
    x = GraphInput(Value("x", OPEN), Role.INPUT)
    return Graph("g", (x,), (), ("x",))


def test_a_dimension_without_an_upper_bound_is_refused_where_it_is_declared() -> None:
    build = GraphBuilder("g")
    with pytest.raises(ShapeError) as caught:
        build.input("x", OPEN)
    text = str(caught.value)
    assert "x: dimension T of input f32[T,4] has no upper bound" in text
    assert "test_outside_the_arena.py:" in text
    assert "largest extent" in text


def test_a_dimension_without_an_upper_bound_is_refused_by_every_stage() -> None:
    graph = open_graph()
    words = "dimension T of input %x: no upper bound"
    with pytest.raises(PlanError, match=words):
        plan_entry(graph, FAKE_TARGET, name="e", ops=FAKE_OPS)
    with pytest.raises(ShapeError, match=words):
        graph.bind({"T": 16})
    with pytest.raises(TextError, match=words):
        print_graph(graph)
    with pytest.raises(VerificationError, match="V20 %x: dimension T of %x has no upper bound"):
        verify(graph)
    with pytest.raises(TextError, match="line 1, column 15: dimension T has no upper bound"):
        parse_graph("graph @g(dims T in [1,_]) {\n  input %x: f32[T]\n  return %x\n}\n")


def test_a_bound_dimension_is_planned_at_its_integer_and_never_at_its_lower_bound() -> None:
    graph = parse_graph("graph @g(dims T in [1, 512]) {\n  input %x: f32[T]\n  return %x\n}\n")
    with pytest.raises(PlanError, match=r"unbound dimensions T in \[1, 512\]"):
        plan_entry(graph, FAKE_TARGET, name="e", ops=FAKE_OPS)
    assert plan_entry(graph.bind({"T": 512}), FAKE_TARGET, name="e", ops=FAKE_OPS).io_bytes == 2 * 4 * 512
    with pytest.raises(ShapeError, match=r"dimension T = 513 is outside \[1, 512\]"):
        graph.bind({"T": 513})
