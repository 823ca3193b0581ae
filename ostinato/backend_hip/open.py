"""Opening a device by name: the host, or a GPU of whichever vendor's card is there, or the reason why there is none and what to do about it.

"auto" is the first GPU where the machine has one and the host elsewhere. Whether it has one follows from what the system's kernel shows, so that no vendor's
library is opened on a machine without.
"""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from pathlib import Path

from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.gpu_libraries import PLATFORMS, fix_for, search_folders
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError, DeviceUnavailable

__all__ = ["open_hip", "open_named"]

_VENDORS = {"amd": "AMD", "nvidia": "NVIDIA"}
_GPU = re.compile(r"hip(?::([0-9]{1,4}))?")
_SHOWN_BY_DRIVERS = ("dev/kfd", "dev/nvidiactl", "dev/dxg")
_OPENED: weakref.WeakValueDictionary[tuple[str, int], HipDevice] = weakref.WeakValueDictionary()
_OPENED_LOCK = threading.Lock()


def open_named(name: str, threads: int = 0, isa: str = "auto") -> HostDevice | HipDevice:
    """Opens a device by name: "cpu" is the host, "hip" and "hip:1" are GPUs. `threads` and `isa` are those of the host, which packs a GPU's weights: "auto" is
    the host where either is given. A GPU that is there but cannot be used is warned of where "auto" passes it by.

    Who names a GPU that is open already, with the same host, gets the same object, with its kernels. Raises `DeviceUnavailable` for a GPU that cannot be used,
    `ConfigError` for any other name and for threads or an isa that cannot be had.
    """
    if name == "auto" and (threads, isa) == (0, "auto") and _shows_a_gpu():
        try:
            return open_hip()
        except DeviceUnavailable as error:
            warnings.warn(f"there is a GPU that cannot be used, this runs on the CPU: {error}", stacklevel=2)
    if name in ("auto", "cpu"):
        return HostDevice(threads=threads, isa=isa, ledger=Ledger())
    found = _GPU.fullmatch(name)
    if found is None:
        hint = 'use "auto", "cpu", "hip" or "hip:1": "hip" is a GPU of either vendor, NVIDIA\'s too'
        raise ConfigError(f"device {name!r} is unknown", hint=hint)
    number = int(found[1] or 0)
    return open_hip(number) if (threads, isa) == (0, "auto") else open_hip(number, host=HostDevice(threads, isa))


def _shows_a_gpu() -> bool:
    return any(Path("/", place).exists() for place in _SHOWN_BY_DRIVERS)


def open_hip(
    index: int = 0,
    platform: str | None = None,
    *,
    gpu: _native.Gpu | None = None,
    cache: CodeCache | None = None,
    host: HostDevice | None = None,
) -> HipDevice:
    """The device of that number: of `gpu` where it is given, of "amd" or "nvidia" where that is, of the first vendor with a card otherwise.

    Raises `DeviceUnavailable` where there is no driver, no card or no such number (saying how many there are), with what to do; `ConfigError` for another
    platform; `LifecycleError` where the libraries were opened from elsewhere in this process.
    """
    native = _device(_with_a_card(platform) if gpu is None else gpu, integer(index, "the number of a GPU", low=0))
    ledger = Ledger() if gpu is None else None
    if cache is not None or host is not None:
        return HipDevice(native, cache=cache, host=host, ledger=ledger)
    with _OPENED_LOCK:
        key = (native.gpu.platform, native.index)
        found = _OPENED.get(key)
        if found is None:
            found = _OPENED[key] = HipDevice(native, ledger=ledger)
        return found


def _with_a_card(platform: str | None) -> _native.Gpu:
    """The libraries of that platform, or of the first one that has a card."""
    reasons: list[str] = []
    for name in PLATFORMS if platform is None else (platform,):
        found = _native.open_gpu(name, search_folders(name))
        try:
            if found.device_count:
                return found
        except DeviceUnavailable as error:
            runtime = next(report for report in found.reports if report.role == "runtime")
            fix = error.hint if runtime.finding == "found" else fix_for(runtime.name)
            reasons.append(f"{_VENDORS[name]}: {error.message}; {fix}")
    raise DeviceUnavailable(
        "\n  ".join(("no GPU can be used", *reasons)),
        hint='`ostinato doctor` lists what was found; the device "cpu" needs no GPU',
    )


def _device(gpu: _native.Gpu, number: int) -> _native.GpuDevice:
    count = gpu.device_count
    if number >= count:
        names = ", ".join(f"hip:{index}" for index in range(count))
        raise DeviceUnavailable(
            f"hip:{number} does not exist; there {'is' if count == 1 else 'are'} {count}: {names}",
            hint="devices are numbered from 0",
        )
    return gpu.device(number)
