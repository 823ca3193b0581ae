"""Every level that a GPU has of every operator, forced: the oracle's values, in every mode the same bits; and models with levels forced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OPS
from ostinato.ir.types import Array
from tests.frontend.small_families import small_model
from tests.one_operator import one_calls

RUNNING = tuple(op for op in OPS if not op.is_view)
CALLS = 1


@pytest.mark.parametrize("op", RUNNING, ids=lambda op: op.name)
def test_every_level_gives_what_the_oracle_gives(
    op: OpDef, gpu: HipDevice, machine: EmulatedGpu, rng: np.random.Generator
) -> None:
    levels = sorted({row.level.name.lower() for row in gpu.target.rows_for(op.name)})
    ran = dict.fromkeys(levels, 0)
    assert "readable" in levels
    assert "reference" not in levels
    for call in one_calls(op, rng, CALLS):
        expected = call.expected()
        for level in levels:
            try:
                executable = call.loaded(gpu, level, "planned")
            except ost.BackendError:
                continue
            ran[level] += 1
            found = call.run(executable)
            for name, actual in found.items():
                dtype = call.graph.types[name].dtype
                tolerance = op.tolerance.for_result(dtype)
                left, right = actual.astype(np.float64), expected[name].astype(np.float64)
                np.testing.assert_allclose(left, right, rtol=tolerance.relative, atol=tolerance.absolute, err_msg=name)
            eager = call.run(executable.clone("eager"))
            assert {k: v.tobytes() for k, v in eager.items()} == {k: v.tobytes() for k, v in found.items()}
    assert ran["readable"]


def test_a_model_with_levels_forced(gpu: HipDevice, machine: EmulatedGpu, tmp_path: Path, seed: int) -> None:
    model = small_model("llama", tmp_path, seed)
    ids = np.array([[5, 9, 2, 77]], np.int32)

    def logits(**options: Any) -> Array:
        found: Array = ost.compile(model, buckets={"B": [1], "T": [4]}, context=16, **options)(ids)["logits"]
        return found

    expected = logits(device="cpu", mode="reference")
    for options in ({"levels": {"linear": "readable", "attention_packed": "readable"}}, {"policy": "strict"}):
        np.testing.assert_allclose(logits(device=gpu, **options), expected, atol=2e-4 * expected.std())
    with pytest.raises(ost.ConfigError, match="readable is the plainest level here"):
        logits(device=gpu, levels={"linear": "reference"})
