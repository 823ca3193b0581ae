"""What the bytes of a slot are for, for everything that draws an arena.

The first that fits: "workspace"; "recomputed" (made by a clone); "gradient" (of a parameter); "backward" (made by a node that differentiation added); "saved"
(made by a forward node and read by a backward one); "in place" (several steps write it, one after the other); "activation".
"""

from __future__ import annotations

from ostinato.ir.step import WORKSPACE, ByteRange
from ostinato.ir.training import GRADIENT_PREFIX, is_backward
from ostinato.planner.plan import EntryPlan, Slot, slot_name

__all__ = ["ROLES", "Touches"]

ROLES = ("activation", "in place", "saved", "backward", "gradient", "recomputed", "workspace")


class Touches:
    """Which steps of a plan write and read each value or workspace, by position, and where it lies."""

    def __init__(self, plan: EntryPlan) -> None:
        self._plan = plan
        self.made: dict[str, list[int]] = {}
        self.read: dict[str, list[int]] = {}
        self.places: dict[str, ByteRange] = {}
        for position, step in enumerate(plan.steps):
            for operand in step.operands:
                if operand is None:
                    continue
                name = slot_name(step.node, operand.value)
                self.places.setdefault(name, operand.range)
                if operand.writes:
                    self.made.setdefault(name, []).append(position)
                if operand.reads:
                    self.read.setdefault(name, []).append(position)

    def role(self, slot: Slot) -> str:
        """One of `ROLES`: see the module text."""
        first = slot.values[0]
        if first.startswith(WORKSPACE):
            return "workspace"
        if first in self._plan.clones:
            return "recomputed"
        made = self.made.get(first)
        if is_backward(self._plan.steps[made[0]].node if made else first):
            return "gradient" if any(name.startswith(GRADIENT_PREFIX) for name in slot.values) else "backward"
        steps = self._plan.steps
        if any(is_backward(steps[position].node) for value in slot.values for position in self.read.get(value, ())):
            return "saved"
        writers = {position for value in slot.values for position in self.made.get(value, ())}
        return "in place" if len(writers) > 1 else "activation"
