"""One call of an implementation row on a machine: memory laid out with guards and poison, the kernel run, results read back.

Everything the row declares is taken at its word: kernel and parameters, operand order, workspace bytes, packed layouts, strides, in-place pairs. A `Call` is
one way of laying a sample out that the row accepts: natural, each layout that it lists, strided operands, rows counted by an input, results in place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ostinato.backend_hip.device import HostDevice
from ostinato.ir.calls import kernel_operands
from ostinato.ir.errors import BoundsError, LayoutError
from ostinato.ir.graph import Attributes, Node, Value
from ostinato.ir.opdef import OpDef, Sample
from ostinato.ir.ops import OP
from ostinato.ir.rounding import widen
from ostinato.ir.step import WORKSPACE, StepKind
from ostinato.ir.target import NATURAL, CallSite, Impl
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.views import is_contiguous, row_refusal
from ostinato.runtime.device import PackSource, ResolvedStep

__all__ = ["GUARD", "Addresses", "Call", "HostMachine", "Machine", "calls", "check", "is_strided", "references"]

GUARD = 256
"""Bytes before and after each operand that nobody may touch."""
GUARD_BYTE = 0xA5
COUNT = "#count"
Strides = tuple[int, ...]
Addresses = tuple[tuple[int, int], ...]
"""Address and bytes of each operand of a kernel, (0, 0) where absent."""


class Machine(Protocol):
    """Something that runs kernels over memory of this process."""

    def pack(self, tensor: TensorType, address: int, source: PackSource) -> None:
        """Writes a weight in its packed layout."""
        ...

    def run(self, call: Call, operands: Addresses) -> None:
        """Runs the row's kernel; raises `BoundsError` where it met an index out of range."""
        ...


@dataclass(frozen=True)
class HostMachine:
    """The host device with one unit and number of threads."""

    unit: str
    threads: int

    def pack(self, tensor: TensorType, address: int, source: PackSource) -> None:
        _device(self.unit, self.threads).pack(tensor, address, source, 0)

    def run(self, call: Call, operands: Addresses) -> None:
        kernel, params = call.row.kernel(call.site), call.row.params(call.site)
        step = ResolvedStep(call.site.node.name, StepKind.LAUNCH, kernel, operands, params)
        _device(self.unit, self.threads).make_table([step]).run()


@functools.cache
def _device(unit: str, threads: int) -> HostDevice:
    """One device for each unit and number of threads, kept for the whole test run."""
    return HostDevice(threads=threads, isa=unit)


# ways to lay a sample out


@dataclass(frozen=True)
class Call:
    """A sample as a row is asked to run it: `count` valid rows of the leading axis (None: all), and results that take an operand's bytes."""

    row: Impl
    site: CallSite
    count: int | None = None
    in_place: tuple[tuple[str, str], ...] = ()

    @property
    def op(self) -> OpDef:
        return OP[self.row.op]

    def __str__(self) -> str:
        operands = ", ".join(
            "_" if t is None else f"{t}{'' if s is None else list(s)}"
            for t, s in zip(self.site.operands, self.site.strides, strict=True)
        )
        results = ", ".join(str(result) for result in self.site.results)
        return f"{self.row.identity}({operands}) {dict(self.site.node.attrs)} -> {results} count={self.count} in_place={list(self.in_place)}"


def calls(row: Impl, sample: Sample) -> Iterator[Call]:
    """Every way of running the sample that the row accepts."""
    for site in _sites(row, sample):
        if row_refusal(row, site, OP[row.op]) is None:
            yield Call(row, site)
            for pair in row.in_place:
                yield Call(row, site, in_place=(pair,))
        counted = replace(site, counted=True)
        rows = _leading_rows(OP[row.op], site)
        if "count" in row.operands and rows is not None and row_refusal(row, counted, OP[row.op]) is None:
            for count in sorted({0, rows // 2, rows}):
                yield Call(row, counted, count=count)


def _sites(row: Impl, sample: Sample) -> Iterator[CallSite]:
    op = OP[row.op]
    absent = [None] * (len(op.operands) - len(sample.operands))
    types = [*(None if operand is None else operand.type for operand in sample.operands), *absent]
    results = op.infer(types, sample.attrs)
    for index, spec in enumerate(op.operands):
        if (found := types[index]) is not None and NATURAL not in row.layouts_of(spec.name):
            types[index] = found.with_layout(row.layouts_of(spec.name)[0])
    node = _node(op, types, results, sample)
    plain = CallSite(node, tuple(types), results, tuple(_own_strides(tensor) for tensor in types))
    yield plain
    for name, layouts in row.layouts:
        for layout in layouts if NATURAL in layouts else layouts[1:]:
            yield from _relaid(op, plain, name, layout)
    for spec, tensor, index in zip(op.operands, plain.operands, range(len(types)), strict=True):
        if spec.name in row.strided and tensor is not None and tensor.rank > 1 and tensor.elements:
            for strides in _spread_strides(tensor):
                seen = (*plain.strides[:index], strides, *plain.strides[index + 1 :])
                yield replace(plain, strides=seen)


def _node(op: OpDef, types: list[TensorType | None], results: tuple[TensorType, ...], sample: Sample) -> Node:
    names = [None if tensor is None else spec.name for spec, tensor in zip(op.operands, types, strict=True)]
    while names and names[-1] is None:
        names.pop()
    values = [name for name in op.results if not name.endswith("*")]
    values += [f"{op.results[-1][:-1]}{i}" for i in range(len(results) - len(values))]
    made = tuple(Value(name, tensor) for name, tensor in zip(values, results, strict=True))
    return Node(op.name, tuple(names), made, Attributes(op.attributes(sample.attrs)))


def _own_strides(tensor: TensorType | None) -> Strides | None:
    return None if tensor is None or tensor.is_packed else tensor.strides


def _relaid(op: OpDef, site: CallSite, name: str, layout: str) -> Iterator[CallSite]:
    """The site with one operand or result in another layout, where its axes allow it."""
    for index, spec in enumerate(op.operands):
        tensor = site.operands[index]
        if spec.name == name and tensor is not None:
            try:
                other = tensor.with_layout(layout)
            except LayoutError:
                return
            operands = (*site.operands[:index], other, *site.operands[index + 1 :])
            yield replace(site, operands=operands, strides=tuple(_own_strides(found) for found in operands))
    for index, value in enumerate(site.node.results):
        if value.name == name:
            try:
                made = Value(name, value.type.with_layout(layout))
            except LayoutError:
                return
            values = (*site.node.results[:index], made, *site.node.results[index + 1 :])
            yield replace(site, node=replace(site.node, results=values), results=tuple(found.type for found in values))


def _spread_strides(tensor: TensorType) -> Iterator[Strides]:
    """Two strided forms with gaps: outer axes in reverse order around a dense last axis, and all axes in reverse."""
    shape = tensor.static_shape
    for order in ([*reversed(range(tensor.rank - 1)), tensor.rank - 1], list(reversed(range(tensor.rank)))):
        strides, step = [0] * tensor.rank, 1
        for axis in reversed(order):
            strides[axis] = step
            step *= shape[axis] + 1
        yield tuple(strides)


def _leading_type(op: OpDef, site: CallSite) -> TensorType | None:
    """What has the rows that a count operand counts."""
    types = {spec.name: tensor for spec, tensor in zip(op.operands, site.operands, strict=True)}
    return types.get(op.extent) if op.extent in types else site.results[0]


def _leading_rows(op: OpDef, site: CallSite) -> int | None:
    """Extent that a count operand counts, None where the call has no rows or, for an operator whose operands have them, no name for them."""
    tensor = _leading_type(op, site)
    if tensor is None or tensor.rank == 0 or (_counts_operands(op) and not tensor.axes[0]):
        return None
    return tensor.static_shape[0]


def _counts_operands(op: OpDef) -> bool:
    """Whether a count is of operands' rows and not of the results': of an operator that updates its operands, or one that reduces over their rows."""
    return bool(op.must_alias) or op.extent in {spec.name for spec in op.operands}


def _leading_axis(op: OpDef, site: CallSite) -> str:
    """Its name, "" where it has none."""
    tensor = _leading_type(op, site)
    return tensor.axes[0] if tensor is not None and tensor.rank else ""


# memory


class Memory:
    """Bytes of one operand between guard bytes, aligned to 64."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._buffer = np.full(nbytes + 2 * GUARD + 64, GUARD_BYTE, dtype=np.uint8)
        self._start = GUARD + (-(self._buffer.ctypes.data + GUARD)) % 64
        self.bytes: Array = self._buffer[self._start : self._start + nbytes]
        self.address = self._buffer.ctypes.data + self._start

    def intact(self) -> bool:
        end = self._start + self.nbytes
        return bool((self._buffer[: self._start] == GUARD_BYTE).all() and (self._buffer[end:] == GUARD_BYTE).all())


def _poison(dtype: DType, count: int) -> Array:
    kind = dtype.numpy
    return np.full(count, np.nan if dtype.is_float else np.iinfo(kind).max, dtype=kind)


def _strided_view(memory: Memory, dtype: DType, shape: tuple[int, ...], strides: Strides) -> Array:
    flat = memory.bytes.view(dtype.numpy)
    steps = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, steps) if 0 not in shape else np.zeros(shape, dtype=dtype.numpy)


def _operand_memory(machine: Machine, tensor: TensorType, strides: Strides | None, array: Array) -> Memory:
    """An operand as the row is told it lies: packed, in blocks, or with these strides, gaps poisoned."""
    if tensor.is_packed:
        memory = Memory(tensor.nbytes)
        rows = np.arange(tensor.static_shape[0], dtype=np.int64)
        stored = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        machine.pack(tensor, memory.address, PackSource(stored, tensor.dtype, rows))
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


# the run


def _run(call: Call, machine: Machine, arrays: list[Array | None]) -> list[Array]:
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
        memories[COUNT] = Memory(4)
        memories[COUNT].bytes.view(np.int32)[0] = call.count
    names = kernel_operands(site.node, op, call.row, COUNT if call.count is not None else None)
    addresses = tuple((0, 0) if name is None else (memories[name].address, memories[name].nbytes) for name in names)
    try:
        machine.run(call, addresses)
    finally:
        for name, memory in memories.items():
            assert memory.intact(), f"bytes around {name} changed"
    written = {places.get(value.name) for value in site.node.results}
    for name, bytes_before in before.items():
        assert name in written or np.array_equal(memories[name].bytes, bytes_before), f"operand {name} changed"
    return [
        _strided_view(memories[value.name], value.type.dtype, value.type.static_shape, value.type.strides).copy()
        for value in site.node.results
    ]


def _valid_part(call: Call, tensor: TensorType, array: Array) -> Array:
    axis = "" if call.count is None else _leading_axis(call.op, call.site)
    if not axis or tensor.axes[:1] != (axis,) or tensor.dtype.is_block:
        return array
    poisoned = array.copy()
    poisoned[call.count :] = _poison(tensor.dtype, 1)
    return poisoned


def references(call: Call, arrays: list[Array | None]) -> list[Array] | None:
    """The operator's reference, rounded once to the result dtypes.

    With a count, what has the counted axis by name is cut to its valid rows, as the interpreter does. None: the reference refuses such rows, because they
    ask for others that are not valid, and so must the kernel.
    """
    types, results = list(call.site.operands), list(call.site.results)
    seen = [None if t is None or a is None else widen(a, t.dtype) for t, a in zip(types, arrays, strict=True)]
    axis = "" if call.count is None else _leading_axis(call.op, call.site)
    if call.count is not None and axis:
        counted = [t is not None and t.axes[:1] == (axis,) for t in types]
        seen = [a if a is None or not c else a[: call.count] for a, c in zip(seen, counted, strict=True)]
        results = [replace(t, shape=(call.count, *t.shape[1:])) if t.axes[:1] == (axis,) else t for t in results]
    try:
        made = call.op.reference(seen, call.site.node.attrs, results)
    except BoundsError:
        if not axis:
            raise
        return None
    with np.errstate(over="ignore"):
        return [array.astype(tensor.dtype.numpy) for array, tensor in zip(made, results, strict=True)]


def check(call: Call, machines: Sequence[Machine], arrays: list[Array | None], expected: list[Array] | None) -> None:
    """Runs the call on each machine; raises `AssertionError` unless all agree bit for bit and with the reference within the tolerance."""
    if expected is None:
        for machine in machines:
            try:
                _run(call, machine, arrays)
            except BoundsError:
                continue
            raise AssertionError("the reference refuses these rows, the kernel does not")
        return
    runs = [_run(call, machine, arrays) for machine in machines]
    for index, (result, wanted) in enumerate(zip(runs[0], expected, strict=True)):
        name, tensor = call.site.node.results[index].name, call.site.results[index]
        for machine, other in zip(machines[1:], runs[1:], strict=True):
            assert result.tobytes() == other[index].tobytes(), f"{name} is not the same on {machines[0]} and {machine}"
        counted = call.count is not None and not _counts_operands(call.op)
        rows = call.count if counted else None
        _compare(name, result[:rows] if result.ndim else result, wanted[:rows] if result.ndim else wanted, call, tensor)
        if counted:
            rest = np.ascontiguousarray(result[call.count :])
            untouched = rest.tobytes() == _poison(tensor.dtype, rest.size).tobytes()
            assert untouched, f"{name} was written past its {call.count} valid rows"


def _compare(name: str, actual: Array, expected: Array, call: Call, tensor: TensorType) -> None:
    tolerance = call.op.tolerance.for_result(tensor.dtype)
    if not tensor.dtype.is_float:
        off = actual != expected
    else:
        found, wanted = actual.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(found - wanted) <= tolerance.absolute + tolerance.relative * np.abs(wanted)
        off = ~(near | (found == wanted) | (np.isnan(found) & np.isnan(wanted)))
    if off.any():
        place = tuple(int(i) for i in np.argwhere(off)[0])
        detail = f"first at {list(place)}: {actual[place]} for {expected[place]}"
        raise AssertionError(f"{int(off.sum())} of {off.size} values of {name} off, {detail}")


def is_strided(call: Call) -> bool:
    """Whether some operand is a strided view."""
    pairs: Mapping[int, Strides] = {i: s for i, s in enumerate(call.site.strides) if s is not None}
    return any(not is_contiguous(call.site.operand(index), strides) for index, strides in pairs.items())
