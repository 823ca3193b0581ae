"""A plan with some storages at other bytes: what is asked when a fault may be one of places. Nothing else of the plan changes, and nobody plans anew.

`apart` gives groups of storages bytes at the end of the arena that nobody else has. Where a fault goes away with it, two tenants of the same bytes made it: a
search over the groups names them, whoever made the plan, also where a plan was changed after it was proven. `moved` puts storages where the caller says, which
may be wrong on purpose.

Workspaces count as storages, under the names that slots have for them. The places are part of the plan's options and so of its identity. What comes out is not
proven: `check.py` does that, and refuses bytes that two tenants have at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph
from ostinato.ir.step import WORKSPACE, ByteRange, Region, Step, StepOperand
from ostinato.ir.views import ViewTable
from ostinato.planner.plan import EntryPlan, ProgramPlan, RegionSize, Slot, slot_name
from ostinato.planner.problem import align_up
from ostinato.planner.usage import reuse_count

__all__ = ["apart", "moved", "storages_of", "with_entries"]

_FARTHEST = 1 << 63
"""Bytes that no memory has, and that a size of 64 bits still holds."""


def storages_of(plan: EntryPlan, graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """The storages that share each slot of the arena, in order of definition, by the first value of the slot; workspaces too. More than one: in place."""
    owners = _owners(graph)
    return {
        slot.values[0]: tuple(dict.fromkeys(owners.get(value, value) for value in slot.values))
        for slot in plan.slots_on(plan.device)
    }


def apart(plan: EntryPlan, graph: Graph, groups: Iterable[Collection[str]]) -> EntryPlan:
    """The plan with bytes of its own for each group of storages. Raises `PlanError` for names that are no storages of the entry's arena."""
    sizes = _sizes(plan, graph)
    places: dict[str, int] = {}
    end = align_up(plan.stats.arena_bytes, plan.alignment)
    for group in groups:
        _require(plan, group, sizes)
        places.update(dict.fromkeys(group, end))
        end = align_up(end + max((sizes[name] for name in group), default=0), plan.alignment)
    return moved(plan, graph, places)


def moved(plan: EntryPlan, graph: Graph, places: Mapping[str, int]) -> EntryPlan:
    """The plan with storages of the entry's own arena at these bytes, by name: each with all values that lie in it, in slots and in steps.

    Raises `PlanError` for names that are no storages there, and for bytes that are negative, not aligned or beyond every memory.
    """
    sizes, owners, unit = _sizes(plan, graph), _owners(graph), plan.alignment
    _require(plan, places, sizes)
    if wrong := {name: offset for name, offset in places.items() if not 0 <= offset < _FARTHEST or offset % unit}:
        raise PlanError(f"storages are to begin at {wrong}", node=plan.name, hint=f"give multiples of {unit}, from 0")
    if not places:
        return plan
    arena, views = Region(plan.device, "arena"), ViewTable(graph)

    def place(node: str, operand: StepOperand | None) -> StepOperand | None:
        if operand is None or operand.range.region != arena:
            return operand
        name = slot_name(node, operand.value)
        offset = places.get(owners.get(name, name))
        if offset is None:
            return operand
        inside = 0
        if operand.value != WORKSPACE and operand.range.size:
            inside = graph.types[operand.value].dtype.nbytes(views[operand.value].offset)
        return replace(operand, range=ByteRange(arena, offset + inside, operand.range.size))

    def step(item: Step) -> Step:
        return replace(item, operands=tuple(place(item.node, operand) for operand in item.operands))

    slots = [part for slot in plan.slots for part in _parts(slot, arena, places, owners, sizes)]
    slots.sort(key=lambda slot: (slot.first, slot.range.offset, slot.last))
    end = max((align_up(slot.range.end, unit) for slot in slots if slot.range.region == arena), default=0)
    stats = {
        "arena_bytes": max(plan.stats.arena_bytes, end),
        "reused": reuse_count([slot.tenancy for slot in slots if slot.range.region == arena]),
    }
    told = " ".join(f"{name}@{offset}" for name, offset in sorted(places.items()))
    return plan.model_copy(
        update={
            "steps": tuple(step(item) for item in plan.steps),
            "slots": tuple(slots),
            "stats": plan.stats.model_copy(update=stats),
            "options": dict(sorted({**plan.options, "moved": told}.items())),
        }
    )


def with_entries(program: ProgramPlan, entries: Mapping[str, EntryPlan]) -> ProgramPlan:
    """The program with these plans of its entries, and an arena that holds them."""
    every = {**program.entries, **entries}
    regions: list[RegionSize] = []
    for item in program.regions:
        size = item.bytes
        for plan in every.values():
            if item.region == Region(plan.device, "arena"):
                size = max(size, align_up(plan.stats.arena_bytes, plan.alignment))
        regions.append(RegionSize(region=item.region, bytes=size))
    return program.model_copy(update={"entries": every, "regions": tuple(regions)})


def _owners(graph: Graph) -> Mapping[str, str]:
    """The storage of every value, by the value that owns it."""
    return {name: view.base for name, view in ViewTable(graph).items()}


def _sizes(plan: EntryPlan, graph: Graph) -> Mapping[str, int]:
    """Bytes of every storage in the entry's own arena."""
    sizes: dict[str, int] = {}
    for slot, names in zip(plan.slots_on(plan.device), storages_of(plan, graph).values(), strict=True):
        for name in names:
            sizes[name] = graph.types[name].nbytes if name in graph.types else slot.range.size
    return sizes


def _require(plan: EntryPlan, names: Collection[str], sizes: Mapping[str, int]) -> None:
    if unknown := sorted(set(names) - set(sizes)):
        raise PlanError(
            f"{unknown} are no storages in the arena of this entry",
            node=plan.name,
            hint="values that are views lie in the storage of what they view",
        )


def _parts(
    slot: Slot, arena: Region, places: Mapping[str, int], owners: Mapping[str, str], sizes: Mapping[str, int]
) -> Sequence[Slot]:
    """The slot without the values that leave it, and one for each place that values go to; its lifetime stays, which is never too short."""
    if slot.range.region != arena:
        return (slot,)
    left: list[str] = []
    gone: dict[int, list[str]] = {}
    for value in slot.values:
        offset = places.get(owners.get(value, value))
        (left if offset is None else gone.setdefault(offset, [])).append(value)
    if not gone:
        return (slot,)
    found = [slot.model_copy(update={"values": tuple(left)})] if left else []
    for offset, values in gone.items():
        size = max(sizes[owners.get(value, value)] for value in values)
        place = ByteRange(arena, offset, size)
        found.append(slot.model_copy(update={"values": tuple(values), "range": place}))
    return found
