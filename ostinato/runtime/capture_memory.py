"""Where a program's regions lie when its steps are captured, and what the plan has at every address. Part of `conformance.py`."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass

from ostinato.ir.step import ByteRange, Region
from ostinato.planner.plan import EntryPlan, ProgramPlan, spelled
from ostinato.runtime.capture_nodes import Home

__all__ = ["Homes", "PlacedMemory"]


@dataclass(frozen=True, slots=True)
class PlacedMemory:
    """Address and bytes of every region, and the caller's buffers: bytes of inputs and outputs that lie at an address of theirs instead."""

    regions: tuple[tuple[Region, int, int], ...]
    bound: tuple[tuple[ByteRange, int], ...] = ()

    def address_of(self, place: ByteRange) -> int:
        """The address of planned bytes; 0 where there is no memory for their region."""
        for taken, address in self.bound:
            if taken.contains(place):
                return address + place.offset - taken.offset
        found = self.region(place.region)
        return 0 if found is None else found[0] + place.offset

    def region(self, region: Region) -> tuple[int, int] | None:
        """Address and bytes of a region; None where there is no memory for it."""
        return next(((base, nbytes) for found, base, nbytes in self.regions if found == region), None)

    @property
    def spans(self) -> tuple[Home, ...]:
        """All memory that a step may have to do with."""
        own = (Home(str(region), base, base + nbytes) for region, base, nbytes in self.regions)
        return (*own, *(Home(f"the buffer bound to {p}", address, address + p.size) for p, address in self.bound))

    def describe(self, address: int) -> str:
        """An address with the memory it lies in."""
        for span in self.spans:
            if span.start <= address < span.end:
                return f"{address:#x} (byte {address - span.start} of {span.name})"
        return f"{address:#x} (in no memory of this executable)" if address else "null"


class Homes:
    """What the plan has where: weights, parameters, state, constants, inputs and outputs, and the slots that are live at a step. Steps are asked for in
    ascending order."""

    def __init__(self, program: ProgramPlan, entry: EntryPlan, memory: PlacedMemory) -> None:
        self._memory = memory
        self._names = {b.range: b.name for b in (*entry.inputs, *entry.outputs)}
        fixed = [(slot.range, slot.name) for slot in (*program.weights, *program.parameters)]
        fixed += [(slot.range, slot.name) for slot in program.constants]
        fixed += [(slot.range, slot.name) for slot in (*program.state, *entry.inputs, *entry.outputs)]
        self._fixed = _by_region((place, spelled((name,))) for place, name in fixed)
        self._coming = sorted(entry.slots, key=lambda slot: slot.first, reverse=True)
        self._live: dict[Region, list[tuple[int, int, str]]] = {}
        self._going: list[tuple[int, int, Region, tuple[int, int, str]]] = []

    def advance(self, step: int) -> None:
        """Goes on to a step: slots that begin there or before are live until their last."""
        while self._coming and self._coming[-1].first <= step:
            slot = self._coming.pop()
            if slot.range.size:
                place = (slot.range.offset, slot.range.end, f"the slot of {spelled(slot.values)}")
                insort(self._live.setdefault(slot.range.region, []), place)
                heapq.heappush(self._going, (slot.last, len(self._coming), slot.range.region, place))
        while self._going and self._going[0][0] <= step:
            _, _, region, place = heapq.heappop(self._going)
            live = self._live[region]
            del live[bisect_left(live, place)]

    def find(self, place: ByteRange) -> Home | None:
        """What the plan has at these bytes at this step; None where nothing that it has holds all of them."""
        for bound, address in self._memory.bound:
            if bound.contains(place):
                name = spelled((self._names.get(bound, str(bound)),))
                return Home(f"the buffer bound to {name}", address, address + bound.size)
        places = (self._live if place.region.kind == "arena" else self._fixed).get(place.region, [])
        index = bisect_right(places, (place.offset, 2**63, "")) - 1
        if index < 0 or places[index][1] < place.end:
            return None
        start, end, name = places[index]
        memory = self._memory.region(place.region)
        return None if memory is None or end > memory[1] else Home(name, memory[0] + start, memory[0] + end)


def _by_region(slots: Iterable[tuple[ByteRange, str]]) -> dict[Region, list[tuple[int, int, str]]]:
    found: dict[Region, list[tuple[int, int, str]]] = {}
    for place, name in slots:
        if place.size:
            found.setdefault(place.region, []).append((place.offset, place.end, name))
    return {region: sorted(places) for region, places in found.items()}
