"""A training step that runs: an executable whose entry `train` is forward, backward and optimizer in one.

`step` submits one and returns; the `StepResult` waits for the loss when somebody asks. Parameters, moments and the count of steps live in the executable's own
state, so that a clone trains parameters of its own, and another entry of the program (`forward`) reads the very bytes that `train` updates. A step whose loss
is no finite number changes nothing; with the policy "raise" no step is submitted behind one that may be such: the next call waits for it first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ostinato.ir.checks import integer, shown
from ostinato.ir.errors import BoundsError, ConfigError
from ostinato.ir.training import LOSS, STEP, TRAIN
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.device import Device
from ostinato.runtime.executable import Executable
from ostinato.runtime.guarded import GuardedRunner
from ostinato.runtime.inputs import check_inputs
from ostinato.runtime.program import Program
from ostinato.runtime.put_back import put_back
from ostinato.runtime.regions import SharedRegions
from ostinato.runtime.runners import PlannedRunner, Runner
from ostinato.runtime.traced import Diversion
from ostinato.runtime.training.accumulation import Accumulation, accumulations_of
from ostinato.runtime.training.addresses import AddressTable, addresses_of
from ostinato.runtime.training.checks import index_limits
from ostinato.runtime.training.entry_runners import StepRunners
from ostinato.runtime.training.gradients import GradientEvent, Hook
from ostinato.runtime.training.inputs import MOST_STEPS
from ostinato.runtime.training.pipeline import StepPipeline
from ostinato.runtime.training.results import NAN_POLICIES, StepResult

__all__ = ["TrainExecutable", "TrainOptions"]

_AHEAD = {"raise": 1, "skip": 2}


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How steps are driven. `on_nan`: a step whose loss is not finite raises ("raise") or is counted ("skip"). `ahead`: steps on their way at a time, where
    the device works by itself; by default 1 with "raise", so that nothing is submitted behind a loss that is not known, and 2 with "skip". `candidates`: how
    often a step adds to a gradient, where whoever made the graph knows.
    """

    on_nan: str = "raise"
    ahead: int | None = None
    candidates: int | None = None

    def __post_init__(self) -> None:
        if self.on_nan not in NAN_POLICIES:
            raise ConfigError(f"on_nan is {shown(self.on_nan)}", hint=f"use one of {', '.join(NAN_POLICIES)}")
        if self.ahead is not None:
            object.__setattr__(self, "ahead", integer(self.ahead, "ahead", low=1))

    @property
    def depth(self) -> int:
        """Steps on their way at a time."""
        return _AHEAD[self.on_nan] if self.ahead is None else self.ahead


class TrainExecutable(Executable):
    """An executable with an entry `train`. `standing` are inputs that stay until they are replaced: settings of the optimizer, the seed of dropout.

    The input `counter` is the number of the step unless it is given.
    """

    runners: StepRunners
    _runners_kind = StepRunners

    def __init__(
        self,
        program: Program,
        device: Device,
        shared: SharedRegions,
        *,
        options: TrainOptions | None = None,
        standing: Mapping[str, Any] | None = None,
        **route: Any,
    ) -> None:
        if TRAIN not in program.plan.entries:
            raise ConfigError(f"the program has no entry {TRAIN}", hint=f"entries: {', '.join(program.plan.entries)}")
        self._graph = program.graphs[TRAIN]
        if LOSS not in self._graph.outputs:
            raise ConfigError(f"entry {TRAIN} has no output {LOSS}", hint=f"it gives {', '.join(self._graph.outputs)}")
        super().__init__(program, device, shared, **route)
        self.options = options or TrainOptions()
        self._limits = index_limits(self._graph)
        self._gradients = self.runners.gradients
        self._works_ahead = self.regions.stream is not None
        self._steps = StepPipeline(self.plan, self.options.depth if self._works_ahead else 1, self.read_back)
        self._kept: Mapping[str, Array] = {}
        self.runs = 0
        for name, value in (standing or {}).items():
            self.keep_input(name, value)

    # stepping

    @property
    def plan(self) -> EntryPlan:
        """The plan of the step."""
        return self.entries[TRAIN]

    @property
    def number(self) -> int:
        """The number of the last step submitted, applied or not: what dropout counts by. Writing the state `step` sets it to that; whoever goes on from a run
        in which steps were skipped sets it to how many that run has submitted."""
        return self.runners.inputs.number

    @number.setter
    def number(self, number: int) -> None:
        self.runners.inputs.number = number

    @property
    def pending(self) -> int:
        """Steps whose results the host does not have yet."""
        return self._steps.pending

    @property
    def skipped(self) -> int:
        """Steps that are known to have changed nothing."""
        return self._steps.skipped

    @property
    def read_back(self) -> tuple[str, ...]:
        """The outputs that every step brings back: all but the gradients."""
        kept = set(self._gradients.outputs)
        return tuple(dict.fromkeys(name for name in self._graph.outputs if name not in kept))

    def keep_input(self, name: str, value: Any) -> None:
        """Gives every later step this input, until another value or the step's own takes its place. Raises `InputError` for a name that is no input."""
        self.runners.inputs.keep(name, value)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """`Executable.put_back`, with no step on its way."""
        with self.exclusive(), put_back(self.regions, self._state.reference):
            yield

    def step(self, inputs: Mapping[str, Any] | None = None, /, **more: Any) -> StepResult:
        """One step on a batch: arrays by name, beside those that `keep_input` holds. Returns when it is submitted, where the device works by itself.

        Raises, before anything of the step has run: `InputError`, `ShapeError`, `DTypeError` naming the input, `BoundsError` for ids and targets outside of
        their tables and for a batch without a target, `AddressChanged` for a bound buffer that moved, `LifecycleError` when another call is in progress, and
        what an earlier step met, `NonFiniteLoss` among it. Where the device works while it is called, what this step met is raised at once.
        """
        with Executable.exclusive(self):
            number = self.runners.inputs.next_number
            checked = check_inputs(self.plan, {**self.runners.inputs.standing(TRAIN), **(inputs or {}), **more})
            self._limits.check(checked)
            for name, values in checked.items():
                # settings, which would spoil every parameter
                if values.dtype == np.float32 and not np.isfinite(values).all():
                    raise BoundsError("not every value is a finite number", node=name)
            self._gradients.check_addresses()
            while self._steps.pending >= self._steps.depth:
                self._steps.take()
            self._steps.raise_untold()
            runner = self.runner(TRAIN)
            result = StepResult(number, self.options.on_nan, self._await)
            self._gradients.step = number
            self._run(runner, checked, result)
            self.number = number
            self.runs += 1
            self._gradients.raise_failed()
            if result.failed is not None:
                raise result.failed
            return result

    def finish(self) -> None:
        """Waits for all steps that were submitted. Raises what the first of them met that nobody was told of, when all are done."""
        with Executable.exclusive(self):
            self._steps.drain()
            self._steps.raise_untold()

    def _run(self, runner: Runner, inputs: Mapping[str, Array], result: StepResult) -> None:
        observed = self.runners.observer is not None
        if isinstance(runner, PlannedRunner) and not isinstance(runner, GuardedRunner) and not observed:
            self._steps.submit(runner, inputs, result)
            if not self._works_ahead:
                self._steps.take(result)
            return
        for name, array in inputs.items():
            runner.inputs[name][...] = array
        wanted = self._graph.outputs if self.mode == "reference" else self.read_back
        found = {name: np.array(array) for name, array in runner.run(tuple(dict.fromkeys(wanted))).items()}
        self._kept = found
        self._steps.settle(result, {name: found[name] for name in self.read_back})

    def _await(self, result: StepResult) -> None:
        with Executable.exclusive(self, wait=True):
            while not result.ready:
                self._steps.take(result)

    @contextmanager
    def exclusive(self, *, wait: bool = False) -> Iterator[None]:
        """Holds the executable for a call that is no step, with no step on its way: it may use the memory that steps are given their inputs in."""
        with super().exclusive(wait=wait):
            self._steps.drain()
            yield

    # gradients

    @property
    def gradient_names(self) -> tuple[str, ...]:
        """The parameters whose gradients are kept behind a step."""
        return self._gradients.names

    def gradient(self, name: str) -> Array:
        """A copy of a parameter's gradient of the last step, float32, as it was before it was clipped. Raises what `bind_grad_buffer` raises for names."""
        with self.exclusive():
            binding = self._gradients.binding(name)
            return np.array(self._kept[binding.name]) if self.mode == "reference" else self._gradients.read(name)

    def bind_grad_buffer(self, name: str, buffer: Any, *, zero: bool = True) -> None:
        """Has every later step put a parameter's gradient into the caller's memory: numpy, torch, DLPack or a `TensorView`, float32, contiguous, of exactly the
        parameter's shape and on the executable's device. It is zeroed now unless `zero` is False. The caller keeps it alive and in place.

        Raises `LifecycleError` for what is no parameter, a gradient that is not kept (`keep_gradients=True` keeps all) and one that is bound already,
        `InputError` for an unknown name, `ShapeError`, `DTypeError`, `LayoutError` (strides, alignment to 16 bytes, overlap, read-only memory) and
        `ConfigError` for memory of another device or the reference mode.
        """
        if self.mode == "reference":
            raise ConfigError(
                "the reference mode computes in memory of its own", node=name, hint='use mode="eager" or "planned"'
            )
        with self.exclusive():
            self._gradients.bind(name, buffer, zero=zero)
            self._remake()

    def unbind_grad_buffer(self, name: str) -> None:
        """Gives the gradient its own memory again, which is zero until the next step; the caller's keeps what it has. Raises `LifecycleError` where nothing is
        bound."""
        with self.exclusive():
            self._gradients.unbind(name)
            self._remake()

    def zero_grad(self) -> None:
        """Zeroes all kept gradients where they lie; no address changes. Steps do not need it: the first contribution replaces what is there."""
        with self.exclusive():
            for name in self._gradients.names:
                self._gradients.zero(name)
            self._kept = {name: np.zeros_like(array) for name, array in self._kept.items()}

    def on_gradient_ready(self, name: str, hook: Hook) -> Callable[[], None]:
        """Has `hook(ready)` called in every step, once, when the last contribution to a gradient is submitted; returns a function that takes it back.

        What a hook raises is raised by `step` when the whole step is submitted. Raises `ConfigError` in mode "captured", where no Python runs within a step
        (use `gradient_event`), and in the modes "reference" and "guarded"; otherwise what `bind_grad_buffer` raises for names.
        """
        if self.mode not in ("planned", "eager"):
            raise ConfigError(
                f'mode "{self.mode}" calls nobody within a step',
                node=name,
                hint='wait for gradient_event(name), or use mode="planned" or "eager"',
            )
        with self.exclusive():
            remove = self._gradients.watch(name, hook)
            self._remake()

        def take_back() -> None:
            with self.exclusive():
                remove()
                self._remake()

        return take_back

    def gradient_event(self, name: str) -> GradientEvent:
        """The event that every later step records behind the last contribution to a gradient, in a captured step too. `drop_gradient_event` ends that.

        Raises `ConfigError` in the modes "reference" and "guarded", otherwise what `bind_grad_buffer` raises for names.
        """
        if self.mode not in ("planned", "eager", "captured"):
            raise ConfigError(f'mode "{self.mode}" records no events', node=name, hint='use mode="planned"')
        with self.exclusive():
            event = self._gradients.event(name)
            self._remake()
            return event

    def drop_gradient_event(self, name: str) -> None:
        """Records the event of a gradient no more."""
        with self.exclusive():
            self._gradients.drop_event(name)
            self._remake()

    def _remake(self) -> None:
        """Lets go of the runner: the next step makes one for what has changed."""
        self._steps.forget()
        self.runners.renew(TRAIN)

    # what can be counted

    @property
    def submissions(self) -> int:
        """Native calls that submit one step, in the modes "planned" and "captured": 1, and 1 more for every place where somebody watches a gradient."""
        runner = self.runners.own(TRAIN)
        return getattr(runner, "submissions", 0)

    @property
    def gradient_marks(self) -> int:
        """Hooks called and events recorded so far; 0 where nobody watches."""
        return self._gradients.fired

    @property
    def accumulation(self) -> Accumulation:
        """How often the steps so far added to a gradient, and how often in its own bytes."""
        return accumulations_of(self._graph, self.plan, self.options.candidates).times(self.runs)

    def addresses(self) -> AddressTable:
        """Where every activation, gradient, parameter and state of the step lies. Raises `ConfigError` in the modes "eager" and "reference", which place each
        value anew."""
        return addresses_of(self.program.plan, self.plan, self.runners.planned(TRAIN).loaded.resolved)

    # as for every executable

    def save(self, path: str | os.PathLike[str], *, weights: bool = False, whole: bool = False) -> NoReturn:
        """Raises `ConfigError`: what is worth keeping of training is its state, and its plan by itself."""
        del path, weights, whole
        raise ConfigError(
            "a training step is not saved as an artifact",
            hint="ostinato.Checkpoints keep its parameters and moments, `plan_training(...).planned.save(...)` its plan",
        )

    def warm_up(self) -> None:
        """`prewarm`: a step on zeros would need a copy of all parameters and moments to put them back."""
        self.prewarm()

    def reset_state(self) -> None:
        """Parameters as the checkpoint has them, moments and the count of steps zero, and the next step is the first."""
        super().reset_state()
        self.number = 0

    def write_states(self, values: Mapping[str, Any]) -> None:
        """`Executable.write_states`; where `step` is among them, steps are numbered on from it. Raises `BoundsError` for one that no step is behind."""
        counted = np.asarray(values[STEP]) if STEP in values and STEP in self.state_names else None
        if counted is not None and counted.dtype == np.int32 and not ((counted >= 0) & (counted <= MOST_STEPS)).all():
            raise BoundsError(f"{counted.tolist()} steps, expected 0 to {MOST_STEPS}", node=STEP)
        super().write_states(values)
        if counted is not None:
            self.number = int(counted.reshape(-1)[0])

    @property
    def own_options(self) -> Mapping[str, Any]:
        return {"options": self.options, "standing": dict(self.runners.inputs.kept)}

    def divert(self, diversion: Diversion | None) -> None:
        """`Executable.divert`, with no step on its way."""
        with self.exclusive(wait=diversion is None):
            self._steps.forget()
        super().divert(diversion)
