"""Whole programs on a card, where there is one: training steps, their memory, profiles inside of replays, artifacts with their code, and graphs of torch.

The emulated device covers the same everywhere; this file is for what only a real driver can tell. Run it alone on a machine with a card: it takes a minute.
"""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from benchmarks.audit_torch import CASES, run
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.runtime.captured import CapturedRunner
from ostinato.runtime.replay_gate import replay_difference
from ostinato.runtime.trace_events import trace_problems
from tests.backend_hip.gpu.real_card import real_card
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

ROOT = Path(__file__).resolve().parents[2]
BATCH, LENGTH, VOCABULARY, STEPS = 4, 64, 1024, 5
QWEN = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
IDS = np.arange(LENGTH, dtype=np.int32).reshape(1, LENGTH)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HipDevice]:
    yield HipDevice(real_card(), cache=CodeCache(tmp_path_factory.mktemp("cache")))
    gc.collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config("qwen2", **QWEN)
    return write_hf_checkpoint(tmp_path_factory.mktemp("model"), config, random_model(config, 3))


def trained(folder: Path, device: HipDevice, mode: str, **options: Any) -> ost.TrainStep:
    return ost.train_step(
        folder, batch=(BATCH, LENGTH), device=device, mode=mode, optimizer=ost.AdamW(lr=1e-3, clip_norm=1.0), **options
    )


def batch(number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng([7, number])
    ids = rng.integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)
    return np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])


def compiled(folder: Path, device: HipDevice, mode: str = "captured") -> ost.TextExecutable:
    return ost.compile(folder, buckets={"B": [1], "T": [LENGTH]}, context=2 * LENGTH, device=device, mode=mode)


def digests(step: ost.TrainStep) -> dict[str, str]:
    """Of every parameter, its mirrors' source, every moment and every gradient."""
    values = {name: step.read_state(name) for name in step.state_names}
    values |= {f"gradient of {name}": step.gradient(name) for name in step.gradient_names}
    return {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in values.items()}


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_training_step_has_the_same_bits_eager_planned_and_captured(
    precision: str, gpu: HipDevice, folder: Path
) -> None:
    options: dict[str, Any] = {"precision": precision, "micro_batches": 2, "dropout": 0.1, "seed": 3}
    captured = trained(folder, gpu, "captured", keep_gradients=True, **options)
    steps = {"captured": captured, "planned": captured.clone("planned"), "eager": captured.clone("eager")}
    seen = digests(captured)
    for number in range(STEPS):
        found = {mode: step(*batch(number)) for mode, step in steps.items()}
        results = {mode: (each.loss, each.gradient_norm) for mode, each in found.items()}
        assert len(set(results.values())) == 1, results
        assert np.isfinite(found["captured"].loss)
        after = {mode: digests(step) for mode, step in steps.items()}
        for mode in ("planned", "eager"):
            differ = [name for name, digest in after[mode].items() if digest != after["captured"][name]]
            assert not differ, f"step {number}, {mode}: {differ}"
        changed = [name for name, digest in after["captured"].items() if digest != seen[name]]
        assert set(captured.parameters()) <= set(changed), "a step changes every parameter"
        seen = after["captured"]
    assert captured.submissions == 1


def test_the_peak_of_a_training_step_by_the_counters_is_the_plans_figure(gpu: HipDevice, folder: Path) -> None:
    native = gpu.native
    first = trained(folder, gpu, "captured", precision="bf16")
    first(*batch(0)).loss  # noqa: B018 - waits: what is done once for all programs of these shapes is done
    del first
    gc.collect()
    native.trim_pool()
    before = native.counters
    native.reset_peak()
    step = trained(folder, gpu, "captured", precision="bf16")
    for number in range(3):
        assert np.isfinite(step(*batch(number)).loss)
    after = native.counters
    planned = step.memory.total + (not step.memory.weights)  # a region without bytes has an address, and so a byte
    assert after.peak_bytes - before.current_bytes == planned
    assert after.current_bytes - before.current_bytes == planned
    loaded = after.allocations
    step(*batch(3)).loss  # noqa: B018
    assert native.counters.allocations == loaded


def test_a_captured_profile_names_every_node_and_sums_to_about_the_whole(gpu: HipDevice, folder: Path) -> None:
    executable = compiled(folder, gpu)
    expected = executable(IDS)["logits"].tobytes()
    profile = executable.profile()
    (plan,) = executable.entries.values()
    assert [step.node for step in profile.steps] == [step.node for step in plan.steps]
    assert "captured twin" in profile.method
    assert min(step.seconds for step in profile.steps) >= 0
    share = profile.sum_seconds / profile.whole_seconds
    assert 0.3 < share < 3, (
        f"{share}: {profile.sum_seconds} of {profile.whole_seconds} s, {profile.overhead_seconds} a stamp"
    )
    assert trace_problems(profile.to_chrome_json()) == []
    assert executable(IDS)["logits"].tobytes() == expected


def test_a_captured_training_step_is_profiled_and_trains_nothing(gpu: HipDevice, folder: Path) -> None:
    step = trained(folder, gpu, "captured", precision="bf16", keep_gradients=True)
    step(*batch(0)).loss  # noqa: B018
    before = digests(step)
    profile = step.profile(runs=2)
    assert [each.node for each in profile.steps] == [each.node for each in step.plan.steps]
    assert digests(step) == before


def test_replays_leave_every_byte_as_the_planned_steps_do(gpu: HipDevice, folder: Path) -> None:
    executable = compiled(folder, gpu)
    (name,) = executable.entries
    runner = executable.runner(name)
    assert isinstance(runner, CapturedRunner)
    inputs = executable.example_inputs(name)
    assert replay_difference(runner, executable.regions, inputs) == ""


def test_an_artifact_runs_the_code_in_it_in_a_fresh_process(gpu: HipDevice, folder: Path, tmp_path: Path) -> None:
    executable = compiled(folder, gpu)
    path = executable.save(tmp_path / "model.ost", weights=True)
    told = "import sys; from tests.hip.test_real_programs import load_trusted; load_trusted(*sys.argv[1:])"
    command = [sys.executable, "-c", told, str(path), str(tmp_path / "nothing compiled")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == [hashlib.sha256(executable(IDS)["logits"].tobytes()).hexdigest(), "captured", "0"]


def load_trusted(path: str, cache: str) -> None:
    """Prints the digest of the logits, the mode, and how many kernels had to be compiled."""
    device = HipDevice(real_card(), cache=CodeCache(Path(cache)))
    loaded = ost.load_executable(path, device, trust=True)
    assert isinstance(loaded, ost.TextExecutable)
    print(
        hashlib.sha256(loaded(IDS)["logits"].tobytes()).hexdigest(), loaded.mode, device.kernels.cache.counters.misses
    )


@pytest.mark.parametrize("name", CASES)
def test_a_graph_of_torch_is_audited(name: str, gpu: HipDevice) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.version.hip:
        pytest.skip("torch sees no NVIDIA card here")
    assert run(torch, name), "what it found is printed above"
