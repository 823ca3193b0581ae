"""The emulated GPU: builds the library of `device/`, which answers as AMD's own, and moves it for tests.

The library speaks the C interface of libamdhip64, libhiprtc, libhipblaslt and librccl, so the loader, the adaptors and everything above them run as they do on
a card. It has two devices, the first with waves of 64 lanes (gfx942), the second with waves of 32 (gfx1100). Run-time compilation goes to the emulator of
kernels. What a card leaves open is decided by a seed; what a card leaves undefined becomes a problem that `problem` tells.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.emulator.emulator import Emulator
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.kernel_source import source_hash
from ostinato.backend_hip.target import wave_of
from ostinato.ir.errors import BackendError, DeviceUnavailable

__all__ = ["CACHE", "EmulatedGpu", "emulated_card", "emulated_gpu"]

CACHE = Path(tempfile.gettempdir()) / f"ostinato-emulated-kernels-{os.getuid()}"
"""Where the library and kernels are kept unless somebody says otherwise: what is there is right for any sources, since it is named after them."""

_SOURCES = Path(__file__).resolve().with_name("device")
_HEADERS = Path(__file__).resolve().parents[1] / "native" / "gpu"
_NAMES = ("libamdhip64.so", "libhiprtc.so", "libhipblaslt.so", "librccl.so")
_OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs")
_Compiler = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))


class EmulatedGpu:
    """The opened machine: `gpu` for everything above, and the handles that only a test has."""

    def __init__(self, cache: Path) -> None:
        self.folder = _build(cache)
        self.gpu = _native.open_gpu("amd", [str(self.folder)], sealed=True)
        self._library = ctypes.CDLL(str(self.folder / _NAMES[0]))
        self._library.emulated_count.restype = ctypes.c_long
        self._library.emulated_problem.restype = ctypes.c_char_p
        self._cache = cache
        self._compiler = _Compiler(self._compile)
        self._library.emulated_set_compiler(self._compiler, ctypes.c_int(Emulator(64, cache).version))

    def seed(self, seed: int, *, eagerness: int = 25) -> None:
        """What the order of work follows from; `eagerness` is how likely, per cent, work runs before somebody waits for it."""
        self._library.emulated_seed(ctypes.c_ulonglong(seed), ctypes.c_int(eagerness))

    def capacity(self, device: int, nbytes: int) -> None:
        """How much memory a device has from now on."""
        self._library.emulated_capacity(ctypes.c_int(device), ctypes.c_size_t(nbytes))

    def version(self, version: int) -> None:
        """Which HIP it is, as `hipRuntimeGetVersion` says it: 70200000 is 7.2."""
        self._library.emulated_version(ctypes.c_int(version))

    def vendor(self, *, spoilt: int = -1, ticks: tuple[float, float, float] = (0, 0, 0)) -> None:
        """Which of the vendor's three algorithms leaves something out of every sum, and how many ticks each takes besides one."""
        self._library.emulated_vendor(ctypes.c_int(spoilt), *(ctypes.c_double(number) for number in ticks))

    def fail(self, call: str, error: int, *, nth: int = 1) -> None:
        """The nth call of that name from now on fails. "kernel" is an execution, which then takes its device down."""
        self._library.emulated_fail(call.encode(), ctypes.c_long(nth), ctypes.c_int(error))

    def forget(self, address: int) -> None:
        """Takes a block back that an injected failure left unfreed."""
        self._library.emulated_forget(ctypes.c_void_p(address))

    def recover(self) -> None:
        """Forgets faults, problems and lost devices, as a new process would."""
        self._library.emulated_recover()

    def count(self, what: str) -> int:
        """How often a call was made, or how many of something there are (control.cpp lists the names)."""
        return int(self._library.emulated_count(what.encode()))

    @property
    def problem(self) -> str:
        """The first thing found that a card would not have told; empty when there is none."""
        return str(self._library.emulated_problem().decode())

    def _compile(self, source: bytes, option_count: int, options: ctypes._Pointer[ctypes.c_char_p]) -> int:
        given = [str((options[i] or b"").decode()) for i in range(option_count)]
        architecture = next((option.partition("=")[2] for option in given if option.startswith("--offload-arch=")), "")
        try:
            path = Emulator(wave_of(architecture), self._cache).module(source.decode()).path
        except BackendError as error:
            self._library.emulated_compiled(b"", ctypes.c_size_t(0), str(error).encode())
            return 1
        code = path.read_bytes()
        self._library.emulated_compiled(code, ctypes.c_size_t(len(code)), b"")
        return 0


@functools.cache
def emulated_gpu(cache: Path) -> EmulatedGpu:
    """The machine of this process. Raises `DeviceUnavailable` without a C++ compiler, `LifecycleError` where AMD's libraries were opened already."""
    return EmulatedGpu(cache)


def emulated_card() -> HipDevice:
    """The one with waves of 32 lanes, for `device=` wherever a device is given: everything runs on it as on a card, slowly. Its kernels are those of a card,
    compiled for this processor, which takes a minute the first time. Rows are taken on trust: it has no ledger.

    Raises what `emulated_gpu` raises.
    """
    machine = emulated_gpu(CACHE)
    machine.recover()
    return HipDevice(machine.gpu.device(1), cache=CodeCache(CACHE))


def _build(cache: Path) -> Path:
    """The folder with the library under the names that the loader asks for; built once for its sources and compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise DeviceUnavailable("the emulated GPU needs a C++ compiler", hint="install g++ or clang++")
    sources = sorted(_SOURCES.glob("*.cpp"))
    texts = [
        path.read_text(encoding="utf-8")
        for path in (*sources, *sorted(_SOURCES.glob("*.h")), *sorted(_HEADERS.glob("*.h")))
    ]
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    folder = cache / f"device-{source_hash(version, *_OPTIONS, *texts)[:32]}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        made = Path(name, "made")
        made.mkdir()
        command = [compiler, *_OPTIONS, "-o", str(made / _NAMES[0]), *map(str, sources), "-ldl"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise BackendError(f"the emulated GPU does not compile:\n{run.stderr.strip()}")
        for other in _NAMES[1:]:
            (made / other).symlink_to(_NAMES[0])
        try:
            os.rename(made, folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
    return folder
