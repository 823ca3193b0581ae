"""Whole training steps of a model on a GPU: every mode has the same bits, a step is one graph launch at the same addresses, within a limit of memory too, and
they are those of the CPU within the contract."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.backend_hip.hip_device import HipDevice
from ostinato.runtime.training.optimizer import AdamW
from tests.training.steps import state_of
from tests.training.tiny import EMBED, batch, checkpoint, make

MODES = ("eager", "planned", "guarded", "captured")
RATES = {0: 3e-3, 1: 1e-3, 3: 0.0}
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=1)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_every_mode_has_the_same_bits_and_a_captured_step_is_one_graph(
    precision: str, gpu: HipDevice, folder: Path
) -> None:
    options = {"micro_batches": 2, "dropout": 0.1, "seed": 3, "precision": precision, "keep_gradients": True}
    captured = make(folder, device=gpu, mode="captured", **options)
    exes = {"captured": captured, **{mode: captured.clone(mode) for mode in MODES if mode != "captured"}}
    oracle = make(folder, **options)
    addresses = captured.addresses()
    for number in range(STEPS):
        for exe in (*exes.values(), oracle):
            if number in RATES:
                assert exe.optimizer is not None
                exe.optimizer = replace(exe.optimizer, lr=RATES[number])
        found = {mode: exe(*batch(number)) for mode, exe in exes.items()}
        assert len({(r.loss, r.learning_rate, r.gradient_norm) for r in found.values()}) == 1
        assert captured.addresses() == addresses
        near = 1e-4 if precision == "f32" else 2e-2
        assert found["captured"].loss == pytest.approx(oracle(*batch(number)).loss, rel=near)
    states = {mode: state_of(exe) for mode, exe in exes.items()}
    assert all(state == states["captured"] for state in states.values())
    for name in captured.gradient_names:
        assert len({exe.gradient(name).tobytes() for exe in exes.values()}) == 1, name
    losses = {
        mode: [exes[mode](*batch(0)).loss for _ in range(3)] for mode in ("captured", "eager")
    }  # nothing moves now
    assert losses["captured"] == losses["eager"]
    assert len(set(losses["captured"])) == 3, "other elements are left out in each step"
    assert captured.submissions == 1
    assert len(captured.captures("train")) == 1
    assert (captured.plan.stats.copies, captured.plan.stats.strided_copies) == (0, 0)
    assert captured.accumulation.executed == captured.accumulation.candidates > 0


def test_sixty_percent_of_the_arena_gives_the_same_bits(gpu: HipDevice, tmp_path: Path) -> None:
    folder = checkpoint("qwen2", tmp_path, num_hidden_layers=3)
    options: dict[str, Any] = {"device": gpu, "mode": "captured", "chunks": 2, "optimizer": AdamW(lr=3e-3)}
    free = make(folder, **options)
    limit = int(free.memory.arena * 0.6)
    tight = make(folder, memory_limit=limit, **options)
    assert tight.memory.arena <= limit
    assert tight.plan.stats.recomputed > 0
    for number in range(3):
        assert tight(*batch(number)).loss == free(*batch(number)).loss
    assert state_of(tight) == state_of(free)
    np.testing.assert_array_equal(tight.read_state(EMBED), free.read_state(EMBED))
