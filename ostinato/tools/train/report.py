"""Reports of `ostinato train`."""

from __future__ import annotations

from typing import Literal

from ostinato.planner.memory_report import MemoryAnswer
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
    """`ostinato train --dry-run`: whether a step fits, and where its bytes go. `memory_limit` is the most that the arena may have, `memory` the answer of the
    plan against what the device has, where that was given.

    Where a step does not fit, `missing_bytes` says by how much and `message` who holds the others. Where no plan keeps `memory_limit`, they are of the smallest
    one found, and `memory` is of the plan without a limit. `chunks` are the pieces of the head, `extra_work` what values that are computed again cost, as a
    part of all work.
    """

    kind: Literal["train_plan"] = "train_plan"
    model: str
    target: str
    fits: bool
    missing_bytes: int
    memory_limit: int | None
    chunks: int
    extra_work: float
    memory: MemoryAnswer
    message: str
    seconds: float
