"""The card of this machine, for the tests of what only a real driver can tell."""

from __future__ import annotations

import pytest

from ostinato.backend_hip import _native, gpu_libraries
from ostinato.ir.errors import OstinatoError

__all__ = ["real_card"]


def real_card() -> _native.GpuDevice:
    """The first device of the first vendor that has one; skips the test where there is none."""
    for platform in gpu_libraries.PLATFORMS:
        try:
            return _native.open_gpu(platform, gpu_libraries.search_folders(platform)).device(0)
        except OstinatoError:
            continue
    pytest.skip("there is no card")
