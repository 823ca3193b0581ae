"""Finding the vendors' libraries: what is said when one is missing, damaged, too old or of another kind, and that the real ones answer."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import emulated_gpu
from ostinato.ir.errors import ConfigError
from tests.backend_hip.gpu.child import ROOT, run_child
from tests.backend_hip.gpu.machine import CACHE


def make_library(path: Path, functions: str) -> None:
    source = path.with_suffix(".cpp")
    source.write_text(f'extern "C" {{ {functions} }}', encoding="utf-8")
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(source)], check=True)


def driver_functions(*without: str) -> str:
    """C text of a driver whose functions all answer 0, but for those that a test writes itself."""
    text = (ROOT / "ostinato" / "backend_hip" / "native" / "gpu" / "nvidia.h").read_text(encoding="utf-8")
    names = {
        line.split("X(")[1].split(",")[0]
        for line in text.splitlines()
        if line.strip().startswith("X(cu") and "cublas" not in line
    }
    return "".join(f"int {name}() {{ return 0; }}" for name in sorted(names - set(without)))


@pytest.mark.parametrize("platform", ["amd", "nvidia"])
def test_nothing_found_is_said_of_every_library(platform: str, tmp_path: Path) -> None:
    lines = run_child("open_folder", platform, str(tmp_path)).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["runtime", "compiler", "blas", "collective"]
    assert all("missing" in line and "was not found" in line for line in lines[:4])
    expected = {
        "amd": "DeviceUnavailable no GPU runtime: libamdhip64 was not found",
        "nvidia": "DeviceUnavailable no driver: libcuda was not found",
    }
    assert lines[4] == expected[platform]


def test_a_library_without_a_function_says_which(tmp_path: Path) -> None:
    make_library(tmp_path / "libamdhip64.so.6", "int hipInit(unsigned) { return 0; }")
    lines = run_child("open_folder", "amd", str(tmp_path)).splitlines()
    assert lines[0].startswith("runtime libamdhip64 incomplete")
    assert "was found but has no symbol hipMallocAsync, hipDriverGetVersion, " in lines[0]
    assert "hipInit" not in lines[0]
    assert any(
        line.startswith("DeviceUnavailable no GPU runtime: libamdhip64 was found but has no symbol") for line in lines
    )


def test_a_file_that_is_no_library_says_so(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("version https://git-lfs.github.com/spec/v1", encoding="utf-8")
    line = run_child("open_folder", "nvidia", str(tmp_path)).splitlines()[0]
    assert line.startswith("runtime libcuda missing")
    assert "libcuda.so.1: " in line
    assert "not found" not in line


def test_a_driver_that_is_too_old_is_refused_by_its_version(tmp_path: Path) -> None:
    functions = driver_functions("cuDriverGetVersion")
    make_library(tmp_path / "libcuda.so.1", f"{functions} int cuDriverGetVersion(int* v) {{ *v = 11080; return 0; }}")
    lines = run_child("open_folder", "nvidia", str(tmp_path)).splitlines()
    assert lines[0] == "runtime libcuda incomplete 11.8 libcuda is of CUDA 11.8; 12.0 or newer is needed"
    assert lines[4].startswith("DeviceUnavailable no driver: libcuda is of CUDA 11.8")


@pytest.mark.parametrize(("number", "expected"), [(803, "no driver"), (999, "no driver"), (100, "no device")])
def test_a_driver_that_does_not_start_and_one_without_a_card_are_told_apart(
    number: int, expected: str, tmp_path: Path
) -> None:
    functions = driver_functions("cuDriverGetVersion", "cuInit", "cuGetErrorName")
    functions += (
        f"int cuDriverGetVersion(int* v) {{ *v = 13000; return 0; }} int cuInit(unsigned) {{ return {number}; }}"
    )
    functions += 'int cuGetErrorName(int, const char** t) { *t = "CUDA_ERROR"; return 0; }'
    make_library(tmp_path / "libcuda.so.1", functions)
    lines = run_child("open_folder", "nvidia", str(tmp_path)).splitlines()
    assert lines[0].startswith("runtime libcuda found 13.0")
    assert lines[4].startswith(f"DeviceUnavailable {expected}: libcuda was found at {tmp_path}")


def test_of_several_versions_the_newest_is_taken(tmp_path: Path) -> None:
    for version in ("5", "10.1", "9", ""):
        body = f"int ncclGetVersion(int* v) {{ *v = 2{int(version.split('.')[0] or 0):02d}01; return 0; }}"
        make_library(tmp_path / f"librccl.so{'.' if version else ''}{version}", body)
    (tmp_path / "librccl.so.99.txt").write_text("", encoding="utf-8")
    line = run_child("open_folder", "amd", str(tmp_path)).splitlines()[3]
    assert line.startswith("collective librccl found 2.10.1")


def test_libraries_are_opened_once_a_process() -> None:
    machine = emulated_gpu(CACHE)
    assert "opened from elsewhere" in run_child("open_twice", str(machine.folder))


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ConfigError, match="amd and nvidia"):
        _native.open_gpu("intel", [])


def test_the_distribution_s_hip_answers_that_there_is_no_device() -> None:
    if ctypes.util.find_library("amdhip64") is None:
        pytest.skip("libamdhip64 is not installed: apt install libamdhip64-5")
    if Path("/dev/kfd").exists():
        pytest.skip("there is a device")
    lines = run_child("open_system", "amd").splitlines()
    assert lines[0].startswith("found ")
    assert lines[1].startswith("DeviceUnavailable no device: libamdhip64 was found at /")


def nvrtc() -> Path | None:
    folders = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib"))
    return next((folder for folder in folders if list(folder.glob("libnvrtc.so*"))), None)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvrtc_compiles_without_a_device(architecture: str) -> None:
    folder = nvrtc()
    if folder is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    assert run_child("compile_with_nvrtc", str(folder), architecture) == "ELF"
