"""Compilers that need no GPU: NVRTC out of the package `nvidia-cuda-nvrtc`, and the distribution's clang with the device libraries of ROCm.

Both are looked for and None is returned where they are not installed. The distribution's ROCm is older than some architectures: what it lacks for them is a
file with one constant, made from the pattern of the others, in a folder that looks like an installed ROCm.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ostinato.backend_hip.kernel_source import COMPILE_OPTIONS, source_hash
from ostinato.backend_hip.prebuilt import clang_command
from tests.kernels.emulated import CACHE

__all__ = ["CompileError", "Nvrtc", "Rocm", "at_once", "nvrtc", "rocm"]

Compiled = TypeVar("Compiled")


class CompileError(Exception):
    """What the compiler said."""


class Nvrtc:
    """NVIDIA's run-time compiler."""

    def __init__(self, folder: Path) -> None:
        for path in sorted(folder.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(
                str(path), mode=ctypes.RTLD_GLOBAL
            )  # it is opened by name later, and not looked for beside the library
        self._library = ctypes.CDLL(
            str(next(path for path in sorted(folder.glob("libnvrtc.so*")) if ".alt" not in path.name))
        )

    def compile(self, source: str, architecture: str) -> bytes:
        """The code object for an architecture such as "sm_90". Raises `CompileError` with the log."""
        program = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(program), source.encode(), b"kernels", 0, None, None)
        try:
            options = [f"--gpu-architecture={architecture}", *COMPILE_OPTIONS["nvrtc"]]
            texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            if self._library.nvrtcCompileProgram(program, len(options), texts):
                raise CompileError(self._text(program, "ProgramLog").decode())
            return self._text(program, "CUBIN")
        finally:
            self._call("DestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, text)
        return text.raw

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, f"nvrtc{name}")(*arguments)
        if code:
            raise CompileError(f"nvrtc{name} gave {code}")


@functools.cache
def nvrtc() -> Nvrtc | None:
    """The compiler of the installed package, None without it."""
    spec = importlib.util.find_spec("nvidia")
    for root in () if spec is None else spec.submodule_search_locations or ():
        for folder in sorted(Path(root).glob("*/lib")):
            if any(folder.glob("libnvrtc.so*")):
                return Nvrtc(folder)
    return None


class Rocm:
    """clang and lld for AMD over a ROCm folder."""

    def __init__(self, root: Path, clang: str) -> None:
        self.root, self.clang = root, clang

    def compile(self, source: str, architecture: str) -> bytes:
        """The code object for an architecture such as "gfx942". Raises `CompileError` with what clang said."""
        with tempfile.TemporaryDirectory() as folder:
            text, made = Path(folder, "kernels.hip"), Path(folder, "kernels.co")
            text.write_text(source, encoding="utf-8")
            command = [*clang_command(architecture, self.root, self.clang), "-o", str(made), str(text)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                raise CompileError(run.stderr)
            return made.read_bytes()


_BITCODE = Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")
_HEADERS = Path("/usr/include/hip")
_LACKING = {"942": 9402, "1100": 11000}
"""Architectures that the distribution's libraries do not know, with the number that they call them by."""
_CONSTANT = """target triple = "amdgcn-amd-amdhsa"
@__oclc_ISA_version = linkonce_odr protected local_unnamed_addr addrspace(4) constant i32 {number}, align 4
"""


@functools.cache
def rocm() -> Rocm | None:
    """The distribution's compiler, None without it or without the device libraries and headers."""
    clang, assembler = shutil.which("clang++-19"), shutil.which("llvm-as-19") or shutil.which("llvm-as-15")
    if (
        clang is None
        or assembler is None
        or shutil.which("ld.lld-19") is None
        or not _BITCODE.is_dir()
        or not (_HEADERS / "hip_runtime.h").exists()
    ):
        return None
    root = CACHE / f"rocm-{source_hash(_CONSTANT, str(_LACKING), assembler)[:16]}"
    if not root.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            _make_root(Path(folder, "root"), assembler)
            os.rename(Path(folder, "root"), root)
    return Rocm(root, clang)


def _make_root(root: Path, assembler: str) -> None:
    bitcode = root / "amdgcn" / "bitcode"
    shutil.copytree(_BITCODE, bitcode)
    (root / "include").mkdir()
    (root / "include" / "hip").symlink_to(_HEADERS)
    for place in ("share", "bin"):
        (root / place).symlink_to(Path("/usr", place))
    for architecture, number in _LACKING.items():
        target = bitcode / f"oclc_isa_version_{architecture}.bc"
        if not target.exists():
            text = _CONSTANT.format(number=number)
            subprocess.run([assembler, "-", "-o", str(target)], input=text, text=True, check=True)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


def at_once(
    compiler: Callable[[str, str], Compiled], sources: Mapping[str, str], architecture: str
) -> dict[str, Future[Compiled]]:
    """Begins to compile the source of each file, the longest first, on all processors: both compilers let other threads run."""
    order = sorted(sources, key=lambda file: len(sources[file]), reverse=True)
    return {file: _pool().submit(compiler, sources[file], architecture) for file in order}
