"""The address audit of an entry: every pointer and every number that its captured graph, or its step table, was given, and what of it no longer holds.

A graph replays what it was given when it was captured: addresses and by-value numbers. So the questions are two. Is the memory behind every pointer still
there, where it was, large enough, aligned, on the device that reads it? And is every number one that may stay as it is from step to step? What changes
between steps lies in device memory that the entry reads (`slots`); all numbers are the plan's constants, made by rows from attributes and sizes. They are
computed again here: a row of the user's that makes them of something that has changed since gives others now, and replays keep the old ones.

Reading is all that happens: nothing runs, and nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ostinato.ir.calls import node_call
from ostinato.ir.errors import AddressChanged
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.step import WORKSPACE, ByteRange, Region, Step, StepKind
from ostinato.ir.views import ViewTable
from ostinato.planner.plan import EntryPlan, slot_name
from ostinato.runtime.capture_nodes import bits
from ostinato.runtime.captured import Segment, examine_graph
from ostinato.runtime.device import Device, ResolvedStep
from ostinato.runtime.external import ExternalMemory
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions

__all__ = ["AuditFinding", "AuditReport", "AuditedPointer", "AuditedScalar", "DeviceSlot", "audit_entry"]

_OWNERS = {
    "weights": "the weights, shared by clones",
    "constants": "the constants, shared by clones",
    "state": "this executable's state",
    "arena": "this executable's arena",
    "io": "this executable's inputs and outputs",
}
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class AuditedPointer:
    """Bytes [address, address + nbytes) that a graph or table was given, by the name of the value: whose they are (`owner`), where the value comes from (the
    user's line, or the tensors of a checkpoint), the nodes that read and write them, and the first and last step that do."""

    name: str
    region: str
    address: int
    nbytes: int
    owner: str
    source: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    first: int
    last: int

    @property
    def end(self) -> int:
        """The address behind its last byte."""
        return self.address + self.nbytes


@dataclass(frozen=True, slots=True)
class AuditedScalar:
    """A number that a launch was given by value: `index` among those of its step, and what it is made of as far as can be told. It is the same in every
    replay."""

    step: int
    node: str
    kernel: str
    index: int
    value: int | float
    source: str


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """Device memory whose content may change from step to step: an input. `carried`: each run leaves there what the next one reads."""

    name: str
    address: int
    nbytes: int
    carried: bool


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """What does not hold: its kind ("moved", "freed", "too small", "misaligned", "wrong device", "frozen scalar", "not the plan"), the value or node that it is
    about, and the call that mends or would have prevented it."""

    kind: str
    name: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}: {self.message}\n  hint: {self.hint}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Everything that an entry's graphs (`graphs` of them; 0: its step table) were given. No `findings` means that all of it holds now."""

    entry: str
    device: str
    graphs: int
    pointers: tuple[AuditedPointer, ...]
    scalars: tuple[AuditedScalar, ...]
    slots: tuple[DeviceSlot, ...]
    findings: tuple[AuditFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def of(self, name: str) -> tuple[AuditedPointer, ...]:
        """The pointers of a value."""
        return tuple(pointer for pointer in self.pointers if pointer.name == name)

    def check(self) -> None:
        """Raises `AddressChanged` that lists every finding, if there is one."""
        if self.findings:
            lines = "\n".join(f"{number}. {finding}" for number, finding in enumerate(self.findings, 1))
            raise AddressChanged(f"{len(self.findings)} findings of {self.entry}:\n{lines}", node=self.entry)

    def __str__(self) -> str:
        what = f"{self.graphs} captured graph{'s' if self.graphs > 1 else ''}" if self.graphs else "step table"
        counts = f"{len(self.pointers)} pointers, {len(self.scalars)} scalars, {len(self.slots)} device slots"
        lines = [f"{self.entry} on {self.device}, {what}: {counts}, {len(self.findings)} findings"]
        lines += [f"  {finding}".replace("\n", "\n  ") for finding in self.findings]
        for pointer in self.pointers[:_SHOWN]:
            use = f"read by {len(pointer.reads)}, written by {len(pointer.writes)}"
            lines.append(
                f"  {pointer.address:#x} +{pointer.nbytes} {pointer.region} %{pointer.name} ({use}) {pointer.source}"
            )
        more = len(self.pointers) - _SHOWN
        return "\n".join(lines + ([f"  and {more} more"] if more > 0 else []))


def audit_entry(
    program: Program,
    name: str,
    device: Device,
    regions: Regions,
    resolved: Sequence[ResolvedStep],
    segments: Sequence[Segment] = (),
    bound: Sequence[ExternalMemory] = (),
) -> AuditReport:
    """Audits an entry whose table has the `resolved` steps over `regions`, with its captured `segments` and the caller's buffers that are `bound`."""
    plan, graph = program.plan.entries[name], program.graphs[name]
    owners = _Owners(plan, regions, bound)
    pointers = tuple(_pointers(program, graph, plan, resolved, owners))
    scalars = tuple(_scalars(graph, plan, resolved))
    slots = tuple(
        DeviceSlot(binding.name, *regions.address(binding.range), binding.name in plan.carried)
        for binding in plan.inputs
    )
    findings = [
        *_memory_findings(plan, device, regions),
        *_bound_findings(bound),
        *_moved_findings(plan, regions, resolved),
        *_bounds_findings(plan, regions),
        *_scalar_findings(program, graph, plan),
        *_graph_findings(program, plan, regions, resolved, segments),
    ]
    graphs = sum(segment.graph is not None for segment in segments)
    return AuditReport(name, device.name, graphs, pointers, scalars, slots, tuple(findings))


class _Owners:
    """Whose the bytes of a planned range are."""

    def __init__(self, plan: EntryPlan, regions: Regions, bound: Sequence[ExternalMemory]) -> None:
        self._plan, self._regions = plan, regions
        self._bound = {memory.address: memory.name for memory in bound}

    def of(self, place: ByteRange) -> str:
        for taken, address in self._regions.bound:
            if taken.contains(place):
                return f"the caller's buffer bound to %{self._bound.get(address, taken)}"
        if place.region.kind == "arena" and self._regions.bound_arena is not None:
            return "the caller's arena"
        return _OWNERS.get(place.region.kind, str(place.region))


def _pointers(
    program: Program, graph: Graph, plan: EntryPlan, resolved: Sequence[ResolvedStep], owners: _Owners
) -> Iterator[AuditedPointer]:
    names = {slot.range: slot.name for slot in (*program.plan.weights, *program.plan.parameters)}
    names.update((binding.range, binding.name) for binding in program.plan.state)
    names.update((slot.range, slot.name) for slot in program.plan.constants)
    parts = {
        slot.name: ", ".join(part.tensor for part in slot.parts)
        for slot in (*program.plan.weights, *program.plan.parameters)
    }
    found: dict[tuple[str, ByteRange, int, int], tuple[list[str], list[str], list[int]]] = {}
    for position, (step, placed) in enumerate(zip(plan.steps, resolved, strict=True)):
        for operand, (address, nbytes) in zip(step.operands, placed.operands, strict=True):
            if operand is None or not nbytes:
                continue
            called = names.get(operand.range, slot_name(step.node, operand.value))
            reads, writes, steps = found.setdefault((called, operand.range, address, nbytes), ([], [], []))
            reads += [step.node] if operand.reads else []
            writes += [step.node] if operand.writes else []
            steps.append(position)
    for (called, place, address, nbytes), (reads, writes, steps) in found.items():
        node = graph.producers.get(called) or (
            graph.producers.get(writes[0]) if called.startswith(WORKSPACE) and writes else None
        )
        source = parts.get(called) or (str(node.location) if node is not None and node.location is not None else "")
        yield AuditedPointer(
            called, str(place.region), address, nbytes, owners.of(place), source,
            tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes)), steps[0], steps[-1],
        )  # fmt: skip


# numbers


def _scalars(graph: Graph, plan: EntryPlan, resolved: Sequence[ResolvedStep]) -> Iterator[AuditedScalar]:
    nodes = {node.name: node for node in graph.nodes}
    for position, (step, placed) in enumerate(zip(plan.steps, resolved, strict=True)):
        known = _known(graph, nodes.get(step.node), plan.dims)
        for index, value in enumerate(placed.params):
            source = known.get((type(value), value), "made by the row")
            yield AuditedScalar(position, step.node, step.kernel, index, value, f"constant of the plan: {source}")


def _known(graph: Graph, node: Node | None, dims: Mapping[str, int]) -> dict[tuple[type, int | float], str]:
    """What numbers of a node are called, as far as their values tell: attributes before extents, those before dimensions of the bucket."""
    found: dict[tuple[type, int | float], str] = {
        (int, size): f"equal to dimension {name}" for name, size in dims.items()
    }
    if node is None:
        return found
    for name in (*(value.name for value in node.results), *node.operands):
        if name is not None:
            for axis, extent in enumerate(graph.types[name].static_shape):
                found[int, extent] = f"equal to extent {axis} of %{name}"
    for key, attribute in node.attrs.items():
        if isinstance(attribute, int | float):
            value = int(attribute) if isinstance(attribute, bool) else attribute
            found[type(value), value] = f"equal to attribute {key}"
    return found


def _scalar_findings(program: Program, graph: Graph, plan: EntryPlan) -> Iterator[AuditFinding]:
    """Rows are asked again for what they give a launch: by contract a pure function of the node, so that another answer is a value that changes outside."""
    views, steps = ViewTable(graph), {step.node: step for step in plan.steps if step.kind is not StepKind.COPY}
    for node in graph.nodes:
        step, row = steps.get(node.name), program.target.row(node.op, node.impl or "")
        if step is None or row is None or OP[node.op].is_view:
            continue
        call = node_call(graph, node, row, views)
        for what, planned, now in (
            ("parameters", list(map(bits, step.params)), list(map(bits, call.params))),
            ("kernel", step.kernel, call.kernel),
            ("launch", step.launch, call.launch),
        ):
            if planned != now:
                shown = (step.params, call.params) if what == "parameters" else (planned, now)
                yield AuditFinding(
                    "frozen scalar",
                    node.name,
                    f"row {row.identity} was planned with {what} {shown[0]} and gives {shown[1]} now; replays keep the planned ones",
                    "what changes from step to step is an input of the operator, in device memory; a row reads attributes and sizes alone",
                )


# memory


def _memory_findings(plan: EntryPlan, device: Device, regions: Regions) -> Iterator[AuditFinding]:
    for region, buffer in regions.buffers:
        base = regions.base(region)
        own = regions.bound_arena is None or region.kind != "arena"
        if own and buffer.freed:
            yield AuditFinding(
                "freed",
                str(region),
                f"[{base:#x}, {base + buffer.nbytes:#x}) was freed",
                "the executable owns it: drop the executable instead of freeing its memory",
            )
        if buffer.nbytes and base % plan.alignment:
            yield AuditFinding(
                "misaligned",
                str(region),
                f"{base:#x} is no multiple of the plan's {plan.alignment} bytes",
                f"bind an arena that begins at a multiple of {plan.alignment}",
            )
    elsewhere = {o.range.region for step in plan.steps for o in step.operands if o is not None}
    for region in sorted({region for region in elsewhere if region.device != device.name}, key=str):
        yield AuditFinding(
            "wrong device", str(region), f"the steps run on {device.name}", "plan for the device that is opened"
        )


def _moved_findings(plan: EntryPlan, regions: Regions, resolved: Sequence[ResolvedStep]) -> Iterator[AuditFinding]:
    """Values that lie elsewhere now than where the steps were loaded for, each once."""
    said: set[str] = set()
    for step, placed in zip(plan.steps, resolved, strict=True):
        for operand, (address, nbytes) in zip(step.operands, placed.operands, strict=True):
            if operand is None or not nbytes:
                continue
            name, now = slot_name(step.node, operand.value), regions.address(operand.range)[0]
            if now != address and name not in said:
                said.add(name)
                yield AuditFinding(
                    "moved",
                    name,
                    f"{operand.range} was at {address:#x} when the steps were loaded, it is at {now:#x} now",
                    "memory of an executable stays where it is: bind() buffers of your own instead of exchanging its",
                )


def _bounds_findings(plan: EntryPlan, regions: Regions) -> Iterator[AuditFinding]:
    sizes = {region: buffer.nbytes for region, buffer in regions.buffers}
    arena = Region(regions.device, "arena")
    for step, place in _places(plan):
        inside = any(taken.contains(place) for taken, _ in regions.bound)
        held = (
            plan.stats.arena_bytes
            if place.region == arena and regions.bound_arena is not None
            else sizes.get(place.region, 0)
        )
        if not inside and place.end > held:
            yield AuditFinding(
                "too small",
                step.node,
                f"uses bytes [{place.offset}, {place.end}) of {place.region}, which has {held}",
                "load the plan that the memory was allocated for",
            )


def _places(plan: EntryPlan) -> Iterator[tuple[Step, ByteRange]]:
    for step in plan.steps:
        for operand in step.operands:
            if operand is not None and operand.range.size:
                yield step, operand.range


def _bound_findings(bound: Sequence[ExternalMemory]) -> Iterator[AuditFinding]:
    for memory in bound:
        try:
            memory.check()
        except AddressChanged as error:
            yield AuditFinding(error.kind, memory.name, error.message, error.hint or "")


# graphs


def _graph_findings(
    program: Program, plan: EntryPlan, regions: Regions, resolved: Sequence[ResolvedStep], segments: Sequence[Segment]
) -> Iterator[AuditFinding]:
    """Every captured graph against the plan and the addresses of now."""
    for segment in segments:
        if segment.graph is None:
            continue
        of = (program.plan, plan, regions.placed, resolved, segment.graph)
        report = examine_graph(*of, first=segment.first, count=segment.count)
        for finding in report.findings:
            yield AuditFinding(
                "not the plan", finding.name or plan.name, f"rule {finding.rule}: {finding.message}", finding.hint
            )
