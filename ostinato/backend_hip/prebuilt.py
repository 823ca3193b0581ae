"""Kernels compiled ahead, in a folder that is only read: one module a kernel file and architecture, with the entry points that it has.

A module is found by the text of its kernel file with all headers, the architecture, the options of the compiler and the version of the library, and serves
whatever part of its entry points a program wants, so one module serves many programs. Which compiler made it is not asked for: there need be none here. What
does not check is as if it were not there. `ostinato.tools.prebuild` writes such folders; the package carries one where a wheel was built with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ostinato.backend_hip.code_cache import read_entry, write_entry
from ostinato.backend_hip.kernel_source import COMPILE_OPTIONS, Instance, compile_options, expanded, source_hash
from ostinato.ir.version import VERSION

__all__ = ["PACKAGED", "Module", "Prebuilt", "clang_command", "module_key"]

PACKAGED = Path(__file__).resolve().with_name("prebuilt")
_END = b"\0"
"""Between the lines of the entry points and the code."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module with the key that it is found by, the kernel file that it is of, and the texts of the entry points that it has."""

    key: str
    file: str
    kernels: frozenset[str]
    code: bytes


def module_key(file: str, platform: str, architecture: str) -> str:
    """What a module of a kernel file is found by, whichever compiler made it."""
    return source_hash(expanded(f"{file}.hip"), *compile_options(platform, architecture), VERSION)


@dataclass(frozen=True, slots=True)
class Prebuilt:
    """The modules of a folder for one architecture; a folder that is not there has none."""

    folder: Path
    platform: str
    architecture: str

    def path(self, file: str) -> Path:
        """Where the module of a kernel file is."""
        return self.folder / f"{module_key(file, self.platform, self.architecture)}.code"

    def codes(self, wanted: Iterable[Instance]) -> dict[bytes, list[Instance]]:
        """Code and those of `wanted` that are in it, for every module that has some."""
        if not self.folder.is_dir():
            return {}
        by_file: dict[str, list[Instance]] = {}
        for instance in wanted:
            by_file.setdefault(instance.name.file, []).append(instance)
        found = {}
        for file, instances in by_file.items():
            entry, _ = read_entry(self.path(file))
            lines, _, code = (entry or b"").partition(_END)
            there = set(lines.decode().splitlines())
            if present := [instance for instance in instances if instance.text in there]:
                found[code] = present
        return found

    def write(self, file: str, instances: Iterable[Instance], code: bytes) -> None:
        """Files a module, in place of what was there, for everybody to read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = "\n".join(sorted(instance.text for instance in instances))
        write_entry(self.path(file), lines.encode() + _END + code)
        self.path(file).chmod(0o644)


def clang_command(architecture: str, rocm: Path, clang: str) -> list[str]:
    """clang for kernels of AMD; what comes out of it and the source are to be added."""
    options = [f"--rocm-path={rocm}", f"--offload-arch={architecture}", "-O3", *COMPILE_OPTIONS["clang"]]
    headers = ["-isystem", str(rocm / "include"), "-include", "hip/hip_runtime.h"]
    return [clang, "-x", "hip", *options, *headers, "--cuda-device-only", "--no-gpu-bundle-output"]
