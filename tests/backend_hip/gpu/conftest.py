"""The fixtures of the emulated GPU for every test in this folder."""

from __future__ import annotations

from tests.backend_hip.gpu.machine import device, machine, stream

__all__ = ["device", "machine", "stream"]
