"""Bytes of arguments as numbers that somebody would write."""

from __future__ import annotations

import math
import struct

__all__ = ["real_of"]

_LEAST, _MOST = 1e-12, 1e12


def real_of(data: bytes) -> float | None:
    """The float that four or eight bytes are, where it is a plain one."""
    form = {4: "<f", 8: "<d"}.get(len(data))
    if form is None:
        return None
    value = float(struct.unpack(form, data)[0])
    return value if value == 0 or (math.isfinite(value) and _LEAST < abs(value) < _MOST) else None
