"""What a whole-model run of training is: the step of a run's configuration, forward, backward and optimizer, on tokens of chance.

t8x128  a step on 8 sequences of 128 tokens

The configuration says all of it: shape, precision, optimizer, dropout, what is frozen, the limit of memory, device and threads; its data, steps, mode and
policy are not read. What is judged is what a step leaves: its loss, parameters, moments. While it is judged AdamW has a larger `eps`: with the usual one an
update is nearly the sign of a gradient, and one whose last bit differs about zero would count as much as one that is wrong. While it is timed the learning rate
is 0, so that no number of steps spoils the parameters. Both are numbers that the step reads, in the same program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from ostinato.frontend.model import CacheShape, Model
from ostinato.frontend.training import TrainingShape
from ostinato.ir.types import Array
from ostinato.runtime.device import Device
from ostinato.runtime.memory import MemoryReport
from ostinato.runtime.training.optimizer import AdamW, Optimizer
from ostinato.runtime.training.step import TrainStep
from ostinato.stages import Entries, positions_of, trace
from ostinato.tools.evidence.candidates import Options
from ostinato.tools.evidence.workloads import CHECKED_TOKENS, Workload, median_seconds
from ostinato.tools.train.config import TrainConfig, read_config
from ostinato.tools.train.job import recipe_of, sketched
from ostinato.training import plan_training, trace_training_step

__all__ = [
    "TrainingWork",
    "decoding_entries",
    "described",
    "has_bf16_moments",
    "training_entries",
    "training_model",
    "workload_of",
]

_STEPS = 2
"""Steps that are judged: the second one reads what the first one wrote."""
_SAMPLES = 256
"""Values that are looked at of each parameter and moment, spread over all of it."""
_JUDGED_RATE, _JUDGED_EPS = 1e-3, 1e-3


def workload_of(config: TrainConfig) -> Workload:
    """The one workload of a training run."""
    return Workload("t", config.data.batch, config.data.sequence)


def described(config: TrainConfig) -> str:
    """What shapes a step beside model, batch and precision: "adamw f32 cosine clipped"."""
    parts = [part for part in config.made_optimizer().structure if part not in ("", "constant")]
    if config.data.micro_batches > 1:
        parts.append(f"{config.data.micro_batches} micro-batches")
    return " ".join(parts)


def has_bf16_moments(config: TrainConfig) -> bool:
    """Whether a step keeps some of what it leaves in bf16, whatever its precision."""
    optimizer = config.made_optimizer()
    return isinstance(optimizer, AdamW) and optimizer.moments == "bf16"


@contextmanager
def training_model(path: Path) -> Iterator[tuple[TrainConfig, str, Model]]:
    """The configuration in a file, and the model that its run begins with, by a name that opens it; a new one is made in a folder that goes. Raises what
    `read_config` and opening or making the model raise."""
    config = read_config(path)
    with sketched(config, blank=False) as model:
        named = config.model.path
        by_name = named is not None and not config.path(named).exists()
        yield config, named if named is not None and by_name else str(model.checkpoint.path), model


def training_entries(config: TrainConfig, model: Model) -> Entries:
    """The step, named like its workload. Raises what tracing it raises."""
    step = trace_training_step(model, recipe_of(config, config.made_optimizer()))
    return {str(workload_of(config)): (step.traced, {})}


def decoding_entries(config: TrainConfig, model: Model) -> Entries:
    """How the same model prefills and decodes: what runs of its training say nothing about."""
    positions, precision = positions_of(model, None), config.train.precision
    cache = CacheShape(1, positions, 1)
    step = trace(model, "step", cache=cache, precision=precision, sampling=True)
    decode = trace(model, "decode", cache=cache, precision=precision)
    return {"step": (step, {"N": min(config.data.sequence, positions), "R": 1}), "decode": (decode, {"R": 1})}


class TrainingWork:
    """The step of a training run, compiled with a candidate's options."""

    def __init__(
        self, config: TrainConfig, model: Model, device: Device, precision: str, mode: str, options: Options
    ) -> None:
        self._config, self._model, self._device = config, model, device
        self._mode, self._options = mode, options
        self._optimizer = config.made_optimizer()
        self._recipe = dataclasses.replace(recipe_of(config, self._optimizer), precision=precision)

    @property
    def memory(self) -> MemoryReport:
        return self._step.memory

    def checked(self, workload: Workload) -> Array:
        """What steps of the same recipe leave whose sequences are few and short; see `full`."""
        shape = self._recipe.shape
        rows, tokens = shape.micro_batches, min(workload.length, CHECKED_TOKENS)
        small = TrainingShape(rows, tokens, shape.micro_batches)
        return self._left(self._made(small, limited=False), small)

    def full(self, workload: Workload) -> Array:
        """What steps leave from the beginning: float32 [values, samples], the losses first, then each parameter and each of its moments by name."""
        del workload
        self._step.reset_state()
        return self._left(self._step, self._recipe.shape)

    def seconds(self, workload: Workload, seconds: float, clock: Callable[[], float]) -> float:
        """`Work.seconds`."""
        del workload
        step, batch = self._step, self._batch(self._recipe.shape, 0)
        step.optimizer = dataclasses.replace(self._optimizer, lr=0.0)

        def run(count: int, clock: Callable[[], float]) -> float:
            begin = clock()
            for _ in range(count):
                step(*batch)
            step.finish()
            return (clock() - begin) / count

        return median_seconds(run, seconds, clock)

    @cached_property
    def _step(self) -> TrainStep:
        return self._made(self._recipe.shape, limited=True)

    def _made(self, shape: TrainingShape, *, limited: bool) -> TrainStep:
        planned = plan_training(
            self._model,
            dataclasses.replace(self._recipe, shape=shape),
            target=self._device.target,
            memory_limit=self._config.memory_limit if limited else None,
            mode=self._mode,
            disable=self._options.disable,
            policy=self._options.policy,
        )
        train = self._config.train
        return planned.load(self._device, self._mode, on_nan=train.on_nan, seed=train.seed)

    def _left(self, step: TrainStep, shape: TrainingShape) -> Array:
        step.optimizer = _judged(self._optimizer)
        losses = [step(*self._batch(shape, number)).loss for number in range(_STEPS)]
        values = [np.array(losses, np.float32), *(step.read_state(name) for name in sorted(step.state_names))]
        return np.stack([_sampled(array) for array in values])

    def _batch(self, shape: TrainingShape, number: int) -> tuple[Array, Array]:
        """Tokens and targets of chance, int32 [B,T]; the last token of a sequence has no target."""
        rng, size = np.random.default_rng([5, number]), (shape.batch, shape.sequence)
        ids, target = (rng.integers(0, self._model.config.vocab_size, size, dtype=np.int32) for _ in range(2))
        if shape.sequence > 1:
            target[:, -1] = -100
        return ids, target


def _judged(optimizer: Optimizer) -> Optimizer:
    """The optimizer with numbers by which what a step leaves follows its gradients smoothly."""
    if isinstance(optimizer, AdamW):
        optimizer = dataclasses.replace(optimizer, eps=_JUDGED_EPS)
    return dataclasses.replace(optimizer, lr=_JUDGED_RATE, warmup_steps=0)


def _sampled(array: Array) -> Array:
    """So many values of an array, from its first to its last, as float32."""
    flat = array.reshape(-1)
    return flat[np.linspace(0, flat.size - 1, _SAMPLES).astype(np.int64)].astype(np.float32)
