"""An executable: a program loaded on a device in one mode.

Inputs are copied in and outputs copied out unless the caller binds buffers. One executable runs one call at a time; a concurrent call is refused, and
`clone` gives another that shares the weights and owns its arena, io, state and parameters. Every mode goes through the same checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError, LifecycleError
from ostinato.ir.evidence import Validations
from ostinato.ir.files import named_path
from ostinato.ir.interp import Observer
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.audit import AuditReport, audit_entry
from ostinato.runtime.binding import BoundExecutable, by_name
from ostinato.runtime.capture_report import CaptureReport
from ostinato.runtime.captured import CapturedRunner, require_named
from ostinato.runtime.device import Device
from ostinato.runtime.entry_runners import EntryRunners
from ostinato.runtime.explains import Explains
from ostinato.runtime.inputs import check_outputs
from ostinato.runtime.markers import open_markers
from ostinato.runtime.memory import MemoryReport, memory_of
from ostinato.runtime.options import Route
from ostinato.runtime.profile import Profile
from ostinato.runtime.profiler import profile_entry
from ostinato.runtime.program import Program
from ostinato.runtime.put_back import put_back
from ostinato.runtime.regions import Regions, SharedRegions, allocate_regions
from ostinato.runtime.replace import replace_weights
from ostinato.runtime.runners import PlannedRunner, ReferenceWeights, Runner
from ostinato.runtime.state import ProgramState
from ostinato.runtime.traced import Diversion, refuse_traced
from ostinato.runtime.use import OwnUse
from ostinato.runtime.weights import Progress, load_parameters, load_shared

__all__ = ["Executable", "MemoryReport", "load_program"]

PROFILE_RUNS = 20
"""Of which the middle half counts."""


class Executable(Explains):
    """Entries of a program, ready to run. `runners` has what runs them."""

    _runners_kind: ClassVar[type[EntryRunners]] = EntryRunners

    def __init__(
        self,
        program: Program,
        device: Device,
        shared: SharedRegions,
        *,
        mode: str,
        reason: str = "",
        capture: Sequence[str] | None = None,
        observer: Observer | None = None,
        reference_weights: ReferenceWeights | None = None,
        progress: Progress | None = None,
        markers: bool = False,
        required: bool = False,
    ) -> None:
        """`required`: replays that are found wrong are an error, not a reason for mode "planned"."""
        route = Route(device, mode, reason, None if capture is None else tuple(capture), markers, required)
        if mode == "captured" and capture is not None:
            require_named(program.plan.entries, capture)
        self.program = program
        regions = allocate_regions(device, program.plan, shared, open_markers() if markers else None)
        load_parameters(device, program.plan, regions.state, program.source, progress)
        self._state = ProgramState(program, device, regions.state, in_numpy=mode == "reference")
        weights = reference_weights or ReferenceWeights(program, device, shared)
        self.runners = self._runners_kind(
            program, route, regions, state=self._state, weights=weights, observer=observer
        )
        self._use = OwnUse(shared.use)

    @property
    def device(self) -> Device:
        """The device that this runs on."""
        return self.runners.device

    @property
    def regions(self) -> Regions:
        """The memory that this runs over, in part shared with clones."""
        return self.runners.regions

    @property
    def mode(self) -> str:
        """The mode in use."""
        return self.runners.mode

    @property
    def reason(self) -> str:
        """Why the mode is not the one asked for; empty where it is."""
        return self.runners.reason

    @property
    def entries(self) -> Mapping[str, EntryPlan]:
        """Plans of the entries by name."""
        return self.program.plan.entries

    @property
    def capture(self) -> tuple[str, ...] | None:
        """The patterns of what is captured in mode "captured"; None for every step."""
        return self.runners.capture

    @property
    def validations(self) -> Validations:
        """Rows that were validated on first use while this was compiled, and how long that took; see docs/evidence.md."""
        return self.program.validations

    @property
    def reference_weights(self) -> ReferenceWeights:
        """The logical weights that mode "reference" computes with, which clones share."""
        return self.runners.weights

    @property
    def memory(self) -> MemoryReport:
        """Bytes of each region."""
        tables = [runner.loaded.table for runner in self.runners.made.values() if isinstance(runner, PlannedRunner)]
        return memory_of(self.program.plan, self.device.name, sum(table.status_bytes for table in tables))

    def entry(self, name: str | None = None) -> str:
        """The entry of that name; None means the only one. Raises `ConfigError` otherwise."""
        if name is None and len(self.entries) == 1:
            return next(iter(self.entries))
        if not isinstance(name, str) or name not in self.entries:
            found = "no entry is named, and there are several" if name is None else f"no entry {name!r}"
            raise ConfigError(found, hint=f"entries: {', '.join(self.entries)}")
        return name

    def run(
        self, entry: str | None, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Runs an entry once: copies `inputs` in, runs, returns copies of the named `outputs` (all of them by default).

        Raises `ConfigError` for an unknown entry, `InputError`, `ShapeError` or `DTypeError` naming the input, `BoundsError` for a row count outside its
        axis, before anything changed; `BoundsError` for out-of-range indices met by a kernel; `LifecycleError` when another call is in progress.
        """
        with self.exclusive():
            return self.run_held(entry, inputs, outputs)

    def run_held(
        self, entry: str | None, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Like `run`, for a caller that is inside `exclusive()`: several runs that are one call."""
        name = self.entry(entry)
        wanted = check_outputs(self.program.graphs[name], outputs, name)
        return self.runners.run(name, self.runners.inputs.checked(name, inputs), wanted)

    def replay(self, entry: str | None, count: int, output: str = "token") -> Array:
        """Runs an entry that goes on by itself `count` times without giving it inputs, and returns that output of every run: [count, ...].

        Such an entry ends by making its inputs those of its next step ("decode", see `ostinato.trace`): this continues the last `run` or `replay` of it.
        Where the device works by itself several replays are on their way at a time, and nothing waits between them. Raises `ConfigError` for an unknown entry
        or one that does not go on and for a count below 0, `CapacityError` for results that have no room, `InputError` for an unknown output, `LifecycleError`
        when something else ran since or another call is in progress, and what `run` raises.
        """
        with self.exclusive():
            name, times = self.entry(entry), integer(count, "count", low=0)
            if not self.entries[name].carried:
                raise ConfigError(
                    f"entry {name} does not make the inputs of its next step",
                    node=name,
                    hint="run() it with the inputs of each step, or trace a decode entry",
                )
            (output,) = check_outputs(self.program.graphs[name], (output,), name)
            return self.runners.replay(name, times, output)

    def clone(self, mode: str | None = None, observer: Observer | None = None, markers: bool | None = None) -> Self:
        """Another executable over the same weights with its own arena and io, and a state of its own as it is in the beginning: zeros, and parameters as the
        checkpoint has them (`write_state` gives it those of another one). `markers`: whether its steps and replays are ranges for the profilers of vendors, as
        this one's are unless it is said (docs/profile.md). A mode that is asked for here is an error where it turns out to be wrong, never another one.

        In mode "guarded" it has red zones between slots only where this one was compiled for that mode: the plan is the same. All bytes are watched anyhow.
        """
        return type(self)(
            self.program,
            self.device,
            self.regions.shared,
            mode=mode or self.mode,
            reason=self.reason if mode in (None, self.mode) else "",
            capture=self.capture,
            observer=observer,
            reference_weights=self.reference_weights,
            markers=self.regions.markers is not None if markers is None else markers,
            required=self.runners.required or mode is not None,
            **self.own_options,
        )

    @property
    def own_options(self) -> Mapping[str, Any]:
        """What a clone of a subclass is made with beside all that."""
        return {}

    def bind(
        self,
        *,
        entry: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        arena: Any | None = None,
    ) -> BoundExecutable:
        """The entry over the caller's buffers (numpy, torch CPU tensors or DLPack) and, with `arena`, the caller's activation memory.

        Raises `InputError` for a name that the entry does not have, `ShapeError`, `DTypeError` or `LayoutError` (strides, alignment, overlap) naming the
        buffer, `CapacityError` for a short arena, and `ConfigError` for an unknown entry or in a mode without planned addresses.
        """
        if self.mode not in ("planned", "captured"):
            raise ConfigError(
                f"binding needs planned addresses, this executable runs in mode {self.mode}", hint='use mode="planned"'
            )
        plan = self.entries[self.entry(entry)]
        where = (self.program, plan, self.device, self.regions, self._bound_run)
        named = by_name("inputs", inputs), by_name("outputs", outputs)
        return BoundExecutable(*where, inputs=named[0], outputs=named[1], arena=arena)

    @contextmanager
    def _bound_run(self) -> Iterator[None]:
        """`exclusive` for a call that writes inputs where entries have theirs."""
        with self.exclusive():
            self.runners.begin_turn()
            yield

    def replace_weights(self, tensors: Mapping[str, Any]) -> None:
        """Writes new values of weights in place: original tensor name -> array (numpy, torch CPU, DLPack) of the checkpoint's shape and convention.

        Works through packing, concatenation and conversion; no address changes, and every clone sees the new values at once. A quantised weight takes uint8
        rows of its own block dtype. Raises `WeightsError` for unknown names, `ShapeError`, `DTypeError` and `LayoutError` naming the tensor before anything
        is written, and `LifecycleError` while this executable or a clone runs. State is kept: keys and values of the old weights stay in the caches until
        `reset_state`.
        """
        replace_weights(self.device, self.program.plan, self.regions.shared, self.program.source, tensors)
        self.reference_weights.renew()

    def prewarm(self) -> None:
        """Makes every entry ready: kernels compiled and loaded, the vendor's algorithms chosen, graphs captured and proven. Nothing runs.

        A second call does nothing. What is bound to other memory (`bind`) and what is cloned is made ready anew. Raises what making a runner raises.
        """
        with Executable.exclusive(self):
            self.runners.make_all()

    def captures(self, entry: str | None = None) -> list[CaptureReport]:
        """What each captured graph of an entry was read back as, in order; empty in another mode. Captures it where it is not captured yet."""
        with Executable.exclusive(self):
            runner = self.runners.own(self.entry(entry))
            return runner.steps.reports if isinstance(runner, CapturedRunner) else []

    def audit(self, entry: str | None = None) -> AuditReport:
        """Every pointer and number that the captured graphs of an entry, or its step table, were given, by name and line, and what of it no longer holds; see
        docs/audit.md. Nothing runs. `BoundExecutable.audit` does the same for bound memory.

        Raises `ConfigError` for an unknown entry and in the modes that place each value anew; what it finds is in the report, which `check` raises.
        """
        with Executable.exclusive(self):
            name = self.entry(entry)
            runner = self.runners.planned(name)
            segments = runner.steps.segments if isinstance(runner, CapturedRunner) else ()
            where = (self.program, name, self.device, self.runners.regions_of(name))
            return audit_entry(*where, runner.loaded.resolved, segments, self.runners.bound_memory(name))

    def warm_up(self) -> None:
        """Runs every entry once on zeros, so that a first call finds its pages mapped, and puts the state back as it was: nothing can tell it happened.

        Raises what `run` raises.
        """
        with self.put_back():
            self.runners.begin_turn()
            for name in self.entries:
                runner = self.runners.own(name)
                for key, array in self.example_inputs(name).items():
                    runner.inputs[key][...] = array
                runner.run(())

    def example_inputs(self, name: str) -> dict[str, Array]:
        """What an entry can run on, by name: zeros, every count of valid rows as large as it may be, and what stands."""
        return self.runners.inputs.example(name)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Holds the executable for work after which state, inputs and outputs are as they were before it."""
        with Executable.exclusive(self), put_back(self.regions, self._state.reference):
            yield

    def profile(
        self, entry: str | None = None, inputs: Mapping[str, Any] | None = None, *, runs: int = PROFILE_RUNS
    ) -> Profile:
        """What each step of an entry takes, in so many runs on `inputs` (default: `example_inputs`); see docs/profile.md.

        It has tables and graphs of its own, and nothing can tell afterwards that it ran. Raises `ConfigError` for an unknown entry and in modes without
        planned steps, `LifecycleError` while another call is in progress or a `TraceSession` is open, and what `run` raises for inputs.
        """
        name, times = self.entry(entry), integer(runs, "runs", low=1)
        refuse_traced(self.diversion, "a profile")
        checked = self.runners.inputs.settled(name, inputs)
        with self.put_back():
            where = (self.program, name, self.device, replace(self.regions, markers=None))
            return profile_entry(*where, mode=self.mode, capture=self.capture, inputs=checked, runs=times)

    def reset_state(self) -> None:
        """What runs update is as it was in the beginning: caches, moments and the number of the step zero, parameters as the checkpoint has them."""
        with self.exclusive():
            self._state.reset()

    @property
    def state_names(self) -> tuple[str, ...]:
        """What `read_state` and `write_state` take: parameters by the names of their tensors in the checkpoint, then state (moments, step, caches)."""
        return self._state.names

    def read_state(self, name: str) -> Array:
        """A copy of a parameter's tensor, in its widest dtype here, or of a state value, after all work submitted so far.

        Values are those that steps compute with: where loading adds a number to a stored gain, it is in them. Frozen rows of a tensor are the
        checkpoint's. Raises `InputError` for an unknown name, `LifecycleError` while a call is in progress.
        """
        with Executable.exclusive(self):
            return self._state.read(name)

    def write_state(self, name: str, values: Any) -> None:
        """`write_states` of one name."""
        self.write_states({name: values})

    def write_states(self, values: Mapping[str, Any]) -> None:
        """Gives parameters and state new values, all of them or (where one does not fit) none: numpy, torch CPU or DLPack arrays of what `read_state` gives.

        A parameter may come in f32, f16 or bf16 and is written to every slot that holds it, mirrors in another dtype included. No address changes. Raises
        `InputError`, `ShapeError`, `DTypeError` and `LayoutError` naming the value before anything is written, `LifecycleError` while a call is in progress.
        """
        with self.exclusive():
            self._state.write(values)

    def save(self, path: str | os.PathLike[str], *, weights: bool = False, whole: bool = False) -> Path:
        """Writes the program to one file, for `ostinato.load_executable`, and returns its path; a file that is there is replaced, as a whole.

        Weights stay in the checkpoint, which the file names and knows again by samples of every tensor, or by all bytes with `whole`. With `weights` they are
        in the file, and the tokenizer with them. Caches and other state are not saved. See docs/artifacts.md. Raises `ConfigError` for a program that no file
        can hold, for weights that were replaced, and for a place that cannot be written.
        """
        if self.program.saver is None:
            raise ConfigError(
                "this executable was not compiled from a model, which its file would name",
                hint="save what compile, compile_encoder, LLM, Embedder or Planned.load made",
            )
        return self.program.saver(self, named_path(path), weights=weights, whole=whole)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self.entries)}: {self.mode} on {self.device.name}>"

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            "an executable cannot be copied or pickled: it is memory and addresses",
            hint="use clone(), or save() it and load it in the other process",
        )

    @contextmanager
    def exclusive(self, *, wait: bool = False) -> Iterator[None]:
        """Holds the executable for one call. When another one is in progress, raises `LifecycleError`, or waits for its end."""
        with self._use.calling(wait=wait):
            yield

    @property
    def diversion(self) -> Diversion | None:
        """Whose runners calls use in place of this executable's own, while somebody traces it."""
        return self.runners.diversion

    def divert(self, diversion: Diversion | None) -> None:
        """Has later calls use the runners of a diversion, or this executable's own again; `ostinato.TraceSession` does. What is generated goes on.

        Raises `LifecycleError` for a second one, and while a call is in progress, whose end is waited for to give this executable its own again.
        """
        with Executable.exclusive(self, wait=diversion is None):
            self.runners.divert(diversion)

    def runner(self, name: str) -> Runner:
        """What calls of an entry run by, made on first use."""
        return self.runners.current(name)


_E = TypeVar("_E", bound="Executable")


def load_program(program: Program, route: Route, *, progress: Progress | None = None, kind: Callable[..., _E]) -> _E:
    """Loads weights, constants and parameters on the route's device and returns an executable of that kind in its mode."""
    shared = load_shared(route.device, program.plan, program.source, progress)
    device, mode = route.device, route.mode
    how = {"mode": mode, "reason": route.reason, "capture": route.capture, "markers": route.markers}
    return kind(program, device, shared, progress=progress, required=route.required, **how)
