"""Artifacts of a GPU: kernels are compiled or come from the cache; those in the file run for who trusts it, and for nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.emulator.machine import CACHE, EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.vendor_choices import vendor_choices
from ostinato.frontend.layers import ModelInputs
from ostinato.frontend.models.llama import LLAMA, llama
from ostinato.frontend.trace import Tensor
from tests.artifact.files import BUCKETS, changed, compiled, manifest_of, members_of
from tests.frontend.small_families import small_model
from tests.hip.test_extend import BEND, ON_GPUS, SOURCE

IDS = np.array([[5, 9, 2]], np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    return small_model("llama", tmp_path_factory.mktemp("llama"), 5)


@pytest.fixture(scope="module")
def saved(model: ost.Model, devices: dict[int, HipDevice], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = compiled(model, device=devices[32], threads=0)
    return made.save(tmp_path_factory.mktemp("saved") / "model.ost")


def logits(found: ost.Executable) -> bytes:
    assert isinstance(found, ost.TextExecutable)
    return bytes(found(IDS)["logits"].tobytes())


@pytest.mark.parametrize("mode", ["auto", "planned", "eager"])
def test_every_mode_has_the_same_bits(mode: str, saved: Path, model: ost.Model, gpu: HipDevice) -> None:
    loaded = ost.load_executable(saved, gpu, mode)
    assert loaded.mode == ("captured" if mode == "auto" else mode)
    assert logits(loaded) == logits(compiled(model, device=gpu, threads=0))


def test_code_in_the_file_runs_for_who_trusts_it_alone(
    saved: Path, machine: EmulatedGpu, devices: dict[int, HipDevice], tmp_path: Path
) -> None:
    """With trust nothing is compiled; without it what is in the file is not even looked at."""
    code = {item["member"] for item in manifest_of(saved)["code"]}
    assert code
    expected = logits(ost.load_executable(saved, devices[32]))
    for trust, compiles in ((True, False), (False, True)):
        device = HipDevice(devices[32].native, cache=CodeCache(tmp_path / str(trust)))
        assert logits(ost.load_executable(saved, device, trust=trust)) == expected
        assert bool(device.kernels.cache.counters.misses) is compiles
    poisoned = changed(saved, tmp_path / "poisoned.ost", dict.fromkeys(code, b"no code at all"))
    device = HipDevice(devices[32].native, cache=CodeCache(CACHE))
    assert logits(ost.load_executable(poisoned, device)) == expected
    device = HipDevice(devices[32].native, cache=CodeCache(CACHE))
    with pytest.raises(ost.OstinatoError):
        logits(ost.load_executable(poisoned, device, trust=True))


def test_code_of_other_sources_is_not_taken(saved: Path, devices: dict[int, HipDevice], tmp_path: Path) -> None:
    code = [{**item, "key": "0" * 64} for item in manifest_of(saved)["code"]]
    path = changed(saved, tmp_path / "other.ost", code=code)
    device = HipDevice(devices[32].native, cache=CodeCache(tmp_path / "cache"))
    logits(ost.load_executable(path, device, trust=True))
    assert device.kernels.cache.counters.misses


def test_what_differs_on_another_machine(saved: Path, devices: dict[int, HipDevice], tmp_path: Path) -> None:
    environment = manifest_of(saved)["environment"]
    driver = changed(saved, tmp_path / "driver.ost", environment={**environment, "runtime": "1.2", "driver": "3"})
    with pytest.raises(ost.StaleArtifact) as caught:
        ost.load_executable(driver, devices[32])
    assert [text.partition(":")[0] for text in caught.value.differences] == ["driver", "runtime"]
    other = changed(saved, tmp_path / "compiler.ost", environment={**environment, "compiler": "NVRTC 1.0"})
    with pytest.raises(ost.StaleArtifact, match=r"compiler: saved NVRTC 1\.0"):
        ost.load_executable(other, devices[32])
    assert ost.load_executable(other, devices[32], trust=True).entries  # its code is in the file
    name = changed(saved, tmp_path / "card.ost", environment={**environment, "device": "another card"})
    assert ost.load_executable(name, devices[32]).entries  # it has no product of the vendor's
    with pytest.raises(ost.StaleArtifact) as caught:
        ost.load_executable(saved, devices[64])
    found = {text.partition(":")[0] for text in caught.value.differences}
    assert {"target", "device in the plan", "architecture", "wave"} <= found
    with pytest.raises(ost.StaleArtifact, match="target: saved"):
        ost.load_executable(saved, "cpu")
    assert ost.load_executable(saved, devices[64], recompile=True).device is devices[64]


def test_algorithms_of_the_vendor(
    machine: EmulatedGpu, devices: dict[int, HipDevice], tmp_path: Path, seed: int
) -> None:
    """They are in the file under all that they depend on, and are taken from there by who trusts it; the name of the card counts then."""
    model = small_model("qwen2", tmp_path, seed)
    made = HipDevice(devices[64].native, cache=CodeCache(tmp_path / "made"))
    buckets = {"B": [1], "T": [16]}
    first = compiled(model, device=made, threads=0, buckets=buckets, mode="planned")
    path = first.save(tmp_path / "saved.ost")
    chosen = vendor_choices(made.native, tmp_path / "made").counters
    said = manifest_of(path)
    assert len(said["vendor"]) == chosen.chosen > 0
    for trust in (True, False):
        folder = tmp_path / str(trust)
        device = HipDevice(devices[64].native, cache=CodeCache(folder))
        loaded = ost.load_executable(path, device, trust=trust)
        assert logits(loaded) == logits(first)
        counters = vendor_choices(device.native, folder).counters
        assert (counters.recorded, counters.chosen) == ((chosen.chosen, 0) if trust else (0, chosen.chosen))
    card = changed(path, tmp_path / "card.ost", environment={**said["environment"], "device": "another card"})
    with pytest.raises(ost.StaleArtifact, match="device: saved another card"):
        ost.load_executable(card, devices[64])
    worse = [{**record, "algorithm": [1, 2]} for record in said["vendor"]]
    device = HipDevice(devices[64].native, cache=CodeCache(tmp_path / "worse"))
    loaded = ost.load_executable(changed(path, tmp_path / "worse.ost", vendor=worse), device, trust=True)
    assert logits(loaded) == logits(first)
    assert vendor_choices(device.native, tmp_path / "worse").counters.recorded == 0


def test_a_standalone_file_of_a_gpu(model: ost.Model, gpu: HipDevice, tmp_path: Path) -> None:
    made = compiled(model, device=gpu, threads=0, buckets=BUCKETS)
    loaded = ost.load_executable(made.save(tmp_path / "whole.ost", weights=True), gpu)
    assert logits(loaded) == logits(made)
    assert "weights.safetensors" in members_of(tmp_path / "whole.ost")


def bent(inputs: ModelInputs) -> Tensor:
    """A Llama that bends what its head reads."""
    head = inputs.head
    return llama(replace(inputs, head=lambda x, logits: head(bend(x), logits)))


def bend(x: Tensor) -> Tensor:
    return x.builder.apply("bend", (x,), {"knee": 3.0}, "bent")


def test_rows_and_kernels_of_the_users(model: ost.Model, gpu: HipDevice, tmp_path: Path) -> None:
    mine = ost.load(model.checkpoint.path, families=(replace(LLAMA, function=bent),))
    added: dict[str, Any] = {"operators": [BEND], "kernels": {"mine/bend": SOURCE}}
    with ost.extend(**added, rows=[ON_GPUS]):
        made = compiled(mine, device=gpu, threads=0)
        path = made.save(tmp_path / "saved.ost")
        assert logits(ost.load_executable(path, gpu)) == logits(made)
    said = manifest_of(path)["extensions"]
    assert {kind: list(found) for kind, found in said.items()} == {
        "operators": ["bend"],
        "rows": [ON_GPUS.identity],
        "kernels": ["mine/bend"],
    }
    other = changed(path, tmp_path / "other.ost", extensions={**said, "kernels": {"mine/bend": "0" * 16}})
    with ost.extend(**added, rows=[replace(ON_GPUS, priority=1, in_place=())]):
        for saved, kinds in ((path, {"row"}), (other, {"row", "kernel"})):
            with pytest.raises(ost.StaleArtifact) as caught:
                ost.load_executable(saved, gpu)
            assert {text.split()[1] for text in caught.value.differences} == kinds
