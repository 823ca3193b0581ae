"""The plan: what a device runs and where every byte lives, as data.

A plan has no pointers and no callables. Loading turns region + offset into addresses. An `EntryPlan` belongs to one graph (its hash says which); a
`ProgramPlan` holds entries over one weight table, one state table and one arena sized to the largest entry, never the sum.

Plans print as text for people (`print_program`, `print_entry`), are saved as JSON that reads back to an equal plan (`program_to_json`,
`program_from_json`) and carry hashes over everything they say. The same inputs give the same plan, byte for byte.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ostinato.ir.errors import PlanError
from ostinato.ir.step import RESERVED_KINDS, WORKSPACE, ByteRange, Region, Step, StepKind, StepOperand
from ostinato.ir.types import TensorType
from ostinato.ir.weights import WeightSlot

__all__ = [
    "PLAN_VERSION",
    "Binding",
    "ConstantSlot",
    "EntryPlan",
    "PlanHashes",
    "PlanStats",
    "ProgramPlan",
    "RegionSize",
    "Slot",
    "layout_problems",
    "print_entry",
    "print_program",
    "program_from_json",
    "program_to_json",
    "workspace_of",
]

PLAN_VERSION = 1


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

    values: tuple[str, ...]
    range: ByteRange
    first: int
    last: int


def workspace_of(node: str) -> str:
    """What a slot calls the workspace of a node's step."""
    return f"{WORKSPACE} of {node}"


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


class PlanStats(_Frozen):
    """How good the plan is; all sizes in bytes.

    `lower_bound` is the largest number of bytes live at one step, `gap` is arena_bytes / lower_bound - 1 (0 when both are 0), `sum_bytes` what the arena
    would take without reuse, `peak_step` a step at which the bound is reached and `peak_values` who lives there. `copies` counts copy steps,
    `strided_copies` launches that do nothing but gather a strided view, `in_place` results that took an operand's bytes.
    """

    arena_bytes: int
    lower_bound: int
    sum_bytes: int
    gap: float
    solver: str
    steps: int
    launches: int
    copies: int
    strided_copies: int
    in_place: int
    peak_step: int
    peak_values: tuple[str, ...]


class EntryPlan(_Frozen):
    """The plan of one graph. `dims` are the bucket's integers; `options` are the printed options that shaped it.

    `device` is where its arena and io lie and where its steps run but for those that say otherwise; `io_bytes` is what it needs of that device's io.
    """

    name: str
    graph_hash: str
    target: str
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
    def peak(self) -> str:
        """One sentence for people who run out of memory: bytes of arena, and who lives at the peak with how many bytes, largest first."""
        stats = self.stats
        alive = [slot for slot in self.slots if slot.first <= stats.peak_step < slot.last]
        alive.sort(key=lambda slot: (-slot.range.size, slot.values))
        tenants = ", ".join(f"{_names(slot.values[:1])} {slot.range.size}" for slot in alive)
        at = f"{stats.lower_bound} live at step {stats.peak_step}"
        return f"entry {self.name} needs {stats.arena_bytes} bytes of arena, {at}: {tenants or 'nobody'}"

    def binding_of(self, place: ByteRange) -> Binding | None:
        """The input or output in whose bytes a range of an `io` region lies; of a proven plan every such operand has one."""
        return next((binding for binding in (*self.inputs, *self.outputs) if binding.range.contains(place)), None)

    def stats_problems(self, region_bytes: int) -> list[str]:
        """What the statistics say wrongly: the arena (below `region_bytes`) covers what the steps use, the counts are the steps'."""
        stats, arena = self.stats, Region(self.device, "arena")
        ranges = [operand.range for step in self.steps for operand in step.operands if operand is not None]
        top = max((place.end for place in ranges if place.region == arena), default=0)
        problems: list[str] = []
        if not top <= stats.arena_bytes <= region_bytes:
            problems.append(
                f"the steps use {top} bytes of arena, {stats.arena_bytes} are stated, the region has {region_bytes}"
            )
        if stats.lower_bound > stats.arena_bytes:
            problems.append(f"the bound {stats.lower_bound} is above the stated arena of {stats.arena_bytes} bytes")
        copies = sum(step.kind is StepKind.COPY for step in self.steps)
        stated = (stats.steps, stats.launches, stats.copies)
        found = (len(self.steps), len(self.steps) - copies, copies)
        if stated != found:
            problems.append(f"{stated} steps, launches, copies are stated, found {found}")
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
    state: tuple[Binding, ...]
    constants: tuple[ConstantSlot, ...]


class ProgramPlan(_Frozen):
    """Entries over shared regions. `regions` lists every region there is with its bytes; arena and io are the largest entry's."""

    version: int = PLAN_VERSION
    entries: Mapping[str, EntryPlan]
    regions: tuple[RegionSize, ...]
    weights: tuple[WeightSlot, ...]
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
            if item.bytes < 0:
                problems.append(f"region {item.region} has {item.bytes} bytes")
            if item.region.kind in RESERVED_KINDS:
                problems.append(f"region {item.region} is of a reserved kind, which no plan of this version has")
        for kind, table in (("weights", self.weights), ("state", self.state), ("constants", self.constants)):
            slots = [(slot.name, slot.range, slot.type) for slot in table]
            for region in dict.fromkeys(place.region for _, place, _ in slots):
                there = [slot for slot in slots if slot[1].region == region]
                problems += layout_problems(there, Region(region.device, kind), self.size_of(region), alignment)
            names = Counter(name for name, _, _ in slots)
            problems += [f"%{name} appears {count} times in {kind}" for name, count in names.items() if count > 1]
        for slot in self.constants:
            if len(slot.data) != slot.range.size:
                problems.append(f"constant %{slot.name} has {len(slot.data)} bytes of data for {slot.range}")
        return problems

    @property
    def hashes(self) -> PlanHashes:
        """Hexadecimal sha256 over every field, part by part."""
        shared = _Shared(regions=self.regions, weights=self.weights, state=self.state, constants=self.constants)
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


class _Envelope(_Frozen):
    """The saved form: the plan and the hashes it must have."""

    format: str
    hashes: PlanHashes
    plan: ProgramPlan


class _Head(BaseModel):
    """What tells a plan of another version from a damaged one."""

    class _Version(BaseModel):
        version: int = Field(strict=True)

    format: str
    plan: _Version


_FORMAT = "ostinato-plan"


def _sha256(model: BaseModel) -> str:
    return hashlib.sha256(model.model_dump_json().encode()).hexdigest()


def program_to_json(program: ProgramPlan) -> str:
    """The saved form of a plan, hashes included."""
    return _Envelope(format=_FORMAT, hashes=program.hashes, plan=program).model_dump_json(indent=1)


def program_from_json(text: str) -> ProgramPlan:
    """Reads what `program_to_json` wrote; raises `PlanError` for another format or version, for missing fields, and where a hash does not fit."""
    try:
        head = _Head.model_validate_json(text)
    except ValidationError as error:
        raise PlanError(f"not a saved plan: {_problems(error)}", hint="save the plan again") from None
    if head.format != _FORMAT or head.plan.version != PLAN_VERSION:
        raise PlanError(
            f"expected format {_FORMAT!r} version {PLAN_VERSION}, found {head.format!r} version {head.plan.version}",
            hint="plan the program again with this version of ostinato",
        )
    try:
        envelope = _Envelope.model_validate_json(text)
    except ValidationError as error:
        raise PlanError(f"damaged plan: {_problems(error)}", hint="save the plan again") from None
    found, stated = envelope.plan.hashes, envelope.hashes
    if found != stated:
        parts = {"shared regions": (stated.shared, found.shared), "program": (stated.program, found.program)}
        for name in {**stated.entries, **found.entries}:
            parts[f"entry {name}"] = (stated.entries.get(name, "absent"), found.entries.get(name, "absent"))
        wrong = [f"{part}: stated {a}, found {b}" for part, (a, b) in parts.items() if a != b]
        raise PlanError(
            f"damaged plan, hashes differ: {'; '.join(wrong)}", hint="the text was changed: save the plan again"
        )
    return envelope.plan


def _problems(error: ValidationError) -> str:
    items = [f"{'.'.join(map(str, item['loc'])) or 'text'}: {item['msg']}" for item in error.errors(include_url=False)]
    return "; ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def print_program(program: ProgramPlan) -> str:
    """The text of a program: its regions and shared slots, then its entries."""
    hashes = program.hashes
    lines = [
        f"program version={program.version}  hash={hashes.program}  shared={hashes.shared}",
        "   ".join(f"region {item.region} {item.bytes}" for item in program.regions),
    ]
    lines += _table([[*_slot_cells("weight", i.name, i.range, i.type), _parts(i)] for i in program.weights])
    lines += _table(
        [_slot_cells("state", item.name, item.range, item.type) for item in program.state]
        + [_slot_cells("constant", item.name, item.range, item.type) for item in program.constants]
    )
    return "\n".join([*lines, ""]) + "".join(f"\n{print_entry(entry)}" for entry in program.entries.values())


def print_entry(entry: EntryPlan) -> str:
    """The text of one entry: head, statistics, io, arena slots with their half-open lifetimes, steps.

    Regions of the entry's own device print without it.
    """
    own = entry.device
    stats = entry.stats
    ratio = 1.0 + stats.gap
    head = f"plan @{entry.name}  target={entry.target}  device={own}  align={entry.alignment}  graph={entry.graph_hash}"
    sizes = f"arena={stats.arena_bytes}  lower_bound={stats.lower_bound}  ratio={ratio:.4f}  sum={stats.sum_bytes}"
    counts = f"steps={stats.steps}  launches={stats.launches}  copies={stats.copies}"
    lines = [
        f"{head}  dims={_pairs(entry.dims)}  options={_pairs(entry.options)}",
        f"stats  {sizes}  solver={stats.solver}  io={entry.io_bytes}",
        f"stats  {counts}  strided_copies={stats.strided_copies}  in_place={stats.in_place}",
        f"peak   step {stats.peak_step}  {_names(stats.peak_values)}".rstrip(),
    ]
    lines += _table(
        [_slot_cells("input", item.name, item.range, item.type, own) for item in entry.inputs]
        + [_slot_cells("output", item.name, item.range, item.type, own) for item in entry.outputs]
    )
    lines += _table(
        [
            [
                f"slot {_names(slot.values)}",
                _place(slot.range, own),
                f"+{slot.range.size}",
                f"live [{slot.first},{slot.last})",
            ]
            for slot in entry.slots
        ]
    )
    lines += _table([_step_cells(index, step, own) for index, step in enumerate(entry.steps)])
    return "\n".join([*lines, ""])


def _place(place: ByteRange, own: str = "") -> str:
    region = place.region.kind if place.region.device == own else place.region
    return f"{region}@{place.offset}"


def _slot_cells(kind: str, name: str, place: ByteRange, tensor: TensorType, own: str = "") -> list[str]:
    return [f"{kind} %{name}", _place(place, own), f"+{place.size}", str(tensor)]


def _step_cells(index: int, step: Step, own: str) -> list[str]:
    present = [operand for operand in step.operands if operand is not None]
    reads = [_operand(operand, own) for operand in present if operand.reads]
    writes = [_operand(operand, own) for operand in present if operand.writes and operand.value != WORKSPACE]
    sync = f"lane {step.lane}" if step.lane or step.waits or step.signals else ""
    if step.waits:
        sync += f" wait {','.join(map(str, step.waits))}"
    if step.signals:
        sync += f" signal {','.join(map(str, step.signals))}"
    kernel = step.kernel if step.kind is StepKind.LAUNCH else step.kind.value
    work = step.workspace
    return [
        f"step {index} {kernel}",
        f"read {' '.join(reads)}" if reads else "",
        f"write {' '.join(writes)}" if writes else "",
        f"work {_place(work, own)} +{work.size}" if work is not None else "",
        f"params {','.join(map(str, step.params))}" if step.params else "",
        sync,
        "" if step.device == own else f"on {step.device}",
    ]


def _operand(operand: StepOperand, own: str) -> str:
    """`!` marks a read that may be done early."""
    return f"%{operand.value}{'!' if operand.early else ''}:{_place(operand.range, own)}"


def _names(values: tuple[str, ...]) -> str:
    return " ".join(value if value.startswith(WORKSPACE) else f"%{value}" for value in values)


def _parts(slot: WeightSlot) -> str:
    return " + ".join(
        f"{part.tensor}[{part.start}:{part.stop}]{'' if part.transform == 'none' else f' {part.transform}'}"
        for part in slot.parts
    )


def _pairs(items: Mapping[str, int] | Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in items.items()) or "-"


def _table(rows: list[list[str]]) -> list[str]:
    """Rows with their columns lined up, two spaces apart; a cell longer than 64 pushes its own row only."""
    widths = (
        [max((len(row[column]) for row in rows if len(row[column]) <= 64), default=0) for column in range(len(rows[0]))]
        if rows
        else []
    )
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
