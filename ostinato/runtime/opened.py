"""The devices whose memory operators work in, by the name of that memory: "cpu", "hip:0". Each is opened when it is first needed, or handed in.

What opens a device by name is handed in as well (`ostinato.ops` does), since the runtime knows no backend.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError, DeviceUnavailable
from ostinato.ir.forks import renew_after_fork
from ostinato.runtime.device import Device
from ostinato.runtime.forms import CPU_MEMORY

__all__ = ["OPENED", "OpenedDevices", "memory_name", "memory_of_device"]

_GPU = re.compile(r"(?:hip|cuda)(?::([0-9]{1,4}))?")


def memory_name(device: object) -> str:
    """The name of a device's memory as it is: "cpu", "hip:0" ("hip" is that one). torch's "cuda:0" is "hip:0", of whichever vendor, as for torch itself.

    Raises `ConfigError` for anything else.
    """
    name = device if isinstance(device, str) else ""
    if name == CPU_MEMORY:
        return name
    found = _GPU.fullmatch(name)
    if found is None:
        hint = 'memory lies on "cpu" or on a GPU such as "hip:0", of either vendor'
        raise ConfigError(f"device {shown(device)} is unknown", hint=hint)
    return f"hip:{int(found[1] or 0)}"


def memory_of_device(device: Device) -> str:
    """The name of an open device's memory."""
    return device.name if device.name.startswith("hip:") else CPU_MEMORY


class OpenedDevices:
    """Devices by the name of their memory. Threads may share it."""

    def __init__(self) -> None:
        self._open: Callable[[str], Device] | None = None
        self._devices: dict[str, Device] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Another thread may have held the lock."""
        self._lock = threading.RLock()  # a signal handler may come in between

    def open_with(self, opener: Callable[[str], Device]) -> None:
        """What opens the devices that nobody handed in."""
        self._open = opener

    def use(self, device: Device) -> None:
        """Takes this device for its memory from now on."""
        with self._lock:
            self._devices[memory_of_device(device)] = device

    def forget(self, name: str) -> None:
        """Lets go of the device of that memory: who needs it next opens it again."""
        with self._lock:
            self._devices.pop(name, None)

    def get(self, name: str) -> Device:
        """The device whose memory has that name. Raises `DeviceUnavailable` for one that is not here."""
        found = self._devices.get(name)
        if found is None:
            with self._lock:
                found = self._devices.get(name)
                if found is None:
                    if self._open is None:
                        raise DeviceUnavailable(f"nothing opens {name} here", hint="import ostinato.ops first")
                    found = self._devices[name] = self._open(name)
        return found


OPENED = OpenedDevices()
"""Those of this process."""
