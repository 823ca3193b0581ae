"""Devices as data: the implementation rows that selection may choose from.

The host's target does not depend on the instruction set or the number of threads: every unit has every kernel, so one plan serves them all. A GPU's depends
on its architecture and on how many lanes its waves have.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.environment import host_environment
from ostinato.backend_hip.evidence.known import DeviceRecords, OnTrust
from ostinato.backend_hip.evidence.records import Environment
from ostinato.backend_hip.evidence.sources import kernel_hash
from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.impls.common import HOST_ARCHITECTURE
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.impls.hip.common import HIP_ARCHITECTURE
from ostinato.backend_hip.impls.reference import reference_rows
from ostinato.backend_hip.user_rows import user_rows
from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OPS, added_operators
from ostinato.ir.step import StepKind
from ostinato.ir.target import Impl, Target
from ostinato.ir.version import VERSION

__all__ = ["ALIGNMENT", "hip_target", "host_rows_target", "host_target", "named_target", "wave_of"]

ALIGNMENT = 256
"""Bytes; every planned buffer starts at a multiple of it."""

_ARCHITECTURE = re.compile(r"(sm)_[0-9]+[a-z]?|(gfx)[0-9]+[a-f]?")
_SM = (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121)
_GFX = "900 906 908 90a 940 941 942 950 1010 1011 1012 1030 1031 1032 1034 1035 1036 1100 1101 1102 1103 1150 1151 1152 1153 1200 1201"
_KNOWN = ("host", *(f"sm_{number}" for number in _SM), *(f"gfx{number}" for number in _GFX.split()))
"""What can be planned for by its name; a card that is there may be of another architecture."""


def host_rows_target() -> Target:
    """The CPU's rows, those whose architectures name the host and the references, all on trust."""
    return _host_rows(added_operators(), user_rows())


@functools.cache
def _host_rows(operators: tuple[OpDef, ...], more: tuple[Impl, ...]) -> Target:
    rows = (*ROWS, *more, *reference_rows((*OPS, *operators)))
    mine = tuple(row for row in rows if HOST_ARCHITECTURE in row.architectures)
    return Target(name="host", rows=mine, device="host:0", alignment=ALIGNMENT)


def host_target() -> Target:
    """The CPU target with the records of the best kernel unit of this machine; what has none is on trust, since no device is opened."""
    return replace(host_rows_target(), evidence=OnTrust(_host_records()))


def hip_target(architecture: str, wave: int, *, vendor: bool = True) -> Target:
    """The target of a GPU such as "gfx942" or "sm_90" whose waves have so many lanes; `vendor`: its vendor's GEMM is there.

    Its rows are those for every GPU, for its wave ("wave64"), for its vendor ("sm", "gfx") and for its architecture. Raises `ConfigError` for a name that no
    GPU has, and for a wave of other than 32 or 64 lanes.
    """
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        hint = 'the name its compiler has for it: "gfx942" is an MI300X, "gfx1100" an RX 7900, "sm_90" an H100 or H200'
        raise ConfigError(f"expected the architecture of a GPU, found {architecture!r}", hint=hint)
    if wave not in (32, 64):
        raise ConfigError(f"expected waves of 32 or 64 lanes, found {wave}", hint="AMD's gfx9 have 64, all others 32")
    return _gpu_rows(architecture, wave, match[1] or match[2], vendor, user_rows())


@functools.cache
def _gpu_rows(architecture: str, wave: int, maker: str, vendor: bool, more: tuple[Impl, ...]) -> Target:
    mine = {HIP_ARCHITECTURE, f"wave{wave}", architecture, maker}
    able = (row for row in (*HIP_ROWS, *more) if vendor or row.kind is not StepKind.GEMM)
    rows = tuple(row for row in able if mine.intersection(row.architectures))
    return Target(name=architecture, rows=rows, device="hip:0", alignment=ALIGNMENT)


def named_target(name: str) -> Target:
    """The target that people call so: "host", or the architecture of a GPU, with the waves that its makers say. Rows with a record are judged by it, the others
    are on trust. Raises `ConfigError` for a name that is none, with those that there are."""
    if name not in _KNOWN:
        raise ConfigError(f"there is no target {shown(name)}", hint=f"known: {', '.join(_KNOWN)}")
    if name == "host":
        return host_target()
    found = hip_target(name, wave_of(name))
    environment = Environment(device="", architecture=name, kernel_hash=kernel_hash(gpu=True), version=VERSION)
    return replace(found, evidence=OnTrust(DeviceRecords(environment)))


def _host_records() -> DeviceRecords:
    device = _native.Device(1, "auto")
    return DeviceRecords(host_environment(device.cpu, device.isa))


def wave_of(architecture: str) -> int:
    """Lanes of a wave: 64 of AMD's gfx9, 32 of all others."""
    return 64 if architecture.startswith("gfx9") else 32
