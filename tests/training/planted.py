"""Timing records as `ostinato evidence tune` writes them, made up."""

from __future__ import annotations

from typing import Any

import ostinato as ost
from ostinato.backend_hip.evidence.gates import BASELINE
from ostinato.backend_hip.evidence.records import Environment, RunFigures, TimingRecord
from ostinato.frontend.training import TrainingShape
from ostinato.training import Recipe
from tests.training.tiny import BATCH, LENGTH

__all__ = ["gained", "recipe"]


def gained(policy: str, subject: str, environment: Environment, *, ratio: float = 1.1, **fields: Any) -> TimingRecord:
    """A run of a model's training step in which a policy was so many times as fast as the default, with the same bits."""
    common = {"scope": "model", "workload": f"t{BATCH}x{LENGTH} f32 adamw f32, 1 thread", "outputs": "equal"}
    return TimingRecord.made(
        environment=environment,
        subject=subject,
        ratio=ratio,
        passed=ratio >= 1.01,
        candidate=RunFigures(name=policy, seconds=(1.0,) * 3),
        baseline=RunFigures(name=BASELINE, seconds=(ratio,) * 3),
        **{**common, **fields},
    )


def recipe() -> Recipe:
    """What `tiny.make` compiles."""
    return Recipe(TrainingShape(BATCH, LENGTH), ost.AdamW(lr=3e-3, clip_norm=1.0))
