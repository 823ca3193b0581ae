"""Samples of the operator table as a caller lays them out: every array in memory of its own, aligned to its elements and no further, between guard bytes.

Shared by the tests of the caller-owned operators. Axis names and layouts of a sample are dropped, since arrays have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.ir.opdef import OpDef, Sample
from ostinato.ir.ops.samplers import materialise
from ostinato.ir.rounding import round_to, widen
from ostinato.ir.step import KernelCall
from ostinato.ir.target import Level
from ostinato.ir.types import PACKED_LAYOUTS, Array, DType, TensorType
from ostinato.runtime.device import Launch

__all__ = ["Arguments", "Guarded", "Recording", "arguments", "check_result", "has_names", "reference"]

_GUARD, _BYTE = 256, 0xA5


Operands = tuple[tuple[int, int], ...]


class Recording:
    """A device that does what another does, and remembers what was launched on which operands."""

    def __init__(self, device: HostDevice) -> None:
        self._device = device
        self.launched: list[tuple[Launch, Operands]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def make_launch(self, call: KernelCall) -> Any:
        return _RecordedLaunch(self._device.make_launch(call), self.launched)


class _RecordedLaunch:
    def __init__(self, launch: Launch, launched: list[tuple[Launch, Operands]]) -> None:
        self._launch = launch
        self._launched = launched

    def run(self, operands: Operands) -> None:
        self._launched.append((self._launch, operands))
        self._launch.run(operands)


class Guarded:
    """Bytes at an address that no alignment above `align` divides, with guards around them."""

    def __init__(self, nbytes: int, align: int) -> None:
        self._buffer = np.full(nbytes + 2 * _GUARD + 128, _BYTE, np.uint8)
        start = _GUARD + (-(self._buffer.ctypes.data + _GUARD)) % 64 + align % 64
        self._range = (start, start + nbytes)
        self.bytes: Array = self._buffer[start : start + nbytes]

    def array(self, dtype: DType, shape: Sequence[int]) -> Array:
        return self.bytes.view(dtype.numpy).reshape(shape)

    def intact(self) -> bool:
        start, stop = self._range
        return bool((self._buffer[:start] == _BYTE).all() and (self._buffer[stop:] == _BYTE).all())


@dataclass
class Arguments:
    """One call: operands as the caller passes them, the stored arrays behind them, and memory for the results."""

    op: OpDef
    attrs: Mapping[str, Any]
    types: list[TensorType | None]
    stored: list[Array | None]
    operands: list[Any]
    memory: list[Guarded]
    outs: list[Array] = field(default_factory=list)
    results: tuple[TensorType, ...] = ()

    @property
    def out(self) -> Any:
        """As `out=` takes it."""
        updated = dict(self.op.aliased(self.operands))
        free = [out for index, out in enumerate(self.outs) if index not in updated]
        if not free or self.op.is_view:
            return None
        return free[0] if len(free) == 1 else tuple(free)

    @property
    def made(self) -> list[Any]:
        """Where each result is found after the call: an operand that was updated, or an output."""
        updated = dict(self.op.aliased(self.operands))
        return [self.stored[updated[i]] if i in updated else out for i, out in enumerate(self.outs)]

    def workspace(self) -> Array:
        size = ops.workspace_bytes(self.op.name, *self.operands, **self.attrs)
        memory = Guarded(size, 16)
        self.memory.append(memory)
        memory.bytes[:] = 0xFF
        return memory.bytes

    def run(self, **options: Any) -> Any:
        return getattr(ops, self.op.name)(
            *self.operands, **self.attrs, out=self.out, workspace=self.workspace(), **options
        )


def has_names(sample: Sample) -> bool:
    """Whether the sample says something that arrays do not: names or orders of axes."""
    return any(o is not None and (any(o.type.axes) or not o.type.is_natural) for o in sample.operands)


def arguments(op: OpDef, sample: Sample, rng: np.random.Generator, *, outputs: bool = True) -> Arguments:
    """The call of a sample. Weights that some row of the operator reads packed are packed; results are poisoned. `outputs=False` makes none."""
    made = Arguments(op, dict(sample.attrs), [], [], [], [])
    names = [spec.name for spec in op.operands]
    for place, operand in enumerate(sample.operands):
        if operand is None:
            made.types.append(None)
            made.stored.append(None)
            made.operands.append(None)
            continue
        tensor = TensorType(operand.type.static_shape, operand.type.dtype)
        array = np.ascontiguousarray(materialise(operand, rng)).reshape(-1).view(np.uint8)
        guarded = Guarded(array.nbytes, 1 if tensor.dtype.is_block else tensor.dtype.block_bytes)
        guarded.bytes[:] = array
        made.memory.append(guarded)
        made.types.append(tensor)
        value: Any
        if tensor.dtype.is_block:
            made.stored.append(
                guarded.bytes.reshape(*tensor.static_shape[:-1], -1) if tensor.elements else guarded.bytes
            )
            value = ost.TensorView.of(guarded.bytes).reinterpret(tensor.dtype, tensor.static_shape)
        else:
            value = guarded.array(tensor.dtype, tensor.static_shape)
            made.stored.append(value)
        made.operands.append(_packed(made, names[min(place, len(names) - 1)], tensor, value))
    if outputs:
        made.results = ops.result_types(op.name, *made.operands, **made.attrs)
        for tensor in made.results:
            guarded = Guarded(tensor.nbytes, tensor.dtype.block_bytes)
            guarded.bytes[:] = 0xFF
            made.memory.append(guarded)
            made.outs.append(guarded.array(tensor.dtype, tensor.static_shape))
    return made


def _packed(call: Arguments, name: str, tensor: TensorType, value: Any) -> Any:
    operator = call.op.name
    rows = (row for row in host_target().ranked(operator) if row.level is not Level.REFERENCE)
    if tensor.rank != 2 or not any(set(row.layouts_of(name)) & set(PACKED_LAYOUTS) for row in rows):
        return value
    try:
        size = ops.packed_bytes(value, operator=operator)
    except ost.OstinatoError:  # no weight of this operator, which says so better
        return value
    call.memory.append(Guarded(size, 16))
    return ops.pack(value, out=call.memory[-1].bytes, operator=operator)


def reference(call: Arguments) -> list[Array]:
    """The operator's reference on the stored values, rounded once."""
    seen = [None if t is None or a is None else widen(a, t.dtype) for t, a in zip(call.types, call.stored, strict=True)]
    made = call.op.reference(seen, call.attrs, call.results)
    return [round_to(array, tensor.dtype) for array, tensor in zip(made, call.results, strict=True)]


def check_result(op: OpDef, tensor: TensorType, actual: Array, expected: Array) -> str | None:
    """What is wrong with a result, None when it agrees within the tolerance of the operator."""
    if actual.shape != expected.shape or actual.dtype != tensor.dtype.numpy:
        return f"{actual.dtype}{list(actual.shape)} for {tensor}"
    if not tensor.dtype.is_float:
        off = actual != expected
    else:
        tolerance = op.tolerance.for_result(tensor.dtype)
        found, wanted = actual.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(found - wanted) <= tolerance.absolute + tolerance.relative * np.abs(wanted)
        off = ~(near | (found == wanted) | (np.isnan(found) & np.isnan(wanted)))
    return f"{int(off.sum())} of {off.size} values off" if off.any() else None
