"""The steps of an entry by what they touch."""

from __future__ import annotations

from ostinato.ir.graph import Graph
from ostinato.planner.plan import EntryPlan, slot_name

__all__ = ["TouchedSlots"]


class TouchedSlots:
    """The steps of an entry by what they touch."""

    def __init__(self, entry: EntryPlan, graph: Graph) -> None:
        self.entry, self.graph = entry, graph
        self.slots = entry.slots_on()
        self.slot = {value: slot for slot in entry.slots for value in slot.values}
        self.at = {step.node: position for position, step in enumerate(entry.steps)}
        self.touched: dict[int, list[int]] = {}  # id of a slot -> the steps that touch it
        for position, step in enumerate(entry.steps):
            for operand in step.operands:
                if operand is not None:
                    slot = self.slot.get(slot_name(step.node, operand.value))
                    if slot is not None:
                        self.touched.setdefault(id(slot), []).append(position)

    def line(self, node: str) -> str:
        """The user's line that made a node; "" where none is known."""
        found = self.graph.producers.get(node)
        return "" if found is None or found.location is None else str(found.location)

    def node_at(self, step: int) -> str:
        """The node of a step, spelled for people."""
        inside = 0 <= step < len(self.entry.steps)
        return f"%{self.entry.steps[step].node}" if inside else "the end"
