"""Known faults of the vendors' runtimes in capture and replay, as data: where each was reported, what it concerns, and what this package does about it.

A fault that makes replays wrong without a word puts them in `doubt` on the runtimes and cards that it was seen on: mode "auto" is then "planned", and where
somebody asks for "captured" the first replays are held against the planned steps, byte for byte, before one counts (`runtime/replay_gate.py`). The others are
`avoided` by how plans are made and captured, or can only be `told`. What a card can be asked itself is in `tools/conformance/quirks.py`.

The reports are other people's: versions are those on which they saw the fault, or saw it gone. Needs no native module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

__all__ = ["FAULTS", "Handling", "RuntimeFault", "doubt_of", "faults_of", "version_number"]

Handling = Literal["doubt", "avoided", "told"]
_RUNTIMES = {"amd": "ROCm", "nvidia": "CUDA"}


@dataclass(frozen=True, slots=True)
class RuntimeFault:
    """A fault of a vendor's runtime. `since` is the first version that is known to have it, `until` the first that is known not to ("": not known);
    `architectures` are patterns, none for all cards. `handling` is how the package meets it, `what_is_done` in words; `fix` is what the user can do, if
    anything."""

    name: str
    platform: Literal["amd", "nvidia"]
    reports: tuple[str, ...]
    since: str
    until: str
    architectures: tuple[str, ...]
    handling: Handling
    what_is_done: str
    fix: str

    def applies(self, platform: str, version: str, architecture: str) -> bool:
        """Whether a runtime of that version on that architecture is one which is known to have it, or not known to be without it."""
        if platform != self.platform or not version_number(version):
            return False
        named = not self.architectures or any(fnmatchcase(architecture, pattern) for pattern in self.architectures)
        after = not self.since or version_number(version) >= version_number(self.since)
        before = not self.until or version_number(version) < version_number(self.until)
        return named and after and before

    @property
    def versions(self) -> str:
        """The versions that are concerned, in words."""
        runtime = _RUNTIMES[self.platform]
        since = f"from {self.since} " if self.since else ""
        until = f"before {self.until}" if self.until else "" if self.since else "any"
        return f"{runtime} {since}{until}".rstrip()


def version_number(text: str) -> tuple[int, ...]:
    """A version as numbers that compare: "7.13.0" comes after "7.2.3". Empty for a text that is no version."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isascii() and part.isdigit() for part in parts) else ()


def faults_of(platform: str, version: str, architecture: str) -> Sequence[RuntimeFault]:
    """The faults that a runtime of that version may have on a card of that architecture ("gfx942:sramecc+" is "gfx942")."""
    plain = architecture.partition(":")[0]
    return [fault for fault in FAULTS if fault.applies(platform, version, plain)]


def doubt_of(platform: str, version: str, architecture: str) -> str:
    """Why replays are in doubt there, in a sentence; "" where they are not."""
    found = [fault for fault in faults_of(platform, version, architecture) if fault.handling == "doubt"]
    told = "; ".join(f"{fault.name} ({', '.join(fault.reports)})" for fault in found)
    return f"{_RUNTIMES[platform]} {version} on {architecture}: {told}" if told else ""


_GATED = 'mode "auto" runs planned; mode "captured" holds its first replays against the planned steps and falls back to them where a byte differs'

FAULTS = (
    RuntimeFault(
        "replays give garbage in about one process of five",
        "amd",
        ("ROCm/clr#279",),
        "7.2",
        "7.13",
        ("gfx942",),
        "doubt",
        _GATED,
        "use ROCm 7.1, or 7.13 and newer",
    ),
    RuntimeFault(
        "replays of graphs with 200 kernels and more read old values",
        "amd",
        ("ROCm/hip#3887",),
        "",
        "",
        ("gfx1201",),
        "doubt",
        _GATED,
        'capture fewer steps at a time: capture=["ffn"]',
    ),
    RuntimeFault(
        "a replay does not see what was copied right before it",
        "amd",
        ("ROCm/hip#3902",),
        "7.2",
        "",
        ("gfx950",),
        "doubt",
        _GATED,
        'stay with mode="planned"',
    ),
    RuntimeFault(
        "nodes that copy memory do not wait for those before them at the first launch",
        "amd",
        ("ROCm/hip#3882", "ROCm/rocm-systems#11403"),
        "",
        "",
        (),
        "avoided",
        "captured steps are one chain on one stream and copy within the device alone; copies from and to the host are outside of graphs",
        "",
    ),
    RuntimeFault(
        "making a handle of the GEMM library while something is captured ends the process",
        "amd",
        ("ROCm/rocm-libraries#11838",),
        "",
        "",
        (),
        "avoided",
        "handles are made and algorithms chosen before anything is captured",
        "",
    ),
    RuntimeFault(
        "memory grows with every replay of the GEMM library's products",
        "amd",
        ("ROCm/rocm-libraries#9505",),
        "",
        "",
        (),
        "avoided",
        "products work in bytes of the plan: the library is given its workspace and allocates none",
        "",
    ),
    RuntimeFault(
        "calls that are illegal while something is captured are accepted in silence",
        "amd",
        ("pytorch#155684", "pytorch#187110"),
        "",
        "",
        (),
        "avoided",
        "objects of the package refuse them before the driver is asked; every graph is read back and compared with its plan",
        "",
    ),
    RuntimeFault(
        "an allocation of another thread ends a capture",
        "amd",
        ("llama.cpp#11804", "llama.cpp#13990"),
        "",
        "",
        (),
        "avoided",
        "captures are local to their thread; `ostinato doctor --conformance` tries whether the driver keeps to it",
        "prewarm() before other threads use the device",
    ),
    RuntimeFault(
        "of graphs on several devices only the last one replays",
        "amd",
        ("pytorch#153025",),
        "",
        "",
        (),
        "avoided",
        "a program runs on one device",
        "",
    ),
    RuntimeFault(
        "old state of a stream's last capture ends the next one",
        "amd",
        ("ROCm/ROCm#4614",),
        "6.4",
        "",
        (),
        "told",
        "such a capture fails with a typed error",
        'use mode="planned", or a newer ROCm',
    ),
    RuntimeFault(
        "updating a graph while no memory is left ends the process",
        "amd",
        ("ROCm/rocm-systems#10021",),
        "7.2",
        "",
        (),
        "avoided",
        "executables never update a graph; of `ostinato.hip` only HipGraphExecutable.update does",
        "leave some memory of the device free where you update graphs yourself",
    ),
    RuntimeFault(
        "replaying gains nothing",
        "amd",
        ("ROCm/rocm-systems#10834", "ROCm/clr#77"),
        "",
        "",
        (),
        "told",
        "both modes are right",
        '`ostinato breakeven` measures it; mode="planned" where it says so',
    ),
    RuntimeFault(
        "replays right behind each other are reordered",
        "nvidia",
        ("pytorch#57556", "pytorch#61063"),
        "",
        "11.4",
        (),
        "avoided",
        "drivers before CUDA 12.0 are refused",
        "update the driver",
    ),
    RuntimeFault(
        "running out of memory while something is captured is told as a capture that was invalidated",
        "nvidia",
        ("pytorch#187795",),
        "",
        "",
        (),
        "avoided",
        "all memory is allocated before anything is captured, and short memory is a CapacityError",
        "",
    ),
)
