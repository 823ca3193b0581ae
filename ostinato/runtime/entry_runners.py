"""The runners of an executable: one an entry, in its mode, made on first use over its memory.

Calls run by these, or by those of a diversion while somebody traces them. Which entry was given inputs last is known here, for it can be replayed, and so are
the replays that nobody uses now, each beside the runner that it is of. Where the mode turns out to be wrong on the device all entries go on in mode "planned",
unless the mode was required. What a subclass has to say of an entry (its memory, its runner) it says by the hooks at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ostinato.ir.errors import BackendError, CapacityError, ConfigError, LifecycleError, UnreadableCapture
from ostinato.ir.interp import Observer
from ostinato.ir.step import KernelCall
from ostinato.ir.types import Array
from ostinato.runtime.captured import CapturedRunner
from ostinato.runtime.external import ExternalMemory
from ostinato.runtime.guarded import GuardedRunner
from ostinato.runtime.inputs import EntryInputs
from ostinato.runtime.options import Route
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions
from ostinato.runtime.replay_gate import replay_difference
from ostinato.runtime.replays import Replays
from ostinato.runtime.runners import EagerRunner, PlannedRunner, ReferenceRunner, ReferenceWeights, Runner
from ostinato.runtime.state import ProgramState
from ostinato.runtime.traced import Diversion

__all__ = ["EntryRunners"]

AHEAD = 8
"""Replays on their way at a time, where a device works by itself."""
LOGITS_AHEAD = 2
"""The same where each has a ring's slot for logits, which are large."""


class EntryRunners:
    """The runners of a program's entries. Nothing here holds a lock: whoever calls does.

    `mode` is the mode in use and `reason` why, when it is not the one asked for. `turn` is how often inputs were given: while it stays, what ran last can be
    replayed.
    """

    def __init__(
        self,
        program: Program,
        route: Route,
        regions: Regions,
        *,
        state: ProgramState,
        weights: ReferenceWeights,
        observer: Observer | None = None,
        inputs: EntryInputs | None = None,
    ) -> None:
        """`weights` are those of mode "reference", whose state is `state.reference`."""
        self.program = program
        self.device = route.device
        self.regions = regions
        self.mode = route.mode
        self.reason = route.reason
        self.capture = route.capture
        self.required = route.required
        self.weights = weights
        self.observer = observer
        self.inputs = inputs or EntryInputs(program)
        self.turn = 0
        self._given_to: str | None = None
        self._state = state
        self._diversion: Diversion | None = None
        self._made: dict[str, Runner] = {}
        self._idle: dict[tuple[Runner, tuple[str, ...]], list[Replays]] = {}

    # who runs an entry

    @property
    def made(self) -> Mapping[str, Runner]:
        """The runners that were made by now, by entry."""
        return MappingProxyType(self._made)

    def current(self, name: str) -> Runner:
        """What calls of an entry run by: its own runner, or a diversion's."""
        return self.own(name) if self._diversion is None else self._diversion.runner(name)

    def own(self, name: str) -> Runner:
        """The runner by the program's own plan, whoever traces it; made on first use. Raises what making one raises."""
        runner = self._made.get(name)
        if runner is None:
            runner = self._made[name] = self._proven(name)
        return runner

    def planned(self, name: str) -> PlannedRunner:
        """The entry's own runner. Raises `ConfigError` in modes that place each value anew."""
        runner = self.own(name)
        if not isinstance(runner, PlannedRunner):
            raise ConfigError(f'mode "{self.mode}" has no planned addresses', node=name, hint='use mode="planned"')
        return runner

    def make_all(self) -> None:
        """Makes the runners that are missing, with what a device prepares for all of them together. Raises what making one raises."""
        missing = [plan for name, plan in self.program.plan.entries.items() if name not in self._made]
        if self.mode in ("planned", "guarded", "captured"):  # eager prepares what it calls
            self.device.prepare([KernelCall.of(step) for plan in missing for step in plan.steps])
        for plan in missing:
            self.own(plan.name)

    def renew(self, name: str) -> None:
        """Lets go of an entry's runner, since what `make` asks for has changed: the next call has one made."""
        self._made.pop(name, None)
        self._drop_idle()
        if self._diversion is not None:
            self._diversion.renew()

    @property
    def diversion(self) -> Diversion | None:
        """Whose runners calls use in place of these, while somebody traces them."""
        return self._diversion

    def divert(self, diversion: Diversion | None) -> None:
        """Has later calls use the runners of a diversion, or these again. Raises `LifecycleError` for a second diversion."""
        if diversion is not None and self._diversion is not None:
            raise LifecycleError(
                "this executable is being traced already", hint="close the other TraceSession, or trace a clone()"
            )
        if diversion is not self._diversion:
            self.begin_turn()
            self._diversion = diversion
            self._drop_idle()

    def _proven(self, name: str) -> Runner:
        """A new runner in this mode. A driver that does not show what it captured, and replays in doubt that are not what the planned steps are, make the mode
        "planned"; where the mode is required they raise."""
        try:
            runner = self.make(name, self.program, self.regions_of(name))
        except UnreadableCapture as error:
            if self.required:
                raise
            told = f"no captured graph can be proven here: {error.message}"
        else:
            if not isinstance(runner, CapturedRunner) or not self.device.replay_doubt:
                return runner
            found = replay_difference(runner, self.regions_of(name), self.inputs.example(name))
            if not found:
                return runner
            told = f"{found}, on a runtime whose replays are in doubt: {self.device.replay_doubt}"
            if self.required:
                hint = 'use mode="planned"; `ostinato doctor --quirks` says what is known'
                raise BackendError(told, node=name, hint=hint)
        self.mode, self.reason = "planned", told
        self._made.clear()
        self._drop_idle()
        return self.make(name, self.program, self.regions_of(name))

    # runs and replays

    def begin_turn(self) -> None:
        """Somebody is about to write inputs, or has made others write them: what ran last can no longer be replayed."""
        self.turn, self._given_to = self.turn + 1, None

    def run(self, name: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """Runs an entry on checked inputs; copies of the named outputs. Raises what a run raises."""
        runner = self.current(name)
        self.begin_turn()
        for key, array in inputs.items():
            runner.inputs[key][...] = array
        found = runner.run(outputs)
        self._given_to = name
        return {key: np.array(found[key]) for key in outputs}

    def replay(self, name: str, count: int, output: str) -> Array:
        """Continues the last run of an entry `count` times; that output of each: [count, ...]. Raises what `Executable.replay` says."""
        if self._given_to != name:
            raise LifecycleError(
                "this entry is not what ran last: the inputs in its memory are not those of a next step",
                node=name,
                hint="run() it once, then replay",
            )
        binding = next(item for item in self.program.plan.entries[name].outputs if item.name == output)
        try:
            found = np.empty((count, *binding.type.static_shape), binding.type.dtype.numpy)
        except (MemoryError, ValueError):  # the latter where the size is no number of this machine
            raise CapacityError(f"there is no room for {count} times {binding.type}", node=name) from None
        replays, self._given_to = self.take_replays(name, (output,)), None
        try:
            for index in range(count):
                while replays.pending < min(replays.depth, count - index):
                    replays.submit()
                found[index] = replays.take()[output]
        finally:
            self.keep_replays(name, replays)
        self._given_to = name
        return found

    def take_replays(self, name: str, outputs: Sequence[str]) -> Replays:
        """Replays of the entry that ran last, to be given back with `keep_replays`."""
        runner = self.current(name)
        if idle := self._idle.get((runner, tuple(outputs))):
            return idle.pop()
        depth = (LOGITS_AHEAD if "logits" in outputs else AHEAD) if self.device.captures else 1
        replays = runner.replays(outputs, depth)
        replays.runner = runner
        return replays

    def keep_replays(self, name: str, replays: Replays) -> None:
        """Takes replays back, for the next who asks; what is pending is dropped."""
        replays.drop()
        runner = self.current(name)
        if replays.runner is runner:  # not of a trace that began or ended meanwhile
            self._idle.setdefault((runner, replays.outputs), []).append(replays)

    def _drop_idle(self) -> None:
        """Lets go of the replays whose runners are not these."""
        known = set(self._made.values())
        self._idle = {key: replays for key, replays in self._idle.items() if key[0] in known}

    # what an executable of another kind says otherwise

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

    def make(self, name: str, program: Program, regions: Regions) -> Runner:
        """A runner in this mode for an entry of the program, or of another one over the same state."""
        where = (program, name, self.device, regions, self.observer)
        match self.mode:
            case "planned":
                return PlannedRunner(*where)
            case "guarded":
                return GuardedRunner(*where)
            case "captured":
                return CapturedRunner(*where, self.capture)
            case "eager":
                return EagerRunner(*where)
        return ReferenceRunner(program, name, self._state.reference, self.weights, self.observer)
