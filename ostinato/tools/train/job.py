"""From a configuration to a run: the model that is gone on from or made, its step, its data, and the folder that holds all of it.

FOLDER/initial          the model that a run from nothing began with
FOLDER/checkpoints      see runtime/training/checkpoint.py
FOLDER/metrics.jsonl    one line a step
FOLDER/loss.svg         the curve
FOLDER/model            the trained model, a Hugging Face directory
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostinato.backend_hip.target import named_target
from ostinato.frontend.checkpoints.files import read_json
from ostinato.frontend.export import CONFIG, export_model
from ostinato.frontend.fresh import new_model
from ostinato.frontend.model import Model, load
from ostinato.frontend.training import TrainingShape
from ostinato.ir.errors import CapacityError, ConfigError
from ostinato.ir.files import write_text
from ostinato.ir.target import Target
from ostinato.ir.types import Array
from ostinato.runtime.training.checkpoint import Checkpoints
from ostinato.runtime.training.optimizer import Optimizer
from ostinato.runtime.training.record import json_hash
from ostinato.tools.train.config import NewModel, TrainConfig, read_config
from ostinato.tools.train.data import texts_of
from ostinato.tools.train.report import TrainPlanReport
from ostinato.training import PlannedTraining, Recipe, plan_training

__all__ = [
    "CHECKPOINTS",
    "CURVE",
    "METRICS",
    "MODEL",
    "export",
    "is_run",
    "opened",
    "plan_of_run",
    "planned",
    "recipe_of",
    "settings_of",
    "sketched",
]

INITIAL, CHECKPOINTS, METRICS, CURVE, MODEL = "initial", "checkpoints", "metrics.jsonl", "loss.svg", "model"
_MARK = "initial.json"


def opened(config: TrainConfig) -> Model:
    """The model that training goes on from: the one at `path`, or a new one, made in the run's folder if it is not there from before.

    Raises what `load` and `new_model` raise, and `ConfigError` where the folder holds a model of other settings.
    """
    if config.model.new is None:
        assert config.model.path is not None, "the configuration was checked"
        path = config.path(config.model.path)
        return load(path if os.path.exists(path) else config.model.path)
    new, folder = config.model.new, config.folder / INITIAL
    texts = texts_of(config) if new.tokenizer == "train" else None
    made_of = json_hash([new.model_dump(), texts])
    mark = config.folder / _MARK
    if folder.exists():
        ours = mark.is_file()
        if ours and read_json(mark, "mark of a new model").get("made_of") == made_of:
            return load(folder)
        if not ours or Checkpoints(config.folder / CHECKPOINTS).latest() is not None:
            raise ConfigError(
                f"{folder} was made from another configuration", hint="name another train.folder, or remove that one"
            )
        shutil.rmtree(folder)  # nothing was learned yet
    write_text(mark, f'{{"made_of": "{made_of}"}}\n')
    return _made(folder, new, texts)


def _made(folder: Path, new: NewModel, texts: list[str] | None, *, blank: bool = False) -> Model:
    return new_model(
        folder,
        new.config,
        tokenizer="bytes" if texts is None else texts,
        vocab_size=new.vocab_size if texts is not None else None,
        seed=new.seed,
        dtype=new.dtype,
        blank=blank,
    )


@contextmanager
def sketched(config: TrainConfig, *, blank: bool = True) -> Iterator[Model]:
    """The model to plan for; a new one without its weights (`blank`), in a folder that goes."""
    if config.model.new is None:
        yield opened(config)
        return
    texts = texts_of(config) if config.model.new.tokenizer == "train" else None
    with tempfile.TemporaryDirectory(prefix="ostinato-plan-") as place:
        model = _made(Path(place) / INITIAL, config.model.new, texts, blank=blank)
        try:
            yield model
        finally:
            model.checkpoint.close()


def recipe_of(config: TrainConfig, optimizer: Optimizer) -> Recipe:
    """What a step of the configuration does."""
    data = config.data
    shape = TrainingShape(data.batch, data.sequence, data.micro_batches)
    train = config.train
    return Recipe(shape, optimizer, precision=train.precision, dropout=train.dropout, frozen=tuple(train.frozen))


def planned(config: TrainConfig, target: str, memory: str | None, seconds_of: Callable[[], float]) -> TrainPlanReport:
    """Whether the step of a configuration fits, and where its bytes go; nothing is loaded and no device is asked.

    `memory` is what the device has, as a text like "24GiB", and `seconds_of()` are seconds since the command began. Raises what planning raises, but for a
    limit of memory that nothing keeps: that is in the report.
    """
    limit = config.memory_limit
    with sketched(config) as model:
        recipe = recipe_of(config, config.made_optimizer())
        settings: Mapping[str, Any] = {"target": named_target(target), "policy": config.train.policy}
        message, missing = "", 0
        try:
            made = plan_training(model, recipe, memory_limit=limit, **settings)
        except CapacityError as error:
            if error.missing_bytes is None:
                raise
            message, missing = str(error), error.missing_bytes
            made = plan_training(model, recipe, **settings)
        answer = made.memory(memory)
        if not (message or answer.fits):
            message, missing = answer.verdict, answer.missing
            if missing < answer.arena:
                message += f"; train.memory_limit = {answer.arena - missing} asks for a plan that fits"
        return TrainPlanReport(
            model=config.model.path or str(config.folder / INITIAL),
            target=target,
            fits=not message,
            missing_bytes=missing,
            memory_limit=limit,
            chunks=made.step.recipe.shape.pieces,
            extra_work=made.planned.plan.stats.extra_work,
            memory=answer,
            message=message,
            seconds=seconds_of(),
        )


def is_run(name: str) -> bool:
    """Whether a name is that of the configuration of a training run: it ends in ".toml"."""
    return name.lower().endswith(".toml")


def plan_of_run(path: Path, target: Target) -> PlannedTraining:
    """The planned step of a training run: its file says everything but the target, which need not be here. No weight is loaded.

    Raises what reading the configuration and `plan_training` raise.
    """
    config = read_config(path)
    with sketched(config) as model:
        return plan_training(
            model,
            recipe_of(config, config.made_optimizer()),
            memory_limit=config.memory_limit,
            target=target,
            policy=config.train.policy,
        )


def settings_of(config: TrainConfig, model: Model) -> dict[str, Any]:
    """What the results of a run depend on, beside data, optimizer and seed, as a checkpoint keeps it: the model's configuration among it."""
    source = model.checkpoint.path / CONFIG
    raw = read_json(source, "model configuration") if source.is_file() else {"checkpoint": model.checkpoint.path.name}
    return {"model": raw, "train": config.compared()}


def export(config: TrainConfig, model: Model, parameters: Mapping[str, Array]) -> Path:
    """Writes the trained model into the run's folder, in the place of one from an earlier end of this run. Raises what `export_model` raises."""
    folder, aside = config.folder / MODEL, config.folder / f".old-{MODEL}"
    made = config.folder / f".new-{MODEL}"
    for left in (made, aside):
        shutil.rmtree(left, ignore_errors=True)
    export_model(model, parameters, made, dtype=config.train.export)
    if folder.exists():
        folder.rename(aside)
    made.rename(folder)
    shutil.rmtree(aside, ignore_errors=True)
    return folder
