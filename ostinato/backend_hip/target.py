"""The host device as data: the implementation rows that selection may choose from.

A target does not depend on the instruction set or the number of threads: every unit has every kernel, so one plan serves them all.
"""

from __future__ import annotations

from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.impls.common import HOST_ARCHITECTURE
from ostinato.ir.target import Target

__all__ = ["HOST_ALIGNMENT", "host_target"]

HOST_ALIGNMENT = 256
"""Bytes; every planned buffer starts at a multiple of it."""


def host_target() -> Target:
    """The CPU target; its rows are those whose architectures name the host."""
    rows = tuple(row for row in ROWS if HOST_ARCHITECTURE in row.architectures)
    return Target(name="host", rows=rows, device="host:0", alignment=HOST_ALIGNMENT)
