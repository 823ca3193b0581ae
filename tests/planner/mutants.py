"""The kinds of mutant, by what they are good for."""

from __future__ import annotations

import random
from dataclasses import replace

from ostinato.planner.plan import ProgramPlan
from tests.planner import mutants_operands as operands
from tests.planner import mutants_order as order
from tests.planner import mutants_places as places
from tests.planner.mutation_cases import ENTRY, Case, Mutant

__all__ = ["NEAR_MISSES", "SOUND", "STRUCTURE", "two_at_once"]

NEAR_MISSES: tuple[Mutant, ...] = (
    places.slot_somewhere,
    places.slot_onto_another,
    places.slots_exchanged,
    places.slot_one_unit_off,
    places.overlap_of_one_byte,
    places.overlap_of_no_byte,
    places.slots_beyond_32_bits,
    places.offsets_cut_to_32_bits,
    places.last_use_dropped,
    places.life_begins_late,
    places.life_one_step_off,
    places.every_last_use_dropped,
    places.size_shrunk,
    places.result_onto_an_operand,
    places.workspace_onto_an_operand,
    places.alias_broken,
    places.written_elsewhere,
    operands.read_one_unit_off,
    operands.reads_exchanged,
    operands.read_from_another_operand,
    operands.wrong_region,
    operands.early_changed,
    operands.outputs_exchanged,
    operands.copy_to_another_output,
    operands.state_updated_in_a_copy,
    order.neighbours_exchanged,
    order.step_moved,
    order.another_order,
    order.wait_dropped,
    order.wait_added,
    order.wait_for_another_event,
    order.signal_moved,
    order.signal_dropped,
    order.step_on_another_lane,
)
"""Kinds of which it takes a look at the bytes to tell whether they do harm."""
STRUCTURE: tuple[Mutant, ...] = (
    places.slot_not_listed,
    places.region_too_small,
    operands.operand_one_byte_off,
    operands.operands_exchanged,
    operands.wrong_device,
    operands.operand_of_another_size,
    operands.operand_read_and_written_otherwise,
    operands.operand_left_out,
    operands.another_call,
    order.step_dropped,
    order.step_repeated,
    order.lane_below_zero,
)
"""Kinds that nearly always break a promise, whatever the bytes."""
SOUND: tuple[Mutant, ...] = (
    places.everything_higher,
    places.placed_in_another_order,
    places.size_grown,
    places.slot_states_another_life,
    places.slot_states_more_bytes,
    places.region_larger,
    operands.io_in_another_order,
    order.event_to_spare,
    order.all_on_one_lane,
)
"""Kinds that never do harm."""


def two_at_once(rng: random.Random, case: Case) -> ProgramPlan | None:
    """One mutant of another."""
    first, second = rng.choice(NEAR_MISSES), rng.choice(NEAR_MISSES)
    spoiled = first(rng, case)
    return None if spoiled is None or not spoiled.entries[ENTRY].steps else second(rng, replace(case, program=spoiled))
