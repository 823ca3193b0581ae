"""The step of a run: `ostinato.train_step` as a configuration asks for it, with the numbers of dropout's masks taken from the run.

A step that was skipped is a step of the run and none of the optimizer: so that a run that goes on draws the masks that it would have drawn, they follow the
former.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ostinato.frontend.model import Model
from ostinato.ir.training import COUNTER
from ostinato.ir.types import Array
from ostinato.runtime.training.optimizer import Optimizer
from ostinato.runtime.training.results import StepResult
from ostinato.runtime.training.step import TrainStep
from ostinato.runtime.weights import Progress
from ostinato.tools.train.config import TrainConfig
from ostinato.training import train_step

__all__ = ["NumberedStep", "make_step"]


class NumberedStep:
    """A compiled step that is told its number."""

    def __init__(self, step: TrainStep) -> None:
        self.step = step
        self._counts = any(binding.name == COUNTER for binding in step.plan.inputs)

    def __call__(self, number: int, input_ids: Array, target: Array) -> StepResult:
        """Step `number` of the run. Raises what `TrainStep.step` raises."""
        inputs: dict[str, Any] = {"input_ids": input_ids, "target": target}
        if self._counts:
            inputs[COUNTER] = np.array([number], np.int32)
        return self.step.step(inputs)

    def parameters(self) -> Mapping[str, Array]:
        return self.step.parameters()

    def optimizer_state(self) -> Mapping[str, Array]:
        return self.step.optimizer_state()

    @property
    def computed_by(self) -> Mapping[str, str]:
        return self.step.computed_by

    def load(self, parameters: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        self.step.load(parameters, state)


def make_step(
    config: TrainConfig, model: Model, optimizer: Optimizer, progress: Progress | None = None
) -> NumberedStep:
    """Compiles and loads the step. Raises what `ostinato.train_step` raises."""
    data, train = config.data, config.train
    step = train_step(
        model,
        batch=(data.batch, data.sequence),
        optimizer=optimizer,
        micro_batches=data.micro_batches,
        precision=train.precision,
        dropout=train.dropout,
        frozen=train.frozen,
        memory_limit=config.memory_limit,
        device=train.device,
        mode=train.mode,
        on_nan=train.on_nan,
        seed=train.seed,
        threads=train.threads,
        policy=train.policy,
        progress=progress,
    )
    return NumberedStep(step)
