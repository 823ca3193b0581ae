"""What goes between the host and the device in a run: inputs there, the outputs that are asked for back.

The host fills and reads arrays over a window on the executable's `io`. Inputs that lie together travel as one copy; where the window is the memory itself
nothing travels. Buffers that the caller bound are not exchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ostinato.ir.step import ByteRange
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.regions import Regions

__all__ = ["Exchange"]


class Exchange:
    """The inputs and outputs of an entry, without those whose planned ranges are `taken`, as arrays of the host by name."""

    def __init__(self, plan: EntryPlan, regions: Regions, taken: Collection[ByteRange] = ()) -> None:
        self.window = regions.window
        given = {binding.name: binding for binding in plan.inputs if binding.range not in taken}
        wanted = {binding.name: binding for binding in plan.outputs if binding.range not in taken}
        self.inputs: Mapping[str, Array] = {name: regions.view(binding) for name, binding in given.items()}
        self.outputs: Mapping[str, Array] = {name: regions.view(binding) for name, binding in wanted.items()}
        self._wanted = {name: binding.range for name, binding in wanted.items()}
        self._carried = {
            name: (given[name].range.offset, given[name].range.end) for name in plan.carried if name in given
        }
        others = [binding.range for binding in (*plan.inputs, *plan.outputs) if binding.name not in given]
        self._given = _together([binding.range for binding in given.values()], others)

    def give(self) -> None:
        """Submits the copies of all inputs to the device."""
        for first, stop in self._given:
            self.window.upload(first, stop)

    def show_carried(self) -> None:
        """Submits the copies back of inputs that steps update, so that the host sees them, and gives them again, as the device has them."""
        for name in self._carried:
            self.window.download(*self._carried[name])

    def take(self, outputs: Iterable[str]) -> dict[str, Array]:
        """Submits the copies of outputs back, and returns the arrays that hold them when the work so far has finished."""
        wanted = list(outputs)
        for name in wanted:
            self.window.download(self._wanted[name].offset, self._wanted[name].end)
        return {name: self.outputs[name] for name in wanted}


def _together(places: Iterable[ByteRange], others: Collection[ByteRange]) -> list[tuple[int, int]]:
    """The fewest ranges that hold all places and overlap none of the others."""
    found: list[tuple[int, int]] = []
    for place in sorted(places, key=lambda place: place.offset):
        first = found[-1][0] if found else place.offset
        if found and not any(first < other.end and other.offset < place.end for other in others):
            found[-1] = (first, place.end)
        else:
            found.append((place.offset, place.end))
    return found
