"""Every kernel instance that the operator table's samples need compiles for GPUs: NVRTC for sm_80 and sm_90, clang for gfx90a, gfx942 and gfx1100.

The quick tests take one instance of each function, and two files for AMD; the slow ones take all. AMD's compiler also says what a kernel takes: no vector
register is spilled.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future

import pytest

from ostinato.backend_hip.kernel_source import Instance, kernel_files, modules
from tests.kernels.emulated import instances
from tests.kernels.gpu_compilers import Nvrtc, Resources, Rocm, at_once, nvrtc, rocm
from tests.kernels.test_hip_rows import hip_calls

NVIDIA = ("sm_80", "sm_90")
AMD = {"gfx942": 64, "gfx90a": 64, "gfx1100": 32}
FEW = 16
"""Registers that the widest tile may spill on gfx1100, outside of its loop."""


@functools.cache
def every_instance(wave: int) -> set[Instance]:
    return instances(hip_calls(wave))


def one_instance_each(wave: int) -> list[Instance]:
    functions: dict[tuple[str, str], list[Instance]] = {}
    for instance in every_instance(wave):
        functions.setdefault((instance.name.file, instance.name.function), []).append(instance)
    return [max(found, key=lambda instance: instance.text) for found in functions.values()]


@pytest.fixture
def nvidia() -> Nvrtc:
    found = nvrtc()
    if found is None:
        pytest.skip("needs the package nvidia-cuda-nvrtc")
    return found


@pytest.fixture
def amd() -> Rocm:
    found = rocm()
    if found is None:
        pytest.skip("needs clang-19, llvm-19, rocm-device-libs and libamdhip64-dev of the distribution")
    return found


@functools.cache
def every_instance_for_nvidia(compiler: Nvrtc, architecture: str) -> dict[str, Future[bytes]]:
    return at_once(compiler.compile, modules(every_instance(32)), architecture)


@functools.cache
def every_instance_for_amd(compiler: Rocm, architecture: str) -> dict[str, Future[dict[str, Resources]]]:
    return at_once(compiler.compile, modules(every_instance(AMD[architecture])), architecture)


def test_every_kernel_file_is_reached() -> None:
    assert tuple(modules(one_instance_each(32))) == kernel_files()


def test_kernels_compile_for_nvidia(nvidia: Nvrtc) -> None:
    compiled = at_once(nvidia.compile, modules(one_instance_each(32)), NVIDIA[-1])
    assert all(code.result() for code in compiled.values())


@pytest.mark.slow
@pytest.mark.parametrize("architecture", NVIDIA)
@pytest.mark.parametrize("file", kernel_files())
def test_every_instance_compiles_for_nvidia(nvidia: Nvrtc, file: str, architecture: str) -> None:
    assert every_instance_for_nvidia(nvidia, architecture)[file].result()


@pytest.mark.parametrize("file", ["linear/tile", "selection/sample"])
def test_kernels_compile_for_amd(amd: Rocm, file: str) -> None:
    chosen = [instance for instance in one_instance_each(64) if instance.name.file == file]
    found = amd.compile(modules(chosen)[file], "gfx942")
    assert set(found) == {instance.name.symbol for instance in chosen}
    assert not [name for name, taken in found.items() if taken.spilled]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", AMD)
@pytest.mark.parametrize("file", kernel_files())
def test_every_instance_compiles_for_amd(amd: Rocm, file: str, architecture: str) -> None:
    found = every_instance_for_amd(amd, architecture)[file].result()
    chosen = {instance for instance in every_instance(AMD[architecture]) if instance.name.file == file}
    assert set(found) == {instance.name.symbol for instance in chosen}
    assert not [name for name, taken in found.items() if taken.spilled > (FEW if architecture == "gfx1100" else 0)]
    assert all(taken.shared <= 48 * 1024 for taken in found.values())
