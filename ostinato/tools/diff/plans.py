"""Two plans of programs held beside each other: figures, steps, slots, regions and what the plans were made for.

Entries and steps are matched by name, slots by the values that share them. An address that differs is no difference of a step: it is one of the slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ostinato.ir.step import Step
from ostinato.ir.weights import WeightSlot
from ostinato.planner.plan import Binding, ConstantSlot, EntryPlan, ProgramPlan, Slot
from ostinato.tools.diff.data import EntryDiff, Fact, Figure, PlanDiff, SlotDiff, StepDiff
from ostinato.tools.diff.graphs import out_of_order, paired

__all__ = ["diff_entries", "diff_plans"]


def diff_plans(before: ProgramPlan, after: ProgramPlan) -> PlanDiff:
    """What differs between two plans, entry by entry (see `paired`)."""
    pairs = paired(before.entries, after.entries)
    old, new = {a for a, _ in pairs}, {b for _, b in pairs}
    regions = dict.fromkeys(item.region for plan in (before, after) for item in plan.regions)
    return PlanDiff(
        entries=tuple(diff_entries(before.entries[a], after.entries[b]) for a, b in pairs),
        only_before=tuple(name for name in before.entries if name not in old),
        only_after=tuple(name for name in after.entries if name not in new),
        regions=tuple(
            Figure(str(region), _size(before, region), _size(after, region), "B") for region in sorted(regions, key=str)
        ),
        facts=tuple(_shared_facts(before, after)),
    )


def _size(plan: ProgramPlan, region: object) -> int | None:
    return next((item.bytes for item in plan.regions if item.region == region), None)


def _shared_facts(before: ProgramPlan, after: ProgramPlan) -> Iterator[Fact]:
    yield from _fact("library", before.package_version, after.package_version)
    for what in ("weights", "parameters", "state", "constants"):
        old, new = ({slot.name: _said(slot) for slot in getattr(plan, what)} for plan in (before, after))
        yield from _table(what, old, new, "%")


def _said(slot: WeightSlot | Binding | ConstantSlot) -> str:
    return f"{slot.type}, {slot.range.size} bytes"


def diff_entries(before: EntryPlan, after: EntryPlan) -> EntryDiff:
    """What differs between the plans of two entries."""
    steps, same_steps, order = _steps(before, after)
    slots, same_slots = _slots(before, after)
    return EntryDiff(
        name=after.name if before.name == after.name else f"{before.name} / {after.name}",
        figures=tuple(_figures(before, after)),
        facts=tuple(_entry_facts(before, after)),
        steps=steps,
        order=order,
        slots=slots,
        same_steps=same_steps,
        same_slots=same_slots,
    )


def _figures(before: EntryPlan, after: EntryPlan) -> Iterator[Figure]:
    a, b = before.stats, after.stats
    yield Figure("arena", a.arena_bytes, b.arena_bytes, "B")
    yield Figure("bound", a.lower_bound, b.lower_bound, "B")
    yield Figure("sum", a.sum_bytes, b.sum_bytes, "B")
    old, new = ({arena.device: arena.arena_bytes for arena in stats.elsewhere} for stats in (a, b))
    for device in sorted({*old, *new}):
        yield Figure(f"arena on {device}", old.get(device), new.get(device), "B")
    yield Figure("io", before.io_bytes, after.io_bytes, "B")
    yield Figure("workspace", _workspace(before), _workspace(after), "B")
    for what in ("steps", "launches", "copies", "strided_copies", "in_place", "reused", "recomputed"):
        yield Figure(what.replace("_", "-"), getattr(a, what), getattr(b, what))
    yield Figure("slots", len(before.slots), len(after.slots))
    yield Figure("capture-nodes", _nodes(before), _nodes(after))


def _workspace(plan: EntryPlan) -> int:
    return sum(place.size for step in plan.steps if (place := step.workspace) is not None)


def _nodes(plan: EntryPlan) -> int:
    """Nodes of a graph that captures all steps, but for those of a vendor's products, which no plan knows."""
    return sum(step.node_count for step in plan.steps)


def _entry_facts(before: EntryPlan, after: EntryPlan) -> Iterator[Fact]:
    yield from _fact("graph", before.source_hash[:12], after.source_hash[:12])
    for what in ("target", "device"):
        yield from _fact(what, getattr(before, what), getattr(after, what))
    yield from _fact("rows of the target", before.target_rows[:12], after.target_rows[:12])
    yield from _fact("alignment", str(before.alignment), str(after.alignment))
    yield from _fact("solver", before.stats.solver, after.stats.solver)
    yield from _fact("status", before.stats.status, after.stats.status)
    yield from _table("dimension", before.dims, after.dims)
    yield from _table("option", before.options, after.options)
    for what in ("inputs", "outputs"):
        old, new = ({item.name: str(item.type) for item in getattr(plan, what)} for plan in (before, after))
        yield from _table(what.removesuffix("s"), old, new)


def _table(what: str, before: Mapping[str, object], after: Mapping[str, object], mark: str = "") -> Iterator[Fact]:
    for key in dict.fromkeys((*before, *after)):
        yield from _fact(f"{what} {mark}{key}", str(before.get(key, "")), str(after.get(key, "")))


def _fact(what: str, before: str, after: str) -> Iterator[Fact]:
    if before != after:
        yield Fact(what, before, after)


def _steps(before: EntryPlan, after: EntryPlan) -> tuple[tuple[StepDiff, ...], int, int]:
    """Steps that differ, how many do not, and how many of those in both come in another order."""
    old, new = _keyed(before), _keyed(after)
    found: list[StepDiff] = []
    order: list[int] = []
    same = 0
    for key, (place, step) in new.items():
        if key not in old:
            found.append(StepDiff(None, step.node, step.kernel, place))
            continue
        order.append(old[key][0])
        facts = tuple(_step_facts(old[key][1], step))
        if facts:
            found.append(StepDiff(step.node, step.node, step.kernel, place, facts))
        same += not facts
    found += [StepDiff(step.node, None, step.kernel, place) for key, (place, step) in old.items() if key not in new]
    return tuple(found), same, out_of_order(order)


def _keyed(plan: EntryPlan) -> dict[tuple[str, int], tuple[int, Step]]:
    """Steps with their places, by node and how many steps of that node came before."""
    counts: dict[str, int] = {}
    found: dict[tuple[str, int], tuple[int, Step]] = {}
    for place, step in enumerate(plan.steps):
        number = counts[step.node] = counts.get(step.node, -1) + 1
        found[step.node, number] = (place, step)
    return found


def _step_facts(old: Step, new: Step) -> Iterator[Fact]:
    for what in ("kernel", "device", "lane", "params", "launch"):
        yield from _fact(what, *(_text(getattr(step, what)) for step in (old, new)))
    yield from _fact("kind", old.kind.value, new.kind.value)
    yield from _fact("waits", _text(old.waits), _text(new.waits))
    yield from _fact(
        "operands", *(" ".join(f"%{item.value}" if item else "-" for item in step.operands) for step in (old, new))
    )
    regions = (" ".join(item.range.region.kind if item else "-" for item in step.operands) for step in (old, new))
    yield from _fact("regions", *regions)
    sizes = (str(step.workspace.size) if step.workspace else "" for step in (old, new))
    yield from _fact("workspace bytes", *sizes)


def _text(value: object) -> str:
    return "" if value is None else " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _slots(before: EntryPlan, after: EntryPlan) -> tuple[tuple[SlotDiff, ...], int]:
    """Slots that differ and how many do not; two slots are one where they share a value on one device."""
    owner = {(slot.range.region.device, value): slot for slot in before.slots for value in slot.values}
    taken: set[int] = set()
    found: list[SlotDiff] = []
    same = 0
    for slot in after.slots:
        device = slot.range.region.device
        shared = (owner.get((device, value)) for value in slot.values)
        old = next((item for item in shared if item is not None and id(item) not in taken), None)
        if old is not None:
            taken.add(id(old))
        if old is not None and _facts_of(old) == _facts_of(slot):
            same += 1
        else:
            found.append(_slot_diff(old, slot))
    found += [_slot_diff(slot, None) for slot in before.slots if id(slot) not in taken]
    return tuple(found), same


def _facts_of(slot: Slot) -> tuple[object, ...]:
    return slot.values, slot.range.offset, slot.range.size, slot.first, slot.last


def _slot_diff(old: Slot | None, new: Slot | None) -> SlotDiff:
    return SlotDiff(
        device=next(slot.range.region.device for slot in (new, old) if slot is not None),
        values_before=old.values if old else (),
        values_after=new.values if new else (),
        offset=(old.range.offset if old else None, new.range.offset if new else None),
        bytes=(old.range.size if old else None, new.range.size if new else None),
        steps_before=(old.first, old.last) if old else None,
        steps_after=(new.first, new.last) if new else None,
    )
