"""Small snapshots of a training run that never was, and a comparison of two."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ostinato.ir.types import Array
from ostinato.runtime.training.checkpoint import Snapshot
from ostinato.runtime.training.optimizer import AdamW

SHAPES = {"model.b": (3, 5), "model.a": (4,), "scalar": (), "none": (0, 7)}


def snapshot(step: int, **changes: Any) -> Snapshot:
    """What a run has after `step` steps: every number follows from it."""
    random = np.random.default_rng(step)
    parameters: dict[str, Array] = {
        name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()
    }
    state: dict[str, Array] = {f"first.{name}": value.astype(ml_dtypes.bfloat16) for name, value in parameters.items()}
    state["step"] = np.array([step], dtype=np.int32)
    values: dict[str, Any] = {
        "step": step,
        "parameters": parameters,
        "state": state,
        "optimizer": AdamW(lr=3e-4).described(),
        "seed": 11,
        "data": {"epoch": step // 8, "batch": step % 8, "identity": "some tokens"},
        "configs": {"model": {"hidden_size": 3, "rope_theta": 1e4}, "precision": "f32"},
        "computed_by": {"graph": "a", "rows": "b"},
    }
    return Snapshot(**{**values, **changes})


def same(left: Snapshot, right: Snapshot) -> bool:
    """Whether two snapshots hold the same bits."""
    for one, other in ((left.parameters, right.parameters), (left.state, right.state)):
        if set(one) != set(other):
            return False
        for name in one:
            a, b = one[name], other[name]
            if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                return False
    told = [(s.step, dict(s.optimizer), s.seed, s.data, dict(s.configs), dict(s.computed_by)) for s in (left, right)]
    return told[0] == told[1]
