"""Hand-made plans beside the graphs that their capture should give, for tests of capture conformance: no device is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ostinato.ir.step import WORKSPACE, ByteRange, Launch, Region, Step, StepKind, StepOperand
from ostinato.ir.types import DType, TensorType
from ostinato.ir.weights import WeightPart, WeightSlot
from ostinato.planner.plan import Binding, EntryPlan, PlanStats, ProgramPlan, RegionSize, Slot, workspace_of
from ostinato.runtime.capture_nodes import bits
from ostinato.runtime.capture_report import CaptureReport
from ostinato.runtime.conformance import PlacedMemory, TableFacts, examine_capture
from ostinato.runtime.device import ResolvedStep

DEVICE = "hip:0"
ARENA_BYTES = 1024
BASES = {"arena": 0x1_0000_0000, "weights": 0x2_0000_0000, "state": 0x3_0000_0000, "io": 0x4_0000_0000}
STATUS = 0x5_0000_0000
SHAPE = Launch((2, 1, 1), (64, 1, 1), 128)


@dataclass(frozen=True)
class Recorded:
    """A node as a driver tells it."""

    type: str
    function: int = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared_bytes: int = 0
    arguments: tuple[bytes, ...] | None = None
    to: int = 0
    source: int = 0
    nbytes: int = 0
    value: int = 0

    def with_argument(self, index: int, value: bytes) -> Recorded:
        assert self.arguments is not None
        index %= len(self.arguments)
        return replace(self, arguments=(*self.arguments[:index], value, *self.arguments[index + 1 :]))


@dataclass(frozen=True)
class Captured:
    """A plan with its table and a graph that was captured of it."""

    program: ProgramPlan
    memory: PlacedMemory
    steps: tuple[ResolvedStep, ...]
    facts: TableFacts
    nodes: tuple[Recorded, ...]
    edges: tuple[tuple[int, int], ...]
    early: tuple[tuple[int, int], ...] = ()
    first: int = 0
    count: int = -1

    @property
    def entry(self) -> EntryPlan:
        return self.program.entries["step"]

    def with_entry(self, **changes: object) -> Captured:
        entry = self.entry.model_copy(update=changes)
        return replace(self, program=self.program.model_copy(update={"entries": {"step": entry}}))

    def with_step(self, number: int, **changes: object) -> Captured:
        """Another step in the plan and in the table alike."""
        steps = list(self.entry.steps)
        steps[number] = replace(steps[number], **changes)  # type: ignore[arg-type]
        made = self.with_entry(steps=tuple(steps))
        table = list(self.steps)
        table[number] = resolved(steps[number], self.memory)
        return replace(made, steps=tuple(table))

    def with_node(self, index: int, **changes: object) -> Captured:
        node = replace(self.nodes[index], **changes)  # type: ignore[arg-type]
        return replace(self, nodes=(*self.nodes[:index], node, *self.nodes[index + 1 :]))

    def with_argument(self, node: int, index: int, value: object) -> Captured:
        found = self.nodes[node]
        assert isinstance(value, int | bytes)
        data = value if isinstance(value, bytes) else value.to_bytes(len((found.arguments or ())[index]), "little")
        changed = found.with_argument(index, data)
        return replace(self, nodes=(*self.nodes[:node], changed, *self.nodes[node + 1 :]))

    def examine(self) -> CaptureReport:
        return examine_capture(
            self.program,
            self.entry,
            self.memory,
            self.steps,
            self.facts,
            self.nodes,
            self.edges,
            self.early,
            first=self.first,
            count=self.count,
        )


def at(kind: str, offset: int, size: int) -> ByteRange:
    return ByteRange(Region(DEVICE, kind), offset, size)


def reads(value: str, place: ByteRange) -> StepOperand:
    return StepOperand(value, place, reads=True, writes=False)


def writes(value: str, place: ByteRange) -> StepOperand:
    return StepOperand(value, place, reads=False, writes=True)


def updates(value: str, place: ByteRange) -> StepOperand:
    return StepOperand(value, place, reads=True, writes=True)


def make_step(
    node: str,
    kind: StepKind,
    *operands: StepOperand | None,
    params: tuple[int | float, ...] = (),
    node_count: int = 1,
) -> Step:
    launches = kind is StepKind.LAUNCH
    kernel = f"test/test:{node}" if launches else "vendor" if kind is StepKind.GEMM else ""
    return Step(node, kind, DEVICE, kernel, operands, params, SHAPE if launches else None, node_count=node_count)


def resolved(step: Step, memory: PlacedMemory) -> ResolvedStep:
    places = (None if operand is None else operand.range for operand in step.operands)
    operands = tuple((0, 0) if place is None else (memory.address_of(place), place.size) for place in places)
    return ResolvedStep(step.node, step.kind, step.kernel, operands, step.params, launch=step.launch)


def vector(nbytes: int) -> TensorType:
    return TensorType((nbytes,), DType.U8, ("",))


@dataclass
class Parts:
    """What a plan is put together from."""

    steps: list[Step]
    slots: list[Slot]
    inputs: list[Binding] = field(default_factory=list)
    outputs: list[Binding] = field(default_factory=list)
    state: list[Binding] = field(default_factory=list)
    weights: list[WeightSlot] = field(default_factory=list)


def capture_of(parts: Parts, memory: PlacedMemory | None = None, *, record: Sequence[int] | None = None) -> Captured:
    """The plan of some parts with the graph that a capture on one stream must give. `record`: how many nodes each vendor's step records, in turn (2)."""
    sizes = {"arena": ARENA_BYTES, "weights": 512, "state": 256, "io": 512}
    regions = tuple(RegionSize(region=Region(DEVICE, kind), bytes=size) for kind, size in sizes.items())
    stats = PlanStats(
        device=DEVICE,
        arena_bytes=ARENA_BYTES,
        lower_bound=0,
        gap=0.0,
        status="feasible",
        solver="hand",
        sum_bytes=0,
        peak_step=0,
        peak_values=(),
        worst_fragmentation=0.0,
        worst_step=0,
        mean_fragmentation=0.0,
        reused=0,
        elsewhere=(),
        steps=len(parts.steps),
        launches=0,
        copies=0,
        strided_copies=0,
        in_place=0,
        recomputed=0,
        extra_work=0.0,
    )
    entry = EntryPlan(
        name="step",
        graph_hash="",
        source_hash="",
        clones={},
        target="test",
        target_rows="",
        device=DEVICE,
        alignment=64,
        dims={},
        options={},
        steps=tuple(parts.steps),
        slots=tuple(parts.slots),
        inputs=tuple(parts.inputs),
        outputs=tuple(parts.outputs),
        io_bytes=512,
        stats=stats,
    )
    program = ProgramPlan(
        entries={"step": entry},
        regions=regions,
        weights=tuple(parts.weights),
        parameters=(),
        state=tuple(parts.state),
        constants=(),
    )
    memory = memory or PlacedMemory(tuple((item.region, BASES[item.region.kind], item.bytes) for item in regions))
    counts = iter(record or [2] * len(parts.steps))
    numbers = [next(counts) if step.kind is StepKind.GEMM else 1 for step in parts.steps]
    functions = tuple(0x7000 + 16 * i if s.kind is StepKind.LAUNCH else 0 for i, s in enumerate(parts.steps))
    facts = TableFacts(STATUS, functions, tuple(numbers))
    steps = tuple(resolved(step, memory) for step in parts.steps)
    nodes = tuple(node for number, step in enumerate(steps) for node in recorded(step, number, facts))
    return Captured(program, memory, steps, facts, nodes, chain(len(nodes)))


def recorded(step: ResolvedStep, number: int, facts: TableFacts) -> list[Recorded]:
    """The nodes of one step."""
    if step.kind is StepKind.COPY:
        (source, nbytes), (to, _) = step.operands
        return [Recorded("copy", to=to, source=source, nbytes=nbytes)]
    if step.kind is StepKind.FILL:
        return [Recorded("fill", to=step.operands[0][0], nbytes=step.operands[0][1], value=int(step.params[0]))]
    if step.kind is StepKind.GEMM:
        return [Recorded("kernel", 0x9000 + part) for part in range(facts.node_counts[number])]
    arguments = [address.to_bytes(8, "little") for address, _ in step.operands]
    arguments += [bits(param) for param in step.params]
    arguments += [facts.status.to_bytes(8, "little"), number.to_bytes(4, "little")]
    launch = step.launch or SHAPE
    return [Recorded("kernel", facts.functions[number], launch.grid, launch.block, launch.shared, tuple(arguments))]


def chain(count: int) -> tuple[tuple[int, int], ...]:
    return tuple((i, i + 1) for i in range(count - 1))


def small_plan(memory: PlacedMemory | None = None) -> Captured:
    """Every kind of step and of operand: a kernel, a vendor's product of two nodes, a fill that reuses bytes, a kernel that updates state, a copy out."""
    x, y = at("io", 0, 64), at("io", 64, 32)
    w, cache = at("weights", 64, 128), at("state", 0, 96)
    t0, t1, t2, t3 = at("arena", 0, 64), at("arena", 64, 128), at("arena", 0, 48), at("arena", 192, 32)
    scratch = at("arena", 256, 256)
    steps = [
        make_step("a", StepKind.LAUNCH, reads("x", x), reads("w", w), writes("a", t0), params=(3, 0.5)),
        make_step("g", StepKind.GEMM, reads("a", t0), reads("w", w), writes("g", t1), writes(WORKSPACE, scratch)),
        make_step("z", StepKind.FILL, writes("z", t2), params=(7,)),
        make_step("b", StepKind.LAUNCH, reads("g", t1), None, reads("z", t2), updates("cache", cache), writes("b", t3)),
        make_step("b", StepKind.COPY, reads("b", t3), writes("b", y)),
    ]
    slots = [
        Slot(values=("a",), range=t0, first=0, last=2),
        Slot(values=("g",), range=t1, first=1, last=4),
        Slot(values=(workspace_of("g"),), range=scratch, first=1, last=2),
        Slot(values=("z",), range=t2, first=2, last=4),
        Slot(values=("b",), range=t3, first=3, last=5),
    ]
    return capture_of(
        Parts(
            steps,
            slots,
            inputs=[Binding(name="x", type=vector(64), range=x)],
            outputs=[Binding(name="y", type=vector(32), range=y)],
            state=[Binding(name="cache", type=vector(96), range=cache)],
            weights=[WeightSlot("w", vector(128), w, (WeightPart("w", 0, 128),))],
        ),
        memory,
    )


def random_plan(rng: np.random.Generator, steps: int) -> Captured:
    """Launches, fills and vendor's products over bytes of one slot that overlap as chance will have it."""
    whole = at("arena", 0, ARENA_BYTES)
    made = []
    for number in range(steps):
        kind = (StepKind.LAUNCH, StepKind.LAUNCH, StepKind.FILL, StepKind.GEMM)[rng.integers(4)]
        operands = []
        for operand in range(1 if kind is StepKind.FILL else int(rng.integers(1, 4))):
            start = int(rng.integers(0, 24))
            place = at("arena", start, int(rng.integers(0, 8)))
            how = (writes, updates, reads)[0 if kind is StepKind.FILL else int(rng.integers(3))]
            operands.append(how(f"v{number}_{operand}", place))
        params = (int(rng.integers(256)),) if kind is StepKind.FILL else ()
        made.append(make_step(f"n{number}", kind, *operands, params=params))
    record = [int(count) for count in rng.integers(1, 4, steps)]
    return capture_of(Parts(made, [Slot(values=("all",), range=whole, first=0, last=steps)]), record=record)
