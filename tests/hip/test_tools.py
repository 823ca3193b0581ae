"""The tools on a GPU: modes compared there, and a measurement that checks before it times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.tools.bench import bench
from ostinato.tools.compare.comparison import compare
from ostinato.tools.profile.bandwidth import read_bandwidth
from tests.frontend.small_families import small_model

MODES = ("reference", "eager", "planned", "guarded", "no-reuse", "captured")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    return small_model("llama", tmp_path_factory.mktemp("llama"), 5)


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_all_modes_keep_their_contracts(family: str, gpu: HipDevice, tmp_path: Path, seed: int) -> None:
    shape = {"B": [2], "T": [6]}
    model = small_model(family, tmp_path, seed)
    report = compare(
        model, MODES, device=gpu, replays=3, seed=seed, tokens=6, edges=False, operators=False, buckets=shape
    )
    assert report.ok, report.pair_lines()
    assert len(report.pairs) == 15
    assert all(pair.verdict == "bit-equal" for pair in report.pairs if "reference" not in (pair.left, pair.right))


def test_a_replay_shows_nothing_of_what_happens_within(llama: ost.Model, gpu: HipDevice) -> None:
    executable = ost.compile(llama, buckets={"B": [1], "T": [4]}, context=32, device=gpu)
    with pytest.raises(ost.ConfigError, match="shows nothing"):
        executable.clone("captured", observer=lambda name, values: None).prewarm()


def test_bench(llama: ost.Model, gpu: HipDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.tools.profile.bandwidth.COPIED_BYTES", 1 << 16)
    executable = ost.compile(llama, buckets={"B": [1], "T": [1, 4]}, context=5, device=gpu)
    said: list[str] = []
    report = bench(executable, "tiny", tokens=4, runs=1, seed=0, begin=said.append)
    assert report.isa == gpu.isa
    assert np.isfinite([report.prefill_ms, report.decode_ms, read_bandwidth(gpu)]).all()
    assert "checking against eager" in said
