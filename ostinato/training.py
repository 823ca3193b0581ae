"""The wiring of training: model -> traced -> differentiated -> with its optimizer -> lowered -> planned -> a step that runs.

A whole step is one entry, `train`: forward, backward, optimizer, dropout and schedule. It is lowered, planned and proven like any other; what is particular to
it is where it comes from (`frontend/training.py`, `passes/training_graph.py`) and what drives it (`runtime/training`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, partial

from ostinato.backend_hip.evidence.first_use import with_validation
from ostinato.frontend.model import Model
from ostinato.frontend.source import CheckpointSource
from ostinato.frontend.training import TrainingShape, trace_training
from ostinato.ir.checks import boolean, instance, integer, shown
from ostinato.ir.errors import CapacityError, ConfigError
from ostinato.ir.graph import Graph, Role
from ostinato.ir.precision import PrecisionPolicy
from ostinato.ir.target import Target
from ostinato.ir.training import TRAIN
from ostinato.ir.types import DType
from ostinato.passes.pipeline import settled_options
from ostinato.passes.policy import Policy
from ostinato.passes.training_graph import TrainingGraph, Updates, training_graph
from ostinato.passes.training_order import in_training_order
from ostinato.planner.memory_report import MemoryAnswer, memory_answer
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.planner.recompute.fit import least_arena
from ostinato.planner.settings import PlanSettings
from ostinato.runtime.device import Device
from ostinato.runtime.executable import load_program
from ostinato.runtime.options import check_progress, settle_route
from ostinato.runtime.program import Program
from ostinato.runtime.training.executable import TrainOptions
from ostinato.runtime.training.optimizer import SGD, AdamW, Optimizer
from ostinato.runtime.training.step import TrainStep
from ostinato.runtime.weights import Progress
from ostinato.stages import Lowered, Passes, Planned, Traced, open_device, open_model, plan_settings

__all__ = ["PlannedTraining", "Recipe", "TracedTraining", "plan_training", "trace_training_step", "train_step"]

MOST_CHUNKS = 16
"""Pieces of the head that are tried for a limit of memory, where computing activations again is not enough."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a step does. `frozen` are patterns of weights that are not trained ("model.embed*"); `keep_gradients` makes them outputs, `grad.<name>`, with
    bytes of their own; without an optimizer they are all that the step gives beside the loss."""

    shape: TrainingShape
    optimizer: Optimizer | None = field(default_factory=AdamW)
    precision: str | PrecisionPolicy = "auto"
    dropout: float = 0.0
    frozen: Sequence[str] = ()
    keep_gradients: bool = False

    def __post_init__(self) -> None:
        """Raises `ConfigError` for an argument of another type."""
        instance(self.shape, TrainingShape, "shape")
        given: object = self.optimizer  # callers are not type-checked
        if given is not None and not isinstance(given, AdamW | SGD):
            raise ConfigError(
                f"optimizer is {shown(given)}", hint="give ostinato.AdamW(...), ostinato.SGD(...) or None"
            )
        patterns: object = self.frozen
        if not isinstance(patterns, list | tuple) or not all(isinstance(item, str) for item in patterns):
            raise ConfigError(f"frozen is {shown(patterns)}", hint='give a list of patterns like ["model.embed*"]')
        object.__setattr__(self, "frozen", tuple(patterns))
        boolean(self.keep_gradients, "keep_gradients")


@dataclass(frozen=True, slots=True)
class TracedTraining:
    """The graph of a whole step before any pass. `parts` says which value is whose gradient and master."""

    recipe: Recipe
    traced: Traced
    parts: TrainingGraph

    def __str__(self) -> str:
        return str(self.traced)

    def lower(
        self,
        target: Target,
        *,
        levels: Mapping[str, str] | None = None,
        disable: Iterable[str] = (),
        policy: Policy | str = "balanced",
        passes: Passes = (),
    ) -> Lowered:
        """The graph after the passes. Raises what `Traced.lower` raises."""
        precision = self.traced.precision
        options = settled_options(None, precision, levels=levels, disable=disable, policy=policy, passes=passes)
        return self.traced.lower(target, dims={}, name=TRAIN, options=options)


@dataclass(frozen=True, slots=True)
class PlannedTraining:
    """A planned and proven step."""

    step: TracedTraining
    planned: Planned

    def __str__(self) -> str:
        return str(self.planned)

    @property
    def graph(self) -> Graph:
        """The graph that is planned: with clones where a limit of memory asked for them."""
        return self.planned.graph

    @property
    def program(self) -> Program:
        """The step as what is loaded: its plan, graphs and decisions, and the checkpoint that its parameters come from."""
        name, lowered = TRAIN, self.planned.lowered
        return Program(
            self.planned.program,
            {name: self.graph},
            lowered.target,
            CheckpointSource(self.planned.model.checkpoint),
            {name: lowered.graph},
            {name: lowered.decisions},
            lowered.validations,
            {name: lowered.relower},
        )

    def memory(self, limit: int | str | None = None) -> MemoryAnswer:
        """What the step takes of a device, to the byte, with no device at hand; against a limit, such as what a device has free, it says that the step fits or
        how many bytes are missing, and which tensors of which lines hold the most. Raises `ConfigError` for a limit that is no number of bytes."""
        return memory_answer(self.planned.program, self.graph, limit=limit)

    def load(
        self,
        device: Device | str = "auto",
        mode: str = "auto",
        *,
        on_nan: str = "raise",
        seed: int = 0,
        on_fallback: str = "report",
        capture: Sequence[str] | None = None,
        markers: bool | None = None,
        progress: Progress | None = None,
    ) -> TrainStep:
        """The step on a device, with parameters as the checkpoint has them. Raises what `train_step` raises for device, mode, capture, policy and seed."""
        options = TrainOptions(on_nan, candidates=self.step.parts.added)
        words = integer(seed, "seed", low=-(2**63), high=2**63 - 1)
        route = settle_route(open_device(device), mode, on_fallback, capture, markers)
        made = load_program(self.program, route, progress=progress, kind=partial(TrainStep, options=options))
        made.start(self.step.recipe.optimizer, words)
        return made


def train_step(
    model: Model | str | os.PathLike[str],
    *,
    batch: tuple[int, int],
    loss: str = "cross_entropy",
    optimizer: Optimizer | None = None,
    micro_batches: int = 1,
    chunks: int | None = None,
    precision: str | PrecisionPolicy = "auto",
    dropout: float = 0.0,
    frozen: Sequence[str] = (),
    keep_gradients: bool = False,
    memory_limit: int | str | None = None,
    device: str | Device = "auto",
    mode: str = "auto",
    on_nan: str = "raise",
    seed: int = 0,
    threads: int = 0,
    isa: str = "auto",
    on_fallback: str = "report",
    capture: Sequence[str] | None = None,
    markers: bool | None = None,
    levels: Mapping[str, str] | None = None,
    disable: Iterable[str] = (),
    policy: Policy | str = "balanced",
    passes: Passes = (),
    validate: str | None = None,
    progress: Progress | None = None,
) -> TrainStep:
    """Compiles a whole training step of a decoder for batches of `batch` = (sequences, tokens each): forward, backward, optimizer as one plan and one replay.

    `loss` is "cross_entropy": the mean over the targets that are not -100, in float32. Without an `optimizer` the step gives loss and gradients. With
    `micro_batches` the batch is worked through in equal parts, whose gradients add up to those of the whole. `precision` "bf16" multiplies in bf16 and keeps
    float32 masters; "auto" is the checkpoint's. `dropout` zeroes that share of the embeddings and of what attention and feed-forward add. `frozen` are
    patterns of weights that stay as they are. `keep_gradients` gives every gradient bytes of its own, to be read, bound and watched; projections of one input
    are then not joined, and a norm that is clipped may differ in its last bit. `memory_limit` is the most that activations and gradients may take (the arena):
    values are computed again for it, to the same bits; where that is not enough the head is cut into pieces, unless you say in how many `chunks`. A head in
    pieces adds its gradient up piece by piece, whose last bits may differ: give `chunks` where steps must be equal whatever the limit.
    `on_nan`: a step whose loss (or norm of gradients, where they are clipped) is not finite changes nothing, and "raise"s or is "skip"ped and counted.
    The other arguments are those of `ostinato.compile`.

    Raises `ConfigError` for arguments that cannot be used, `BoundsError` for more tokens than the model has positions and more than 512 micro-batches,
    `DTypeError` for weights that cannot be trained, `CapacityError` for a limit that no plan found keeps or a device that is too small, with the tensors at the
    peak and their lines, and what `ostinato.compile` raises.
    """
    if loss != "cross_entropy":
        raise ConfigError(f"loss is {shown(loss)}", hint='the loss of a decoder is "cross_entropy"')
    sizes: object = batch  # callers are not type-checked
    if not isinstance(sizes, tuple | list) or len(sizes) != 2:
        raise ConfigError(f"batch is {shown(batch)}", hint="give (sequences, tokens of each), such as (4, 128)")
    check_progress(progress)
    TrainOptions(on_nan)
    opened = open_device(device, threads, isa)
    settle_route(opened, mode, on_fallback, capture, markers)  # refuses before anything is planned
    shape = TrainingShape(*batch, micro_batches, chunks)
    recipe = Recipe(shape, optimizer, precision, dropout, frozen, keep_gradients)
    planned = plan_training(
        model,
        recipe,
        target=with_validation(opened.target, validate, progress),
        memory_limit=memory_limit,
        mode=mode,
        levels=levels,
        disable=disable,
        policy=policy,
        passes=passes,
    )
    return planned.load(
        opened,
        mode,
        on_nan=on_nan,
        seed=seed,
        on_fallback=on_fallback,
        capture=capture,
        markers=markers,
        progress=progress,
    )


def trace_training_step(model: Model | str | os.PathLike[str], recipe: Recipe) -> TracedTraining:
    """Traces a step: forward, loss, gradients and optimizer.

    Raises what `trace_training` and `training_graph` raise, and `ConfigError` for a pattern of frozen weights that fits none and patterns that fit all.
    """
    opened = open_model(model)
    graph = trace_training(opened, recipe.shape, precision=recipe.precision, dropout=recipe.dropout)
    weights = [item.value.name for item in graph.with_role(Role.WEIGHT)]
    if idle := [pattern for pattern in recipe.frozen if not any(fnmatchcase(name, pattern) for name in weights)]:
        raise ConfigError(f"no weight is called like {', '.join(idle)}", hint=f"weights: {', '.join(weights[:8])} ...")
    frozen = [name for name in weights if any(fnmatchcase(name, pattern) for pattern in recipe.frozen)]
    if len(frozen) == len(weights):
        raise ConfigError("all weights are frozen: there is nothing to train", hint="leave some out of frozen")
    updates = None if recipe.optimizer is None else _updates(recipe.optimizer)
    parts = training_graph(graph, updates, keep_gradients=recipe.keep_gradients, frozen=frozen)
    parts = replace(parts, graph=in_training_order(parts.graph))
    return TracedTraining(recipe, Traced(opened, parts.graph, opened.precision(recipe.precision)), parts)


def plan_training(
    model: Model | str | os.PathLike[str],
    recipe: Recipe,
    *,
    target: Target | None = None,
    memory_limit: int | str | None = None,
    mode: str = "auto",
    levels: Mapping[str, str] | None = None,
    disable: Iterable[str] = (),
    policy: Policy | str = "balanced",
    passes: Passes = (),
) -> PlannedTraining:
    """Traces, lowers, plans and proves a step for a target, that of the CPU by default. Nothing is allocated on a device.

    `memory_limit` is the most that activations and gradients may take (the arena), in bytes or as a text like "512M": values are computed again where that
    costs least, and where that is not enough the head is cut into pieces as well, unless their number is given. With `mode` "guarded" guards lie between the
    tensors.

    Raises `CapacityError` for a limit that no plan found keeps: how many bytes are missing, and the tensors at the peak with their lines; and what tracing,
    lowering and planning raise.
    """
    opened, settings = open_model(model), plan_settings(memory_limit, mode=mode)
    wanted = open_device("cpu").target if target is None else target

    def lowered(tried: Recipe) -> tuple[TracedTraining, Lowered]:
        step = trace_training_step(opened, tried)
        return step, step.lower(wanted, levels=levels, disable=disable, policy=policy, passes=passes)

    step, made, graph, plan = _fitted(lowered, recipe, settings)
    planned = Planned(opened, made, graph, build_program({TRAIN: (graph, plan)}))
    planned.check()
    return PlannedTraining(step, planned)


def _fitted(
    lowered: Callable[[Recipe], tuple[TracedTraining, Lowered]], recipe: Recipe, settings: PlanSettings
) -> tuple[TracedTraining, Lowered, Graph, EntryPlan]:
    """The step within a limit of memory, with its graph and plan: with the fewest pieces of the head that do, if the user left their number open.

    Computing activations again costs a few percent and changes no bit. Pieces cost more, since each reads and writes all of the gradient of the head. Numbers
    of them are tried in the same order whatever the limit, so that a higher one never has more.
    """
    limit, shape = settings.memory_limit, recipe.shape
    if limit is None or shape.chunks is not None:
        step, made = lowered(recipe)
        return step, made, *made.fit_entry(settings)
    numbers = [1 << power for power in range(MOST_CHUNKS.bit_length()) if 1 << power <= shape.tokens]

    @cache
    def tried(number: int) -> tuple[TracedTraining, Lowered, int]:
        step, made = lowered(replace(recipe, shape=replace(shape, chunks=number)))
        return step, made, least_arena(made.graph, made.target, settings=settings)

    ends = (numbers[0], numbers[-1])  # between them the hungriest step takes no less than in the better of the two
    hopeless = all(tried(number)[2] > limit for number in ends)
    short: list[tuple[int, int]] = []  # what no plan goes below, in that many pieces
    for number in ends if hopeless else numbers:
        step, made, least = tried(number)
        if least > limit:
            short.append((least, number))
            continue
        try:
            return step, made, *made.fit_entry(settings, thorough=False)
        except CapacityError as error:
            short.append((limit + (error.missing_bytes or 0), number))
    step, made, _ = tried(min(short)[1])
    return step, made, *made.fit_entry(settings)


def _updates(optimizer: Optimizer) -> Updates:
    """The optimizer as the graph needs to know it."""
    clip = bool(optimizer.clip_norm)
    if isinstance(optimizer, AdamW):
        return Updates("adamw", DType(optimizer.moments), optimizer.schedule, clip)
    kind = "sgd_momentum" if optimizer.momentum else "sgd"
    return Updates(kind, DType.F32, optimizer.schedule, clip, optimizer.nesterov)
