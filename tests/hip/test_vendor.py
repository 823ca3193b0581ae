"""A model whose products go to the vendor's GEMM: the same bits in every mode, those of the CPU within the tolerance, and one weight for many and few rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.vendor_choices import vendor_choices
from ostinato.ir.step import StepKind
from tests.frontend.small_families import small_model

IDS = np.random.default_rng(3).integers(0, 90, (2, 13)).astype(np.int32)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_products_of_many_rows_are_the_vendor_s_in_every_mode(
    precision: str, machine: EmulatedGpu, devices: dict[int, HipDevice], tmp_path: Path, seed: int
) -> None:
    model = small_model("qwen2", tmp_path, seed)
    gpu = HipDevice(devices[64].native, cache=CodeCache(tmp_path))

    def compiled(device: HipDevice | str, mode: str = "planned") -> ost.TextExecutable:
        buckets = {"B": [1, 2], "T": [1, 16]}
        return ost.compile(model, buckets=buckets, context=32, device=device, mode=mode, precision=precision)

    expected = compiled("cpu")(IDS)["logits"]
    planned = compiled(gpu)
    kinds = {
        name: {step.kind for step in entry.steps if step.kernel.startswith(("gemm", "linear/"))}
        for name, entry in planned.program.plan.entries.items()
    }
    assert StepKind.GEMM in set.union(*kinds.values())
    assert {StepKind.LAUNCH} in kinds.values(), "few rows are multiplied by kernels of our own"
    parts = [part for slot in planned.program.plan.weights for part in slot.parts]
    assert len(parts) == len(set(parts)), "nothing is stored twice"
    found = {mode: planned.clone(mode)(IDS)["logits"] for mode in ("eager", "guarded", "captured")}
    found["planned"] = planned(IDS)["logits"]
    assert len({logits.tobytes() for logits in found.values()}) == 1
    tolerance = {"f32": 2e-4, "bf16": 0.1}[precision]
    assert np.abs(found["planned"] - expected).max() <= tolerance * expected.std()
    counters = vendor_choices(gpu.native, tmp_path).counters
    assert counters.chosen
    assert counters.recorded == 0
    again = HipDevice(devices[64].native, cache=CodeCache(tmp_path))
    vendor_choices(again.native, tmp_path).clear()  # as another process would find it
    assert compiled(again, "captured")(IDS)["logits"].tobytes() == found["planned"].tobytes()
    assert vendor_choices(again.native, tmp_path).counters.chosen == 0
    assert vendor_choices(again.native, tmp_path).counters.recorded == counters.chosen
