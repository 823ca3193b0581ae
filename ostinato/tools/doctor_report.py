"""What `ostinato doctor --json` prints: what was found on a machine, and what is missing."""

from __future__ import annotations

from typing import Literal

from ostinato.tools.conformance.report import LibraryInfo
from ostinato.tools.report import Report

__all__ = [
    "DeviceInfo",
    "DoctorReport",
    "GemmRecord",
    "GpuCard",
    "GpuLibrary",
    "GpuPlatform",
    "KnownQuirk",
    "ModelPackage",
    "NativeInfo",
    "PackageInfo",
    "Problem",
]


class Problem(Report):
    """Something `doctor` found missing or wrong, and the command or change that mends it."""

    text: str
    hint: str


class NativeInfo(Report):
    """The native module: where it lies, the units this processor can run, and what it would use now."""

    path: str
    abi_version: int
    isa: str
    available: tuple[str, ...]
    threads: int
    kernels: int


class PackageInfo(Report):
    """An optional package; `version` is null where it is not installed."""

    name: str
    version: str | None
    used_for: str


class ModelPackage(Report):
    """A package that carries a model; `path` is null where it is not installed."""

    name: str
    package: str
    path: str | None
    install: str


class DeviceInfo(Report):
    """A kind of device and whether this version can use one here."""

    name: str
    available: bool
    detail: str


class GpuLibrary(LibraryInfo):
    """A vendor's library, and what to do where it is missing or incomplete: `fix` is empty where nothing is to be done."""

    fix: str


class GpuCard(Report):
    """A GPU as its driver describes it; `wave` is lanes."""

    index: int
    name: str
    architecture: str
    memory_bytes: int
    multiprocessors: int
    wave: int


class GpuPlatform(Report):
    """One vendor's libraries and cards; `problem` says why no card can be used and is empty where there is one."""

    platform: Literal["amd", "nvidia"]
    libraries: tuple[GpuLibrary, ...]
    cards: tuple[GpuCard, ...]
    problem: str
    hint: str


class GemmRecord(Report):
    """The file of the vendors' GEMM algorithms chosen on this machine: how many for each card, driver and library, and lines that do not check."""

    path: str
    algorithms: dict[str, int]
    damaged: int


class KnownQuirk(Report):
    """A known fault of a vendor's runtime, or an oddity that a device can be asked for: where it was reported, what it concerns, and what is done about it.

    `handling`: "doubt" (replays may be wrong: planned, or captured with its first replays checked), "avoided" (by how plans are made), "told" (nothing is
    done), or "probed" (`doctor --conformance` tries it). `cards` are those here that it concerns.
    """

    name: str
    platform: Literal["amd", "nvidia", "any"]
    reports: tuple[str, ...]
    versions: str
    architectures: tuple[str, ...]
    detection: str
    handling: Literal["doubt", "avoided", "told", "probed"]
    what_is_done: str
    fix: str
    cards: tuple[str, ...]


class DoctorReport(Report):
    """`ostinato doctor`. `quirks` are the known ones, those that concern no card here too."""

    kind: Literal["doctor"] = "doctor"
    ok: bool
    version: str
    package_path: str
    python: str
    executable: str
    platform: str
    native: NativeInfo | None
    cpu: str
    cpu_flags: tuple[str, ...]
    processors: int
    memory_bytes: int | None
    memory_available_bytes: int | None
    cache_path: str
    packages: tuple[PackageInfo, ...]
    models: tuple[ModelPackage, ...]
    devices: tuple[DeviceInfo, ...]
    gpus: tuple[GpuPlatform, ...]
    gemm_record: GemmRecord
    problems: tuple[Problem, ...]
    quirks: tuple[KnownQuirk, ...] = ()
