"""The report of a vendor's libraries and cards that `ostinato doctor` prints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.backend_hip import gpu_libraries
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from tests.backend_hip.gpu.test_libraries import driver_functions, make_library


def test_the_emulated_machine_is_reported_whole(machine: EmulatedGpu) -> None:
    found = gpu_libraries.look("amd", [str(machine.folder)], sealed=True)
    assert [(library.name, library.finding) for library in found.libraries] == [
        ("libamdhip64", "found"),
        ("libhiprtc", "found"),
        ("libhipblaslt", "found"),
        ("librccl", "found"),
    ]
    assert found.libraries[0].version == "7.13.0"
    assert all(library.path.startswith(str(machine.folder)) and not library.fix for library in found.libraries)
    assert [(card.index, card.architecture, card.wave) for card in found.cards] == [
        (0, "gfx942", 64),
        (1, "gfx1100", 32),
    ]
    assert not found.problem


def test_every_library_has_a_fix() -> None:
    for platform in gpu_libraries.PLATFORMS:
        found = gpu_libraries.examine(platform)
        assert [library.role for library in found.libraries] == ["runtime", "compiler", "blas", "collective"]
        assert all(gpu_libraries.fix_for(library.name) for library in found.libraries)
        assert bool(found.cards) != bool(found.problem)


def test_python_packages_are_searched_before_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "nvidia" / name / "lib" for name in ("cu13", "nccl")]
    for folder in folders:
        folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert gpu_libraries.search_folders("nvidia")[:2] == list(map(str, folders))
    assert not set(map(str, folders)) & set(gpu_libraries.search_folders("amd"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return __builtin_trap(), 0;", "looking at the libraries ended with status -"),
        ("return 803;", "no driver: libcuda was found at"),
    ],
)
def test_a_driver_that_crashes_is_a_problem_and_no_crash(
    body: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "nvidia" / "driver" / "lib"
    folder.mkdir(parents=True)
    functions = driver_functions("cuDriverGetVersion", "cuInit", "cuGetErrorName")
    functions += f"int cuDriverGetVersion(int* v) {{ *v = 13000; return 0; }} int cuInit(unsigned) {{ {body} }}"
    functions += 'int cuGetErrorName(int, const char** t) { *t = "CUDA_ERROR"; return 0; }'
    make_library(folder / "libcuda.so.1", functions)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = gpu_libraries.examine("nvidia")
    assert found.problem.startswith(expected)
    assert found.hint
    assert found.cards == ()


def test_the_environment_is_neither_read_nor_changed(tmp_path: Path) -> None:
    """The report of a process with an empty environment is the one of this process."""
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; from ostinato.backend_hip.gpu_libraries import main; main('amd')"
    )
    python = shutil.which(sys.executable) or sys.executable
    outputs = {
        subprocess.run([python, "-c", program], capture_output=True, text=True, check=True, env=environment).stdout
        for environment in ({}, {"ROCM_PATH": str(tmp_path), "CUDA_PATH": str(tmp_path), "HIP_PATH": str(tmp_path)})
    }
    assert len(outputs) == 1
