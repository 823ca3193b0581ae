"""Plans as text for people: regions and shared slots, then each entry's statistics, io, slots and steps. Not read back; `saved.py` is what is."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.ir.step import WORKSPACE, ByteRange, Step, StepKind, StepOperand
from ostinato.ir.types import TensorType
from ostinato.ir.weights import WeightSlot
from ostinato.planner.plan import ArenaStats, EntryPlan, ProgramPlan, spelled

__all__ = ["print_entry", "print_program"]


def print_program(program: ProgramPlan) -> str:
    """The text of a program: its regions and shared slots, then its entries."""
    hashes = program.hashes
    lines = [
        f"program version={program.version}  library={program.package_version}  hash={hashes.program}  shared={hashes.shared}",
        "   ".join(f"region {item.region} {item.bytes}" for item in program.regions),
    ]
    for what, table in (("weight", program.weights), ("parameter", program.parameters)):
        lines += _table([[*_slot_cells(what, i.name, i.range, i.type), _parts(i)] for i in table])
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
    head = f"plan @{entry.name}  target={entry.target}  device={own}  align={entry.alignment}  graph={entry.graph_hash}"
    counts = f"steps={stats.steps}  launches={stats.launches}  copies={stats.copies}"
    if entry.clones:
        head += f"  source={entry.source_hash}"
    lines = [
        f"{head}  dims={_pairs(entry.dims)}  options={_pairs(entry.options)}",
        f"stats  {counts}  strided_copies={stats.strided_copies}  in_place={stats.in_place}  io={entry.io_bytes}",
    ]
    for arena in stats.arenas:
        lines += _arena_lines(arena, own)
    lines += _table([[f"clone {spelled((clone,))}", f"of {spelled((of,))}"] for clone, of in entry.clones.items()])
    lines += _table(
        [_slot_cells("input", item.name, item.range, item.type, own) for item in entry.inputs]
        + [_slot_cells("output", item.name, item.range, item.type, own) for item in entry.outputs]
    )
    lines += _table(
        [
            [
                f"slot {spelled(slot.values)}",
                _place(slot.range, own),
                f"+{slot.range.size}",
                f"live [{slot.first},{slot.last})",
            ]
            for slot in entry.slots
        ]
    )
    lines += _table([_step_cells(index, step, own) for index, step in enumerate(entry.steps)])
    return "\n".join([*lines, ""])


def _arena_lines(arena: ArenaStats, own: str) -> list[str]:
    name = "arena" if arena.device == own else f"{arena.device}/arena"
    sizes = (
        f"lower_bound={arena.lower_bound}  ratio={1.0 + arena.gap:.4f}  sum={arena.sum_bytes}  reused={arena.reused}"
    )
    unused = f"fragmentation worst={arena.worst_fragmentation:.4f} at step {arena.worst_step} mean={arena.mean_fragmentation:.4f}"
    return [
        f"stats  {name}={arena.arena_bytes}  {sizes}  {arena.status} by {arena.solver}",
        f"stats  {name} {unused}",
        f"peak   {name} at step {arena.peak_step}  {spelled(arena.peak_values)}".rstrip(),
    ]


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
        "" if step.launch is None else f"launch {step.launch}",
    ]


def _operand(operand: StepOperand, own: str) -> str:
    """`!` marks a read that may be done early."""
    return f"%{operand.value}{'!' if operand.early else ''}:{_place(operand.range, own)}"


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
