"""GPUs as the runtime has them, over the emulated machine: one with waves of 64 lanes, one with waves of 32. They live as long as the tests of this folder."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.emulator.machine import EmulatedGpu, emulated_gpu
from ostinato.backend_hip.hip_device import HipDevice
from tests.backend_hip.gpu.machine import CACHE


@pytest.fixture(scope="package")
def devices() -> Iterator[dict[int, HipDevice]]:
    """Devices by the lanes of their waves."""
    gpu = emulated_gpu(CACHE).gpu
    opened = {
        64: HipDevice(gpu.device(0), cache=CodeCache(CACHE)),
        32: HipDevice(gpu.device(1), cache=CodeCache(CACHE)),
    }
    yield opened
    opened.clear()
    gc.collect()


@pytest.fixture
def machine(seed: int) -> Iterator[EmulatedGpu]:
    """The emulated machine with fresh orders of work; a test fails where something happened that a card would not have told."""
    found = emulated_gpu(CACHE)
    found.recover()
    found.seed(seed)
    yield found
    assert not found.problem


@pytest.fixture(params=[64, 32], ids=["wave64", "wave32"])
def device(request: pytest.FixtureRequest, machine: EmulatedGpu, devices: dict[int, HipDevice]) -> HipDevice:
    return devices[request.param]


@pytest.fixture
def gpu(machine: EmulatedGpu, devices: dict[int, HipDevice]) -> HipDevice:
    """The one with waves of 32 lanes, where a test needs only one."""
    return devices[32]
