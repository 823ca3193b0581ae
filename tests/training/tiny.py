"""Whole training steps of tiny models through the public door: what `ostinato.train_step` makes of a Llama whose head is tied and of a Qwen2 with biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost
from ostinato.ir.types import Array
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

__all__ = ["BATCH", "EMBED", "FAMILIES", "LENGTH", "VOCABULARY", "batch", "checkpoint", "make"]

BATCH, LENGTH, VOCABULARY = 4, 6, 40
EMBED = "model.embed_tokens.weight"
FAMILIES: Mapping[str, Mapping[str, Any]] = {"llama": {"tie_word_embeddings": True}, "qwen2": {}}
"""Family -> what its configuration says beside the sizes."""
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48}


def checkpoint(family: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint with seeded weights; `changes` go to its configuration."""
    config = small_config(family, **{**_SIZES, **FAMILIES[family], **changes})
    write_hf_checkpoint(folder, config, random_model(config, 3, std=0.1))
    return folder


def make(model: Path, **options: Any) -> ost.TrainStep:
    """A step, on one thread of the CPU unless a device is among the options."""
    given: dict[str, Any] = {"optimizer": ost.AdamW(lr=3e-3, clip_norm=1.0), "device": "cpu", **options}
    if given["device"] == "cpu":
        given["threads"] = 1
    return ost.train_step(model, batch=(BATCH, LENGTH), **given)


def batch(seed: int) -> tuple[Array, Array]:
    """Ids and targets, int32 [BATCH, LENGTH], of which some are ignored."""
    rng = np.random.default_rng([5, seed])
    ids, target = (rng.integers(0, VOCABULARY, (BATCH, LENGTH), dtype=np.int32) for _ in range(2))
    target[seed % BATCH, : seed % LENGTH] = -100
    return ids, target
