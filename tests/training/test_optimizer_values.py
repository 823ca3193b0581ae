"""Optimizers as checked values: the nine numbers that a step reads, what shapes its graph, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from ostinato.ir.errors import ConfigError
from ostinato.runtime.training.optimizer import SGD, AdamW


def test_adamw_settings_are_nine_numbers_in_order() -> None:
    optimizer = AdamW(
        lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, clip_norm=1.0, schedule="cosine", warmup_steps=10, total_steps=100
    )
    optimizer = dataclasses.replace(optimizer, final_ratio=0.25)
    expected = np.array([3e-4, 0.9, 0.95, 1e-8, 0.1, 1.0, 10, 100, 0.25], dtype=np.float32)
    assert optimizer.settings().dtype == np.float32
    assert optimizer.settings().tobytes() == expected.tobytes()


def test_sgd_settings_have_momentum_in_the_place_of_beta1() -> None:
    assert SGD(lr=0.5, momentum=0.75).settings().tolist() == [0.5, 0.75, 0, 0, 0, 0, 0, 0, 0]


def test_a_learning_rate_does_not_shape_the_graph_and_clipping_does() -> None:
    base = AdamW()
    assert dataclasses.replace(base, lr=0.5, weight_decay=0.3, betas=(0.5, 0.5)).structure == base.structure
    for change in ({"clip_norm": 1.0}, {"moments": "bf16"}, {"schedule": "linear", "total_steps": 5}):
        assert dataclasses.replace(base, **change).structure != base.structure
    assert SGD().structure != SGD(momentum=0.9).structure != SGD(momentum=0.9, nesterov=True).structure


def test_a_description_is_plain_json_with_every_field() -> None:
    given: dict[str, Any] = {"lr": np.float32(0.5), "clip_norm": np.int64(1), "warmup_steps": np.int32(3)}
    numpys = AdamW(**given)
    for optimizer in (AdamW(betas=(0.8, 0.9)), SGD(momentum=0.9), numpys):
        said = json.loads(json.dumps(optimizer.described()))
        assert said.pop("kind") == optimizer.kind
        assert type(optimizer)(**said) == optimizer


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (AdamW, {"lr": -1.0}, "lr is -1.0"),
        (AdamW, {"lr": float("nan")}, "lr is nan"),
        (AdamW, {"lr": True}, "lr is True"),
        (AdamW, {"betas": (0.9,)}, "expected two numbers"),
        (AdamW, {"betas": (0.9, 1.0)}, r"betas\[1\] is 1.0"),
        (AdamW, {"betas": (0.9, 0.99999999)}, r"betas\[1\]"),
        (AdamW, {"eps": 0.0}, "eps is 0.0"),
        (AdamW, {"eps": 1e-60}, "positive float32"),
        (AdamW, {"moments": "f16"}, "moments is 'f16'"),
        (AdamW, {"clip_norm": float("inf")}, "clip_norm is inf"),
        (AdamW, {"clip_norm": 1e-60}, "clip_norm is 1e-60, which is 0 in float32"),
        (AdamW, {"schedule": "step"}, "schedule is 'step'"),
        (AdamW, {"schedule": "cosine"}, "has no steps left"),
        (AdamW, {"schedule": "linear", "warmup_steps": 5, "total_steps": 5}, "has no steps left"),
        (AdamW, {"final_ratio": 1.5}, "final_ratio is 1.5"),
        (AdamW, {"warmup_steps": 1.5}, "warmup_steps is 1.5"),
        (SGD, {"momentum": 1.0}, "momentum is 1.0"),
        (SGD, {"nesterov": True}, "without momentum"),
        (SGD, {"nesterov": "yes", "momentum": 0.5}, "nesterov is 'yes'"),
    ],
)
def test_unusable_values_are_refused(kind: Any, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        kind(**given)
