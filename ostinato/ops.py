"""Every operator of the table as a call on memory that the caller owns: numpy arrays, torch CPU tensors, DLPack objects, raw pointers (`TensorView`).

    import numpy as np
    from ostinato import ops

    x, gain = np.ones((4, 64), np.float32), np.ones(64, np.float32)
    y = ops.rms_norm(x, gain, eps=1e-6, out=np.empty_like(x))

Nothing is allocated, converted or copied behind the caller's back. `dir(ops)` lists the operators; `help(ops.rms_norm)` shows operands, attributes, rows and
tolerance of one. Operands go by place or by name, attributes by name, and every call takes

- `out=` memory for the results, a tuple for several: contiguous, of the right shape and dtype (`result_types` says which), apart from everything else;
- `workspace=` scratch memory where the row needs some (`workspace_bytes` says how much), any array of enough bytes, aligned to 16;
- `stream=` a `Stream`: CPU streams are synchronous;
- `level=` the name of an implementation row or level, which then serves the call or refuses it;
- `in_place=True` to allow an output that is exactly an operand, where the row can.

Operators that update operands (caches) write those and take no `out`; views (reshape, transpose, slice) return a `TensorView`. Weights that a row reads in a
packed format are packed once, by `pack`, into memory of `packed_bytes` bytes. Calls run on the CPU with a thread for each core until `use` says otherwise.
"""

from __future__ import annotations

import threading
from difflib import get_close_matches
from typing import Any

from ostinato.backend_hip.device import open_named
from ostinato.backend_hip.target import host_target
from ostinato.ir.errors import ConfigError
from ostinato.ir.forks import renew_after_fork
from ostinato.ir.ops import OP
from ostinato.ir.target import Level
from ostinato.ir.types import TensorType
from ostinato.runtime.device import Device
from ostinato.runtime.operator_functions import OperatorFunction, operator_function
from ostinato.runtime.operators import Operators
from ostinato.runtime.stream import Stream
from ostinato.runtime.tensor_view import TensorView

__all__ = [
    "Stream",
    "TensorView",
    "launches",
    "pack",
    "packed_bytes",
    "result_types",
    "use",
    "workspace_bytes",
]

_TARGET = host_target()


class _InUse:
    """The operators of the device in use; the CPU's are opened when they are first needed."""

    def __init__(self) -> None:
        self._operators: Operators | None = None
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Another thread may have held the lock."""
        self._lock = threading.RLock()  # a signal handler may come in between

    def get(self) -> Operators:
        found = self._operators
        if found is None:
            with self._lock:
                found = self._operators = self._operators or Operators(open_named("cpu"), _TARGET)
        return found

    def set(self, operators: Operators) -> None:
        with self._lock:
            self._operators = operators


_in_use = _InUse()


def use(device: Device | str = "cpu", *, threads: int = 0, isa: str = "auto") -> None:
    """Runs the operators of this module on a device from now on: one that is open, or one to open by name.

    Raises `ConfigError` for a device, threads or isa that cannot be used, `DeviceUnavailable` for a device that is not here.
    """
    if not isinstance(device, str) and not hasattr(device, "make_launch"):
        raise ConfigError(f"device is {device!r}", hint='use "cpu", or an open device')
    opened = open_named(device, threads, isa) if isinstance(device, str) else device
    _in_use.set(Operators(opened, _TARGET))


def result_types(name: str, /, *operands: Any, **named: Any) -> tuple[TensorType, ...]:
    """Types of an operator's results; operands are arrays or `TensorType`s. Raises what the operator's rule raises."""
    return _in_use.get().result_types(name, operands, named)


def workspace_bytes(name: str, /, *operands: Any, level: Level | str | None = None, **named: Any) -> int:
    """Bytes of workspace that a call needs, 0 for none; operands are arrays or `TensorType`s. Raises what the call would raise of its operands."""
    return _in_use.get().workspace_bytes(name, operands, named, level=level)


def packed_bytes(weight: Any, *, operator: str = "linear", level: Level | str | None = None) -> int:
    """Bytes that `pack` needs for a weight, given as an array or as a `TensorType`. Raises `ConfigError` for an operator that packs no operand."""
    return _in_use.get().packed_type(weight, operator, level=level).nbytes


def pack(weight: Any, *, out: Any, operator: str = "linear", level: Level | str | None = None) -> TensorView:
    """Packs a weight [out, in] into the bytes of `out` as an operator's row reads it, and returns the view to call the operator with.

    Raises `LayoutError` unless both are contiguous and apart, `CapacityError` when `out` is too small, `ConfigError` for an operator that packs no operand.
    """
    return _in_use.get().pack(weight, operator, out, level=level)


def launches() -> int:
    """Kernels launched so far on the device in use: one for each call, none for a view or an empty result, one for each weight packed."""
    return _in_use.get().launches


def __getattr__(name: str) -> OperatorFunction:
    if name not in OP:
        alike = get_close_matches(name, OP)
        close = f"; close names: {', '.join(alike)}" if alike else ""
        raise AttributeError(f"module 'ostinato.ops' has no operator {name!r}{close}")
    function = operator_function(OP[name], _TARGET, _in_use.get)
    globals()[name] = function  # not asked for again
    return function


def __dir__() -> list[str]:
    return sorted([*__all__, *OP])
