"""`TraceSession` on a GPU: captured runs are traced by a captured plan of their own, and the ordinary graphs are replayed as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.tools.compare.differences import bits_equal
from tests.frontend.small_families import small_model
from tests.training.tiny import batch, checkpoint, make

IDS = np.array([[5, 9, 2, 77], [12, 3, 3, 90]], np.int32)


@pytest.mark.parametrize("mode", ["captured", "planned", "eager"])
def test_traced_runs_have_the_bits_of_ordinary_ones(mode: str, gpu: HipDevice, tmp_path: Path) -> None:
    model = small_model("llama", tmp_path, 5)
    executable = ost.compile(model, buckets={"B": [2], "T": [4]}, context=16, device=gpu, mode=mode, precision="bf16")
    expected = executable(IDS)["logits"]
    hashes, captures = executable.program.plan.hashes, executable.captures()
    with ost.TraceSession(executable, ["layers.0"], results_of=["layers.*"]) as session:
        found = executable(IDS)["logits"]
    assert bits_equal(found, expected)
    assert session.bit_equal
    assert set(session.scopes) == {"layers.0", "layers.1"}
    assert all(array.any() for array in session.values.values())
    assert executable.program.plan.hashes == hashes
    assert executable.captures() == captures
    assert bits_equal(executable(IDS)["logits"], expected)
    assert len(session.steps) == 1


def test_a_generation_is_traced_step_by_step(gpu: HipDevice, tmp_path: Path) -> None:
    llm = ost.LLM(
        small_model("llama", tmp_path, 5), max_num_seqs=1, context=16, device=gpu, enable_prefix_caching=False
    )
    greedy = ost.SamplingParams(temperature=0.0, max_tokens=6)
    expected = [event.token for event in llm.tokens([[4, 5, 6]], greedy)]
    events = llm.tokens([[4, 5, 6]], greedy)
    found = [next(events).token for _ in range(3)]  # some replays are on their way now
    with ost.TraceSession(llm, results_of=["layers.*"]) as session:
        found += [next(events).token]
    found += [event.token for event in events]
    assert found == expected
    assert len(session.steps) <= 1, "a token that was on its way comes from an ordinary replay"
    session.clear()
    with session:
        assert [event.token for event in llm.tokens([[4, 5, 6]], greedy)] == expected
    (noted,) = {name for step in session.steps for name in step.values if name.startswith("layers.1")}
    assert len({array.tobytes() for array in session.series(noted)}) == len(session.steps) == 6


def test_a_captured_training_step_is_traced(gpu: HipDevice, tmp_path: Path) -> None:
    folder = checkpoint("llama", tmp_path, num_hidden_layers=1)
    usual, traced = (make(folder, device=gpu, mode="captured", keep_gradients=True, seed=3) for _ in range(2))
    for number in range(3):
        expected = usual(*batch(number)).loss
        if number == 1:
            with ost.TraceSession(traced, results_of=["layers.0"]) as session:
                assert traced(*batch(number)).loss == expected
        else:
            assert traced(*batch(number)).loss == expected
        for name in usual.gradient_names:
            assert bits_equal(traced.gradient(name), usual.gradient(name)), name
    assert len(session.steps) == 1
