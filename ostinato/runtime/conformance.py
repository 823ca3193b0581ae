"""Capture conformance: proof that a captured graph is the plan.

The graph is read back from the driver, node by node and edge by edge, and compared with what the plan says. Addresses are worked out here from the plan's byte
ranges and from where its regions lie; what the step table was given is compared with that too. Lifetimes of slots are the plan's, which its own checker has
proven; hazards are worked out anew (`capture_order.py`). The rules:

1. the step table is the plan's: the same steps in the same order, with the planned addresses;
2. the graph has as many nodes as its steps record;
3. every node is a kernel, a copy or a fill: nothing allocates, frees, calls the host or holds another graph;
4. a launch has its kernel's function, grid, block and shared bytes;
5. every pointer is the planned address;
6. every pointer lies, with its bytes, in what the plan has there: a slot that is live at the step, a weight, state, a constant, an input or output, or the
   caller's buffer bound in its place;
7. every scalar is the step's constant, bit for bit;
8. the status word's address and the number of the step are right;
9. a copy or fill has the planned addresses and bytes, and the fill its value;
10. a vendor's node works on the operands of its step: judged by its arguments where the driver shows them, otherwise counted as opaque;
11. the edges order every hazard of the plan and form no cycle;
12. an edge that starts a node early leads from a launch of ours to one that waits by itself, whose early operands no step before it writes; or to a kernel of
    the vendor's, whose library sees to its own.

All findings are collected. Where the number of nodes is wrong, nodes are matched with the steps they fit, so that one node too many is one finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ostinato.ir.step import WORKSPACE, Step, StepKind
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.runtime.capture_memory import Homes, PlacedMemory
from ostinato.runtime.capture_nodes import (
    AGAIN,
    ALLOWED,
    Expected,
    Place,
    Problem,
    aligned,
    bits,
    node_problems,
    vendor_problems,
)
from ostinato.runtime.capture_order import Access, hazards_of, order_of, read_too_early, unordered_pairs
from ostinato.runtime.capture_report import CaptureFinding, CaptureReport
from ostinato.runtime.device import CapturedNode, ResolvedStep

__all__ = ["PlacedMemory", "TableFacts", "examine_capture"]

_CAPTURED = frozenset({StepKind.LAUNCH, StepKind.GEMM, StepKind.COPY, StepKind.FILL})
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a loaded step table knows beside its steps: the address of its status word, and for every step the handle of its kernel's function (0 where it
    launches none of ours) and the nodes it records (a vendor's as counted when its algorithm was chosen)."""

    status: int
    functions: tuple[int, ...]
    node_counts: tuple[int, ...]


def examine_capture(
    program: ProgramPlan,
    entry: EntryPlan,
    memory: PlacedMemory,
    steps: Sequence[ResolvedStep],
    facts: TableFacts,
    nodes: Sequence[CapturedNode],
    edges: Sequence[tuple[int, int]],
    early: Sequence[tuple[int, int]] = (),
    *,
    first: int = 0,
    count: int = -1,
) -> CaptureReport:
    """Compares the graph (`nodes`, and `edges` by their indices) captured of steps [first, first + count) (-1: to the end) of an entry's table with its plan.

    `early` are the edges that start their later node early; `steps` and `facts` are those of the whole table. Raises nothing: `CaptureReport.check` does.
    """
    stop = len(entry.steps) if count < 0 else first + count
    return _Examiner(program, entry, memory, steps, facts, nodes, edges, early, first, stop).run()


class _Examiner:
    def __init__(
        self,
        program: ProgramPlan,
        entry: EntryPlan,
        memory: PlacedMemory,
        steps: Sequence[ResolvedStep],
        facts: TableFacts,
        nodes: Sequence[CapturedNode],
        edges: Sequence[tuple[int, int]],
        early: Sequence[tuple[int, int]],
        first: int,
        stop: int,
    ) -> None:
        self.program, self.entry, self.memory = program, entry, memory
        self.steps, self.facts, self.nodes, self.first = steps, facts, nodes, first
        self.given = len(edges)
        self.edges = [(a, b) for a, b in edges if 0 <= a < len(nodes) and 0 <= b < len(nodes)]
        self.early = [edge for edge in early if edge in self.edges]
        self.findings: list[CaptureFinding] = []
        self.homes = Homes(program, entry, memory)
        self.ours = frozenset(handle for handle in facts.functions if handle)
        self.expected = [self._expected(number) for number in range(first, min(stop, len(entry.steps)))]

    def run(self) -> CaptureReport:
        self._check_table()
        order = order_of(len(self.nodes), self.edges)
        if len(order) < len(self.nodes):
            cyclic = sorted(set(range(len(self.nodes))) - set(order))
            self._say(11, f"the edges form a cycle in or before {_listed('node', cyclic)}")
        if len(self.edges) < self.given:
            self._say(11, f"{self.given - len(self.edges)} edges name nodes that there are not")
        of_step = self._matched(order)
        opaque = self._check_nodes(of_step)
        self._check_order(order, of_step)
        self._check_early(of_step)
        counts = dict.fromkeys(StepKind, 0)
        for step, mine in zip(self.expected, of_step, strict=True):
            counts[step.kind] += len(mine)
        return CaptureReport(
            self.entry.name,
            launches=counts[StepKind.LAUNCH],
            graph_nodes=len(self.nodes),
            dependencies=self.given,
            copies=counts[StepKind.COPY],
            fills=counts[StepKind.FILL],
            vendor_nodes=counts[StepKind.GEMM],
            early=len(self.early),
            opaque=tuple(opaque),
            findings=tuple(self.findings),
        )

    def _say(
        self,
        rule: int,
        message: str,
        *,
        step: Expected | None = None,
        node: int | None = None,
        tensor: str = "",
        hint: str = AGAIN,
        unread: bool = False,
    ) -> None:
        number, name = (None, "") if step is None else (step.number, step.node)
        self.findings.append(CaptureFinding(rule, message, hint, node, number, name, tensor, unread))

    # the plan and its table

    def _expected(self, number: int) -> Expected:
        step, facts = self.entry.steps[number], self.facts
        self.homes.advance(number)
        function = facts.functions[number] if number < len(facts.functions) else 0
        nodes = facts.node_counts[number] if number < len(facts.node_counts) else step.node_count
        operands = tuple(self._places(step))
        return Expected(
            number, step.node, step.kind, step.kernel, operands, step.params, step.launch, function, facts.status, nodes
        )

    def _places(self, step: Step) -> Iterator[Place | None]:
        for operand in step.operands:
            if operand is None:
                yield None
                continue
            address, home = self.memory.address_of(operand.range), self.homes.find(operand.range)
            scratch = operand.value == WORKSPACE
            size, reads, writes = operand.range.size, operand.reads, operand.writes
            yield Place(operand.value, address, size, reads, writes, home, scratch, operand.early)

    def _check_table(self) -> None:
        again = "make the table and the graph again from one plan"
        planned, facts = len(self.entry.steps), self.facts
        for what, found in (
            ("steps", len(self.steps)),
            ("functions", len(facts.functions)),
            ("node counts", len(facts.node_counts)),
        ):
            if found != planned:
                self._say(1, f"the table has {found} {what}, the plan has {planned} steps", hint=again)
        for wanted in self.expected:
            if wanted.kind not in _CAPTURED:
                self._say(1, f"a {wanted.kind.value} step cannot be captured", step=wanted, hint="capture other steps")
            if wanted.number < len(self.steps):
                for message, tensor in _table_problems(self.steps[wanted.number], wanted):
                    self._say(1, message, step=wanted, tensor=tensor, hint=again)
            stated = self.entry.steps[wanted.number].node_count
            idle = wanted.count == 0 and _moves_nothing(wanted)
            if wanted.kind is not StepKind.GEMM and wanted.count != stated and not idle:
                self._say(2, f"the table says {wanted.count} nodes, the plan {stated}", step=wanted, hint=again)

    # nodes

    def _matched(self, order: Sequence[int]) -> list[list[int]]:
        """The nodes of every step. They are taken as the driver lists them, or in the order of the edges where that fits the steps better."""
        for node, found in enumerate(self.nodes):
            if found.type not in ALLOWED:
                self._say(
                    3,
                    f"a node of type {found.type!r} was captured, steps record {', '.join(ALLOWED)}",
                    node=node,
                    hint="nothing may allocate, free, wait or call the host while steps are captured",
                )
        slots = [index for index, step in enumerate(self.expected) for _ in range(step.count)]
        usable = [node for node, found in enumerate(self.nodes) if found.type in ALLOWED]
        others = [node for node in order if self.nodes[node].type in ALLOWED]
        if others != usable:
            usable = max(usable, others, key=lambda nodes: sum(map(self._fits, nodes, slots)))
        pairs, loose, missing = aligned(usable, slots, self._fits)
        of_step: list[list[int]] = [[] for _ in self.expected]
        for node, index in pairs:
            of_step[index].append(node)
        if loose or missing or len(self.nodes) != len(slots):
            names = dict.fromkeys(self.expected[index].node for index in missing)
            text = f"{len(self.nodes)} nodes were captured, the steps record {len(slots)}"
            text += f"; no step records {_listed('node', loose)}" if loose else ""
            self._say(2, text + (f"; nothing was recorded for {_listed('step', names)}" if missing else ""))
        return of_step

    def _fits(self, node: int, index: int) -> bool:
        step, found = self.expected[index], self.nodes[node]
        if step.kind is StepKind.GEMM:
            if found.type == "kernel":
                return found.function not in self.ours
            return not vendor_problems([found], step, self.ours, self.memory.spans, self.memory.describe)[0]
        return step.kind in _CAPTURED and next(node_problems(found, step, self.memory.describe), None) is None

    def _check_nodes(self, of_step: Sequence[Sequence[int]]) -> list[str]:
        """Says what is wrong with each node; returns the names of opaque ones."""
        where, spans = self.memory.describe, self.memory.spans
        opaque: list[str] = []
        for step, mine in zip(self.expected, of_step, strict=True):
            if step.kind is StepKind.GEMM:
                problems, hidden = vendor_problems([self.nodes[i] for i in mine], step, self.ours, spans, where)
                for problem in problems:
                    self._add(problem, step, mine[0] if mine else None)
                opaque += [f"step {step.number} ({step.node}), graph node {mine[index]}" for index in hidden]
            elif step.kind in _CAPTURED:
                for node in mine:
                    for problem in node_problems(self.nodes[node], step, where):
                        self._add(problem, step, node)
        return opaque

    def _add(self, problem: Problem, step: Expected, node: int | None) -> None:
        told = {"tensor": problem.tensor, "hint": problem.hint}
        self._say(problem.rule, problem.message, step=step, node=node, unread=problem.unread, **told)

    # order

    def _check_order(self, order: Sequence[int], of_step: Sequence[Sequence[int]]) -> None:
        accesses = [  # a step without nodes orders nothing: those around it are ordered with one another
            [Access(p.name, p.address, p.end, p.reads, p.writes) for p in step.operands if p is not None and mine]
            for step, mine in zip(self.expected, of_step, strict=True)
        ]
        hazards = {(hazard.earlier, hazard.later): hazard for hazard in hazards_of(accesses)}
        owner = {node: index for index, mine in enumerate(of_step) for node in mine}
        wanted: dict[int, list[int]] = {}
        for earlier, later in hazards:
            for node in of_step[later]:
                wanted.setdefault(node, []).extend(of_step[earlier])
        loose = unordered_pairs(order, self.edges, wanted)
        for pair in sorted({(owner[first], owner[second]) for first, second in loose}):
            hazard, before = hazards[pair], self.expected[pair[0]]
            self._say(
                11,
                f"{hazard.kind} at {self.memory.describe(hazard.start)}: no path of edges from step {before.number} ({before.node})",
                step=self.expected[pair[1]],
                node=of_step[pair[1]][0],
                tensor=hazard.name,
                hint="capture the steps on one stream, or join the streams where the plan has an event",
            )

    def _check_early(self, of_step: Sequence[Sequence[int]]) -> None:
        owner = {node: self.expected[index] for index, mine in enumerate(of_step) for node in mine}
        started: set[int] = set()
        for first, second in self.early:
            earlier, later = owner.get(first), owner.get(second)
            if later is None or (later.kind is StepKind.GEMM and self.nodes[second].type == "kernel"):
                continue  # a node that is no step's is said already
            waits = later.launch is not None and later.launch.early
            if waits and earlier is not None and earlier.kind is StepKind.LAUNCH:
                started.add(later.number)
                continue
            reason = f"comes after a {self.nodes[first].type}"
            if not waits:
                reason = "waits for nothing by itself"
            elif earlier is not None and earlier.kind is StepKind.GEMM:
                reason = "comes after a kernel of the vendor's"
            self._say(12, f"starts early, but {reason}", step=later, node=second)
        if not started:
            return
        accesses = [
            [
                Access(p.name, p.address, p.end, p.reads, p.writes, p.early and step.number in started)
                for p in step.operands
                if p is not None
            ]
            for step in self.expected
        ]
        for hazard in read_too_early(accesses):
            before, step = self.expected[hazard.earlier], self.expected[hazard.later]
            self._say(
                12,
                f"may read {self.memory.describe(hazard.start)} before step {before.number} ({before.node}) has written it",
                step=step,
                node=of_step[hazard.later][0],
                tensor=hazard.name,
                hint="bind inputs apart from what the entry writes",
            )


def _table_problems(found: ResolvedStep, wanted: Expected) -> Iterator[tuple[str, str]]:
    """How a step of the table differs from the plan's, each with the operand it is about."""
    for what, has, planned in (
        ("node", found.node, wanted.node),
        ("kind", found.kind.value, wanted.kind.value),
        ("kernel", found.kernel, wanted.kernel),
        ("launch", found.launch, wanted.launch),
    ):
        if has != planned:
            yield f"the table's step has {what} {has}, the plan's {planned}", ""
    if list(map(bits, found.params)) != list(map(bits, wanted.params)):
        yield f"the table's step has parameters {found.params}, the plan's {wanted.params}", ""
    if len(found.operands) != len(wanted.operands):
        yield f"the table's step has {len(found.operands)} operands, the plan's {len(wanted.operands)}", ""
        return
    for (address, nbytes), place in zip(found.operands, wanted.operands, strict=True):
        planned_address, planned_bytes = (0, 0) if place is None else (place.address, place.nbytes)
        if (address, nbytes) != (planned_address, planned_bytes):
            text = f"the table has {nbytes} bytes at {address:#x}, planned are {planned_bytes} at {planned_address:#x}"
            yield text, "" if place is None else place.name


def _moves_nothing(step: Expected) -> bool:
    """Whether a copy or fill has no bytes, or a copy goes to where it comes from."""
    places = [place for place in step.operands if place is not None]
    if step.kind is StepKind.LAUNCH:
        return False
    return not any(place.nbytes for place in places) or len({place.address for place in places}) < len(places)


def _listed(what: str, items: Iterable[object]) -> str:
    """The first few of them by number or name, and how many more."""
    every = list(items)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return f"{what}{'s' if len(every) > 1 else ''} {', '.join(map(str, every[:_SHOWN]))}{more}"
