"""What a self-test ran on: card, driver, libraries, compiler, our version and the hashes of our code."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.kernel_source import expanded, kernel_files, source_hash
from ostinato.ir.version import VERSION
from ostinato.runtime.device import Device
from ostinato.tools.conformance.report import EnvironmentInfo, LibraryInfo

__all__ = ["environment_of"]


def environment_of(device: Device) -> EnvironmentInfo:
    """The facts about a device and what drives it."""
    card, vendor, wave, multiprocessors, memory, compiler = "", "host", 0, 0, None, ""
    libraries: tuple[LibraryInfo, ...] = ()
    if isinstance(device, HipDevice):
        native = device.native
        card, vendor, wave, multiprocessors = native.name, native.gpu.platform, native.wave, native.multiprocessors
        memory, libraries = native.memory_bytes, _libraries(native.gpu)
        compiler = ".".join(map(str, native.gpu.compiler_version))
    elif isinstance(device, HostDevice):
        card = device.info.cpu
    return EnvironmentInfo(
        version=VERSION,
        kernel_hash=source_hash(*(expanded(f"{file}.hip") for file in kernel_files())),
        native_hash=hashlib.sha256(Path(_native.__file__ or "").read_bytes()).hexdigest(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=platform.platform(),
        device=device.name,
        platform=vendor,
        card=card,
        architecture=device.isa,
        wave=wave,
        multiprocessors=multiprocessors,
        memory_bytes=memory,
        compiler=compiler,
        libraries=libraries,
    )


def _libraries(gpu: _native.Gpu) -> tuple[LibraryInfo, ...]:
    return tuple(
        LibraryInfo.model_validate({name: getattr(report, name) for name in LibraryInfo.model_fields})
        for report in gpu.reports
    )
