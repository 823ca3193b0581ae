"""A step without a graph: parameters that move by what the batch says, in numpy, so that what surrounds a step is tested in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.frontend.model import Model
from ostinato.ir.types import Array
from ostinato.runtime.training.optimizer import Optimizer
from ostinato.runtime.weights import Progress
from ostinato.tools.train.config import TrainConfig

__all__ = ["FakeResult", "FakeStep", "make_fake_step"]


@dataclass(frozen=True, slots=True)
class FakeResult:
    """A step's numbers."""

    loss: float
    learning_rate: float
    gradient_norm: float


class FakeStep:
    """Every parameter goes by a momentum of the batch's mean; the loss falls with the steps."""

    def __init__(self, model: Model, lr: float) -> None:
        self._parameters = {
            name: np.array(model.checkpoint.map(name).view(source.dtype.numpy).reshape(source.shape), np.float32)
            for name, source in model.checkpoint.tensors.items()
        }
        self._first = {f"first.{name}": np.zeros_like(value) for name, value in self._parameters.items()}
        self._step = np.zeros(1, np.int32)
        self.number = 0
        self._lr = lr

    def __call__(self, input_ids: Array, target: Array) -> FakeResult:
        drive = np.float32(input_ids.mean() - target.std())
        self._step += 1
        self.number += 1
        assert self.number == self._step[0]
        for name, value in self._parameters.items():
            first = self._first[f"first.{name}"]
            first *= np.float32(0.9)
            first += drive
            value -= np.float32(self._lr) * first
        return FakeResult(float(5.0 / np.sqrt(self._step[0]) + drive * 1e-4), self._lr, abs(float(drive)))

    def parameters(self) -> Mapping[str, Array]:
        return {name: value.copy() for name, value in self._parameters.items()}

    def optimizer_state(self) -> Mapping[str, Array]:
        return {**{name: value.copy() for name, value in self._first.items()}, "step": self._step.copy()}

    @property
    def computed_by(self) -> Mapping[str, str]:
        return {"rows": f"those of a step of {len(self._parameters)} parameters"}

    def load(self, parameters: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        self._parameters = {name: value.copy() for name, value in parameters.items()}
        self._first = {name: value.copy() for name, value in state.items() if name != "step"}
        self._step = np.array(state["step"])


def make_fake_step(config: TrainConfig, model: Model, optimizer: Optimizer, progress: Progress) -> FakeStep:
    del config, progress
    return FakeStep(model, optimizer.lr)
