"""The guarded mode: the planned steps one by one, with every byte watched, for results that look wrong.

Arena and `io` are filled with a pattern that is NaN in every float type, a negative index in every integer type, and another at every place. Bytes go back to
it as soon as the last step that uses their slot is over: what is read too early, too late or beside its slot shows as NaN in the results or as an index out of
range. After each step all bytes but those of its own results and workspace must be as they were before it, in the slots of others as well as in the red zones
between slots (as wide as the plan's `guard`); a step that changed any is named. Outputs are those of the planned mode, bit for bit.

When a slot dies follows from the steps that use it, never from the lifetimes that the plan states: those may be what is wrong. What the entry has no use for is
not watched (the arena is as large as the largest entry needs), nor are weights, constants and state: they are large, and no slot of the plan lies among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.ir.errors import BackendError
from ostinato.ir.interp import Observer
from ostinato.ir.step import ByteRange, Region, Step
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan, slot_name, spelled
from ostinato.runtime.device import Device, Window
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions
from ostinato.runtime.replays import LazyReplays, Replays
from ostinato.runtime.runners import PlannedRunner

__all__ = ["GuardedRunner", "pattern"]

_HINT = (
    "the kernel of this step writes outside of what it was given: report it with the model and this message; "
    "another implementation may be forced with levels={...}"
)


def pattern(nbytes: int) -> Array:
    """The bytes of memory that holds nothing, uint8 [nbytes]: high bytes 0xFF and low bytes from 0xF1, which differ from place to place."""
    words = np.arange((nbytes + 1) // 2, dtype=np.uint32)
    found = np.full(2 * len(words), 0xFF, np.uint8)
    found[0::2] = 0xF1 + (words * np.uint32(2654435761) >> np.uint32(16)) % 15
    return found[:nbytes]


@dataclass(frozen=True, slots=True)
class _Tenant:
    """A slot, input or output by its name for messages, and the steps from its first use to its last."""

    name: str
    place: ByteRange
    first: int
    last: int


class _Watched:
    """The first bytes of a memory, as the host's window shows them, beside what they must hold."""

    def __init__(self, window: Window, nbytes: int) -> None:
        self._window, self._nbytes = window, nbytes
        self.held = window.view(np.uint8, (nbytes,))
        self._nothing = pattern(nbytes)
        self._expected = self._nothing.copy()
        wide = np.dtype(np.uint64 if nbytes % 8 == 0 else np.uint8)
        self._compared = (self.held.view(wide), self._expected.view(wide))

    def fetch(self) -> None:
        """Submits the copy of what the device holds."""
        self._window.download(0, self._nbytes)

    def empty(self, but: list[ByteRange]) -> None:
        """Nothing is held any more, except in these ranges."""
        self._expected[:] = self._nothing
        for place in but:
            self.accept(place)
        self.held[:] = self._expected
        self._window.upload(0, self._nbytes)

    def accept(self, place: ByteRange) -> None:
        """What lies there now is right."""
        self._expected[place.offset : place.end] = self.held[place.offset : place.end]

    def forget(self, place: ByteRange) -> None:
        """What lies there is over."""
        for memory in (self.held, self._expected):
            memory[place.offset : place.end] = self._nothing[place.offset : place.end]
        self._window.upload(place.offset, place.end)

    def changed(self) -> Array:
        """Places of the bytes that are not as they must be."""
        held, expected = self._compared
        if np.array_equal(held, expected):
            return np.empty(0, np.int64)
        return np.flatnonzero(self.held != self._expected)


class GuardedRunner(PlannedRunner):
    """An entry in the guarded mode. `run` raises `BackendError` for a step that changes bytes which are not its own: step, node, line, slot and byte."""

    def __init__(
        self, program: Program, name: str, device: Device, regions: Regions, observer: Observer | None = None
    ) -> None:
        super().__init__(program, name, device, regions, observer)
        plan = self.loaded.plan
        self._watched = {
            Region(regions.device, "arena"): _Watched(regions.arena.window(regions.stream), plan.stats.arena_bytes),
            Region(regions.device, "io"): _Watched(regions.window, plan.io_bytes),
        }
        self._tenants = [*_slots(plan), *_bindings(plan)]
        self._over: dict[int, list[ByteRange]] = {}  # step -> slots that no later step uses
        for tenant in self._tenants:
            self._over.setdefault(tenant.last, []).append(tenant.place)

    def run(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        return self.again(outputs)

    def replays(self, outputs: Sequence[str], depth: int) -> Replays:
        del depth
        return LazyReplays(self.again, outputs)

    def again(self, outputs: Sequence[str]) -> Mapping[str, Array]:
        given = [binding.range for binding in self.loaded.plan.inputs]
        for region, memory in self._watched.items():
            memory.empty([place for place in given if place.region == region])
        for position, step in enumerate(self.loaded.plan.steps):
            self.loaded.table.enqueue(position, 1)
            for memory in self._watched.values():
                memory.fetch()
            self.loaded.table.finish()
            for operand in step.operands:
                if operand is not None and operand.writes and operand.range.region in self._watched:
                    self._watched[operand.range.region].accept(operand.range)
            for region, memory in self._watched.items():
                if len(changed := memory.changed()):
                    raise self._trespass(position, region, int(changed[0]), len(changed))
            self.observe(step)
            for place in self._over.get(position, ()):
                self._watched[place.region].forget(place)
        return {name: self.loaded.exchange.outputs[name] for name in outputs}

    def _trespass(self, position: int, region: Region, at: int, count: int) -> BackendError:
        step = self.loaded.plan.steps[position]
        node = self.graph.producers.get(step.node)
        line = f" at {node.location}" if node is not None and node.location is not None else ""
        what = f"{count} bytes that are" if count > 1 else "a byte that is"
        first = ", the first" if count > 1 else ""
        return BackendError(
            f"step {position} ({step.kernel or 'copy'}){line} changed {what} not its own{first} at {region}[{at}]: "
            f"{self._place(position, region, at)}",
            node=step.node,
            hint=_HINT,
        )

    def _place(self, position: int, region: Region, at: int) -> str:
        """Whose byte that is, or next to what it lies: the step's own results first."""
        here = [tenant for tenant in self._tenants if tenant.place.region == region and tenant.place.size]
        for tenant in here:
            if tenant.first <= position <= tenant.last and tenant.place.offset <= at < tenant.place.end:
                return f"byte {at - tenant.place.offset} of {tenant.name}"
        step = self.loaded.plan.steps[position]
        own = [
            _Tenant(_name(step, operand.value), operand.range, position, position)
            for operand in step.operands
            if operand is not None and operand.writes and operand.range.region == region and operand.range.size
        ]
        behind = [
            (at - t.place.end + 1, f"byte {at - t.place.end + 1} behind the end of {t.name}", t) for t in own or here
        ]
        before = [(t.place.offset - at, f"byte {t.place.offset - at} before {t.name}", t) for t in own or here]
        near = [found for found in (*behind, *before) if found[0] > 0]
        if not near:
            return "no slot of the plan lies there"
        _, words, nearest = min(near, key=lambda found: found[0])
        return f"{words} ({nearest.place})"


def _name(step: Step, value: str) -> str:
    return spelled((slot_name(step.node, value),))


def _slots(plan: EntryPlan) -> Iterator[_Tenant]:
    """The slots of all arenas that any step uses."""
    number_of = {(value, slot.range.region): number for number, slot in enumerate(plan.slots) for value in slot.values}
    used: dict[int, list[int]] = {}
    for position, step in enumerate(plan.steps):
        for operand in step.operands:
            if operand is not None:
                number = number_of.get((slot_name(step.node, operand.value), operand.range.region))
                if number is not None:
                    used.setdefault(number, []).append(position)
    for number, positions in used.items():
        slot = plan.slots[number]
        yield _Tenant(spelled(slot.values), slot.range, min(positions), max(positions))


def _bindings(plan: EntryPlan) -> Iterator[_Tenant]:
    """Inputs and outputs: theirs for longer than the run."""
    for kind, bound in (("input", plan.inputs), ("output", plan.outputs)):
        for binding in bound:
            yield _Tenant(f"{kind} %{binding.name}", binding.range, 0, len(plan.steps))
