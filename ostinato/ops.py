"""Every operator of the table as a call on memory that the caller owns: numpy arrays, torch tensors, DLPack objects, raw pointers (`TensorView`).

    import numpy as np
    from ostinato import ops

    x, gain = np.ones((4, 64), np.float32), np.ones(64, np.float32)
    y = ops.rms_norm(x, gain, eps=1e-6, out=np.empty_like(x))

Nothing is allocated, converted or copied behind the caller's back. `dir(ops)` lists the operators; `help(ops.rms_norm)` shows operands, attributes, rows and
tolerance of one. Operands go by place or by name, attributes by name, and every call takes

- `out=` memory for the results, a tuple for several: contiguous, of the right shape and dtype (`result_types` says which), apart from everything else;
- `workspace=` scratch memory where the row needs some (`workspace_bytes` says how much), any array of enough bytes, aligned to 16;
- `stream=` a `Stream` of the device: CPU streams are synchronous;
- `level=` the name of an implementation row or level, which then serves the call or refuses it;
- `in_place=True` to allow an output that is exactly an operand, where the row can.

Operators that update operands (caches) write those and take no `out`; views (reshape, transpose, slice) return a `TensorView`. Weights that a row reads in a
packed format are packed once, by `pack`, into memory of `packed_bytes` bytes. A call runs where its operands are: on the CPU with a thread for each core until
`use` says otherwise, or on a GPU, where it is submitted to the stream (the device's default one if none is named) and returns; `check` and
`Stream.synchronize` wait, and tell of indices out of range. Calls may be captured (`ostinato.hip`) when each was made once before.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ostinato.backend_hip.open import open_named
from ostinato.backend_hip.target import host_target
from ostinato.ir.errors import ConfigError
from ostinato.ir.ops import OP, added_operators
from ostinato.ir.target import Level
from ostinato.ir.types import TensorType
from ostinato.runtime.device import Device
from ostinato.runtime.opened import OPENED, memory_name
from ostinato.runtime.operator_functions import OperatorFunction, operator_function
from ostinato.runtime.operators import Operators
from ostinato.runtime.stream import Stream
from ostinato.runtime.tensor_view import TensorView

__all__ = [
    "Stream",
    "TensorView",
    "check",
    "launches",
    "pack",
    "packed_bytes",
    "result_types",
    "use",
    "workspace_bytes",
]

_TARGET = host_target()
"""Whose rows the documentation of an operator lists."""

OPENED.open_with(open_named)
_operators = Operators(OPENED)


def use(device: Device | str = "cpu", *, threads: int = 0, isa: str = "auto") -> None:
    """Takes a device for its memory from now on: one that is open, or one to open by name, such as the CPU with so many threads.

    Which device serves a call follows from where its operands are. Raises `ConfigError` for a device, threads or isa that cannot be used, `DeviceUnavailable`
    for a device that is not here.
    """
    if not isinstance(device, str) and not hasattr(device, "make_launch"):
        raise ConfigError(f"device is {device!r}", hint='use "cpu", "hip:0", or an open device')
    if not isinstance(device, str) and (threads, isa) != (0, "auto"):
        raise ConfigError(f"{device.name} is open already", hint="threads and isa are for a device that is named")
    OPENED.use(open_named(device, threads, isa) if isinstance(device, str) else device)


def check(device: str) -> None:
    """Waits for all work of a device, such as "hip:0", and raises what its operators met that only their kernels could: on the CPU each call does so itself.

    A stream remembers the first operator that met an index out of range since somebody last waited for it, here or in `Stream.synchronize`; its results for
    that index are unspecified, and nothing else is touched. Raises `BoundsError` naming that operator, `BackendError` for a device that failed,
    `LifecycleError` while this thread captures.
    """
    OPENED.get(memory_name(device)).synchronize()


def result_types(name: str, /, *operands: Any, **named: Any) -> tuple[TensorType, ...]:
    """Types of an operator's results; operands are arrays or `TensorType`s. Raises what the operator's rule raises."""
    return _operators.result_types(name, operands, named)


def workspace_bytes(
    name: str, /, *operands: Any, level: Level | str | None = None, device: str | None = None, **named: Any
) -> int:
    """Bytes of workspace that a call needs, 0 for none; operands are arrays or `TensorType`s.

    `device` is where the call will run, by default where the arrays are, and the CPU where all are types. Raises what the call would raise of its operands.
    """
    where = None if device is None else memory_name(device)
    return _operators.workspace_bytes(name, operands, named, level=level, device=where)


def packed_bytes(weight: Any, *, operator: str = "linear", level: Level | str | None = None) -> int:
    """Bytes that `pack` needs for a weight, given as an array or as a `TensorType`.

    Raises `ConfigError` for an operator that packs no operand, and for weights on a GPU: those are read as they are stored.
    """
    return _operators.packed_type(weight, operator, level=level).nbytes


def pack(weight: Any, *, out: Any, operator: str = "linear", level: Level | str | None = None) -> TensorView:
    """Packs a weight [out, in] into the bytes of `out` as an operator's row reads it, and returns the view to call the operator with.

    Raises `LayoutError` unless both are contiguous and apart, `CapacityError` when `out` is too small, `ConfigError` for an operator that packs no operand, and
    for weights on a GPU: those are read as they are stored.
    """
    return _operators.pack(weight, operator, out, level=level)


def launches(device: str = "cpu") -> int:
    """Kernels launched so far on a device: one for each call, none for a view or an empty result, one for each weight packed.

    A product that a GPU's vendor computes is no kernel of ours and is not among them.
    """
    return _operators.launches(memory_name(device))


def __getattr__(name: str) -> OperatorFunction:
    if name not in OP:
        alike = get_close_matches(name, OP)
        close = f"; close names: {', '.join(alike)}" if alike else ""
        raise AttributeError(f"module 'ostinato.ops' has no operator {name!r}{close}")
    if OP[name] in added_operators():  # it may go again
        return operator_function(OP[name], host_target(), _operators)
    function = operator_function(OP[name], _TARGET, _operators)
    globals()[name] = function  # not asked for again
    return function


def __dir__() -> list[str]:
    return sorted([*__all__, *OP])
