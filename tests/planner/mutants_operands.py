"""Mutants of single operands, and of inputs, outputs, copies and state: elsewhere, exchanged, of other sizes, of another region.

A mutant is a function of a proven case that returns a changed program, None where it does not apply. Whether it does harm is the judge's to say.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from ostinato.ir.step import ByteRange, Region, Step, StepKind, StepOperand
from ostinato.planner.plan import Binding, ProgramPlan, Slot
from tests.planner.mutation_cases import Case

__all__ = [
    "another_call",
    "copy_to_another_output",
    "early_changed",
    "io_in_another_order",
    "operand_left_out",
    "operand_of_another_size",
    "operand_one_byte_off",
    "operand_read_and_written_otherwise",
    "operands_exchanged",
    "outputs_exchanged",
    "read_from_another_operand",
    "read_one_unit_off",
    "reads_exchanged",
    "state_updated_in_a_copy",
    "wrong_device",
    "wrong_region",
]

_Operand = tuple[int, int, StepOperand]  # step, number, operand


def _operands(case: Case, *, reads: bool = False) -> list[_Operand]:
    return [
        (position, index, operand)
        for position, step in enumerate(case.entry.steps)
        for index, operand in enumerate(step.operands)
        if operand is not None and ((operand.reads and not operand.writes) or not reads)
    ]


def _any(rng: random.Random, case: Case, *, reads: bool = False) -> _Operand | None:
    found = _operands(case, reads=reads)
    return rng.choice(found) if found else None


def _placed(case: Case, chosen: _Operand, place: ByteRange) -> ProgramPlan:
    position, index, operand = chosen
    return case.with_operand(position, index, replace(operand, range=place))


# operands


def read_one_unit_off(rng: random.Random, case: Case) -> ProgramPlan | None:
    chosen = _any(rng, case, reads=True)
    if chosen is None:
        return None
    place = chosen[2].range
    return _placed(case, chosen, replace(place, offset=place.offset + rng.choice((-1, 1)) * case.entry.alignment))


def operand_one_byte_off(rng: random.Random, case: Case) -> ProgramPlan | None:
    chosen = _any(rng, case)
    if chosen is None:
        return None
    return _placed(case, chosen, replace(chosen[2].range, offset=chosen[2].range.offset + rng.choice((-1, 1))))


def reads_exchanged(rng: random.Random, case: Case) -> ProgramPlan | None:
    """Two operands of one step trade places, not names."""
    pairs = [
        (a, b)
        for a in _operands(case, reads=True)
        for b in _operands(case, reads=True)
        if a[0] == b[0] and a[1] < b[1] and a[2].range.size == b[2].range.size
    ]
    if not pairs:
        return None
    (position, first, a), (_, second, b) = rng.choice(pairs)
    operands = list(case.entry.steps[position].operands)
    operands[first], operands[second] = replace(a, range=b.range), replace(b, range=a.range)
    return case.with_step(position, operands=tuple(operands))


def operands_exchanged(rng: random.Random, case: Case) -> ProgramPlan | None:
    """Two operands of one step trade all they are."""
    position = rng.randrange(len(case.entry.steps))
    operands = list(case.entry.steps[position].operands)
    if len(operands) < 2:
        return None
    a, b = rng.sample(range(len(operands)), 2)
    operands[a], operands[b] = operands[b], operands[a]
    return case.with_step(position, operands=tuple(operands))


def read_from_another_operand(rng: random.Random, case: Case) -> ProgramPlan | None:
    """One read looks where some other operand of the plan lies, in whatever region."""
    chosen = _any(rng, case, reads=True)
    if chosen is None:
        return None
    others = [o.range for _, _, o in _operands(case) if o.range != chosen[2].range]
    return _placed(case, chosen, replace(rng.choice(others), size=chosen[2].range.size)) if others else None


def wrong_region(rng: random.Random, case: Case) -> ProgramPlan | None:
    """The right offset of another region."""
    chosen = _any(rng, case)
    if chosen is None:
        return None
    place = chosen[2].range
    others = [item.region for item in case.program.regions if item.region != place.region]
    return _placed(case, chosen, replace(place, region=rng.choice(others)))


def wrong_device(rng: random.Random, case: Case) -> ProgramPlan | None:
    chosen = _any(rng, case)
    if chosen is None:
        return None
    place = chosen[2].range
    return _placed(case, chosen, replace(place, region=Region("other:0", place.region.kind)))


def operand_of_another_size(rng: random.Random, case: Case) -> ProgramPlan | None:
    chosen = _any(rng, case)
    if chosen is None or chosen[2].range.size < 2:
        return None
    return _placed(case, chosen, replace(chosen[2].range, size=chosen[2].range.size + rng.choice((-1, 1))))


def operand_read_and_written_otherwise(rng: random.Random, case: Case) -> ProgramPlan | None:
    chosen = _any(rng, case)
    if chosen is None:
        return None
    position, index, operand = chosen
    changed = (
        replace(operand, reads=not operand.reads) if rng.random() < 0.5 else replace(operand, writes=not operand.writes)
    )
    return case.with_operand(position, index, changed)


def early_changed(rng: random.Random, case: Case) -> ProgramPlan | None:
    chosen = _any(rng, case, reads=True)
    if chosen is None:
        return None
    position, index, operand = chosen
    return case.with_operand(position, index, replace(operand, early=not operand.early))


def operand_left_out(rng: random.Random, case: Case) -> ProgramPlan | None:
    chosen = _any(rng, case)
    return None if chosen is None else case.with_operand(chosen[0], chosen[1], None)


def another_call(rng: random.Random, case: Case) -> ProgramPlan | None:
    position = rng.randrange(len(case.entry.steps))
    step = case.entry.steps[position]
    changes: tuple[dict[str, object], ...] = (
        {"kernel": f"{step.kernel}2"},
        {"params": (*step.params, 1)},
        {"params": tuple(float(p) for p in step.params)},
        {"device": "other:0"},
        {"node_count": 2},
        {"kind": StepKind.FILL},
    )
    return case.with_step(position, **rng.choice(changes))


# inputs, outputs, copies and state


def _io(case: Case) -> list[Binding]:
    return [*case.entry.inputs, *case.entry.outputs]


def io_in_another_order(rng: random.Random, case: Case) -> ProgramPlan | None:
    """Inputs and outputs trade places, in the bindings and in the steps."""
    bindings, unit = _io(case), case.entry.alignment
    order = bindings.copy()
    rng.shuffle(order)
    places: dict[ByteRange, ByteRange] = {}
    offset = 0
    for binding in order:
        if binding.range.size:
            places[binding.range] = replace(binding.range, offset=offset)
            offset += -(-binding.range.size // unit) * unit

    def moved(place: ByteRange) -> ByteRange:
        for old, new in places.items():
            if place.size and old.contains(place):
                return replace(place, offset=place.offset - old.offset + new.offset)
        return place

    steps = [
        replace(step, operands=tuple(None if o is None else replace(o, range=moved(o.range)) for o in step.operands))
        for step in case.entry.steps
    ]
    inputs, outputs = (
        tuple(b.model_copy(update={"range": moved(b.range)}) for b in bound)
        for bound in (case.entry.inputs, case.entry.outputs)
    )
    return case.with_entry(steps=tuple(steps), inputs=inputs, outputs=outputs)


def outputs_exchanged(rng: random.Random, case: Case) -> ProgramPlan | None:
    """Two outputs trade places in the bindings alone."""
    outputs = list(case.entry.outputs)
    pairs = [
        (a, b)
        for a in range(len(outputs))
        for b in range(a)
        if outputs[a].range.size == outputs[b].range.size and outputs[a].range.size
    ]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    places = outputs[a].range, outputs[b].range
    outputs[a] = outputs[a].model_copy(update={"range": places[1]})
    outputs[b] = outputs[b].model_copy(update={"range": places[0]})
    return case.with_entry(outputs=tuple(outputs))


def copy_to_another_output(rng: random.Random, case: Case) -> ProgramPlan | None:
    copies = [position for position, step in enumerate(case.entry.steps) if step.kind is StepKind.COPY]
    if not copies:
        return None
    position = rng.choice(copies)
    source, target = case.entry.steps[position].operands
    assert target is not None
    place = replace(rng.choice(case.entry.outputs).range, size=target.range.size)
    return case.with_step(position, operands=(source, replace(target, range=place)))


def state_updated_in_a_copy(rng: random.Random, case: Case) -> ProgramPlan | None:
    """From some update on, a copy of the state (or of a carried input) in the arena stands for it: all readers find what they want, the state itself keeps its
    old bytes."""
    updates = [
        (position, operand)
        for position, _, operand in _operands(case)
        if operand.writes and operand.range.size and _is_updated(case, operand)
    ]
    if not updates or case.lanes > 1:
        return None
    position, updated = rng.choice(updates)
    old, unit = updated.range, case.entry.alignment
    arena = Region(old.region.device, "arena")
    top = max((slot.range.end for slot in case.entry.slots), default=0)
    free = ByteRange(arena, -(-top // unit) * unit, old.size)

    def moved(operand: StepOperand | None) -> StepOperand | None:
        if operand is None or not old.contains(operand.range):
            return operand
        place = replace(operand.range, region=arena, offset=operand.range.offset - old.offset + free.offset)
        return replace(operand, range=place, early=False)

    before, after = case.entry.steps[:position], case.entry.steps[position:]
    state = next(name for name in _names_of_state(case, position) if name)
    source = StepOperand(state, old, reads=True, writes=False)
    copy = Step(
        state, StepKind.COPY, case.entry.device, "", (source, StepOperand(state, free, reads=False, writes=True))
    )
    steps = [replace(step, operands=tuple(map(moved, step.operands))) for step in after]
    values = {o.value for step in steps for o in step.operands if o is not None and o.range == free}
    slot = Slot(values=(state, *sorted(values - {state})), range=free, first=position, last=len(case.entry.steps) + 1)
    return case.with_steps([*before, copy, *steps], (*case.entry.slots, slot))


def _is_updated(case: Case, operand: StepOperand) -> bool:
    """Whether an operand lies in state or in an input: what is written there is an update."""
    inputs = (binding.range for binding in case.entry.inputs)
    return operand.range.region.kind == "state" or any(place.contains(operand.range) for place in inputs)


def _names_of_state(case: Case, position: int) -> Iterator[str]:
    """What the state that a step updates is called before it."""
    node = next(node for node in case.graph.nodes if node.name == case.entry.steps[position].node)
    for _, operand in case.ops[node.op].aliased(node.operands):
        yield node.operands[operand] or ""
