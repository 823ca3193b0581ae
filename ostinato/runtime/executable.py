"""An executable: a program loaded on a device in one mode.

Inputs are copied in and outputs copied out unless the caller binds buffers. One executable runs one call at a time; a concurrent call is refused, and
`clone` gives another that shares the weights and owns its arena, io and state. Every mode goes through the same checks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LifecycleError, ShapeError
from ostinato.ir.types import Array, DType
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.binding import BoundExecutable
from ostinato.runtime.device import Device
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions, SharedRegions, allocate_regions
from ostinato.runtime.runners import EagerRunner, Observer, PlannedRunner, ReferenceRunner, Runner
from ostinato.runtime.weights import Progress, load_shared

__all__ = ["MODES", "Executable", "MemoryReport", "load_program"]

MODES = ("reference", "eager", "planned", "captured")


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes of each region as allocated; `lower_bound` is what the largest entry's arena cannot go below."""

    weights: int
    arena: int
    lower_bound: int
    state: int
    io: int
    constants: int

    @property
    def total(self) -> int:
        return self.weights + self.arena + self.state + self.io + self.constants


class Executable:
    """Entries of a program, ready to run. `mode` is the mode in use and `reason` why, when it is not the one asked for (empty otherwise)."""

    def __init__(
        self,
        program: Program,
        device: Device,
        shared: SharedRegions,
        *,
        mode: str,
        reason: str = "",
        observer: Observer | None = None,
        reference_weights: dict[str, Array] | None = None,
    ) -> None:
        self.program = program
        self.device = device
        self.mode = mode
        self.reason = reason
        self.regions: Regions = allocate_regions(device, program.plan, shared)
        self._observer = observer
        self._runners: dict[str, Runner] = {}
        self._reference_state: dict[str, Array] = {}
        self._reference_weights = reference_weights if reference_weights is not None else {}
        self._running = threading.Lock()

    @property
    def entries(self) -> Mapping[str, EntryPlan]:
        """Plans of the entries by name."""
        return self.program.plan.entries

    @property
    def memory(self) -> MemoryReport:
        sizes = self.program.plan.regions
        bound = max((entry.stats.lower_bound for entry in self.entries.values()), default=0)
        return MemoryReport(
            sizes.get("weights", 0),
            sizes.get("arena", 0),
            bound,
            sizes.get("state", 0),
            sizes.get("io", 0),
            sizes.get("constants", 0),
        )

    def entry(self, name: str | None = None) -> str:
        """The entry of that name; None means the only one. Raises `ConfigError` otherwise."""
        if name is None and len(self.entries) == 1:
            return next(iter(self.entries))
        if name is None or name not in self.entries:
            raise ConfigError(f"no entry {name!r}", hint=f"entries: {', '.join(self.entries)}")
        return name

    def run(
        self, entry: str | None, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Runs an entry once: copies `inputs` in, runs, returns copies of the named `outputs` (all of them by default).

        Raises `ShapeError` or `DTypeError` naming the input, before anything changed; `BoundsError` for out-of-range indices met by a kernel;
        `LifecycleError` when another call is in progress.
        """
        with self.exclusive():
            name = self.entry(entry)
            checked = check_inputs(self.entries[name], inputs)
            runner = self.runner(name)
            for key, array in checked.items():
                runner.inputs[key][...] = array
            runner.run()
            wanted = list(runner.outputs) if outputs is None else outputs
            return {key: np.array(runner.outputs[key]) for key in wanted}

    def clone(self, mode: str | None = None, observer: Observer | None = None) -> Self:
        """Another executable over the same weights with its own arena, io and (zeroed) state."""
        return type(self)(
            self.program,
            self.device,
            self.regions.shared,
            mode=mode or self.mode,
            reason=self.reason if mode in (None, self.mode) else "",
            observer=observer,
            reference_weights=self._reference_weights,
        )

    def bind(
        self,
        *,
        entry: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        arena: Any | None = None,
    ) -> BoundExecutable:
        """The entry over the caller's buffers (numpy, torch CPU tensors or DLPack) and, with `arena`, the caller's activation memory.

        Raises `ShapeError`, `DTypeError` or `LayoutError` (strides, alignment, overlap) naming the buffer, `CapacityError` for a short arena.
        """
        if self.mode != "planned":
            raise ConfigError(
                f"binding needs planned addresses, this executable runs in mode {self.mode}", hint='use mode="planned"'
            )
        plan = self.entries[self.entry(entry)]
        return BoundExecutable(
            plan, self.device, self.regions, self.exclusive, inputs=inputs or {}, outputs=outputs or {}, arena=arena
        )

    def reset_state(self) -> None:
        """Zeroes the state region (caches)."""
        with self.exclusive():
            size = self.program.plan.regions.get("state", 0)
            self.regions.state.view(np.uint8, (size,))[:] = 0
            for name, array in self._reference_state.items():
                self._reference_state[name] = np.zeros_like(array)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the executable for one call; raises `LifecycleError` when another one is in progress."""
        if not self._running.acquire(blocking=False):
            raise LifecycleError(
                "this executable is running another call", hint="use one executable a thread: exe.clone()"
            )
        try:
            yield
        finally:
            self._running.release()

    def runner(self, name: str) -> Runner:
        """The entry in this mode, made on first use."""
        runner = self._runners.get(name)
        if runner is None:
            if self.mode == "planned":
                runner = PlannedRunner(self.entries[name], self.device, self.regions)
            elif self.mode == "eager":
                runner = EagerRunner(name, self.program, self.device, self.regions, self._observer)
            elif self.mode == "reference":
                runner = ReferenceRunner(
                    name, self.program, self._reference_state, self._reference_weights, self._observer
                )
            else:
                raise ConfigError(f"mode {self.mode!r} cannot run here", hint=f"use one of {', '.join(MODES)}")
            self._runners[name] = runner
        return runner


_E = TypeVar("_E", bound="Executable")


def check_inputs(plan: EntryPlan, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs by name with exactly the planned shapes and dtypes; int64 indices are converted to int32 with a range check.

    Raises `ConfigError` for missing or unknown names, `ShapeError`, `DTypeError`, `BoundsError`.
    """
    expected = {binding.name: binding.type for binding in plan.inputs}
    if missing := sorted(set(expected) - set(inputs)):
        raise ConfigError(f"missing inputs {missing}", node=plan.name)
    if unknown := sorted(set(inputs) - set(expected)):
        raise ConfigError(f"unknown inputs {unknown}", node=plan.name, hint=f"the entry takes {sorted(expected)}")
    checked: dict[str, Array] = {}
    for name, tensor_type in expected.items():
        array = np.asarray(inputs[name])
        if array.shape != tensor_type.static_shape:
            raise ShapeError(f"expected shape {list(tensor_type.static_shape)}, found {list(array.shape)}", node=name)
        if tensor_type.dtype is DType.I32 and array.dtype == np.int64:
            array = narrow_indices(name, array)
        if array.dtype != tensor_type.dtype.numpy:
            raise DTypeError(
                f"expected {tensor_type.dtype.value}, found {array.dtype}", node=name, hint="convert it before the call"
            )
        checked[name] = array
    return checked


def narrow_indices(name: str, array: Array) -> Array:
    """int64 to int32, the one documented conversion; raises `BoundsError` for a value that does not fit."""
    limits = np.iinfo(np.int32)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise BoundsError(f"values from {array.min()} to {array.max()} do not fit int32", node=name)
    return array.astype(np.int32)


def load_program(
    program: Program, device: Device, *, mode: str, reason: str = "", progress: Progress | None = None, kind: type[_E]
) -> _E:
    """Loads weights and constants and returns an executable of that kind in that mode."""
    return kind(program, device, load_shared(device, program.plan, program.source, progress), mode=mode, reason=reason)
