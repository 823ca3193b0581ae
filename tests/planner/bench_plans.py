"""Two proven programs that mutation tests spoil, and the edits to spoil them with.

`one_lane` has two entries over shared weights, state and constants and shows every feature of a plan: views, workspace, in-place, must-alias, counted rows,
variadic results, ordered effects, copies. `two_lanes` is one entry on two lanes with events both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ostinato.ir.graph import Graph, Role
from ostinato.ir.step import WORKSPACE, ByteRange, Step, StepOperand
from ostinato.ir.target import Target
from ostinato.planner.check import CheckReport, check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.order import Scheduled
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker

__all__ = ["Bench", "one_lane", "schedule", "two_lanes"]

SETTINGS = PlanSettings(order="program", solver="best_fit")
"""A plain order and solver: mutations name steps and offsets of these plans."""


@dataclass(frozen=True)
class Bench:
    """A program with its graphs, and edits that return a changed one. Steps are named by node (copies by `copy of VALUE`)."""

    program: ProgramPlan
    graphs: Mapping[str, Graph]
    entry_name: str = "main"
    target: Target = FAKE_TARGET

    def check(self) -> Mapping[str, CheckReport]:
        return check_program(self.program, self.graphs, self.target, ops=FAKE_OPS)

    @property
    def entry(self) -> EntryPlan:
        return self.program.entries[self.entry_name]

    def index(self, name: str) -> int:
        """Position of a node's step, or of the last copy of a value."""
        copied = name.removeprefix("copy of ")
        found = [
            index
            for index, step in enumerate(self.entry.steps)
            if step.node == copied and (step.kernel == "") == (copied != name)
        ]
        assert found, name
        return found[-1]

    def step(self, name: str) -> Step:
        return self.entry.steps[self.index(name)]

    def operand(self, step: str, number: int) -> StepOperand:
        found = self.step(step).operands[number]
        assert found is not None
        return found

    def with_program(self, **changes: Any) -> Bench:
        return replace(self, program=self.program.model_copy(update=changes))

    def with_region(self, kind: str, size: int) -> Bench:
        """Another size for a region of the fake device."""
        regions = (
            item.model_copy(update={"bytes": size}) if item.region.kind == kind else item
            for item in self.program.regions
        )
        return self.with_program(regions=tuple(regions))

    def with_entry(self, **changes: Any) -> Bench:
        entries = {**self.program.entries, self.entry_name: self.entry.model_copy(update=changes)}
        return self.with_program(entries=entries)

    def with_steps(self, steps: Sequence[Step]) -> Bench:
        """Steps exchanged, with the counts that go with them."""
        copies = sum(step.kernel == "" for step in steps)
        counts = {"steps": len(steps), "launches": len(steps) - copies, "copies": copies}
        return self.with_entry(steps=tuple(steps), stats=self.entry.stats.model_copy(update=counts))

    def with_step(self, name: str, **changes: Any) -> Bench:
        place = self.index(name)
        steps = list(self.entry.steps)
        steps[place] = replace(steps[place], **changes)
        return self.with_steps(steps)

    def with_operand(self, step: str, number: int, **changes: Any) -> Bench:
        operands = list(self.step(step).operands)
        operands[number] = replace(self.operand(step, number), **changes)
        return self.with_step(step, operands=tuple(operands))

    def moved(self, value: str, place: ByteRange) -> Bench:
        """Every operand of that name at another place, and its slot with it: a consistent plan with one other offset."""
        steps = [
            replace(
                step,
                operands=tuple(
                    replace(o, range=place) if o is not None and o.value == value else o for o in step.operands
                ),
            )
            for step in self.entry.steps
        ]
        return self.with_steps(steps).with_slot((value,), place)

    def with_slot(self, values: tuple[str, ...], place: ByteRange) -> Bench:
        slots = (
            slot.model_copy(update={"range": place}) if slot.values == values else slot for slot in self.entry.slots
        )
        return self.with_entry(slots=tuple(slots))

    def with_workspace(self, step: str, number: int, place: ByteRange) -> Bench:
        return self.with_operand(step, number, range=place).with_slot((f"{WORKSPACE} of {step}",), place)

    def swapped(self, first: str, second: str) -> Bench:
        steps = list(self.entry.steps)
        a, b = self.index(first), self.index(second)
        steps[a], steps[b] = steps[b], steps[a]
        return self.with_steps(steps)


def _main_graph() -> Graph:
    make = GraphMaker("main")
    make.count("n", "N")
    x = make.input("x", 32, axis="N")
    other = make.input("other", 32)
    w, bias = make.weight("w", 32), make.weight("bias", 32)
    state = make.input("s", 64, Role.STATE)
    c = make.constant("c", bytes(range(16)))
    t = make.unary("t", x, "work")
    a = make.binary("a", t, w, "in_place")
    b = make.binary("b", a, bias)
    make.split(("left", "right"), b)
    m = make.binary("m", "left", c)
    s1 = make.update("s1", state, m)
    p = make.part("p", a, 8, 24)
    r = make.binary("r", p, "right")
    o1, o2 = make.ordered("o1", m), make.ordered("o2", r)
    total, normed = make.pair(("total", "normed"), o1, o2)
    last = make.binary("last", total, normed)
    y = make.unary("y", last, "work")
    z = make.binary("z", other, b)
    return make.graph(y, z, p, x, make.unary("from_state", s1))


def _side_graph() -> Graph:
    make = GraphMaker("side")
    bias = make.weight("bias", 32)
    make.input("s", 64, Role.STATE)
    c = make.constant("renamed", bytes(range(16)))
    return make.graph(make.unary("y", make.unary("t", bias)), make.unary("z", c))


def one_lane(**graphs: Graph) -> Bench:
    """Entries `main` and `side`, or other graphs by name."""
    graphs = graphs or {"main": _main_graph(), "side": _side_graph()}
    plans = {
        name: (graph, plan_entry(graph, FAKE_TARGET, name=name, settings=SETTINGS, ops=FAKE_OPS))
        for name, graph in graphs.items()
    }
    return Bench(build_program(plans), graphs)


def schedule(graph: Graph, *turns: tuple[str, int, Sequence[int], Sequence[int]]) -> tuple[Scheduled, ...]:
    """(node name, lane, waits, signals) in list order."""
    nodes = {node.name: node for node in graph.nodes}
    return tuple(Scheduled(nodes[name], lane, tuple(waits), tuple(signals)) for name, lane, waits, signals in turns)


def two_lanes() -> Bench:
    """Lane 0: a, c, e, y. Lane 1: b, s1, d, f. Event 1: a is done; 2: c is done (a may be overwritten); 3: d is done; 4: f is done."""
    make = GraphMaker("main")
    x, z = make.input("x", 17), make.input("z", 17)
    state = make.input("s", 24, Role.STATE)
    a = make.unary("a", x, "work")
    b = make.unary("b", z, "work")
    s1 = make.update("s1", state, b)
    c = make.unary("c", a)
    d = make.binary("d", a, b)
    e = make.unary("e", c)
    f = make.ordered("f", d)
    g = make.ordered("g", e)
    y = make.binary("y", g, f)
    graph = make.graph(y, make.unary("from_state", s1))
    turns = schedule(
        graph,
        ("a", 0, (), (1,)),
        ("b", 1, (), ()),
        ("s1", 1, (), ()),
        ("c", 0, (), ()),
        ("d", 1, (1,), (3,)),
        ("e", 0, (3,), ()),
        ("f", 1, (), (4,)),
        ("g", 0, (4,), ()),
        ("from_state", 1, (), ()),
        ("y", 0, (), ()),
    )
    plan = plan_entry(graph, FAKE_TARGET, name="main", schedule=turns, settings=SETTINGS, ops=FAKE_OPS)
    return Bench(build_program({"main": (graph, plan)}), {"main": graph})
