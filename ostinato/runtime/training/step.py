"""What `ostinato.train_step` gives: a training executable with its optimizer, called on a batch.

The optimizer's numbers that may change between steps (learning rate, decay, clipping threshold, schedule lengths) are an input of the step: a new optimizer of
the same structure takes over with the next call, without a plan or capture of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError, InputError
from ostinato.ir.interp import Observer
from ostinato.ir.text import graph_hash
from ostinato.ir.training import SEED, SETTINGS, STEP, TRAIN
from ostinato.ir.types import Array
from ostinato.runtime.training.executable import TrainExecutable
from ostinato.runtime.training.optimizer import SGD, AdamW, Optimizer
from ostinato.runtime.training.record import json_hash
from ostinato.runtime.training.results import StepResult

__all__ = ["TrainStep"]


class TrainStep(TrainExecutable):
    """A whole training step, compiled: `step(input_ids, target)` runs it on int32 or int64 [B,T], the target of a token being the one that follows it, -100 for
    none. Made by `ostinato.train_step`; parameters, gradients, hooks and counters are those of `TrainExecutable`.
    """

    _optimizer: Optimizer | None = None

    def __call__(self, input_ids: Any, target: Any) -> StepResult:
        """One step. Returns when it is submitted, where the device works by itself; the result waits for its loss when asked. Raises what `step` raises."""
        return self.step({"input_ids": input_ids, "target": target})

    def clone(self, mode: str | None = None, observer: Observer | None = None, markers: bool | None = None) -> Self:
        """`Executable.clone`: it trains parameters of its own, from those of the checkpoint, by the optimizer of this one's next step."""
        made = super().clone(mode, observer, markers)
        made._optimizer = self._optimizer
        return made

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer of the next step; None for a step that gives gradients alone.

        Setting it replaces learning rate, betas and whatever else is a number. Raises `ConfigError` for one of another structure (kind, dtype of the moments,
        form of the schedule, whether gradients are clipped): that is another graph.
        """
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        held = self._optimizer
        if held is None:
            raise ConfigError("the step has no optimizer", hint="give train_step one")
        given: object = optimizer  # callers are not type-checked
        if not isinstance(given, AdamW | SGD):
            raise ConfigError(f"optimizer is {shown(given)}", hint="give ostinato.AdamW(...) or ostinato.SGD(...)")
        if optimizer.structure != held.structure:
            raise ConfigError(
                f"the step was compiled for {', '.join(filter(None, held.structure))}, found {', '.join(filter(None, optimizer.structure))}",
                hint="use dataclasses.replace(step.optimizer, lr=...), or compile another step",
            )
        self.start(optimizer, None)

    def start(self, optimizer: Optimizer | None, seed: int | None) -> None:
        """For who makes the step: its optimizer, and the seed of dropout where there is dropout."""
        self._optimizer = optimizer
        if optimizer is not None:
            self.keep_input(SETTINGS, optimizer.settings())
        if seed is not None and any(binding.name == SEED for binding in self.plan.inputs):
            self.keep_input(SEED, np.array([seed], np.int64))

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters by the names that they have in the checkpoint, float32 where they are trained in float32 or have a float32 master."""
        return {name: self.read_state(name) for name in self._state.parameters}

    def optimizer_state(self) -> dict[str, Array]:
        """Copies of the moments (`first.<name>`, `second.<name>` or `velocity.<name>`) and of `step`, int32 [1]: how many steps were applied."""
        trained = set(self._state.parameters)
        return {name: self.read_state(name) for name in self.state_names if name not in trained}

    def load(self, parameters: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Goes on from other parameters and state, all of them, as `parameters` and `optimizer_state` gave them.

        Raises `InputError` for names that are missing or unknown, and what `write_states` raises, before anything changed.
        """
        trained = set(self._state.parameters)
        held = set(self.state_names) - trained
        parts: Any = ((parameters, trained, "parameters"), (state, held, "state"))  # callers are not type-checked
        for tensors, wanted, what in parts:
            given = set(tensors) if isinstance(tensors, Mapping) else set()
            if given != wanted:
                lacks, more = sorted(wanted - given)[:4], sorted(map(str, given - wanted))[:4]
                raise InputError(
                    f"these {what} are of another step: missing {lacks}, unknown {more}",
                    hint="load what a step of the same model and optimizer gave",
                )
        self.write_states({**parameters, **state})

    @cached_property
    def computed_by(self) -> dict[str, str]:
        """What the last bits depend on beside the numbers: hashes of the graph and of the rows that run its nodes, and the device's instruction set. A
        checkpoint keeps it, so that a run that goes on with something else is told."""
        rows = {node: decision.row for node, decision in self.program.decisions.get(TRAIN, {}).items()}
        graph = self.program.original(TRAIN)
        nowhere = tuple(replace(node, location=None) for node in graph.nodes)
        return {"graph": graph_hash(replace(graph, nodes=nowhere)), "rows": json_hash(rows), "isa": self.device.isa}

    @property
    def applied_steps(self) -> int:
        """How many steps have been applied. Waits for those on their way."""
        return 0 if STEP not in self.state_names else int(self.read_state(STEP)[0])
