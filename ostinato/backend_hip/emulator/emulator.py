"""Compiles assembled kernel sources as C++ (`emulator.h` says what is emulated) and launches their kernels over memory of this process.

Compiled modules are kept in a folder of the caller's, filed under everything that shaped them, so that a second run compiles nothing. A module runs one
launch at a time. There is no notion of a device, a stream or of memory here: operands are addresses.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ostinato.backend_hip.kernel_source import COMPILE_OPTIONS, source_hash
from ostinato.ir.errors import BackendError, ConfigError, DeviceUnavailable
from ostinato.ir.step import Launch

__all__ = ["EmulatedModule", "Emulator"]

_FOLDER = Path(__file__).resolve().parent
_HEADERS = ("emulator.h", "blocks.h", "fibre.h")
_MESSAGE_BYTES = 1024
_OPTIONS = (
    *COMPILE_OPTIONS["emulator"],
    "-O1",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
)
_SANITIZED = ("-fsanitize=address", "-g1", "-fno-omit-frame-pointer")


class EmulatedModule:
    """A compiled module in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.ostinato_emulator_begin.restype = ctypes.c_void_p

    def launch(
        self,
        symbol: str,
        launch: Launch,
        operands: Sequence[int],
        params: Sequence[int | float],
        *,
        status: int,
        step: int = 0,
        seed: int = 0,
        earlier: Callable[[], None] | None = None,
    ) -> None:
        """Runs a kernel over its grid, in an order that `seed` chooses.

        `operands` are addresses, 0 where absent; `status` is the address of the status word. `earlier` is the work in front of the kernel, before which some
        of its blocks begin and wait. Raises `BackendError` for a kernel that the module does not have, and for what a GPU would leave undefined: threads that
        do not meet at a barrier or a shuffle, or end without waiting for earlier work, a block that is not whole waves.
        """
        kernel = getattr(self._library, symbol, None)
        if kernel is None:
            raise BackendError(f"{self.path.name} has no kernel {symbol}")
        values: list[ctypes.c_void_p | ctypes.c_int64 | ctypes.c_double | ctypes.c_uint32] = [
            *(ctypes.c_void_p(address) for address in operands),
            *(ctypes.c_double(param) if isinstance(param, float) else ctypes.c_int64(param) for param in params),
            ctypes.c_void_p(status),
            ctypes.c_uint32(step),
        ]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        begun = self._library.ostinato_emulator_begin(
            kernel,
            (ctypes.c_uint32 * 3)(*launch.grid),
            (ctypes.c_uint32 * 3)(*launch.block),
            arguments,
            ctypes.c_uint64(seed),
            ctypes.c_int(earlier is not None),
            message,
            ctypes.c_size_t(_MESSAGE_BYTES),
        )
        failed = begun is None
        if begun is not None:
            if earlier is not None:
                earlier()
            failed = self._library.ostinato_emulator_finish(
                ctypes.c_void_p(begun), message, ctypes.c_size_t(_MESSAGE_BYTES)
            )
        if failed:
            raise BackendError(f"{symbol}: {message.value.decode()}")


class Emulator:
    """A C++ compiler for modules of waves of 32 or 64 lanes, and the folder where it keeps them.

    `sanitize` adds the address sanitizer, whose library must then have been loaded before Python itself (LD_PRELOAD). Raises `ConfigError` for another wave
    and `DeviceUnavailable` without a compiler.
    """

    def __init__(self, wave: int, cache: Path, *, sanitize: bool = False) -> None:
        if wave not in (32, 64):
            raise ConfigError(f"a wave has 32 or 64 lanes, found {wave}")
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise DeviceUnavailable("the emulator needs a C++ compiler", hint="install g++ or clang++")
        self.wave = wave
        self._cache = cache
        self._command = (
            compiler,
            *_OPTIONS,
            f"-DWAVE={wave}",
            "-DOSTINATO_EMULATOR",
            *(_SANITIZED if sanitize else ()),
        )
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
        headers = [(_FOLDER / name).read_text(encoding="utf-8") for name in _HEADERS]
        self._shape = (version, *headers, *self._command)

    @property
    def version(self) -> int:
        """A number that changes with whatever shapes modules beside their source."""
        return int(source_hash(*self._shape)[:7], 16)

    def module(self, source: str) -> EmulatedModule:
        """The compiled module of an assembled source. Raises `BackendError` with the compiler's words where it refuses."""
        path = self._cache / f"{source_hash(source, *self._shape)}.so"
        if not path.exists():
            self._compile(source, path)
        return EmulatedModule(path)

    def _compile(self, source: str, path: Path) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._cache) as folder:
            text, made = Path(folder, "module.cpp"), Path(folder, "module.so")
            text.write_text(source, encoding="utf-8")
            command = [*self._command, "-include", str(_FOLDER / _HEADERS[0]), "-o", str(made), str(text)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                raise BackendError(f"the kernels do not compile:\n{run.stderr.strip()}")
            os.replace(made, path)
