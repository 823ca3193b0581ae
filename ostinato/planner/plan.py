"""The plan: what a device runs and where every byte lives, as data.

A plan has no pointers and no callables. Loading turns region + offset into addresses. An `EntryPlan` belongs to one graph (its hash says which); a
`ProgramPlan` holds entries over one weight table, one state table and one arena sized to the largest entry, never the sum.

Plans print as text for people (`plan_text.py`), are saved as JSON that reads back to an equal plan (`saved.py`) and carry hashes over everything they say.
The same inputs give the same plan, byte for byte.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel, ConfigDict, Field

from ostinato.ir.step import RESERVED_KINDS, WORKSPACE, ByteRange, Region, Step, StepKind
from ostinato.ir.types import TensorType
from ostinato.ir.version import VERSION
from ostinato.ir.weights import WeightSlot
from ostinato.planner.problem import MAX_INTEGER, Buffer, Problem, Solution, align_up
from ostinato.planner.usage import StepUsage, Tenancy, usage_of

__all__ = [
    "PLAN_VERSION",
    "ArenaStats",
    "Binding",
    "ConstantSlot",
    "EntryPlan",
    "PlanHashes",
    "PlanStats",
    "ProgramPlan",
    "RegionSize",
    "Slot",
    "layout_problems",
    "slot_name",
    "spelled",
    "workspace_of",
]

PLAN_VERSION = 3


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings"
    )


class Slot(_Frozen):
    """Bytes of one storage class in the arena: live in the half-open step interval [first, last).

    `values` are the graph values that share it, in order of definition (`workspace_of` its node for a step's workspace); the checker never reads `first`
    and `last`.
    With several lanes the interval is widened to every step that may run at the same time.
    """

    values: tuple[str, ...] = Field(min_length=1)
    range: ByteRange
    first: int
    last: int

    @property
    def tenancy(self) -> Tenancy:
        """The slot without its names."""
        return Tenancy(self.first, self.last, self.range.offset, self.range.size)


def workspace_of(node: str) -> str:
    """What a slot calls the workspace of a node's step."""
    return f"{WORKSPACE} of {node}"


def slot_name(node: str, value: str) -> str:
    """What a slot calls a value that the step of a node touches, its workspace among them."""
    return workspace_of(node) if value == WORKSPACE else value


def spelled(values: tuple[str, ...]) -> str:
    """Names of values for people: those of the graph behind a percent sign."""
    return " ".join(value if value.startswith(WORKSPACE) else f"%{value}" for value in values)


class Binding(_Frozen):
    """An input, output or state value with its type and its bytes in an `io` or `state` region."""

    name: str
    type: TensorType
    range: ByteRange


class ConstantSlot(_Frozen):
    """A constant with its data (native byte order, C order)."""

    name: str
    type: TensorType
    range: ByteRange
    data: bytes


class ArenaStats(_Frozen):
    """How well one device's arena is used; all sizes in bytes.

    `lower_bound` is the largest number of bytes live at one step (or what a search proved), `gap` is arena_bytes / lower_bound - 1 (0 when both are 0),
    `status` what the solver knows of the placement ("optimal", "feasible", "timeout", ...), `sum_bytes` what the arena would take without reuse,
    `peak_step` a step at which the bound is reached and `peak_values` who lives there. Fragmentation is the part of a step's extent (the end of its highest
    live byte) that is not live: its worst, where that is, and its mean over the steps at which something lives (`EntryPlan.usage` has all of them).
    `reused` counts the storage classes and workspaces that take a byte which another one had before.
    """

    device: str
    arena_bytes: int
    lower_bound: int
    gap: float
    status: str
    solver: str
    sum_bytes: int
    peak_step: int
    peak_values: tuple[str, ...]
    worst_fragmentation: float
    worst_step: int
    mean_fragmentation: float
    reused: int


class PlanStats(ArenaStats):
    """How good the plan is: the figures of the arena of the entry's own device, those of the arenas `elsewhere`, and what the steps are.

    `copies` counts copy steps (to outputs and to other devices), `strided_copies` launches that do nothing but gather a strided view, `in_place` results
    that took an operand's bytes, `recomputed` steps that compute a value again; `extra_work` is what these cost as a part of all other work, modelled in
    floating-point operations and bytes.
    """

    elsewhere: tuple[ArenaStats, ...]
    steps: int
    launches: int
    copies: int
    strided_copies: int
    in_place: int
    recomputed: int
    extra_work: float

    @property
    def arenas(self) -> tuple[ArenaStats, ...]:
        """The figures of every arena, the entry's own first."""
        return (self, *self.elsewhere)


class EntryPlan(_Frozen):
    """The plan of one graph. `dims` are the bucket's integers; `options` are the printed options that shaped it.

    `clones` names the nodes that recomputation added, each with its original; `source_hash` is the hash of the graph without them. `target_rows` is the hash of
    the target's implementation rows.

    `device` is where its inputs, outputs, weights, parameters and state lie and where its steps run but for those that say otherwise; `io_bytes` is what it
    needs of that device's io.
    """

    name: str
    graph_hash: str
    source_hash: str
    clones: Mapping[str, str]
    target: str
    target_rows: str
    device: str
    alignment: int
    dims: Mapping[str, int]
    options: Mapping[str, str]
    steps: tuple[Step, ...]
    slots: tuple[Slot, ...]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    io_bytes: int
    stats: PlanStats

    @property
    def hash(self) -> str:
        """Hexadecimal sha256 over every field."""
        return _sha256(self)

    @property
    def carried(self) -> tuple[str, ...]:
        """The inputs that steps update: a run leaves in them what the next one reads."""
        writes = (operand.range for step in self.steps for operand in step.operands if operand and operand.writes)
        written = [place for place in writes if place.region.kind == "io" and place.size]
        return tuple(item.name for item in self.inputs if any(item.range.overlaps(place) for place in written))

    @property
    def peak(self) -> str:
        """For people who run out of memory, a sentence for each arena: its bytes, and who lives at the peak with how many bytes, largest first."""
        return "; ".join(self._peak(stats) for stats in self.stats.arenas)

    def _peak(self, stats: ArenaStats) -> str:
        alive = self.tenants(stats.peak_step, stats.device)
        tenants = ", ".join(f"{spelled(slot.values[:1])} {slot.range.size}" for slot in alive)
        where = "" if stats.device == self.device else f" on {stats.device}"
        at = f"{stats.lower_bound} live at step {stats.peak_step}"
        return f"entry {self.name} needs {stats.arena_bytes} bytes of arena{where}, {at}: {tenants or 'nobody'}"

    def slots_on(self, device: str | None = None) -> tuple[Slot, ...]:
        """The slots of the arena of the entry's own device or of another one's."""
        there = device or self.device
        return tuple(slot for slot in self.slots if slot.range.region.device == there)

    def tenants(self, step: int, device: str | None = None) -> tuple[Slot, ...]:
        """The slots of `slots_on` that are live at a step, the largest first."""
        alive = (slot for slot in self.slots_on(device) if slot.first <= step < slot.last)
        return tuple(sorted(alive, key=lambda slot: (-slot.range.size, slot.values)))

    def usage(self, device: str | None = None) -> tuple[StepUsage, ...]:
        """Live bytes and extent at each step, of the arena of the entry's own device or of another one's."""
        return usage_of([slot.tenancy for slot in self.slots_on(device)], len(self.steps))

    def problem(self, device: str | None = None) -> Problem:
        """The placement problem of the arena of the entry's own device, or of another one's: a buffer for each slot, in their order, called by its first value.

        Sizes are padded to the alignment. `placement` is the solution that the plan holds.
        """
        unit = self.alignment
        return Problem(
            tuple(
                Buffer(slot.values[0], slot.first, slot.last, align_up(slot.range.size, unit), unit)
                for slot in self.slots_on(device)
            )
        )

    def placement(self, device: str | None = None) -> Solution:
        """Where the plan has the buffers of `problem`."""
        slots = self.slots_on(device)
        ends = (slot.range.offset + align_up(slot.range.size, self.alignment) for slot in slots)
        return Solution(tuple(slot.range.offset for slot in slots), max(ends, default=0))

    def binding_of(self, place: ByteRange) -> Binding | None:
        """The input or output in whose bytes a range of an `io` region lies; of a proven plan every such operand has one."""
        return next((binding for binding in (*self.inputs, *self.outputs) if binding.range.contains(place)), None)

    def stats_problems(self, sizes: Mapping[Region, int]) -> list[str]:
        """What the statistics say wrongly: each arena (below its region's bytes in `sizes`) covers what the steps use, the counts are the steps'."""
        top: dict[Region, int] = {Region(arena.device, "arena"): 0 for arena in self.stats.arenas}
        for place in (operand.range for step in self.steps for operand in step.operands if operand is not None):
            if place.region.kind == "arena":
                top[place.region] = max(top.get(place.region, 0), place.end)
        stated = {Region(arena.device, "arena"): arena for arena in self.stats.arenas}
        problems: list[str] = []
        if self.stats.device != self.device or len(stated) < len(self.stats.arenas):
            problems.append(
                f"the statistics are of {[arena.device for arena in self.stats.arenas]}, expected {self.device} first"
            )
        for region, used in top.items():
            arena, size = stated.get(region), sizes.get(region, 0)
            if arena is None:
                problems.append(f"the steps use {used} bytes of {region}, of which the statistics say nothing")
                continue
            if not used <= arena.arena_bytes <= size:
                problems.append(
                    f"the steps use {used} bytes of {region}, {arena.arena_bytes} are stated, the region has {size}"
                )
            limit = self.options.get("memory_limit", "")
            if limit.isdigit() and arena.device == self.device and arena.arena_bytes > int(limit):
                problems.append(f"{region} takes {arena.arena_bytes} bytes, above the stated memory_limit of {limit}")
            if arena.lower_bound > arena.arena_bytes:
                problems.append(
                    f"the bound {arena.lower_bound} is above the stated {region} of {arena.arena_bytes} bytes"
                )
        kinds = Counter(step.kind for step in self.steps)
        counts = (self.stats.steps, self.stats.launches, self.stats.copies)
        found = (len(self.steps), kinds[StepKind.LAUNCH], kinds[StepKind.COPY])
        if counts != found:
            problems.append(f"{counts} steps, launches, copies are stated, found {found}")
        return problems


class RegionSize(_Frozen):
    """A region of a program and its bytes."""

    region: Region
    bytes: int


class PlanHashes(_Frozen):
    """Hashes of a program: of all of it, of its shared regions, and of each entry."""

    program: str
    shared: str
    entries: Mapping[str, str]


class _Shared(_Frozen):
    """What the entries of a program have in common; hashed as one."""

    regions: tuple[RegionSize, ...]
    weights: tuple[WeightSlot, ...]
    parameters: tuple[WeightSlot, ...]
    state: tuple[Binding, ...]
    constants: tuple[ConstantSlot, ...]


class ProgramPlan(_Frozen):
    """Entries over shared regions, planned by version `package_version` of the package. `regions` lists every region there is with its bytes; arena and io are
    the largest entry's. `parameters` lie in the state region, beside `state`: made of tensors of a checkpoint like weights, and updated like state."""

    version: int = PLAN_VERSION
    package_version: str = VERSION
    entries: Mapping[str, EntryPlan]
    regions: tuple[RegionSize, ...]
    weights: tuple[WeightSlot, ...]
    parameters: tuple[WeightSlot, ...]
    state: tuple[Binding, ...]
    constants: tuple[ConstantSlot, ...]

    def size_of(self, region: Region) -> int:
        """Bytes of a region; 0 of one that the program does not have."""
        return next((item.bytes for item in self.regions if item.region == region), 0)

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that a region, an entry or a step names, sorted."""
        steps = {step.device for entry in self.entries.values() for step in entry.steps}
        entries = {entry.device for entry in self.entries.values()}
        return tuple(sorted({item.region.device for item in self.regions} | entries | steps))

    def constant(self, tensor: TensorType, data: bytes) -> ConstantSlot | None:
        """The slot of a graph's constant, by content: equal constants of any name and entry share one."""
        return next((slot for slot in self.constants if slot.data == data and slot.type == tensor), None)

    def table_problems(self, alignment: int) -> list[str]:
        """What is wrong with the regions and the shared slots: each slot inside its region, aligned, of exact size, disjoint, named once."""
        problems: list[str] = []
        if self.version != PLAN_VERSION:
            problems.append(f"plan version {self.version}, expected {PLAN_VERSION}")
        listed = Counter(item.region for item in self.regions)
        problems += [f"region {region} is listed {count} times" for region, count in listed.items() if count > 1]
        for item in self.regions:
            if not 0 <= item.bytes <= MAX_INTEGER:
                problems.append(f"region {item.region} has {item.bytes} bytes")
            if item.region.kind in RESERVED_KINDS:
                problems.append(f"region {item.region} is of a reserved kind, which no plan of this version has")
        updated: tuple[WeightSlot | Binding, ...] = (*self.parameters, *self.state)
        for kind, table in (("weights", self.weights), ("state", updated), ("constants", self.constants)):
            slots = [(slot.name, slot.range, slot.type) for slot in table]
            for region in dict.fromkeys(place.region for _, place, _ in slots):
                there = [slot for slot in slots if slot[1].region == region]
                problems += layout_problems(there, Region(region.device, kind), self.size_of(region), alignment)
            names = Counter(name for name, _, _ in slots)
            problems += [f"%{name} appears {count} times in {kind}" for name, count in names.items() if count > 1]
        problems += [
            f"parameter %{slot.name} lies packed: {slot.type}" for slot in self.parameters if not slot.type.is_natural
        ]
        for slot in self.constants:
            if len(slot.data) != slot.range.size:
                problems.append(f"constant %{slot.name} has {len(slot.data)} bytes of data for {slot.range}")
        return problems

    @property
    def hashes(self) -> PlanHashes:
        """Hexadecimal sha256 over every field, part by part."""
        shared = _Shared(
            regions=self.regions,
            weights=self.weights,
            parameters=self.parameters,
            state=self.state,
            constants=self.constants,
        )
        return PlanHashes(
            program=_sha256(self),
            shared=_sha256(shared),
            entries={name: entry.hash for name, entry in self.entries.items()},
        )


def layout_problems(
    slots: Iterable[tuple[str, ByteRange, TensorType]], region: Region, size: int, alignment: int
) -> Iterator[str]:
    """What is wrong with slots (name, bytes, type) that share a region of `size` bytes: outside, off alignment, of the wrong size, overlapping."""
    previous: tuple[str, ByteRange] | None = None
    for name, place, tensor in sorted(slots, key=lambda slot: (slot[1].offset, slot[1].end)):
        if place.region != region or place.offset < 0 or place.end > size:
            yield f"%{name} at {place} lies outside the {region} region of {size} bytes"
        if place.offset % alignment:
            yield f"%{name} at {place} is not aligned to {alignment} bytes"
        if place.size != tensor.nbytes:
            yield f"%{name} at {place} has {place.size} bytes, {tensor} needs {tensor.nbytes}"
        if previous is not None and place.size and previous[1].end > place.offset:
            yield f"%{name} at {place} overlaps %{previous[0]} at {previous[1]}"
        if place.size and (previous is None or place.end > previous[1].end):
            previous = (name, place)


def _sha256(model: BaseModel) -> str:
    return hashlib.sha256(model.model_dump_json().encode()).hexdigest()
