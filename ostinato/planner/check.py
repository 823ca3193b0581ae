"""The proof: an independent replay of a plan against its graph and the operator facts.

It shares nothing with the planner but the plan format and reads no stated lifetime. From the graph, the operator table and the target's rows it works out
anew what every step must be (`expected.py`) and holds each to it by itself (`check_step.py`); then it walks the steps with a map `byte range -> value` for
every region (`replay.py`; these files are the checker's own):

- the graph is the one that the plan was made from, or that one with pure clones of its nodes (`check_clones.py`);
- the list holds every node once and views never, with the row's kernel, parameters and operands, exact sizes, aligned storages, all inside its region;
- a launch runs on a device of the class its row is for, with operands on that device; a copy runs where it writes and may read another device;
- each read finds its own value, whole; what it claims to be early was not written in this run;
- a launch that starts early does so by its row, and what that reads ahead of the step before is early;
- writes touch no byte that the step reads, other results or workspace, except must-alias pairs and the row's in-place pairs: same bytes, same element order;
- outside the arena only outputs (in `io`) and must-alias updates (of state, of parameters, and of inputs that are carried) are written; inputs are bound apart
  from outputs;
- steps that touch the same byte, one of them writing, are ordered by their lane or by signals and waits (vector clocks), so that the replay in list order
  stands for every interleaving. Events are signalled once and above their waits (steps are submitted in list order), hence waits never form a cycle;
- ordered effects keep the graph's order; at the end outputs, state, parameters and inputs hold exactly the graph's values.

Every violation found is listed in one `PlanError`. A plan that is not proven is not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from ostinato.ir.errors import OstinatoError, PlanError
from ostinato.ir.graph import Graph, Role
from ostinato.ir.opdef import Effect, OpDef
from ostinato.ir.ops import OP
from ostinato.ir.step import ByteRange, Region, Step, StepKind, StepOperand
from ostinato.ir.target import Target
from ostinato.ir.text import graph_hash
from ostinato.ir.views import ViewTable, call_site
from ostinato.planner.check_clones import clone_problems
from ostinato.planner.check_step import StepCheck, inside
from ostinato.planner.expected import Use, facts_of, uses_of
from ostinato.planner.plan import EntryPlan, ProgramPlan, layout_problems, slot_name
from ostinato.planner.replay import Clocks, Memory

__all__ = ["CheckReport", "check_entry", "check_program"]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was proven of one entry: steps replayed, clones among them, lanes, operand reads and writes followed and the bytes these cover."""

    entry: str
    graph_hash: str
    steps: int
    clones: int
    lanes: int
    reads: int
    writes: int
    bytes_followed: int


def check_entry(
    graph: Graph,
    entry: EntryPlan,
    program: ProgramPlan,
    target: Target,
    *,
    source: Graph | None = None,
    ops: Mapping[str, OpDef] = OP,
) -> CheckReport:
    """Proves one entry over the program's regions; raises `PlanError` that lists every violation.

    `source` is the graph before recomputation, needed where the plan has clones.
    """
    checker = _EntryChecker(graph, source, entry, program, target, ops)
    _raise(entry.name, [*program.table_problems(target.alignment), *checker.run()])
    return checker.report()


def check_program(
    program: ProgramPlan,
    graphs: Mapping[str, Graph],
    target: Target,
    *,
    sources: Mapping[str, Graph] | None = None,
    ops: Mapping[str, OpDef] = OP,
) -> dict[str, CheckReport]:
    """Proves every entry of a program against the graph of the same name; raises `PlanError` that lists every violation.

    `sources` has the graphs before recomputation by entry; those whose plan has clones need one.
    """
    problems = program.table_problems(target.alignment)
    if set(program.entries) != set(graphs):
        problems.append(f"the plan has entries {sorted(program.entries)}, the graphs are {sorted(graphs)}")
    reports: dict[str, CheckReport] = {}
    for name, entry in program.entries.items():
        if entry.name != name:
            problems.append(f"entry {name} calls itself {entry.name}")
        if name in graphs:
            checker = _EntryChecker(graphs[name], (sources or {}).get(name), entry, program, target, ops)
            problems += [f"{name}: {problem}" for problem in checker.run()]
            reports[name] = checker.report()
    _raise("program", problems)
    return reports


def _raise(what: str, problems: list[str]) -> None:
    if problems:
        unique = list(dict.fromkeys(problems))
        count = f"{len(unique)} violation{'s' if len(unique) > 1 else ''}"
        raise PlanError(
            f"the plan of {what} is not proven, {count}:\n  " + "\n  ".join(unique),
            hint="a plan that is not proven is not run; plan again from the graph, and report this if it comes back",
        )


class _EntryChecker:
    """One entry's proof. Problems are collected, never raised."""

    def __init__(
        self,
        graph: Graph,
        source: Graph | None,
        entry: EntryPlan,
        program: ProgramPlan,
        target: Target,
        ops: Mapping[str, OpDef],
    ) -> None:
        self.graph, self.source, self.entry = graph, source, entry
        self.program, self.target, self.ops = program, target, ops
        self.problems: list[str] = []
        self.reads = self.writes = self.bytes_followed = 0
        self.clocks = Clocks(entry.steps)
        self.sizes = {item.region: max(item.bytes, 0) for item in program.regions}
        self.memory = {region: Memory(size) for region, size in self.sizes.items()}
        self.places: dict[str, int] = {}  # node -> its step
        self.constants: dict[str, str] = {}  # constant of the graph -> what the memory calls its content
        self.slots: dict[str, list[ByteRange]] = {}
        for slot in entry.slots:
            for value in slot.values:
                self.slots.setdefault(value, []).append(slot.range)

    def report(self) -> CheckReport:
        steps, lanes = len(self.entry.steps), len(self.clocks.lanes)
        name, graph_hash, clones = self.entry.name, self.entry.graph_hash, len(self.entry.clones)
        return CheckReport(name, graph_hash, steps, clones, lanes, self.reads, self.writes, self.bytes_followed)

    def run(self) -> list[str]:
        try:
            self._run()
        except OstinatoError as error:  # a graph or row that cannot even be looked at; the message says which
            self._say(f"the graph cannot be replayed: {error}")
        return self.problems

    def _run(self) -> None:
        entry, target = self.entry, self.target
        if (found := graph_hash(self.graph)) != entry.graph_hash:
            self._say(f"the plan belongs to graph {entry.graph_hash}, this graph is {found}")
        if (entry.target, entry.device, entry.alignment) != (target.name, target.device, target.alignment):
            stated = f"{entry.target} on {entry.device} aligned to {entry.alignment}"
            expected = f"{target.name} on {target.device} aligned to {target.alignment}"
            self._say(f"the plan is for target {stated}, expected {expected}")
        if unknown := sorted({node.op for node in self.graph.nodes} - set(self.ops)):
            return self._say(f"operators {unknown} are not in the table")
        self._check_source(found)
        self.views = ViewTable(self.graph, ops=self.ops)
        self.step = StepCheck(self.graph, self.views, entry, target, self.sizes, self._say)
        self.facts = facts_of(self.graph, self.ops, self.views)
        self.rows = {(row.op, row.name): row for row in target.rows}
        self.nodes = {node.name: node for node in self.graph.nodes if not self.ops[node.op].is_view}
        self._bind_io()
        self._bind_shared()
        self.problems += self.clocks.problems
        for position, step in enumerate(entry.steps):
            if step.kind is StepKind.COPY:
                self._copy(position, step)
            else:
                self._launch(position, step)
        self._check_order()
        self._check_outputs()
        self._check_updated()
        self.problems += entry.stats_problems({item.region: item.bytes for item in self.program.regions})
        return None

    def _check_source(self, own_hash: str) -> None:
        """The graph (of the hash `own_hash`) is the one before recomputation, or that one with clones."""
        entry, source = self.entry, self.graph if self.source is None else self.source
        if self.source is None and entry.clones:
            return self._say(f"the plan has {len(entry.clones)} clones; the graph before recomputation is needed")
        found = own_hash if source is self.graph else graph_hash(source)
        if found != entry.source_hash:
            self._say(f"the plan was made from graph {entry.source_hash}, the graph before recomputation is {found}")
        if source is not self.graph or entry.clones:
            self.problems += clone_problems(self.graph, source, entry.clones, self.ops)
        return None

    def _say(self, problem: str) -> None:
        self.problems.append(problem)

    def _region(self, kind: str) -> Region:
        """The entry's own region of that kind."""
        return Region(self.target.device, kind)

    # what memory holds before the run

    def _bind_io(self) -> None:
        graph, entry = self.graph, self.entry
        inputs = [(item.value.name, item.value.type) for item in graph.with_role(Role.INPUT)]
        outputs = [(name, graph.types[name]) for name in graph.outputs]
        for what, bound, expected in (("inputs", entry.inputs, inputs), ("outputs", entry.outputs, outputs)):
            if [(binding.name, binding.type) for binding in bound] != expected:
                names = (
                    f"{[binding.name for binding in bound]} do not match the graph's {[name for name, _ in expected]}"
                )
                self._say(f"the plan's {what} {names} in name, type and order")
        bindings = [(binding.name, binding.range, binding.type) for binding in (*entry.inputs, *entry.outputs)]
        self.problems += layout_problems(bindings, self._region("io"), entry.io_bytes, self.target.alignment)
        if entry.io_bytes > (size := self.program.size_of(self._region("io"))):
            self._say(f"the entry needs {entry.io_bytes} bytes of io, the region has {size}")
        for binding in entry.inputs:
            self._hold(binding.name, binding.range)
        carried = {item.value.name for item in graph.inputs if item.carried}
        self.carried = [binding.range for binding in entry.inputs if binding.name in carried]

    def _bind_shared(self) -> None:
        """Weights, parameters, state and constants of the program; those of the graph must be among them."""
        weights = {slot.name: (slot.type, slot.parts) for slot in self.program.weights}
        parameters = {slot.name: (slot.type, slot.parts) for slot in self.program.parameters}
        state = {binding.name: binding.type for binding in self.program.state}
        constants = {(str(slot.type), slot.data): f"constant {slot.name}" for slot in self.program.constants}
        for slot in (*self.program.weights, *self.program.parameters):
            self._hold(slot.name, slot.range)
        for binding in self.program.state:
            self._hold(binding.name, binding.range)
        for constant in self.program.constants:
            self._hold(constants[str(constant.type), constant.data], constant.range)
        for item in self.graph.inputs:
            name, tensor = item.value.name, item.value.type
            known = item.role is Role.INPUT
            if item.role is Role.WEIGHT:
                known = weights.get(name) == (tensor, item.parts)
            elif item.role is Role.PARAMETER:
                known = parameters.get(name) == (tensor, item.parts)
            elif item.role is Role.STATE:
                known = state.get(name) == tensor
            elif item.role is Role.CONSTANT:
                content = (str(tensor), b"" if item.data is None else item.data.tobytes())
                known = content in constants
                self.constants[name] = constants.get(content, f"constant {name}")
            if not known:
                self._say(f"{item.role.value} %{name}: {tensor} is not in the plan with that type and content")

    def _hold(self, value: str, place: ByteRange) -> None:
        if inside(place, self.sizes) and place.size:
            self.memory[place.region].write(place, (value, place.offset), -1)

    # what every step must be

    def _launch(self, position: int, step: Step) -> None:
        at = f"step {position} ({step.node}: {step.kernel})"
        node = self.nodes.get(step.node)
        if node is None:
            what = "a view, which runs nothing" if step.node in self.graph.types else "no node of the graph"
            return self._say(f"{at}: %{step.node} is {what}")
        if step.node in self.places:
            return self._say(f"{at}: %{step.node} ran already, at step {self.places[step.node]}")
        self.places[step.node] = position
        opdef, row = self.ops[node.op], self.rows.get((node.op, node.impl or ""))
        if row is None:
            return self._say(f"{at}: {node.op}@{node.impl} is no row of target {self.target.name}")
        site = call_site(self.graph, node, self.views, ops=self.ops)
        self.step.call(at, step, opdef, row, site)
        uses, wrong = uses_of(self.graph, node, row, row.workspace(site), self.facts, self.ops)
        self.problems += [f"{at}: {problem}" for problem in wrong]
        if len(step.operands) != len(uses):
            return self._say(f"{at}: has {len(step.operands)} operands, the row lists {len(uses)}")
        pairs: list[tuple[StepOperand, Use]] = []
        for index, (operand, use) in enumerate(zip(step.operands, uses, strict=True)):
            if operand is None or use is None:
                if operand is not None or use is not None:
                    found, expected = ("absent" if x is None else f"%{x.value}" for x in (operand, use))
                    self._say(f"{at}: operand {index} is {found}, expected {expected}")
            elif self.step.operand(f"{at}: operand {index}", operand, use):
                pairs.append((operand, use))
        self.step.sharing(at, pairs, row)
        if step.launch is not None and step.launch.early:
            self.step.ahead(at, pairs, row)
        self._touch(position, at, step, pairs)
        return None

    def _copy(self, position: int, step: Step) -> None:
        at = f"step {position} (copy of {step.node})"
        fact = self.facts.get(step.node)
        if fact is None:
            return self._say(f"{at}: %{step.node} is no value of the graph")
        operands = [operand for operand in step.operands if operand is not None]
        if len(step.operands) != 2 or len(operands) != 2 or step.kernel or step.params or step.launch:
            return self._say(f"{at}: a copy has a source, a target, no kernel and no parameters, nor a launch")
        self.step.place(at, step, operands[1].range.region.device)
        source = Use(step.node, "source", fact.size, fact.anchor, step.node, None)
        pairs = list(zip(operands, (source, Use(step.node, "target", fact.size, 0, None, step.node)), strict=True))
        followed = [self.step.operand(f"{at}: {use.name}", operand, use) for operand, use in pairs]
        if fact.size and operands[0].range.overlaps(operands[1].range):
            self._say(f"{at}: source {operands[0].range} and target {operands[1].range} overlap")
        if all(followed):
            self._touch(position, at, step, pairs)
        return None

    # replay

    def _touch(self, position: int, at: str, step: Step, pairs: list[tuple[StepOperand, Use]]) -> None:
        for operand, use in pairs:
            if use.reads is not None and operand.range.size:
                self._read(position, at, step.lane, operand, use.reads)
        for operand, use in pairs:
            if use.writes and operand.range.size:
                self._write(position, at, operand, use)

    def _expected(self, value: str, place: ByteRange) -> tuple[str, int]:
        """What these bytes hold when the value lies there: its content and the address of the content's first byte."""
        fact = self.facts[value]
        return self.constants.get(fact.content, fact.content), place.offset - fact.offset

    def _read(self, position: int, at: str, lane: int, operand: StepOperand, value: str) -> None:
        place = operand.range
        self.reads += 1
        self.bytes_followed += place.size
        expected = self._expected(value, place)
        for cell in self.memory[place.region].over(place):
            where = f"{place.region}[{cell.start}:{cell.end}]"
            if cell.holds != expected:
                self._say(f"{at}: reads %{value} at {place}, but {where} holds {cell.contents}")
            elif cell.writer >= 0 and not self.clocks.before(cell.writer, position):
                self._say(f"{at}: reads %{value} at {where} without waiting for step {cell.writer}, which writes it")
            if operand.early and cell.writer >= 0:
                self._say(f"{at}: reads %{value} early, but step {cell.writer} writes {where} in this run")
            cell.readers[lane] = position

    def _write(self, position: int, at: str, operand: StepOperand, use: Use) -> None:
        place, region = operand.range, operand.range.region
        self.writes += 1
        self.bytes_followed += place.size
        to_output = region.kind == "io" and any(binding.range.contains(place) for binding in self.entry.outputs)
        to_owner = use.updates and (region.kind == "state" or any(held.contains(place) for held in self.carried))
        if region.kind != "arena" and not to_output and not to_owner:
            self._say(f"{at}: writes %{use.value} to {place}, which only its owner may change")
        listed = slot_name(self.entry.steps[position].node, use.value)
        if region.kind == "arena" and not any(slot.contains(place) for slot in self.slots.get(listed, ())):
            self._say(f"{at}: writes %{use.value} to {place}, which no slot of the plan lists for it")
        memory = self.memory[region]
        for cell in memory.over(place):
            for other in (cell.writer, *cell.readers.values()):
                if other not in (-1, position) and not self.clocks.before(other, position):
                    where = f"{region}[{cell.start}:{cell.end}]"
                    self._say(f"{at}: writes %{use.value} at {where} without waiting for step {other}, which uses it")
        memory.write(place, None if use.becomes is None else self._expected(use.becomes, place), position)

    # the whole

    def _check_order(self) -> None:
        """Every node ran, and ordered effects in the graph's order."""
        self.problems += [f"node %{name} has no step" for name in self.nodes if name not in self.places]
        ordered = [n for n in self.nodes if self.ops[self.nodes[n].op].effect is Effect.ORDERED and n in self.places]
        for name, later in pairwise(ordered):
            if not self.clocks.before(self.places[name], self.places[later]):
                self._say(f"%{later} (step {self.places[later]}) must come after %{name} (step {self.places[name]})")

    def _check_outputs(self) -> None:
        for index, binding in enumerate(self.entry.outputs):
            what = f"output {index} %{binding.name}"
            if binding.name not in self.facts or not inside(binding.range, self.sizes) or not binding.range.size:
                continue  # said already, or no bytes
            if not self.facts[binding.name].dense:
                self._say(f"{what} is a strided view; a binding is dense")
            self._check_holds(what, binding.range, self._expected(binding.name, binding.range))

    def _check_updated(self) -> None:
        """Parameters, state and inputs hold the last must-alias result of every byte, and themselves where there is none."""
        kinds = ("state", "io")
        expected = {region: Memory(memory.size) for region, memory in self.memory.items() if region.kind in kinds}
        origin: dict[str, ByteRange] = {}
        called: dict[str, str] = {}  # what the bytes hold in the end -> what the values in them are, for messages
        held = [("parameter", slot.name, slot.range) for slot in self.program.parameters]
        held += [("state", binding.name, binding.range) for binding in self.program.state]
        held += [("input", binding.name, binding.range) for binding in self.entry.inputs]
        for what, name, place in held:
            called[name] = what
            if place.region in expected and inside(place, self.sizes) and place.size:
                expected[place.region].write(place, (name, place.offset), -1)
                origin[name] = place
        updates = ((node, self.ops[node.op].aliased(node.operands)) for node in self.graph.nodes)
        for value in (node.results[result] for node, pairs in updates for result, _ in pairs):
            base = self.views[value.name].base
            if base in origin and value.type.nbytes:
                start = origin[base].offset + self.facts[value.name].anchor
                place = ByteRange(origin[base].region, start, value.type.nbytes)
                called[value.name] = called[base]
                if inside(place, self.sizes):
                    expected[place.region].write(place, (value.name, place.offset), -1)
        for region, memory in expected.items():
            for cell in memory.over(ByteRange(region, 0, memory.size)):
                if cell.holds is not None:
                    place = ByteRange(region, cell.start, cell.end - cell.start)
                    self._check_holds(f"{called[cell.holds[0]]} %{cell.holds[0]}", place, cell.holds)

    def _check_holds(self, what: str, place: ByteRange, expected: tuple[str, int]) -> None:
        for cell in self.memory[place.region].over(place):
            if cell.holds != expected:
                where = f"{place.region}[{cell.start}:{cell.end}]"
                self._say(f"{what} at {place} is not intact at the end: {where} holds {cell.contents}")
