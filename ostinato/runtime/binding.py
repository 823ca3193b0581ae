"""Bound buffers: the caller's memory in place of planned inputs, outputs and the arena.

Binding checks shape, dtype, layout and overlap once and resolves a step table of its own. Before each run the addresses are read again: a buffer that moved is
refused by name, and so is one that was freed or is on another device now. Contents of bound inputs are the caller's duty; indices out of range are reported
by the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import numpy as np

from ostinato.ir.errors import (
    CapacityError,
    DTypeError,
    InputError,
    LayoutError,
    ShapeError,
)
from ostinato.ir.step import ByteRange
from ostinato.ir.types import Array
from ostinato.planner.plan import Binding, EntryPlan
from ostinato.runtime.audit import AuditReport, audit_entry
from ostinato.runtime.capture_report import CaptureReport
from ostinato.runtime.captured import CapturedSteps, named_ranges
from ostinato.runtime.device import Device
from ostinato.runtime.external import ExternalMemory
from ostinato.runtime.loaded import LoadedSteps
from ostinato.runtime.opened import memory_of_device
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions
from ostinato.runtime.tensor_view import TensorView

__all__ = ["BoundExecutable", "refuse_overlaps"]


def by_name(what: str, given: Any) -> Mapping[str, Any]:
    """The buffers by name, none for None; raises `InputError` for anything but a mapping."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f"{what} are a {type(given).__name__}, expected buffers by name")
    return given


def any_array(name: str, value: Any) -> Array:
    """What numpy makes of an array, a CPU tensor or nested lists; raises `DTypeError` where it makes nothing of it."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise DTypeError(f"{type(value).__name__} is no array: {error}", node=name) from None


def as_array(name: str, owner: Any) -> Array:
    """A numpy array over the owner's memory, without a copy: of anything that `TensorView.of` reads, and any numpy array as it is."""
    return owner if isinstance(owner, np.ndarray) else TensorView.of(owner, name).numpy()


class BoundExecutable:
    """An entry with bound buffers. Unbound inputs are written through `inputs` (views of planned memory), unbound outputs read through `outputs`.

    Inputs that the entry carries from run to run hold after a run what the next one is to read, bound or not.
    """

    def __init__(
        self,
        program: Program,
        plan: EntryPlan,
        device: Device,
        regions: Regions,
        exclusive: Callable[[], AbstractContextManager[None]],
        *,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        arena: Any | None,
    ) -> None:
        self._exclusive = exclusive
        self._opened, self._device = device, memory_of_device(device)
        self._memory: list[ExternalMemory] = []
        bound: list[tuple[ByteRange, int]] = []
        for kind, given, bindings in (("input", inputs, plan.inputs), ("output", outputs, plan.outputs)):
            known = {binding.name: binding for binding in bindings}
            for key, owner in given.items():
                if key not in known:
                    raise InputError(f"no {kind} {key!r}", node=plan.name, hint=f"{kind}s: {', '.join(known)}")
                written = kind == "output" or key in plan.carried
                memory = self._checked(known[key], owner, writable=written)
                bound.append((known[key].range, memory.address))
        arena_address = self._checked_arena(arena, plan.stats.arena_bytes, plan.alignment)
        refuse_overlaps(self._memory, regions, self._device)
        self._program, self._regions = program, regions.bind(bound, arena_address)
        self._loaded = LoadedSteps(plan, device, self._regions)
        self._captured: CapturedSteps | None = None
        self.inputs = self._loaded.exchange.inputs
        self.outputs = self._loaded.exchange.outputs

    def run(self) -> None:
        """Runs the entry over the bound memory. Raises `AddressChanged` before anything ran, `BoundsError` for indices out of range."""
        with self._exclusive():
            self._check()
            self._loaded.exchange.give()
            (self._captured or self._loaded.table).enqueue()
            self._loaded.exchange.take(self.outputs)
            self._loaded.exchange.show_carried()
            self._loaded.table.finish()

    def capture(self) -> list[CaptureReport]:
        """Captures the steps over the bound memory as one graph that every later `run` replays, and says what was captured. A second call captures nothing.

        Raises `AddressChanged` for a buffer that moved, `BackendError` on a device without graphs, `PlanError` for a graph that is not the plan.
        """
        with self._exclusive():
            self._check()
            if self._captured is None:
                ranges = named_ranges(self._loaded.plan, None)
                self._captured = CapturedSteps(self._program.plan, self._loaded, self._regions, ranges)
            return self._captured.reports

    def audit(self) -> AuditReport:
        """Every pointer and number that the step table, or the captured graph, was given, and what of it no longer holds; raises nothing for what it finds."""
        with self._exclusive():
            segments = () if self._captured is None else self._captured.segments
            steps, name = self._loaded.resolved, self._loaded.plan.name
            return audit_entry(self._program, name, self._opened, self._regions, steps, segments, self._memory)

    def _check(self) -> None:
        """What can be asked before every run: all of it is a few comparisons a buffer."""
        self._regions.check()
        for memory in self._memory:
            memory.check()

    def _checked(self, binding: Binding, owner: Any, *, writable: bool) -> ExternalMemory:
        view, expected = TensorView.of(owner, binding.name), binding.type
        if view.shape != expected.static_shape:
            raise ShapeError(
                f"expected shape {list(expected.static_shape)}, found {list(view.shape)}", node=binding.name
            )
        if view.dtype is not expected.dtype:
            raise DTypeError(f"expected {expected.dtype.value}, found {view.dtype.value}", node=binding.name)
        if writable and not view.writable:
            raise LayoutError(
                "a run writes here: it needs writable memory", node=binding.name, hint="bind a writable buffer"
            )
        memory = ExternalMemory.of(binding.name, owner, self._device)
        self._memory.append(memory)
        return memory

    def _checked_arena(self, arena: Any | None, needed: int, alignment: int) -> int | None:
        if arena is None:
            return None
        memory = ExternalMemory.of("arena", arena, self._device)
        if not TensorView.of(arena).writable:
            raise LayoutError("the arena needs writable memory", node="arena", hint="bind a writable buffer")
        if memory.nbytes < needed:
            raise CapacityError(
                f"the plan needs {needed} bytes, the arena given has {memory.nbytes}",
                node="arena",
                hint="bind a larger one, or none",
            )
        if memory.address % alignment:
            raise LayoutError(
                f"the arena at {memory.address:#x} is not aligned to {alignment} bytes",
                node="arena",
                hint=f"allocate {alignment - 1} bytes more and bind from the first aligned one on",
            )
        self._memory.append(memory)
        return memory.address


def refuse_overlaps(given: Sequence[ExternalMemory], regions: Regions, device: str) -> None:
    """Raises `LayoutError` for two buffers of the caller's on the device of that name that have bytes in common, or one that lies in the executable's own."""
    own = {
        "weights": regions.shared.weights,
        "constants": regions.shared.constants,
        "state": regions.state,
        "io": regions.io,
    }
    taken = [(b.address, b.nbytes, f"the executable's {name}") for name, b in own.items()]
    taken += [(memory.address, memory.nbytes, memory.name) for memory in given if memory.device == device]
    for (start, size, name), (begin, nbytes, other) in pairwise(sorted(taken)):
        if start + size > begin and size and nbytes:
            raise LayoutError(
                f"{name} [{start:#x}, {start + size:#x}) overlaps {other} [{begin:#x}, {begin + nbytes:#x})",
                hint="bind separate buffers",
            )
