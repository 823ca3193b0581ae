"""An executable: a program loaded on a device in one mode.

Inputs are copied in and outputs copied out unless the caller binds buffers. One executable runs one call at a time; a concurrent call is refused, and
`clone` gives another that shares the weights and owns its arena, io, state and parameters. Every mode goes through the same checks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import numpy as np

from ostinato.ir.checks import integer
from ostinato.ir.errors import BackendError, CapacityError, ConfigError, InputError, LifecycleError, UnreadableCapture
from ostinato.ir.evidence import Validations
from ostinato.ir.forks import renew_after_fork
from ostinato.ir.interp import Observer
from ostinato.ir.step import KernelCall
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.audit import AuditReport, audit_entry
from ostinato.runtime.binding import BoundExecutable, by_name
from ostinato.runtime.captured import CapturedRunner, require_named
from ostinato.runtime.conformance import CaptureReport
from ostinato.runtime.device import Device
from ostinato.runtime.explains import Explains
from ostinato.runtime.external import ExternalMemory
from ostinato.runtime.guarded import GuardedRunner
from ostinato.runtime.inputs import check_counts, check_inputs, count_limits, full_inputs
from ostinato.runtime.markers import open_markers
from ostinato.runtime.memory import MemoryReport, memory_of
from ostinato.runtime.options import MODES, Route
from ostinato.runtime.profile import Profile
from ostinato.runtime.profiler import profile_entry
from ostinato.runtime.program import Program
from ostinato.runtime.put_back import put_back
from ostinato.runtime.regions import Regions, SharedRegions, allocate_regions
from ostinato.runtime.replace import replace_weights
from ostinato.runtime.replay_gate import replay_difference
from ostinato.runtime.replays import Replays
from ostinato.runtime.runners import EagerRunner, PlannedRunner, ReferenceRunner, ReferenceWeights, Runner
from ostinato.runtime.state import ProgramState, initial_state
from ostinato.runtime.traced import Diversion, refuse_traced
from ostinato.runtime.weights import Progress, load_parameters, load_shared

__all__ = ["Executable", "MemoryReport", "load_program"]

AHEAD = 8
"""Replays on their way at a time, where a device works by itself."""
LOGITS_AHEAD = 2
"""The same where each has a ring's slot for logits, which are large."""
PROFILE_RUNS = 20
"""Of which the middle half counts."""


class Executable(Explains):
    """Entries of a program, ready to run. `mode` is the mode in use and `reason` why, when it is not the one asked for (empty otherwise)."""

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
        runnable = [known for known in MODES if known != "captured" or device.captures]
        if mode not in runnable:
            needs = ": it needs a GPU" if mode == "captured" else ""
            raise ConfigError(
                f"mode {mode!r} cannot run on {device.name}{needs}", hint=f"use one of {', '.join(runnable)}"
            )
        if mode == "captured" and capture is not None:
            require_named(program.plan.entries, capture)
        self.program = program
        self.device = device
        self.mode = mode
        self.reason = reason
        self._required = required
        self.regions: Regions = allocate_regions(device, program.plan, shared, open_markers() if markers else None)
        load_parameters(device, program.plan, self.regions.state, program.source, progress)
        self._capture = None if capture is None else tuple(capture)
        self._observer = observer
        self._runners: dict[str, Runner] = {}
        self._idle_replays: dict[tuple[str, tuple[str, ...]], list[Replays]] = {}
        self._idle_beside: dict[tuple[str, tuple[str, ...]], list[Replays]] = {}  # those of the runners not in use
        self._diversion: Diversion | None = None
        # how often inputs were given, and to which entry last: while the number stays, that entry can be replayed
        self.turn = 0
        self._given_to: str | None = None
        self._reference_state: dict[str, Array] = initial_state(program) if mode == "reference" else {}
        self._state = ProgramState(
            program, device, self.regions.state, self._reference_state if mode == "reference" else None
        )
        self._reference_weights = reference_weights or ReferenceWeights(program, device, shared)
        self.after_fork()
        renew_after_fork(self)
        self._count_limits = {name: count_limits(graph) for name, graph in program.graphs.items()}

    @property
    def entries(self) -> Mapping[str, EntryPlan]:
        """Plans of the entries by name."""
        return self.program.plan.entries

    @property
    def capture(self) -> tuple[str, ...] | None:
        """The patterns of what is captured in mode "captured"; None for every step."""
        return self._capture

    @property
    def validations(self) -> Validations:
        """Rows that were validated on first use while this was compiled, and how long that took; see docs/evidence.md."""
        return self.program.validations

    @property
    def reference_weights(self) -> ReferenceWeights:
        """The logical weights that mode "reference" computes with, which clones share."""
        return self._reference_weights

    @property
    def memory(self) -> MemoryReport:
        """Bytes of each region."""
        tables = [runner.loaded.table for runner in self._runners.values() if isinstance(runner, PlannedRunner)]
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
        wanted = self._wanted(name, outputs)
        checked = check_inputs(self.entries[name], inputs)
        check_counts(self._count_limits[name], checked)
        runner = self.runner(name)
        self.turn, self._given_to = self.turn + 1, None
        for key, array in checked.items():
            runner.inputs[key][...] = array
        found = runner.run(wanted)
        self._given_to = name
        return {key: np.array(found[key]) for key in wanted}

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
            (output,) = self._wanted(name, (output,))
            if self._given_to != name:
                raise LifecycleError(
                    "this entry is not what ran last: the inputs in its memory are not those of a next step",
                    node=name,
                    hint="run() it once, then replay",
                )
            binding = next(binding for binding in self.entries[name].outputs if binding.name == output)
            try:
                found = np.empty((times, *binding.type.static_shape), binding.type.dtype.numpy)
            except (MemoryError, ValueError):  # the latter where the size is no number of this machine
                raise CapacityError(f"there is no room for {times} times {binding.type}", node=name) from None
            replays, self._given_to = self.replays_held(name, (output,)), None
            try:
                for index in range(times):
                    while replays.pending < min(replays.depth, times - index):
                        replays.submit()
                    found[index] = replays.take()[output]
            finally:
                self.keep(name, replays)
            self._given_to = name
        return found

    def replays_held(self, entry: str, outputs: Sequence[str]) -> Replays:
        """Replays of an entry, for a caller that is inside `exclusive()` and knows that the entry is what ran last. To be given back with `keep`."""
        idle = self._idle_replays.get((entry, tuple(outputs)))
        if idle:
            return idle.pop()
        depth = (LOGITS_AHEAD if "logits" in outputs else AHEAD) if self.device.captures else 1
        runner = self.runner(entry)
        replays = runner.replays(outputs, depth)
        replays.runner = runner
        return replays

    def keep(self, entry: str, replays: Replays) -> None:
        """Takes replays back, for the next who asks; what is pending is dropped."""
        replays.drop()
        if replays.runner is self.runner(entry):  # not of a trace that began or ended meanwhile
            self._idle_replays.setdefault((entry, replays.outputs), []).append(replays)

    def _wanted(self, name: str, outputs: Any) -> list[str]:
        known = list(dict.fromkeys(self.program.graphs[name].outputs))
        if outputs is None:
            return known
        listed = isinstance(outputs, Iterable) and not isinstance(outputs, str)
        if not listed or not all(item in known for item in outputs):
            raise InputError(
                f"outputs {outputs!r} are not a list of output names of this entry", node=name, hint=f"it gives {known}"
            )
        return list(outputs)

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
            capture=self._capture,
            observer=observer,
            reference_weights=self._reference_weights,
            markers=self.regions.markers is not None if markers is None else markers,
            required=self._required or mode is not None,
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
        return BoundExecutable(
            self.program,
            plan,
            self.device,
            self.regions,
            self._bound_run,
            inputs=by_name("inputs", inputs),
            outputs=by_name("outputs", outputs),
            arena=arena,
        )

    @contextmanager
    def _bound_run(self) -> Iterator[None]:
        """`exclusive` for a call that writes inputs where entries have theirs."""
        with self.exclusive():
            self.turn, self._given_to = self.turn + 1, None
            yield

    def replace_weights(self, tensors: Mapping[str, Any]) -> None:
        """Writes new values of weights in place: original tensor name -> array (numpy, torch CPU, DLPack) of the checkpoint's shape and convention.

        Works through packing, concatenation and conversion; no address changes, and every clone sees the new values at once. A quantised weight takes uint8
        rows of its own block dtype. Raises `WeightsError` for unknown names, `ShapeError`, `DTypeError` and `LayoutError` naming the tensor before anything
        is written, and `LifecycleError` while this executable or a clone runs. State is kept: keys and values of the old weights stay in the caches until
        `reset_state`.
        """
        replace_weights(self.device, self.program.plan, self.regions.shared, self.program.source, tensors)
        self._reference_weights.renew()

    def prewarm(self) -> None:
        """Makes every entry ready: kernels compiled and loaded, the vendor's algorithms chosen, graphs captured and proven. Nothing runs.

        A second call does nothing. What is bound to other memory (`bind`) and what is cloned is made ready anew. Raises what making a runner raises.
        """
        with Executable.exclusive(self):
            missing = [plan for name, plan in self.entries.items() if name not in self._runners]
            if self.mode in ("planned", "guarded", "captured"):  # of all entries together; eager prepares what it calls
                self.device.prepare([KernelCall.of(step) for plan in missing for step in plan.steps])
            for plan in missing:
                self.own_runner(plan.name)

    def captures(self, entry: str | None = None) -> list[CaptureReport]:
        """What each captured graph of an entry was read back as, in order; empty in another mode. Captures it where it is not captured yet."""
        with Executable.exclusive(self):
            runner = self.own_runner(self.entry(entry))
            return runner.steps.reports if isinstance(runner, CapturedRunner) else []

    def audit(self, entry: str | None = None) -> AuditReport:
        """Every pointer and number that the captured graphs of an entry, or its step table, were given, by name and line, and what of it no longer holds; see
        docs/audit.md. Nothing runs. `BoundExecutable.audit` does the same for bound memory.

        Raises `ConfigError` for an unknown entry and in the modes that place each value anew; what it finds is in the report, which `check` raises.
        """
        with Executable.exclusive(self):
            name = self.entry(entry)
            runner = self.own_runner(name)
            if not isinstance(runner, PlannedRunner):
                raise ConfigError(f"mode {self.mode} has no planned addresses", node=name, hint='use mode="planned"')
            segments = runner.steps.segments if isinstance(runner, CapturedRunner) else ()
            where = (self.program, name, self.device, self.regions_of(name))
            return audit_entry(*where, runner.loaded.resolved, segments, self.bound_memory(name))

    def warm_up(self) -> None:
        """Runs every entry once on zeros, so that a first call finds its pages mapped, and puts the state back as it was: nothing can tell it happened.

        Raises what `run` raises.
        """
        with self.put_back():
            self.turn, self._given_to = self.turn + 1, None
            for name in self.entries:
                runner = self.own_runner(name)
                for key, array in self.example_inputs(name).items():
                    runner.inputs[key][...] = array
                runner.run(())

    def example_inputs(self, name: str) -> dict[str, Array]:
        """What an entry can run on, by name: zeros, every count of valid rows as large as it may be, and `standing`."""
        return {**full_inputs(self.entries[name], self._count_limits[name]), **self.standing(name)}

    def standing(self, name: str) -> Mapping[str, Array]:
        """Inputs of an entry that stay until they are replaced."""
        del name
        return {}

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Holds the executable for work after which state, inputs and outputs are as they were before it."""
        with Executable.exclusive(self), put_back(self.regions, self._reference_state):
            yield

    def profile(
        self, entry: str | None = None, inputs: Mapping[str, Any] | None = None, *, runs: int = PROFILE_RUNS
    ) -> Profile:
        """What each step of an entry takes, in so many runs on `inputs` (default: `example_inputs`); see docs/profile.md.

        It has tables and graphs of its own, and nothing can tell afterwards that it ran. Raises `ConfigError` for an unknown entry and in modes without
        planned steps, `LifecycleError` while another call is in progress or a `TraceSession` is open, and what `run` raises for inputs.
        """
        name, times = self.entry(entry), integer(runs, "runs", low=1)
        refuse_traced(self._diversion, "a profile")
        given = self.example_inputs(name) if inputs is None else {**self.standing(name), **inputs}
        checked = check_inputs(self.entries[name], given)
        check_counts(self._count_limits[name], checked)
        with self.put_back():
            where = (self.program, name, self.device, replace(self.regions, markers=None))
            return profile_entry(*where, mode=self.mode, capture=self._capture, inputs=checked, runs=times)

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
        return self.program.saver(self, Path(path), weights=weights, whole=whole)

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            "an executable cannot be copied or pickled: it is memory and addresses",
            hint="use clone(), or save() it and load it in the other process",
        )

    @contextmanager
    def exclusive(self, *, wait: bool = False) -> Iterator[None]:
        """Holds the executable for one call. When another one is in progress, raises `LifecycleError`, or waits for its end."""
        if not wait and self._running.locked():
            raise LifecycleError(
                "this executable is running another call", hint="use one executable a thread: exe.clone()"
            )
        # of two calls that begin at the same moment one may get here while the other takes the lock, and waits after all
        with self._running, self.regions.shared.use.running():
            yield

    def after_fork(self) -> None:
        """A new lock: the thread that held it is not in this process."""
        self._running = threading.Lock()

    @property
    def diversion(self) -> Diversion | None:
        """Whose runners calls use in place of this executable's own, while somebody traces it."""
        return self._diversion

    def divert(self, diversion: Diversion | None) -> None:
        """Has later calls use the runners of a diversion, or this executable's own again; `ostinato.TraceSession` does. What is generated goes on.

        Raises `LifecycleError` for a second one, and while a call is in progress, whose end is waited for to give this executable its own again.
        """
        with Executable.exclusive(self, wait=diversion is None):
            if diversion is not None and self._diversion is not None:
                raise LifecycleError(
                    "this executable is being traced already", hint="close the other TraceSession, or trace a clone()"
                )
            if diversion is not self._diversion:
                self.turn, self._given_to = self.turn + 1, None
                self._idle_replays, self._idle_beside = self._idle_beside, self._idle_replays
                if diversion is None:
                    self._idle_beside = {}
            self._diversion = diversion

    def runner(self, name: str) -> Runner:
        """The entry in this mode, made on first use."""
        return self.own_runner(name) if self._diversion is None else self._diversion.runner(name)

    def own_runner(self, name: str) -> Runner:
        """The entry by this executable's own plan, whoever traces it."""
        runner = self._runners.get(name)
        if runner is None:
            runner = self._runners[name] = self._trusted_runner(name)
        return runner

    def _trusted_runner(self, name: str) -> Runner:
        """A runner in this mode. A driver that does not show what it captured, and replays in doubt that are not what the planned steps are, make the mode
        "planned"; where captured is required they raise."""
        where = (name, self.program, self.regions_of(name))
        try:
            runner = self.make_runner(*where)
        except UnreadableCapture as error:
            if self._required:
                raise
            told = f"no captured graph can be proven here: {error.message}"
        else:
            if not isinstance(runner, CapturedRunner) or not self.device.replay_doubt:
                return runner
            found = replay_difference(runner, self.regions_of(name), self.example_inputs(name))
            if not found:
                return runner
            told = f"{found}, on a runtime whose replays are in doubt: {self.device.replay_doubt}"
            if self._required:
                hint = 'use mode="planned"; `ostinato doctor --quirks` says what is known'
                raise BackendError(told, node=name, hint=hint)
        self.mode, self.reason = "planned", told
        self._runners.clear()
        self._idle_replays.clear()
        return self.make_runner(*where)

    def regions_of(self, name: str) -> Regions:
        """The memory of an entry, with what is bound for all its runs."""
        del name
        return self.regions

    def bound_memory(self, name: str) -> tuple[ExternalMemory, ...]:
        """The caller's buffers that all runs of an entry use."""
        del name
        return ()

    def kept_outputs(self, name: str) -> tuple[str, ...]:
        """The outputs of an entry that stay where they are from run to run, to be read there."""
        del name
        return ()

    def make_runner(self, name: str, program: Program, regions: Regions) -> Runner:
        """An entry of a program over this executable's state, in this mode."""
        where = (program, name, self.device, regions, self._observer)
        match self.mode:
            case "planned":
                return PlannedRunner(*where)
            case "guarded":
                return GuardedRunner(*where)
            case "captured":
                return CapturedRunner(*where, self._capture)
            case "eager":
                return EagerRunner(*where)
        return ReferenceRunner(program, name, self._reference_state, self._reference_weights, self._observer)


_E = TypeVar("_E", bound="Executable")


def load_program(program: Program, route: Route, *, progress: Progress | None = None, kind: Callable[..., _E]) -> _E:
    """Loads weights, constants and parameters on the route's device and returns an executable of that kind in its mode."""
    shared = load_shared(route.device, program.plan, program.source, progress)
    device, mode = route.device, route.mode
    how = {"mode": mode, "reason": route.reason, "capture": route.capture, "markers": route.markers}
    return kind(program, device, shared, progress=progress, required=route.required, **how)
