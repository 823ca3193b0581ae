"""`TraceSession` over training steps: losses, gradients, parameters and moments are those of ordinary steps, whatever mode they run in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.tools.compare.differences import bits_equal
from tests.training.tiny import batch, checkpoint, make

MODES = ("reference", "eager", "planned", "guarded")


@pytest.mark.parametrize("mode", MODES)
def test_training_steps_are_traced_and_go_on(mode: str, tmp_path: Path) -> None:
    folder = checkpoint("llama", tmp_path, num_hidden_layers=1)
    options = {"keep_gradients": True, "seed": 3, "mode": mode}
    usual, traced = make(folder, **options), make(folder, **options)
    session = ost.TraceSession(traced, results_of=["layers.0"])
    for number in range(4):
        expected = usual(*batch(number)).loss
        if number in (1, 2):
            with session:
                assert traced(*batch(number)).loss == expected
        else:
            assert traced(*batch(number)).loss == expected
        for name in usual.gradient_names:  # those of a traced step lie where all others do
            assert bits_equal(traced.gradient(name), usual.gradient(name)), name
    assert len(session.steps) == 2
    assert not bits_equal(*[session.steps[i].values["layers.0.add_1"] for i in (0, 1)])
    for name in usual.state_names:
        assert bits_equal(traced.read_state(name), usual.read_state(name)), name


def test_hooks_and_bound_gradients_hold_in_a_traced_step(tmp_path: Path) -> None:
    step = make(checkpoint("llama", tmp_path, num_hidden_layers=1), keep_gradients=True, seed=3)
    name = step.gradient_names[0]
    seen: list[int] = []
    step.on_gradient_ready(name, lambda ready: seen.append(ready.step))
    with ost.TraceSession(step, results_of=["layers.0"]) as session:
        step(*batch(0))
        buffer = np.full(step.gradient(name).shape, 7, np.float32)
        step.bind_grad_buffer(name, buffer)
        step(*batch(1))
    assert seen == [1, 2]
    assert len(session.steps) == 2
    assert bits_equal(buffer, step.gradient(name))
    assert buffer.any()


def test_bytes_that_a_later_node_adds_to_are_not_taken_for_the_value(tmp_path: Path) -> None:
    """Gradients of the first of two micro-batches are added to in place: what is there in the end is their sum."""
    folder = checkpoint("llama", tmp_path, num_hidden_layers=1)
    usual, step = (make(folder, micro_batches=2, seed=3) for _ in range(2))
    session = ost.TraceSession(step, ["layers"], results_of=["micro0.layers.*"])
    taken = {name for name, reason in session.left_out.items() if "taken over" in reason}
    assert "d.micro1.layers.0.ffn.down.matmul" in taken
    assert not taken & set(session.names["train"])
    with session:
        assert step(*batch(0)).loss == usual(*batch(0)).loss
    assert set(session.scopes) == {"micro0.layers.0"}
    with pytest.raises(ost.ConfigError, match="taken over by a later node"):
        ost.TraceSession(step, ["d.micro1.layers.0.ffn.down.matmul"])
    with pytest.raises(ost.ConfigError, match="names no scope"):
        ost.TraceSession(step, results_of=["layers.*"])
