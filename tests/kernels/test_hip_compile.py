"""Every kernel instance that the operator table's samples need compiles for GPUs: NVRTC for sm_80 and sm_90, clang for gfx90a, gfx942 and gfx1100.

The quick tests take one instance of each function, and three files for AMD; the slow ones take all. Of all of them it is asked what they take of a GPU: shared
memory that every device has, and no more private memory than is known of and listed here. docs/kernel-resources.md has the numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from concurrent.futures import Future

import pytest

from ostinato.backend_hip.hip_table import instances_of
from ostinato.backend_hip.kernel_source import Instance, kernel_files, modules
from ostinato.backend_hip.stopwatch import stopwatch_calls
from ostinato.ir.errors import BackendError
from tests.kernels.code_objects import resources_of
from tests.kernels.gpu_compilers import Nvrtc, Rocm, at_once, nvrtc, rocm
from tests.kernels.kernel_resources import DOCUMENT, every_instance, one_instance_each

NVIDIA = ("sm_80", "sm_90")
AMD = {"gfx942": 64, "gfx90a": 64, "gfx1100": 32}
MOST_SHARED = 48 * 1024
"""What every device has without being asked."""
PRIVATE: Mapping[str, Mapping[str, int]] = {
    "attention_bidirectional_backward": {"sm_80": 48, "sm_90": 40},
    "attention_block_causal_backward": {"sm_80": 16, "sm_90": 24, "gfx1100": 396},
    "attention_causal_backward": {"sm_80": 24, "sm_90": 24},
    "attention_tile_causal_backward": {"sm_80": 16, "sm_90": 24, "gfx1100": 1380},
    "adamw_group": {"sm_80": 32},
    "attention_tile_causal_saved": {"sm_80": 48, "sm_90": 48},
    "attention_tile_bidirectional": {"sm_80": 48, "sm_90": 48},
    "attention_tile_causal": {"sm_80": 48, "sm_90": 48},
    "attention_tile_packed": {"sm_80": 48, "sm_90": 48, "gfx1100": 904},
    "concat": {"sm_80": 128, "sm_90": 128},
    "few_rows": {"sm_80": 64, "sm_90": 64, "gfx90a": 172, "gfx942": 196},
    "linear_panel_swiglu": {"gfx1100": 168},
    "linear_swiglu": {"sm_90": 32},
    "linear_tile": {"gfx1100": 504},
    "linear_tile_swiglu": {"gfx1100": 64},
    "many_rows": {"sm_80": 80},
    "many_rows_swiglu": {"sm_80": 24, "sm_90": 24},
    "masked_mean": {"sm_80": 24, "sm_90": 24},
    "optimizer_factors": {"sm_80": 40, "sm_90": 40},
    "rms_norm_held": {"gfx1100": 52},
    "rotary_table": {"sm_80": 40, "sm_90": 40},
    "rotary_table_dynamic": {"sm_80": 40, "sm_90": 40},
    "rotary_table_longrope": {"sm_80": 40, "sm_90": 40},
}
"""Bytes of private memory that instances of a kernel take, by architecture; 0 for those that are not here."""
SLACK = 16
"""Bytes that they may take besides: releases of a compiler differ by a few registers."""


def require_modest(code: bytes, file: str, architecture: str, chosen: set[Instance]) -> None:
    """All kernels are there, and none takes more than it may."""
    taken = resources_of(code)
    names = {instance.name.symbol: instance.name.function for instance in chosen}
    assert set(taken) >= set(names), f"{file} lacks kernels for {architecture}"
    allowed = {symbol: PRIVATE.get(function, {}).get(architecture, 0) + SLACK for symbol, function in names.items()}
    spilled = {symbol: taken[symbol].private for symbol in names if taken[symbol].private > allowed[symbol]}
    assert not spilled, f"private bytes on {architecture}: {spilled}"
    assert all(taken[symbol].shared <= MOST_SHARED for symbol in names)


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
def every_instance_for_amd(compiler: Rocm, architecture: str) -> dict[str, Future[bytes]]:
    return at_once(compiler.compile, modules(every_instance(AMD[architecture])), architecture)


def test_every_kernel_file_is_reached() -> None:
    assert tuple(modules(one_instance_each(32))) == kernel_files()


def test_the_document_has_every_kernel() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    functions = {instance.name.function for wave in (32, 64) for instance in every_instance(wave)}
    assert not [function for function in functions if f"`{function}" not in text], (
        "python -m tests.kernels.kernel_resources"
    )


def test_bytes_that_are_no_code_object_are_refused() -> None:
    header = b"\x7fELF\x02" + bytes(13) + (62).to_bytes(2, "little") + bytes(44)
    with pytest.raises(BackendError, match="expected a code object of a GPU, found machine 62"):
        resources_of(header)
    for code in (b"", b"__CLANG_OFFLOAD_BUNDLE__", header[:4]):
        with pytest.raises(BackendError, match="a 64-bit ELF file"):
            resources_of(code)


def test_kernels_compile_for_nvidia(nvidia: Nvrtc) -> None:
    chosen = one_instance_each(32)
    for file, code in at_once(nvidia.compile, modules(chosen), NVIDIA[-1]).items():
        require_modest(code.result(), file, NVIDIA[-1], {instance for instance in chosen if instance.name.file == file})


@pytest.mark.slow
@pytest.mark.parametrize("architecture", NVIDIA)
@pytest.mark.parametrize("file", kernel_files())
def test_every_instance_compiles_for_nvidia(nvidia: Nvrtc, file: str, architecture: str) -> None:
    chosen = {instance for instance in every_instance(32) if instance.name.file == file}
    require_modest(every_instance_for_nvidia(nvidia, architecture)[file].result(), file, architecture, chosen)


@pytest.mark.parametrize("file", ["attention/tile", "linear/tile", "selection/sample_blocks"])
def test_kernels_compile_for_amd(amd: Rocm, file: str) -> None:
    chosen = {instance for instance in one_instance_each(64) if instance.name.file == file}
    require_modest(amd.compile(modules(chosen)[file], "gfx942"), file, "gfx942", chosen)


def require_clock(compiler: Nvrtc | Rocm, architecture: str) -> None:
    """The kernels of the profiler's clock compile, and the time that they wait for is not taken for a constant: that wait would be empty."""
    instances = instances_of(stopwatch_calls(1))
    (source,) = modules(instances).values()
    taken = resources_of(compiler.compile(source, architecture))
    assert set(taken) == {"stamp", "hold"}
    assert taken["hold"].registers, f"nothing is left of hold on {architecture}"


@pytest.mark.parametrize("architecture", NVIDIA)
def test_the_clock_compiles_for_nvidia(nvidia: Nvrtc, architecture: str) -> None:
    require_clock(nvidia, architecture)


@pytest.mark.parametrize("architecture", AMD)
def test_the_clock_compiles_for_amd(amd: Rocm, architecture: str) -> None:
    require_clock(amd, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", AMD)
@pytest.mark.parametrize("file", kernel_files())
def test_every_instance_compiles_for_amd(amd: Rocm, file: str, architecture: str) -> None:
    chosen = {instance for instance in every_instance(AMD[architecture]) if instance.name.file == file}
    require_modest(every_instance_for_amd(amd, architecture)[file].result(), file, architecture, chosen)
