"""The step of a run, as the loop drives it."""

from __future__ import annotations

from ostinato.frontend.model import Model
from ostinato.ir.errors import NotYetAvailable
from ostinato.runtime.training.optimizer import Optimizer
from ostinato.tools.train.config import TrainConfig
from ostinato.tools.train.loop import Step

__all__ = ["make_step"]


def make_step(config: TrainConfig, model: Model, optimizer: Optimizer) -> Step:
    raise NotYetAvailable("the training step is on its way")
