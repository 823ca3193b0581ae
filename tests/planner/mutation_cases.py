"""Proven plans to spoil: random graphs of the fake operators on one or two lanes and one or two devices, some of them of gigabytes, and what edits them.

Reads go to recent values more often than to old ones, so that lifetimes vary. Views (dense and with gaps), state, parameters, carried inputs, ordered effects,
in-place rows, workspaces, constants and values returned twice are all there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ostinato.ir.graph import Graph, Role
from ostinato.ir.opdef import Effect, OpDef
from ostinato.ir.step import Region, Step, StepKind, StepOperand
from ostinato.ir.target import Target
from ostinato.planner.lower import plan_entry
from ostinato.planner.order import Scheduled
from ostinato.planner.plan import EntryPlan, ProgramPlan, Slot, slot_name
from ostinato.planner.problem import align_up
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import DEVICE, FAKE_OPS, FAKE_TARGET, GraphMaker

__all__ = ["ENTRY", "Case", "Mutant", "fake_case", "plan_case", "random_graph", "random_schedule"]

ENTRY = "e"
OTHER_DEVICE = "fake:1"
SIZES = (0, 8, 9, 12, 16, 17, 24, 25)
"""Bytes of values; with an alignment of 8, those of the form 8n + 1 can overlap at one byte."""
HUGE = (9, 2**31 - 8, 2**31, 2**31 + 9, 2**32, 2**32 + 1, 17)
LARGEST_VIEWED = 64


@dataclass(frozen=True)
class Case:
    """A program of one entry with its graph, and edits of the entry. Edited plans state their figures right, so that nothing but the edit is wrong."""

    graph: Graph
    program: ProgramPlan
    target: Target
    ops: Mapping[str, OpDef]

    @cached_property
    def entry(self) -> EntryPlan:
        return self.program.entries[ENTRY]

    @cached_property
    def lanes(self) -> int:
        return len({step.lane for step in self.entry.steps})

    @cached_property
    def _slot_of(self) -> dict[tuple[str, Region], int]:
        return {
            (value, slot.range.region): number for number, slot in enumerate(self.entry.slots) for value in slot.values
        }

    def slot_of(self, step: Step, operand: StepOperand) -> int | None:
        """The number of the slot that an operand lies in."""
        name = slot_name(step.node, operand.value)
        return self._slot_of.get((name, operand.range.region))

    def moved(self, offsets: Mapping[int, int]) -> ProgramPlan:
        """Slots (by number) at other offsets, with every operand in them."""
        slots = list(self.entry.slots)
        by = {number: offset - slots[number].range.offset for number, offset in offsets.items()}
        for number, offset in offsets.items():
            slots[number] = slots[number].model_copy(update={"range": replace(slots[number].range, offset=offset)})
        steps = []
        for step in self.entry.steps:
            operands = list(step.operands)
            for index, operand in enumerate(operands):
                shift = 0 if operand is None else by.get(-1 if (n := self.slot_of(step, operand)) is None else n, 0)
                if operand is not None and shift:
                    operands[index] = replace(
                        operand, range=replace(operand.range, offset=operand.range.offset + shift)
                    )
            steps.append(replace(step, operands=tuple(operands)))
        return self.with_steps(steps, slots)

    def with_step(self, position: int, **changes: object) -> ProgramPlan:
        steps = list(self.entry.steps)
        steps[position] = replace(steps[position], **changes)  # type: ignore[arg-type]
        return self.with_steps(steps)

    def with_operand(
        self, position: int, index: int, operand: StepOperand | None, slots: Iterable[Slot] = ()
    ) -> ProgramPlan:
        """One operand exchanged, and further slots."""
        operands = list(self.entry.steps[position].operands)
        operands[index] = operand
        steps = list(self.entry.steps)
        steps[position] = replace(steps[position], operands=tuple(operands))
        return self.with_steps(steps, (*self.entry.slots, *slots))

    def with_steps(self, steps: Sequence[Step], slots: Sequence[Slot] | None = None) -> ProgramPlan:
        return self.with_entry(steps=tuple(steps), slots=self.entry.slots if slots is None else tuple(slots))

    def with_entry(self, **changes: object) -> ProgramPlan:
        """The program with a changed entry; counts of steps, arena bytes and regions follow."""
        entry = self.entry.model_copy(update=changes)
        tops: dict[Region, int] = {}
        for step in entry.steps:
            for operand in step.operands:
                if operand is not None and operand.range.region.kind == "arena":
                    tops[operand.range.region] = max(tops.get(operand.range.region, 0), operand.range.end)
        stats, copies = entry.stats, sum(step.kind is StepKind.COPY for step in entry.steps)
        needed = {
            Region(arena.device, "arena"): max(tops.get(Region(arena.device, "arena"), 0), arena.lower_bound)
            for arena in stats.arenas
        }
        elsewhere = [
            arena.model_copy(update={"arena_bytes": needed[Region(arena.device, "arena")]}) for arena in stats.elsewhere
        ]
        figures = {"steps": len(entry.steps), "copies": copies, "launches": len(entry.steps) - copies}
        own = {"arena_bytes": needed[Region(entry.device, "arena")], "elsewhere": tuple(elsewhere)}
        regions = [
            item.model_copy(update={"bytes": align_up(needed[item.region], entry.alignment)})
            if item.region in needed
            else item
            for item in self.program.regions
        ]
        entry = entry.model_copy(update={"stats": stats.model_copy(update={**figures, **own})})
        return self.program.model_copy(update={"entries": {ENTRY: entry}, "regions": tuple(regions)})


Mutant = Callable[[random.Random, Case], ProgramPlan | None]
"""A kind of mutant: a changed program, None where it does not apply."""


def plan_case(
    graph: Graph,
    target: Target,
    ops: Mapping[str, OpDef],
    schedule: Sequence[Scheduled] | None = None,
    settings: PlanSettings = PlanSettings(order="program"),  # noqa: B008 - a frozen value
) -> Case:
    """The graph, planned."""
    plan = plan_entry(graph, target, name=ENTRY, schedule=schedule, settings=settings, ops=ops)
    return Case(graph, build_program({ENTRY: (graph, plan)}), target, ops)


def fake_case(rng: random.Random, *, lanes: int = 1, devices: int = 1, huge: float = 1 / 16) -> Case:
    """A random graph of fake operators, planned; a part of them, `huge`, is of gigabytes."""
    many = rng.randint(3, 14) if lanes == 1 else rng.randint(2, 6)
    graph = random_graph(rng, many, HUGE if rng.random() < huge else SIZES)
    plain = lanes == devices == 1
    schedule = None if plain else random_schedule(rng, graph, FAKE_OPS, lanes=lanes, devices=devices)
    settings = PlanSettings(order="program", in_place=rng.random() < 0.8)
    return plan_case(graph, FAKE_TARGET, FAKE_OPS, schedule, settings)


def random_graph(rng: random.Random, nodes: int, sizes: Sequence[int] = SIZES) -> Graph:
    make = GraphMaker()
    size = rng.choice(sizes)
    values = [make.input("x", size), make.weight("w", size)]
    if 0 < size <= LARGEST_VIEWED:
        values.append(make.constant("c", bytes(range(size))))
    carried = rng.random() < 0.3
    state = make.input("s", 16, Role.INPUT if carried else Role.STATE, carried=carried)
    for index in range(nodes):
        name = f"v{index}"
        source = rng.choice(values[-4:])
        count = make.types[source].elements
        kind = rng.random()
        gaps = _with_gaps(make)
        same = [value for value in values[-6:] if make.types[value].elements == count and value not in gaps]
        if source in gaps:
            values.append(make.unary(name, source, rng.choice(("strided", "in_place_strided"))))
        elif kind < 0.27:
            values.append(make.unary(name, source, rng.choice(("plain", "in_place", "work"))))
        elif kind < 0.5:
            impl = rng.choice(("plain", "in_place", "in_place_a"))
            values.append(make.binary(name, source, rng.choice(same), impl))
        elif kind < 0.6:
            values += make.pair((name, f"{name}b"), source, rng.choice(same), rng.choice(("plain", "in_place")))
        elif kind < 0.69 and count and count % 2 == 0:
            make.split((name, f"{name}b"), source)
            values += [name, f"{name}b"]
        elif kind < 0.8 and 8 <= count <= LARGEST_VIEWED:
            start, step = rng.randrange(0, 5), rng.choice((1, 1, 2))
            values.append(make.part(name, source, start, rng.randrange(start + 1, count + 1), step))
        elif kind < 0.84 and count % 4 == 0 and 0 < count <= LARGEST_VIEWED:
            turned = make.transpose(f"{name}t", source, rng.choice((2, 4)))
            values.append(make.unary(name, turned, rng.choice(("strided", "in_place_strided")), size=count))
        elif kind < 0.89:
            state = make.update(name, state, source, rng.choice(("plain", "result", "both")))
        elif kind < 0.91 and "t" not in make.types:
            carried = rng.random() < 0.3
            whole = make.input("t", 24, carried=True) if carried else make.parameter("t", 24)
            parts = [make.part(f"{name}p{start}", whole, start, start + 8) for start in (0, 16)]
            values += [make.update(f"{name}u{number}", part, source) for number, part in enumerate(parts)]
        elif kind < 0.94:
            values.append(make.ordered(name, source))
        else:
            values.append(make.unary(name, source, "plain", size=rng.choice(sizes)))
    gaps = _with_gaps(make)
    returnable = [value for value in values if value not in gaps]
    outputs = [rng.choice(returnable[-5:]) for _ in range(rng.randint(1, 3))]
    return make.graph(*outputs, *([make.unary("peek", state)] if rng.random() < 0.5 else []))


def _with_gaps(make: GraphMaker) -> set[str]:
    found: set[str] = set()
    for node in make.nodes:
        if node.op == "part" and (node.attrs["step"] != 1 or node.operands[0] in found):
            found.add(node.name)
    return found


def random_schedule(
    rng: random.Random, graph: Graph, ops: Mapping[str, OpDef], *, lanes: int, devices: int = 1
) -> tuple[Scheduled, ...]:
    """Program order on several lanes, with an event for every dependence that crosses them; nodes that update nothing may run on another device."""
    turns: list[Scheduled] = []
    touched: dict[str, list[int]] = {}  # content -> steps that made or read it
    content = {item.value.name: item.value.name for item in graph.inputs}
    ordered: int | None = None
    for node in graph.nodes:
        sources = [content[name] for name in node.operands if name is not None]
        opdef = ops[node.op]
        if opdef.is_view:
            content.update((value.name, sources[0]) for value in node.results)
            continue
        before = {touched[source][0] for source in sources if touched.get(source)}
        for _, operand in opdef.aliased(node.operands):
            before |= set(touched.get(content[node.operands[operand] or ""], ()))
        position = len(turns)
        if opdef.effect is Effect.ORDERED:
            before |= set() if ordered is None else {ordered}
            ordered = position
        lane = rng.randrange(lanes)
        waits = tuple(sorted(other for other in before if turns[other].lane != lane))
        for other in waits:
            turns[other] = replace(turns[other], signals=(other,))
        elsewhere = devices > 1 and not opdef.must_alias and rng.random() < 0.5
        turns.append(
            Scheduled(node, lane, waits, device=OTHER_DEVICE if elsewhere else DEVICE if devices > 1 else None)
        )
        for source in sources:
            touched.setdefault(source, []).append(position)
        for value in node.results:
            content[value.name] = value.name
            touched[value.name] = [position]
    return tuple(turns)
