"""Mutants of where things lie: slots moved, overlapping by a byte, placed from wrong lifetimes or sizes, aliases made and broken, offsets beyond 32 bits.

A mutant is a function of a proven case that returns a changed program, None where it does not apply. Whether it does harm is the judge's to say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ostinato.ir.step import WORKSPACE, ByteRange, Step, StepOperand
from ostinato.planner.plan import ProgramPlan, RegionSize, Slot, slot_name
from ostinato.planner.problem import align_up
from tests.planner.mutation_cases import Case

__all__ = [
    "alias_broken",
    "every_last_use_dropped",
    "everything_higher",
    "last_use_dropped",
    "life_begins_late",
    "life_one_step_off",
    "offsets_cut_to_32_bits",
    "overlap_of_no_byte",
    "overlap_of_one_byte",
    "placed_in_another_order",
    "region_larger",
    "region_too_small",
    "result_onto_an_operand",
    "size_grown",
    "size_shrunk",
    "slot_not_listed",
    "slot_one_unit_off",
    "slot_onto_another",
    "slot_somewhere",
    "slot_states_another_life",
    "slot_states_more_bytes",
    "slots_beyond_32_bits",
    "slots_exchanged",
    "workspace_onto_an_operand",
    "written_elsewhere",
]

_Buffer = tuple[int, int, int]  # bytes, first and last step (half-open)


def _slots(case: Case) -> tuple[Slot, ...]:
    return case.entry.slots


def _two(rng: random.Random, case: Case) -> tuple[int, int] | None:
    """Two slots of one arena."""
    slots = _slots(case)
    if len(slots) < 2:
        return None
    a, b = rng.sample(range(len(slots)), 2)
    return (a, b) if slots[a].range.region == slots[b].range.region else None


def _height(case: Case) -> int:
    return max((slot.range.end for slot in _slots(case)), default=0)


def slot_somewhere(rng: random.Random, case: Case) -> ProgramPlan | None:
    if not _slots(case):
        return None
    unit = case.entry.alignment
    return case.moved({rng.randrange(len(_slots(case))): unit * rng.randrange(min(_height(case) // unit, 40) + 2)})


def slot_onto_another(rng: random.Random, case: Case) -> ProgramPlan | None:
    pair = _two(rng, case)
    return None if pair is None else case.moved({pair[0]: _slots(case)[pair[1]].range.offset})


def slots_exchanged(rng: random.Random, case: Case) -> ProgramPlan | None:
    pair = _two(rng, case)
    if pair is None:
        return None
    a, b = pair
    return case.moved({a: _slots(case)[b].range.offset, b: _slots(case)[a].range.offset})


def slot_one_unit_off(rng: random.Random, case: Case) -> ProgramPlan | None:
    if not _slots(case):
        return None
    number = rng.randrange(len(_slots(case)))
    offset = _slots(case)[number].range.offset + rng.choice((-1, 1)) * case.entry.alignment
    return case.moved({number: offset}) if offset >= 0 else None


def _last_and_first_bytes(case: Case) -> list[tuple[int, int]]:
    """Pairs of slots where the second, moved so that its first byte is the last one of the first, is still aligned."""
    slots, unit = _slots(case), case.entry.alignment
    return [
        (a, b)
        for a, low in enumerate(slots)
        for b, high in enumerate(slots)
        if a != b and low.range.region == high.range.region and (low.range.end - 1) % unit == 0
    ]


def overlap_of_one_byte(rng: random.Random, case: Case) -> ProgramPlan | None:
    pairs = _last_and_first_bytes(case)
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    return case.moved({b: _slots(case)[a].range.end - 1})


def overlap_of_no_byte(rng: random.Random, case: Case) -> ProgramPlan | None:
    """Right behind another slot."""
    pair = _two(rng, case)
    return (
        None if pair is None else case.moved({pair[0]: align_up(_slots(case)[pair[1]].range.end, case.entry.alignment)})
    )


def everything_higher(rng: random.Random, case: Case) -> ProgramPlan | None:
    by = case.entry.alignment * rng.choice((1, 7, 2**28, 2**29, 2**30))
    return case.moved({number: slot.range.offset + by for number, slot in enumerate(_slots(case))})


def slots_beyond_32_bits(rng: random.Random, case: Case) -> ProgramPlan | None:
    """Some slots, each with its place kept modulo 2^31 or 2^32."""
    chosen = [number for number in range(len(_slots(case))) if rng.random() < 0.5]
    by = rng.choice((2**31, 2**32, 2**33))
    return case.moved({number: _slots(case)[number].range.offset + by for number in chosen})


def offsets_cut_to_32_bits(rng: random.Random, case: Case) -> ProgramPlan | None:
    """What a 32-bit offset would keep of a larger one."""
    bits = rng.choice((31, 32))
    cut = {
        number: slot.range.offset % 2**bits for number, slot in enumerate(_slots(case)) if slot.range.offset >= 2**bits
    }
    return case.moved(cut) if cut else None


# placed anew, from what may be wrong


def _buffers(case: Case) -> list[_Buffer]:
    return [(align_up(slot.range.size, case.entry.alignment), slot.first, slot.last) for slot in _slots(case)]


def _first_fit(rng: random.Random, case: Case, buffers: Sequence[_Buffer]) -> dict[int, int]:
    """Offsets by slot: first fit in random order, so that wrong sizes and lifetimes show in many ways."""
    order = list(range(len(buffers)))
    rng.shuffle(order)
    offsets: dict[int, int] = {}
    for number in order:
        size, first, last = buffers[number]
        taken = sorted(
            (offsets[other], offsets[other] + buffers[other][0])
            for other in offsets
            if first < buffers[other][2]
            and buffers[other][1] < last
            and _slots(case)[other].range.region == _slots(case)[number].range.region
        )
        at = 0
        for low, high in taken:
            if low >= at + size:
                break
            at = max(at, high)
        offsets[number] = at
    return offsets


def _collides(case: Case, offsets: Mapping[int, int]) -> bool:
    """Whether slots that the planner holds alive together share a byte."""
    slots = _slots(case)
    return any(
        a.first < b.last
        and b.first < a.last
        and a.range.region == b.range.region
        and offsets[i] < offsets[j] + b.range.size
        and offsets[j] < offsets[i] + a.range.size
        for i, a in enumerate(slots)
        for j, b in enumerate(slots[:i])
    )


def _placed(rng: random.Random, case: Case, buffers: Sequence[_Buffer]) -> ProgramPlan:
    """Placed for these buffers; of a few tries the one where it matters that they are not the plan's."""
    offsets = _first_fit(rng, case, buffers)
    for _ in range(rng.randrange(6)):
        if _collides(case, offsets):
            break
        offsets = _first_fit(rng, case, buffers)
    return case.moved(offsets)


def placed_in_another_order(rng: random.Random, case: Case) -> ProgramPlan | None:
    return case.moved(_first_fit(rng, case, _buffers(case)))


def _with_life(rng: random.Random, case: Case, change: Callable[[int, int], tuple[int, int]]) -> ProgramPlan | None:
    buffers = _buffers(case)
    if not buffers:
        return None
    number = rng.randrange(len(buffers))
    size, first, last = buffers[number]
    first, last = change(first, last)
    if first >= last:
        return None
    buffers[number] = (size, first, last)
    return _placed(rng, case, buffers)


def last_use_dropped(rng: random.Random, case: Case) -> ProgramPlan | None:
    return _with_life(rng, case, lambda first, last: (first, last - 1))


def life_begins_late(rng: random.Random, case: Case) -> ProgramPlan | None:
    return _with_life(rng, case, lambda first, last: (first + 1, last))


def life_one_step_off(rng: random.Random, case: Case) -> ProgramPlan | None:
    by = rng.choice((-1, 1))
    return _with_life(rng, case, lambda first, last: (first + by, last + by))


def every_last_use_dropped(rng: random.Random, case: Case) -> ProgramPlan | None:
    return _placed(rng, case, [(size, first, max(first + 1, last - 1)) for size, first, last in _buffers(case)])


def size_shrunk(rng: random.Random, case: Case) -> ProgramPlan | None:
    """One buffer placed as if it were a unit smaller; its values keep their bytes."""
    buffers = _buffers(case)
    large = [number for number, buffer in enumerate(buffers) if buffer[0] > case.entry.alignment]
    if not large:
        return None
    number = rng.choice(large)
    size, first, last = buffers[number]
    buffers[number] = (size - case.entry.alignment, first, last)
    return _placed(rng, case, buffers)


def size_grown(rng: random.Random, case: Case) -> ProgramPlan | None:
    buffers = [(size + case.entry.alignment * rng.randrange(3), first, last) for size, first, last in _buffers(case)]
    return _placed(rng, case, buffers)


# aliases and workspaces


def _operands(case: Case) -> list[tuple[int, int, Step, StepOperand]]:
    return [
        (position, index, step, operand)
        for position, step in enumerate(case.entry.steps)
        for index, operand in enumerate(step.operands)
        if operand is not None
    ]


def result_onto_an_operand(rng: random.Random, case: Case) -> ProgramPlan | None:
    """In place, whether the row and the operand's later readers allow it or not."""
    pairs = [
        (case.slot_of(step, result), operand.range.offset)
        for _, _, step, result in _operands(case)
        for operand in step.operands
        if operand is not None and operand.reads and result.writes and operand.range.region == result.range.region
    ]
    known = [(number, offset) for number, offset in pairs if number is not None]
    if not known:
        return None
    number, offset = rng.choice(known)
    return case.moved({number: align_up(offset, case.entry.alignment)})


def workspace_onto_an_operand(rng: random.Random, case: Case) -> ProgramPlan | None:
    """Of its own step or of any other."""
    work = [
        (step, case.slot_of(step, operand)) for _, _, step, operand in _operands(case) if operand.value == WORKSPACE
    ]
    if not work:
        return None
    step, number = rng.choice(work)
    chosen = [step] if rng.random() < 0.5 else list(case.entry.steps)
    places = [o.range for other in chosen for o in other.operands if o is not None and o.range.region.kind == "arena"]
    if number is None or not places:
        return None
    return case.moved({number: align_up(rng.choice(places).offset, case.entry.alignment)})


def _value_slots(case: Case, number: int) -> dict[str, list[tuple[int, int]]]:
    """For the values in a slot, the operands that name each: values that took over other values' bytes lie there too."""
    found: dict[str, list[tuple[int, int]]] = {}
    for position, index, step, operand in _operands(case):
        if case.slot_of(step, operand) == number:
            found.setdefault(operand.value, []).append((position, index))
    return found


def alias_broken(rng: random.Random, case: Case) -> ProgramPlan | None:
    """One of several values that share bytes moves away: right for a result in place with all its readers, wrong for a view."""
    shared = [number for number, slot in enumerate(_slots(case)) if len(slot.values) > 1]
    if not shared:
        return None
    number = rng.choice(shared)
    slot, users = _slots(case)[number], _value_slots(case, number)
    if not users:
        return None
    value = rng.choice(sorted(users))
    free = align_up(_height(case), case.entry.alignment)
    steps = list(case.entry.steps)
    for position, index in users[value]:
        operands = list(steps[position].operands)
        operand = operands[index]
        assert operand is not None
        place = replace(operand.range, offset=operand.range.offset - slot.range.offset + free)
        operands[index] = replace(operand, range=place)
        steps[position] = replace(steps[position], operands=tuple(operands))
    moved = slot.model_copy(update={"values": (value,), "range": replace(slot.range, offset=free)})
    return case.with_steps(steps, (*_slots(case), moved))


def written_elsewhere(rng: random.Random, case: Case) -> ProgramPlan | None:
    """One write goes to another place that a slot lists for it; its readers look where it was."""
    writes = [found for found in _operands(case) if found[3].writes and found[3].range.region.kind == "arena"]
    if not writes:
        return None
    position, index, step, operand = rng.choice(writes)
    offset = case.entry.alignment * rng.randrange(min(_height(case) // case.entry.alignment, 40) + 2)
    place = ByteRange(operand.range.region, offset, operand.range.size)
    name = slot_name(step.node, operand.value)
    slot = Slot(values=(name,), range=place, first=position, last=position + 1)
    return case.with_operand(position, index, replace(operand, range=place), (slot,))


# slots and regions as stated


def slot_not_listed(rng: random.Random, case: Case) -> ProgramPlan | None:
    if not _slots(case):
        return None
    slots = list(_slots(case))
    slots.pop(rng.randrange(len(slots)))
    return case.with_entry(slots=tuple(slots))


def slot_states_another_life(rng: random.Random, case: Case) -> ProgramPlan | None:
    """Lifetimes are what may be wrong: nobody may rely on them."""
    slots = [slot.model_copy(update={"first": 0, "last": rng.randrange(1, 9)}) for slot in _slots(case)]
    return case.with_entry(slots=tuple(slots)) if slots else None


def slot_states_more_bytes(rng: random.Random, case: Case) -> ProgramPlan | None:
    slots = [slot.model_copy(update={"range": replace(slot.range, size=slot.range.size + 5)}) for slot in _slots(case)]
    return case.with_entry(slots=tuple(slots)) if slots else None


def region_too_small(rng: random.Random, case: Case) -> ProgramPlan | None:
    """A region ends one byte before its last used one."""
    full = [item for item in case.program.regions if item.bytes]
    if not full:
        return None
    chosen = rng.choice(full)
    places = [o.range for _, _, _, o in _operands(case)]
    places += [binding.range for binding in (*case.entry.inputs, *case.entry.outputs)]
    used = max((place.end for place in places if place.region == chosen.region), default=0)
    if not used:
        return None
    regions = [RegionSize(region=r.region, bytes=used - 1 if r is chosen else r.bytes) for r in case.program.regions]
    return case.program.model_copy(update={"regions": tuple(regions)})


def region_larger(rng: random.Random, case: Case) -> ProgramPlan | None:
    grown = [RegionSize(region=r.region, bytes=r.bytes + 64 * rng.randrange(2, 9)) for r in case.program.regions]
    program: ProgramPlan = case.program.model_copy(update={"regions": tuple(grown)})
    return program
