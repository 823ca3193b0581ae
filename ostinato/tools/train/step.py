"""The step of a run: `ostinato.train_step` as a configuration asks for it."""

from __future__ import annotations

from ostinato.frontend.model import Model
from ostinato.runtime.training.optimizer import Optimizer
from ostinato.runtime.training.step import TrainStep
from ostinato.runtime.weights import Progress
from ostinato.tools.train.config import TrainConfig
from ostinato.training import train_step

__all__ = ["make_step"]


def make_step(config: TrainConfig, model: Model, optimizer: Optimizer, progress: Progress | None = None) -> TrainStep:
    """Compiles and loads the step. Raises what `ostinato.train_step` raises."""
    data, train = config.data, config.train
    return train_step(
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
