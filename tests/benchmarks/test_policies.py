"""The benchmark of policies: every contender is measured, and held against the first one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.policies import measure
from benchmarks.steps import WeightPool, open_benchmark_device
from benchmarks.workloads import Workload
from tests.frontend.small_families import small_model


def test_contenders_are_held_against_the_first(tmp_path: Path) -> None:
    model = small_model("mistral", tmp_path, 3, max_position_embeddings=4096)
    device = open_benchmark_device("cpu", 1)
    contenders = [("balanced", "bf16"), ("batch_invariant", "bf16"), ("balanced", "bf16_results")]
    for name in ("d1", "p32"):
        rows = measure(Workload.parse(name), model, device, "planned", contenders, 1, WeightPool(device))
        assert [(row.policy, row.precision) for row in rows] == contenders
        first, invariant, results = rows
        assert (first.largest, first.over_first) == (0.0, 1.0)
        assert invariant.largest == 0.0, "on the CPU every row is the same in any batch"
        assert results.largest > 0.0
        assert results.root_mean_square <= results.largest
        assert all(row.steps > 10 and row.vendor == 0 and row.ms > 0 for row in rows)
