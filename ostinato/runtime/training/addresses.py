"""The address of every value of a step, as its step table has it: a table that is the same in all steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ostinato.planner.plan import EntryPlan, ProgramPlan, slot_name
from ostinato.runtime.device import ResolvedStep

__all__ = ["AddressRow", "AddressTable", "addresses_of"]


@dataclass(frozen=True, slots=True)
class AddressRow:
    """A value: its region ("arena" for activations; "io" for the loss and kept gradients; "state" for parameters and moments), address and bytes, and the
    steps that touch it first and last."""

    name: str
    region: str
    address: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class AddressTable:
    """The rows in the order in which steps touch values first. Prints as a table; equal tables are the same addresses."""

    rows: tuple[AddressRow, ...]

    def __iter__(self) -> Iterator[AddressRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, name: str) -> tuple[AddressRow, ...]:
        """The rows of a value: one, but for a value that a copy returns too."""
        return tuple(row for row in self.rows if row.name == name)

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=4)
        lines = [f"{'value':{width}}  {'region':7}  {'address':>18}  {'bytes':>12}  steps"]
        lines += [
            f"{row.name:{width}}  {row.region:7}  {row.address:#18x}  {row.nbytes:12}  {row.first}-{row.last}"
            for row in self.rows
        ]
        return "\n".join(lines)


def addresses_of(program: ProgramPlan, plan: EntryPlan, resolved: Sequence[ResolvedStep]) -> AddressTable:
    """The table of an entry of a program whose steps have these addresses. What is updated is called as it was before."""
    updated = {slot.range: slot.name for slot in program.parameters}
    updated.update((binding.range, binding.name) for binding in program.state)
    found: dict[tuple[str, str, int, int], tuple[int, int]] = {}
    for position, (step, placed) in enumerate(zip(plan.steps, resolved, strict=True)):
        for operand, (address, nbytes) in zip(step.operands, placed.operands, strict=True):
            if operand is not None and nbytes:
                name = updated.get(operand.range, slot_name(step.node, operand.value))
                key = (name, operand.range.region.kind, address, nbytes)
                found[key] = (found.get(key, (position, position))[0], position)
    return AddressTable(tuple(AddressRow(*key, first, last) for key, (first, last) in found.items()))
