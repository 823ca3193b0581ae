"""One call of an implementation row on a machine: memory laid out with guards and poison, the kernel run, results read back and judged.

What the row declares is taken at its word (`calls.py`); the operator's reference and its tolerance are the oracle. A call fails where a result is off, where
bytes around or within an operand changed that nobody may touch, and where rows past a count were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ostinato.backend_hip.evidence.calls import Call, counts_operands, leading_axis, leads
from ostinato.ir.calls import kernel_operands
from ostinato.ir.errors import BoundsError
from ostinato.ir.evaluate import leading, shortened
from ostinato.ir.rounding import round_to, widen
from ostinato.ir.step import WORKSPACE, KernelCall
from ostinato.ir.target import Target
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import PackSource

__all__ = [
    "GUARD",
    "DeviceMachine",
    "Machine",
    "Memory",
    "Mismatch",
    "RowDevice",
    "RowLaunch",
    "Worst",
    "check",
    "compare",
    "exact_references",
    "kernel_call",
    "must_refuse",
    "references",
    "results_of",
    "rounded",
    "valid_rows",
]

GUARD = 256
"""Bytes before and after each operand that nobody may touch."""
GUARD_BYTE = 0xA5
_COUNT = "#count"
_ALIGNMENT = 256
"""Of operands on a device, as in a plan."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The value of a result that is farthest off, or nearest to being so: `used` is its distance to the reference as a part of what the operator allows."""

    result: str
    index: tuple[int, ...]
    found: float
    expected: float
    used: float


class Mismatch(Exception):
    """A call that did not do what its row and operator say; `worst` where a value is off."""

    def __init__(self, text: str, worst: Worst | None = None) -> None:
        super().__init__(text)
        self.worst = worst


class Memory:
    """Bytes of one operand in this process between guard bytes, aligned to 64."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._buffer = np.full(nbytes + 2 * GUARD + 64, GUARD_BYTE, dtype=np.uint8)
        self._start = GUARD + (-(self._buffer.ctypes.data + GUARD)) % 64
        self.bytes: Array = self._buffer[self._start : self._start + nbytes]
        self.address = self._buffer.ctypes.data + self._start

    @property
    def guarded(self) -> Array:
        """The bytes with their guards."""
        return self._buffer[self._start - GUARD : self._start + self.nbytes + GUARD]

    def intact(self) -> bool:
        guarded = self.guarded
        return bool((guarded[:GUARD] == GUARD_BYTE).all() and (guarded[GUARD + self.nbytes :] == GUARD_BYTE).all())


class RowBuffer(Protocol):
    """Memory of a device, as a row's operands need it."""

    @property
    def address(self) -> int: ...
    def read(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array: ...
    def write(self, values: Array, offset: int = 0) -> None: ...
    def free(self) -> None: ...


class RowLaunch(Protocol):
    """A kernel with its parameters."""

    def run(self, operands: tuple[tuple[int, int], ...], /) -> None: ...


class RowDevice(Protocol):
    """A device, as far as running one row needs it: those of this folder, and whatever the runtime takes for one."""

    @property
    def name(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def target(self) -> Target: ...
    def allocate(self, nbytes: int, alignment: int = 256, *, zeroed: bool = True) -> RowBuffer: ...
    def pack(self, tensor_type: TensorType, address: int, source: PackSource, first_row: int) -> None: ...
    def prepare(self, calls: Sequence[KernelCall]) -> None: ...
    def make_launch(self, call: KernelCall) -> RowLaunch: ...
    def synchronize(self) -> None: ...


class Machine(Protocol):
    """Something that runs kernels."""

    def pack(self, tensor: TensorType, source: PackSource) -> Array:
        """The bytes of a weight in its packed layout."""
        ...

    def run(self, call: Call, operands: Sequence[Memory | None]) -> None:
        """Runs the row's kernel on memory of this process; raises `BoundsError` where it met an index out of range."""
        ...


class DeviceMachine:
    """A device. Operands are laid side by side in memory of its own, sent there with their guards and read back after the kernel."""

    def __init__(self, device: RowDevice) -> None:
        self.device = device

    def __str__(self) -> str:
        return f"{self.device.name} ({self.device.isa}, {self.device.threads} threads)"

    def pack(self, tensor: TensorType, source: PackSource) -> Array:
        buffer = self.device.allocate(tensor.nbytes)
        self.device.pack(tensor, buffer.address, source, 0)
        packed = buffer.read(np.uint8, (tensor.nbytes,))
        buffer.free()
        return packed

    def run(self, call: Call, operands: Sequence[Memory | None]) -> None:
        device = self.device
        held = {id(memory): memory for memory in operands if memory is not None}
        places: dict[int, int] = {}
        end = 0
        for key, memory in held.items():
            places[key] = end + _ALIGNMENT  # the first bytes before it are its guard
            end = -(-(places[key] + memory.nbytes + GUARD) // _ALIGNMENT) * _ALIGNMENT
        image = np.full(end, GUARD_BYTE, np.uint8)
        for key, memory in held.items():
            image[places[key] - GUARD : places[key] + memory.nbytes + GUARD] = memory.guarded
        buffer = device.allocate(max(end, 1), zeroed=False)
        try:
            buffer.write(image)
            addresses = tuple((0, 0) if m is None else (buffer.address + places[id(m)], m.nbytes) for m in operands)
            device.make_launch(kernel_call(call)).run(addresses)
            device.synchronize()
        finally:
            found = buffer.read(np.uint8, (end,))
            buffer.free()
            for key, memory in held.items():
                memory.guarded[:] = found[places[key] - GUARD : places[key] + memory.nbytes + GUARD]


def kernel_call(call: Call) -> KernelCall:
    """What a device makes ready for a call; errors name its first result."""
    row, site = call.row, call.site
    name, count = site.node.results[0].name, len(row.operands)
    return KernelCall(name, row.kernel(site), row.params(site), count, row.kind, row.launch_of(site))


def _poison(dtype: DType, count: int) -> Array:
    kind = dtype.numpy
    return np.full(count, np.nan if dtype.is_float else np.iinfo(kind).max, dtype=kind)


def _strided_view(memory: Memory, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    flat = memory.bytes.view(dtype.numpy)
    steps = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, steps) if 0 not in shape else np.zeros(shape, dtype=dtype.numpy)


def _operand_memory(machine: Machine, tensor: TensorType, strides: tuple[int, ...] | None, array: Array) -> Memory:
    """An operand as the row is told it lies: packed, in blocks, or with these strides, gaps poisoned."""
    if tensor.is_packed:
        memory = Memory(tensor.nbytes)
        rows = np.arange(tensor.static_shape[0], dtype=np.int64)
        stored = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory.bytes[:] = machine.pack(tensor, PackSource(stored, tensor.dtype, rows))
        return memory
    if tensor.dtype.is_block:
        memory = Memory(array.nbytes)
        memory.bytes[:] = array.reshape(-1)
        return memory
    assert strides is not None
    reach = (
        0 if not tensor.elements else 1 + sum((e - 1) * s for e, s in zip(tensor.static_shape, strides, strict=True))
    )
    memory = Memory(tensor.dtype.nbytes(reach))
    memory.bytes.view(tensor.dtype.numpy)[:] = _poison(tensor.dtype, reach)
    _strided_view(memory, tensor.dtype, tensor.static_shape, strides)[...] = array
    return memory


def _run(call: Call, machine: Machine, arrays: Sequence[Array | None]) -> list[Array]:
    """Results in logical order; fails when anything but results and workspace changed. Rows that a count leaves out are poisoned where names tell them."""
    op, site = call.op, call.site
    memories: dict[str, Memory] = {}
    for spec, tensor, strides, array in zip(op.operands, site.operands, site.strides, arrays, strict=True):
        if tensor is not None and array is not None:
            memories[spec.name] = _operand_memory(machine, tensor, strides, _valid_part(call, tensor, array))
    before = {name: memory.bytes.copy() for name, memory in memories.items()}
    places = dict(call.in_place) | {op.results[result]: op.operands[operand].name for result, operand in op.must_alias}
    for value in site.node.results:
        if value.name in places:
            memories[value.name] = memories[places[value.name]]
        else:
            memories[value.name] = Memory(value.type.nbytes)
            memories[value.name].bytes.view(value.type.dtype.numpy)[:] = _poison(value.type.dtype, value.type.elements)
    memories[WORKSPACE] = Memory(call.row.workspace(site))
    memories[WORKSPACE].bytes[:] = 0xFF
    if call.count is not None:
        memories[_COUNT] = Memory(4)
        memories[_COUNT].bytes.view(np.int32)[0] = call.count
    names = kernel_operands(site.node, op, call.row, _COUNT if call.count is not None else None)
    try:
        machine.run(call, [None if name is None else memories[name] for name in names])
    finally:
        for name, memory in memories.items():
            if not memory.intact():
                raise Mismatch(f"bytes around {name} changed")
    written = {places.get(value.name) for value in site.node.results}
    for name, bytes_before in before.items():
        if name not in written and not np.array_equal(memories[name].bytes, bytes_before):
            raise Mismatch(f"operand {name} changed")
    return [
        _strided_view(memories[value.name], value.type.dtype, value.type.static_shape, value.type.strides).copy()
        for value in site.node.results
    ]


def _valid_part(call: Call, tensor: TensorType, array: Array) -> Array:
    if call.count is None or not leads(call, tensor) or tensor.dtype.is_block:
        return array
    poisoned = array.copy()
    poisoned[call.count :] = _poison(tensor.dtype, 1)
    return poisoned


def exact_references(call: Call, arrays: Sequence[Array | None]) -> list[Array] | None:
    """The operator's reference as it comes, in the precision it is stored in but not rounded to the result dtypes.

    With a count, what has the counted axis by name is cut to its valid rows, as the interpreter does. None: the reference refuses such rows, because they
    ask for others that are not valid, and so must the kernel.
    """
    types, results = list(call.site.operands), list(call.site.results)
    seen = [None if t is None or a is None else widen(a, t.dtype) for t, a in zip(types, arrays, strict=True)]
    axis = "" if call.count is None else leading_axis(call.op, call.site)
    if call.count is not None and axis:
        rows = (axis, call.count)
        seen = [None if a is None or t is None else leading(a, t, rows) for a, t in zip(seen, types, strict=True)]
        results = [shortened(tensor, rows) for tensor in results]
    try:
        return list(call.op.reference(seen, call.site.node.attrs, results))
    except BoundsError:
        if not axis:
            raise
        return None


def references(call: Call, arrays: Sequence[Array | None]) -> list[Array] | None:
    """`exact_references`, rounded once to the result dtypes."""
    made = exact_references(call, arrays)
    return None if made is None else rounded(call, made)


def rounded(call: Call, made: Sequence[Array]) -> list[Array]:
    """What a reference made, rounded once to the result dtypes."""
    return [round_to(array, tensor.dtype) for array, tensor in zip(made, call.site.results, strict=True)]


def valid_rows(call: Call, tensor: TensorType, array: Array) -> Array:
    """The part of a result that means something: all of it, or the rows that are counted."""
    return array[: call.count] if _is_counted(call, tensor) and array.ndim else array


def _is_counted(call: Call, tensor: TensorType) -> bool:
    return call.count is not None and (not counts_operands(call.op) or leads(call, tensor))


def results_of(call: Call, machine: Machine, arrays: Sequence[Array | None]) -> list[Array]:
    """Runs the call: valid rows of each result. Raises `Mismatch` where anything was written that nobody may touch, rows past a count too."""
    found = []
    for result, value in zip(_run(call, machine, arrays), call.site.node.results, strict=True):
        found.append(valid_rows(call, value.type, result))
        if _is_counted(call, value.type) and not call.all_rows:
            rest = np.ascontiguousarray(result[call.count :])
            if rest.tobytes() != _poison(value.type.dtype, rest.size).tobytes():
                raise Mismatch(f"{value.name} was written past its {call.count} valid rows")
    return found


def must_refuse(call: Call, machine: Machine, arrays: Sequence[Array | None]) -> None:
    """Runs a call that has an index out of range. Raises `Mismatch` where the kernel does not say so."""
    try:
        _run(call, machine, arrays)
    except BoundsError:
        return
    raise Mismatch("the reference refuses these rows, the kernel does not")


def check(
    call: Call, machines: Sequence[Machine], arrays: Sequence[Array | None], expected: Sequence[Array] | None
) -> Worst | None:
    """Runs the call on each machine and returns the value that is nearest to its tolerance, None where no value has one.

    Raises `Mismatch` unless all agree bit for bit and with the reference within the tolerance.
    """
    if expected is None:
        for machine in machines:
            must_refuse(call, machine, arrays)
        return None
    runs = [results_of(call, machine, arrays) for machine in machines]
    for machine, other in zip(machines[1:], runs[1:], strict=True):
        for value, first, found in zip(call.site.node.results, runs[0], other, strict=True):
            if first.tobytes() != found.tobytes():
                raise Mismatch(f"{value.name} is not the same on {machines[0]} and {machine}")
    return compare(call, runs[0], expected)


def compare(call: Call, found: Sequence[Array], expected: Sequence[Array]) -> Worst | None:
    """The value of all results that is nearest to its tolerance, None where there is no value. Raises `Mismatch` where one is outside."""
    worst: list[Worst] = []
    for value, result, wanted in zip(call.site.node.results, found, expected, strict=True):
        worst += _compare(value.name, result, valid_rows(call, value.type, wanted), call, value.type)
    return max(worst, key=lambda value: value.used, default=None)


def _compare(name: str, actual: Array, expected: Array, call: Call, tensor: TensorType) -> list[Worst]:
    """The farthest value of a result, if it has any; fails where one is off."""
    if not actual.size:
        return []
    used = _used(actual, expected, call, tensor)
    place = tuple(int(i) for i in np.unravel_index(int(used.argmax()), used.shape))
    worst = Worst(name, place, float(actual[place]), float(expected[place]), float(used[place]))
    off = used > 1
    if off.any():
        first = tuple(int(i) for i in np.argwhere(off)[0])
        detail = f"first at {list(first)}: {actual[first]} for {expected[first]}"
        raise Mismatch(f"{int(off.sum())} of {off.size} values of {name} off, {detail}", worst)
    return [worst]


def _used(actual: Array, expected: Array, call: Call, tensor: TensorType) -> Array:
    """How far each value is from the reference, as a part of what the operator's tolerance allows there; 0 where equal, infinite where nothing may differ."""
    if not tensor.dtype.is_float:
        return np.where(actual == expected, 0.0, np.inf)
    tolerance = call.op.tolerance.for_result(tensor.dtype)
    found, wanted = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        used = np.abs(found - wanted) / (tolerance.absolute + tolerance.relative * np.abs(wanted))
    equal = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    return np.where(equal, 0.0, np.nan_to_num(used, nan=np.inf, posinf=np.inf))
