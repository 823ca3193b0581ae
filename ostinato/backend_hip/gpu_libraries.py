"""Where the GPU's libraries are looked for, and the report of what was found: driver, runtime, compiler, vendor GEMM, collectives, devices.

Libraries are looked for in the folders of Python packages, then where vendors install them, then where the system's loader looks; the process's environment
is neither read nor changed. `examine` looks in a process of its own: a broken driver may hang or crash, and libraries are opened once a process.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinato.backend_hip import _native
from ostinato.ir.errors import OstinatoError

__all__ = [
    "PLATFORMS",
    "CardFacts",
    "LibraryFacts",
    "PlatformFacts",
    "examine",
    "fix_for",
    "look",
    "main",
    "search_folders",
]

PLATFORMS = ("amd", "nvidia")
_SECONDS = 60

_FIXES: Mapping[str, str] = {
    "libamdhip64": "install ROCm (rocm.docs.amd.com), or on Debian `apt install libamdhip64-5`",
    "libhiprtc": "install ROCm's hiprtc, which compiles the kernels",
    "libhipblaslt": "install ROCm's hipblaslt, 6 or newer; without it matrix products run on kernels of our own",
    "librccl": "install ROCm's rccl; it is needed for several GPUs only",
    "libcuda": "install NVIDIA's driver, of CUDA 12.0 or newer",
    "libnvrtc": "pip install 'ostinato[cuda]', or nvidia-cuda-nvrtc of the driver's major version; it compiles the kernels",
    "libcublasLt": "pip install 'ostinato[cuda]', or nvidia-cublas; without it matrix products run on kernels of our own",
    "libnccl": "pip install nvidia-nccl-cu13; it is needed for several GPUs only",
}


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """One library: `finding` is "found", "incomplete" (a symbol or a version is missing) or "missing"; `fix` is empty where nothing is to be done."""

    role: str
    name: str
    finding: str
    version: str
    path: str
    problem: str
    fix: str


@dataclass(frozen=True, slots=True)
class CardFacts:
    """One card: its architecture as compilers name it, memory in bytes, lanes of a wave."""

    index: int
    name: str
    architecture: str
    memory_bytes: int
    multiprocessors: int
    wave: int


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """What there is of one vendor; `problem` says why no card can be used and is empty where there is one."""

    platform: str
    libraries: tuple[LibraryFacts, ...]
    cards: tuple[CardFacts, ...]
    problem: str
    hint: str


def search_folders(platform: str) -> list[str]:
    """Folders to look in before the system's own: of Python packages, in the order of `sys.path`, then of the vendor, newest version first."""
    packages = [
        folder
        for entry in sys.path
        for folder in sorted(Path(entry or ".").glob("nvidia/*/lib"))
        if platform == "nvidia"
    ]
    patterns = {
        "amd": ("opt/rocm/lib", "opt/rocm-*/lib"),
        "nvidia": ("usr/local/cuda/lib64", "usr/local/cuda-*/lib64"),
    }[platform]
    vendor = [folder for pattern in patterns for folder in sorted(Path("/").glob(pattern), reverse=True)]
    return list(dict.fromkeys(str(folder) for folder in (*packages, *vendor)))


def fix_for(library: str) -> str:
    """What to do where a library is missing or does not fit."""
    return _FIXES[library]


def look(platform: str, folders: Sequence[str] | None = None, *, sealed: bool = False) -> PlatformFacts:
    """Opens a platform's libraries in this process and says what there is. `folders` None: those of `search_folders`; `sealed`: nowhere else."""
    gpu = _native.open_gpu(platform, search_folders(platform) if folders is None else list(folders), sealed)
    libraries = tuple(
        LibraryFacts(
            role=report.role,
            name=report.name,
            finding=report.finding,
            version=report.version,
            path=report.path,
            problem=report.problem,
            fix="" if report.finding == "found" else fix_for(report.name),
        )
        for report in gpu.reports
    )
    try:
        devices = [gpu.device(index) for index in range(gpu.device_count)]
    except OstinatoError as error:
        fix = next((library.fix for library in libraries if library.role == "runtime"), "")
        return PlatformFacts(platform, libraries, (), error.message, fix or error.hint or "")
    facts = tuple(
        CardFacts(
            device.index, device.name, device.architecture, device.memory_bytes, device.multiprocessors, device.wave
        )
        for device in devices
    )
    return PlatformFacts(platform, libraries, facts, "", "")


def examine(platform: str) -> PlatformFacts:
    """`look` in a process of its own. A look that crashes or hangs is a problem of the platform and no error."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main({platform!r})"
    try:
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return _unanswered(platform, f"the libraries did not answer within {_SECONDS} s")
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        return _unanswered(platform, f"looking at the libraries ended with status {run.returncode}: {last}")
    found = json.loads(run.stdout)
    libraries = tuple(LibraryFacts(**library) for library in found["libraries"])
    cards = tuple(CardFacts(**card) for card in found["cards"])
    return PlatformFacts(platform, libraries, cards, found["problem"], found["hint"])


def main(platform: str) -> None:
    """Prints `look` as JSON, for `examine`."""
    sys.stdout.write(json.dumps(dataclasses.asdict(look(platform))))


def _unanswered(platform: str, problem: str) -> PlatformFacts:
    return PlatformFacts(
        platform, (), (), problem, "check the driver with the vendor's own tools (rocminfo, nvidia-smi)"
    )
