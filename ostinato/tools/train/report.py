"""Reports of `ostinato train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ostinato.tools.report import Report

__all__ = ["TrainPlanReport", "TrainReport"]


class TrainReport(Report):
    """`ostinato train`: what was trained and where it lies. `loss` is the last one, null where no step was run."""

    kind: Literal["train"] = "train"
    model: str
    parameters: int
    steps: int
    done: int
    stopped: bool
    resumed_at: int | None
    loss: float | None
    skipped: int
    tokens: int
    seconds: float
    tokens_per_second: float | None
    checkpoint: str
    exported: str | None
    files: tuple[str, ...]
    sample: str | None


class TrainPlanReport(Report):
    """`ostinato train --dry-run`: whether a step fits. `regions` as in `plan`; `peak` are the tensors alive at the peak of the arena, with bytes and line.

    Where it does not fit, `missing_bytes` are those that the smallest plan found lacks, `message` says who holds the others, and all else is said of the plan
    without a limit.
    """

    class Tensor(Report):
        """A tensor alive at the peak; `line` is the model code that made it."""

        name: str
        bytes: int
        line: str | None

    kind: Literal["train_plan"] = "train_plan"
    model: str
    target: str
    fits: bool
    missing_bytes: int
    memory_limit: int | None
    arena_bytes: int
    lower_bound: int
    recomputed: int
    extra_work: float
    regions: Mapping[str, int]
    total_bytes: int
    peak: tuple[Tensor, ...]
    message: str
    seconds: float
