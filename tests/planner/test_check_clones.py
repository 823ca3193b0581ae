"""Tampered recomputation: a plan whose clones are not what they say is refused, each fault for its own reason, and no honest one is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from ostinato.ir.errors import CapacityError, PlanError
from ostinato.ir.graph import Attributes, Graph, Node, Role, Value
from ostinato.planner.check import check_entry, check_program
from ostinato.planner.check_clones import clone_problems
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.program import build_program
from ostinato.planner.recompute.fit import fit_entry
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker, vector
from tests.planner.recompute_cases import graph_with_late_readers, kept_across


def original() -> Graph:
    """`kept` and a view of it are read early and late; `other` is like it, `effect` is ordered, `updated` writes over state."""
    make = GraphMaker()
    x, z = make.input("x", 16), make.input("z", 16)
    state = make.input("s", 16, Role.STATE)
    kept, other = make.unary("kept", x), make.unary("other", z)
    part = make.part("part", kept, 0, 8)
    early = make.binary("early", part, other)
    effect = make.ordered("effect", early)
    updated = make.update("updated", state, x)
    late = make.binary("late", part, effect)
    return make.graph(make.binary("y", kept, late), make.unary("from_state", updated))


CLONES: Mapping[str, str] = {"kept~1": "kept", "part~1": "part"}


def with_clones() -> Graph:
    """`late` and `y` read clones."""
    graph = original()
    kept, part = graph.producers["kept"], graph.producers["part"]
    clones = (
        replace(kept, results=(Value("kept~1", vector(16)),)),
        replace(part, operands=("kept~1",), results=(Value("part~1", vector(8)),)),
    )
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name == "late":
            nodes += [*clones, replace(node, operands=("part~1", "effect"))]
        else:
            nodes.append(replace(node, operands=("kept~1", "late")) if node.name == "y" else node)
    return replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True)
class Case:
    """A graph with clones, what it is said to come from, and what the plan says of it."""

    graph: Graph
    source: Graph
    clones: Mapping[str, str]

    def node(self, name: str, **changes: object) -> Case:
        """One node changed."""
        nodes = (replace(node, **changes) if node.name == name else node for node in self.graph.nodes)  # type: ignore[arg-type]
        return replace(self, graph=replace(self.graph, nodes=tuple(nodes)))

    def problems(self) -> list[str]:
        return clone_problems(self.graph, self.source, self.clones, FAKE_OPS)

    def checked(self) -> None:
        """Planned as it stands and proven, replay included."""
        plan = plan_entry(self.graph, FAKE_TARGET, name="e", ops=FAKE_OPS)
        source_hash = plan_entry(self.source, FAKE_TARGET, name="e", ops=FAKE_OPS).graph_hash
        plan = plan.model_copy(update={"clones": self.clones, "source_hash": source_hash})
        program = build_program({"e": (self.graph, plan)})
        check_program(program, {"e": self.graph}, FAKE_TARGET, sources={"e": self.source}, ops=FAKE_OPS)


GOOD = Case(with_clones(), original(), CLONES)


def moved(case: Case, name: str, before: str) -> Case:
    """A node at another place of the graph."""
    nodes = [node for node in case.graph.nodes if node.name != name]
    place = next(index for index, node in enumerate(nodes) if node.name == before)
    nodes.insert(place, case.graph.producers[name])
    return replace(case, graph=replace(case.graph, nodes=tuple(nodes)))


def added(case: Case, node: Node, before: str, original_name: str) -> Case:
    """One more clone that nobody reads."""
    nodes = list(case.graph.nodes)
    place = next(index for index, other in enumerate(nodes) if other.name == before)
    nodes.insert(place, node)
    clones = {**case.clones, node.name: original_name}
    return replace(case, graph=replace(case.graph, nodes=tuple(nodes)), clones=clones)


def renamed(node: Node, *names: str) -> Node:
    return replace(node, results=tuple(Value(n, v.type) for n, v in zip(names, node.results, strict=True)))


def wrong_original(case: Case) -> Case:
    return replace(case, clones={**case.clones, "kept~1": "other"})


def unknown_original(case: Case) -> Case:
    return replace(case, clones={**case.clones, "kept~1": "nobody"})


def clone_of_a_clone(case: Case) -> Case:
    return replace(case, clones={**case.clones, "part~1": "kept~1"})


def reads_another_value(case: Case) -> Case:
    return case.node("kept~1", operands=("z",))


def view_of_another_value(case: Case) -> Case:
    return case.node("part~1", operands=("other",))


def changed_attribute(case: Case) -> Case:
    return case.node("part~1", attrs=Attributes({"start": 8, "step": 1}))


def another_implementation(case: Case) -> Case:
    return case.node("kept~1", impl="in_place")


def another_operator(case: Case) -> Case:
    return case.node("kept~1", op="binary", operands=("x", None))


def another_type(case: Case) -> Case:
    return case.node("kept~1", results=(Value("kept~1", vector(24)),))


def more_results(case: Case) -> Case:
    return case.node("kept~1", results=(Value("kept~1", vector(16)), Value("more", vector(16))))


def an_ordered_clone(case: Case) -> Case:
    return added(case, renamed(case.graph.producers["effect"], "effect~1"), "late", "effect")


def an_updating_clone(case: Case) -> Case:
    return added(case, renamed(case.graph.producers["updated"], "updated~1"), "late", "updated")


def not_declared(case: Case) -> Case:
    return replace(case, clones={"kept~1": "kept"})


def declared_and_absent(case: Case) -> Case:
    return replace(case, clones={**case.clones, "kept~7": "kept"})


def original_taken_out(case: Case) -> Case:
    nodes = tuple(node for node in case.graph.nodes if node.name != "other")
    clone = renamed(case.graph.producers["other"], "other~1")
    without = replace(case, graph=replace(case.graph, nodes=nodes), clones={**case.clones})
    return added(without, clone, "early", "other").node("early", operands=("part", "other~1"))


def original_declared_a_clone(case: Case) -> Case:
    return replace(case, clones={**case.clones, "other": "other"})


def reader_reads_something_else(case: Case) -> Case:
    return case.node("y", operands=("other", "late"))


def originals_swapped(case: Case) -> Case:
    return moved(case, "other", "kept")


def clone_below_its_reader(case: Case) -> Case:
    return moved(case, "part~1", "y")


def another_output(case: Case) -> Case:
    return replace(case, graph=replace(case.graph, outputs=("late", "from_state")))


def output_is_a_clone(case: Case) -> Case:
    return replace(case, graph=replace(case.graph, outputs=("y", "kept~1")))


def another_input(case: Case) -> Case:
    return replace(case, graph=replace(case.graph, inputs=case.graph.inputs[1:]))


def another_name(case: Case) -> Case:
    return replace(case, graph=replace(case.graph, name="h"))


def other_extents(case: Case) -> Case:
    return replace(case, graph=replace(case.graph, extents=(("N", "x"),)))


def a_name_twice(case: Case) -> Case:
    return added(case, renamed(case.graph.producers["kept"], "kept~1"), "late", "kept")


MUTATIONS: tuple[tuple[Callable[[Case], Case], str], ...] = (
    (wrong_original, "%kept~1 is no clone of %other: operands %x, expected %z"),
    (unknown_original, "%kept~1 is a clone of %nobody, which is no node of the graph without clones"),
    (clone_of_a_clone, "%part~1 is a clone of %kept~1, which is no node of the graph without clones"),
    (reads_another_value, "%kept~1 is no clone of %kept: operands %z, expected %x"),
    (view_of_another_value, "%part~1 is no clone of %part: operands %other, expected %kept"),
    (changed_attribute, "%part~1 is no clone of %part: attributes"),
    (another_implementation, "%kept~1 is no clone of %kept: implementation in_place, expected plain"),
    (another_operator, "%kept~1 is no clone of %kept: operator binary, expected unary"),
    (another_type, "%kept~1 is no clone of %kept: types ['u8[24]'], expected ['u8[16]']"),
    (more_results, "%kept~1 is no clone of %kept: types ['u8[16]', 'u8[16]']"),
    (an_ordered_clone, "%effect~1 must not run twice: ordered has the effect ordered"),
    (an_updating_clone, "%updated~1 must not run twice: update writes over an operand"),
    (not_declared, "without its clones it has %part~1 = part(%kept) where the graph that it came from has %late"),
    (declared_and_absent, "clone %kept~7 is no node of the graph"),
    (original_taken_out, "where the graph that it came from has %other = unary(%z)"),
    (original_declared_a_clone, "where the graph that it came from has %other = unary(%z)"),
    (
        reader_reads_something_else,
        "it has %y = binary(%other, %late) where the graph that it came from has %y = binary",
    ),
    (originals_swapped, "it has %other = unary(%z) where the graph that it came from has %kept = unary(%x)"),
    (clone_below_its_reader, "%late reads %part~1, which nothing above it makes"),
    (another_output, "it has not the outputs of the graph without clones"),
    (output_is_a_clone, "it has not the outputs of the graph without clones"),
    (another_input, "it has not the inputs of the graph without clones"),
    (another_name, "it has not the name of the graph without clones"),
    (other_extents, "it has not the extents of the graph without clones"),
    (a_name_twice, "%kept~1 is made 2 times"),
)


def test_honest_clones_are_proven() -> None:
    assert GOOD.problems() == []
    GOOD.checked()


@pytest.mark.parametrize(("mutate", "reason"), MUTATIONS, ids=[mutate.__name__ for mutate, _ in MUTATIONS])
def test_every_tampered_clone_is_refused_for_its_own_reason(mutate: Callable[[Case], Case], reason: str) -> None:
    problems = mutate(GOOD).problems()
    assert any(reason in problem for problem in problems), problems


@pytest.mark.parametrize("mutate", [wrong_original, reads_another_value, an_ordered_clone, not_declared])
def test_the_checker_refuses_them_in_a_plan(mutate: Callable[[Case], Case]) -> None:
    """These graphs can be planned and replayed; only the proof of the clones knows that they compute something else."""
    with pytest.raises(PlanError, match="not proven"):
        mutate(GOOD).checked()


def test_a_clone_that_reads_state_which_was_updated_in_between_is_refused_by_the_replay() -> None:
    make = GraphMaker()
    x = make.input("x", 16)
    state = make.input("s", 16, Role.STATE)
    kept = make.unary("kept", state)
    updated = make.update("updated", state, x)
    graph = make.graph(make.binary("y", kept, make.unary("u", updated)))
    clone = renamed(graph.producers["kept"], "kept~1")
    case = added(Case(graph, graph, {}), clone, "y", "kept").node("y", operands=("kept~1", "u"))
    assert case.problems() == []  # as values the two are equal
    with pytest.raises(PlanError, match=r"kept~1.* reads %s at .* holds byte 0 of %updated"):
        case.checked()


# what plan and caller say of each other


def planned() -> tuple[Graph, Graph, EntryPlan, ProgramPlan]:
    make = GraphMaker()
    x = make.input("x", 16)
    graph = kept_across(make, make.unary("kept", x), x)
    _, plan = fit_entry(graph, FAKE_TARGET, name="e", settings=PlanSettings(order="program"), ops=FAKE_OPS)
    settings = PlanSettings(order="program", memory_limit=plan.stats.arena_bytes - 8)
    found, plan = fit_entry(graph, FAKE_TARGET, name="e", settings=settings, ops=FAKE_OPS)
    assert plan.clones
    return graph, found, plan, build_program({"e": (found, plan)})


def test_a_plan_with_clones_needs_the_graph_it_came_from() -> None:
    graph, found, plan, program = planned()
    check_program(program, {"e": found}, FAKE_TARGET, sources={"e": graph}, ops=FAKE_OPS)
    report = check_entry(found, program.entries["e"], program, FAKE_TARGET, source=graph, ops=FAKE_OPS)
    assert report.clones == len(plan.clones)
    with pytest.raises(PlanError, match="clones; the graph before recomputation is needed"):
        check_program(program, {"e": found}, FAKE_TARGET, ops=FAKE_OPS)
    with pytest.raises(PlanError, match="the plan belongs to graph"):
        check_program(program, {"e": graph}, FAKE_TARGET, sources={"e": graph}, ops=FAKE_OPS)
    other = replace(graph, name="other")
    with pytest.raises(PlanError, match="was made from graph"):
        check_program(program, {"e": found}, FAKE_TARGET, sources={"e": other}, ops=FAKE_OPS)


def test_a_plan_that_hides_its_clones_or_its_source_is_refused() -> None:
    graph, found, plan, _ = planned()
    hidden = build_program({"e": (found, plan.model_copy(update={"clones": {}}))})
    for sources in ({"e": graph}, {}):
        with pytest.raises(PlanError, match="not proven"):
            check_program(hidden, {"e": found}, FAKE_TARGET, sources=sources, ops=FAKE_OPS)
    _, plain = fit_entry(graph, FAKE_TARGET, name="e", settings=PlanSettings(order="program"), ops=FAKE_OPS)
    wrong = build_program({"e": (graph, plain.model_copy(update={"source_hash": plan.graph_hash}))})
    with pytest.raises(PlanError, match="was made from graph"):
        check_program(wrong, {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)


def test_random_clones_read_another_value_and_are_refused(seed: int) -> None:
    """One operand of one clone of a random graph is exchanged for another value of its type; honest ones are proven first."""
    refused = 0
    for number in range(150):
        rng = random.Random(f"{seed}.{number}")
        graph = graph_with_late_readers(rng, rng.randint(6, 14))
        settings = PlanSettings(order="program")
        _, plain = fit_entry(graph, FAKE_TARGET, name="e", settings=settings, ops=FAKE_OPS)
        limit = plain.stats.arena_bytes * 3 // 4
        try:
            tight = replace(settings, memory_limit=limit)
            found, plan = fit_entry(graph, FAKE_TARGET, name="e", settings=tight, ops=FAKE_OPS)
        except CapacityError:
            continue
        if not plan.clones:
            continue
        assert clone_problems(found, graph, plan.clones, FAKE_OPS) == []
        clone = found.producers[rng.choice(sorted(plan.clones))]
        index = rng.randrange(len(clone.operands))
        known: dict[str, str] = {name: name for name in graph.types}
        for name, of in plan.clones.items():
            pairs = zip(found.producers[name].results, graph.producers[of].results, strict=True)
            known.update((made.name, equal.name) for made, equal in pairs)
        above = [item.value.name for item in found.inputs]
        for node in found.nodes[: found.nodes.index(clone)]:
            above += [value.name for value in node.results]
        before = clone.operands[index] or ""
        others = [name for name in above if known[name] != known[before] and found.types[name] == found.types[before]]
        if not others:
            continue
        operands = list(clone.operands)
        operands[index] = rng.choice(others)
        nodes = tuple(replace(n, operands=tuple(operands)) if n is clone else n for n in found.nodes)
        problems = clone_problems(replace(found, nodes=nodes), graph, plan.clones, FAKE_OPS)
        assert any(f"%{clone.name} is no clone of %{plan.clones[clone.name]}" in problem for problem in problems)
        refused += 1
    assert refused >= 15


def test_a_plan_above_the_limit_that_it_states_is_refused() -> None:
    graph = original()
    plan = plan_entry(graph, FAKE_TARGET, name="e", ops=FAKE_OPS)
    arena = plan.stats.arena_bytes
    for limit, kept in ((arena, True), (arena - 1, False)):
        said = plan.model_copy(update={"options": {**plan.options, "memory_limit": str(limit)}})
        program = build_program({"e": (graph, said)})
        if kept:
            check_program(program, {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
            continue
        with pytest.raises(PlanError, match=f"takes {arena} bytes, above the stated memory_limit of {limit}"):
            check_program(program, {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
