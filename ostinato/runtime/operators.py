"""Every operator of the table as a call on memory that the caller owns, on one device that is handed in.

A call reads its operands where they lie, writes the memory given as `out`, and does nothing else: no allocation, no conversion, no copy, no move to another
device. What does not fit is refused before anything is written, but for indices out of range, which only the kernel meets: it stays in bounds, and the call
raises `BoundsError` afterwards. Outputs may not overlap operands, each other or the workspace; `in_place=True` allows an output to be exactly the memory of an
operand where the row declares that it may (so `add(a, a, out=a, in_place=True)`), and partial overlaps are refused always. Operands that an operator updates
(caches) are written themselves and are no outputs.

One call is one launch of one kernel; `launches` counts them, so that no copy can hide. What a call is by its types is worked out once
(`operator_call.py`). Nothing is locked but the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from ostinato.ir.checks import boolean, shown
from ostinato.ir.errors import CapacityError, ConfigError, InputError, LayoutError, ShapeError
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.target import CallSite, Level, Target
from ostinato.ir.types import PACKED_LAYOUTS, TensorType
from ostinato.runtime.arrays import Memory, memory_of
from ostinato.runtime.device import Device, Launch, PackSource
from ostinato.runtime.operator_call import CallPlan, Forms, call_site_of, form_of_type, plan_call, serving_row
from ostinato.runtime.stream import check_stream
from ostinato.runtime.tensor_view import TensorView

__all__ = ["OPERATOR_OPTIONS", "Operators"]

OPERATOR_OPTIONS = ("out", "workspace", "stream", "level", "in_place")
"""Arguments of every call besides the operands and attributes of its operator."""

BYTES_ALIGNMENT = 16
"""Of workspaces and packed weights, in bytes; memory of numpy, torch and malloc begins at a multiple of it."""

_MAX_PLANS = 4096
_NOTHING = memory_of(np.zeros(64, np.uint8))._replace(span=0)
"""Memory of what has no bytes, and may have no address of its own, where a kernel asks for an address that it never reads."""


@dataclass(frozen=True, slots=True)
class _Ready:
    plan: CallPlan
    launch: Launch


class Operators:
    """The operators of a table on one device, whose memory is called `memory`. Threads may share it; calls of one device wait for each other."""

    def __init__(self, device: Device, target: Target, *, memory: str = "cpu", ops: Mapping[str, OpDef] = OP) -> None:
        self.target = target
        self._device = device
        self._memory = memory
        self._ops = ops
        self._labels = {op.name: tuple(f"{op.name}.{spec.name}" for spec in op.operands) for op in ops.values()}
        self._ready: dict[tuple[Any, ...], _Ready] = {}

    @property
    def launches(self) -> int:
        """Kernels that the device launched so far: one for each call (none for a view or an empty result) and one for each weight packed."""
        return self._device.launches

    def call(
        self,
        name: str,
        operands: Sequence[Any],
        named: Mapping[str, Any],
        *,
        out: Any = None,
        workspace: Any = None,
        stream: object = None,
        level: Level | str | None = None,
        in_place: bool = False,
    ) -> Any:
        """Runs an operator on operands, by place or by name, with attributes by name; returns `out`, the operands that it updates, or the view that it makes.

        Raises `ShapeError`, `DTypeError`, `LayoutError`, `BoundsError` and `ConfigError` for operands, attributes, outputs, streams and rows that do not fit;
        `InputError` for memory that is missing, given twice or out of reach; `LayoutError` for memory that overlaps; `CapacityError` for a workspace that is
        too small; `BackendError` where no row takes the dtypes: all of it before anything is written. `BoundsError` for indices out of range after the run,
        which left the results of those indices unspecified.
        """
        opdef = self._opdef(name)
        given, attrs = _arguments(opdef, operands, named)
        check_stream(stream, self._memory, name)
        boolean(in_place, f"{name}: in_place")
        memory = [
            None if value is None else self._memory_of(value, label)
            for value, label in zip(given, self._labels[name], strict=True)
        ]
        if opdef.is_view:
            return _view_of(opdef, given, memory, attrs, out)
        outs = () if out is None else out if isinstance(out, tuple) else (out,)
        memory += [None if value is None else self._memory_of(value, name) for value in outs]
        ready = self._prepare(
            opdef, tuple([None if item is None else item.form for item in memory]), attrs, _level_name(level, name)
        )
        plan = ready.plan
        memory.append(self._workspace(workspace, plan.workspace, name) if plan.workspace else _NOTHING)
        _refuse_overlaps(name, plan, memory, in_place)
        if not plan.empty:
            ready.launch.run(tuple([_operand(memory, place) for place in plan.places]))
        return tuple(given[operand] for _, operand in opdef.aliased(given)) if opdef.must_alias else out

    # queries: types may stand for operands

    def result_types(self, name: str, operands: Sequence[Any], named: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """Types of the results of a call on arrays or `TensorType`s. Raises what the operator's rule raises."""
        return self._site(name, operands, named).results

    def workspace_bytes(
        self, name: str, operands: Sequence[Any], named: Mapping[str, Any], *, level: Level | str | None = None
    ) -> int:
        """Bytes of workspace that a call on arrays or `TensorType`s needs, 0 for none. Raises what the call would raise of its operands."""
        opdef = self._opdef(name)
        site = self._site(name, operands, named)
        if opdef.is_view:
            return 0
        return serving_row(opdef, self.target, site, _level_name(level, name)).workspace(site)

    # packed weights

    def packed_type(self, weight: Any, operator: str, *, level: Level | str | None = None) -> TensorType:
        """The type that an operator reads a weight of this type (or array) as. Raises `ConfigError` for an operator that packs none of its operands."""
        tensor = weight if isinstance(weight, TensorType) else self._memory_of(weight, "weight").form.type
        opdef, wanted = self._opdef(operator), _level_name(level, operator)
        rows = self.target.ranked(operator) if wanted is None else self.target.forced(operator, wanted, operator)
        for row in rows:
            for spec in opdef.operands:
                for layout in row.layouts_of(spec.name):
                    if layout in PACKED_LAYOUTS:
                        packed = TensorType(tensor.static_shape, tensor.dtype, layout=layout)
                        packed.nbytes  # noqa: B018 - refuses shapes and dtypes that have no packed form
                        return packed
        raise ConfigError(f"{operator} packs none of its operands", hint="pass the weight as it is")

    def pack(self, weight: Any, operator: str, out: Any, *, level: Level | str | None = None) -> TensorView:
        """Packs a weight [out, in] into the caller's bytes as an operator reads it; the view of it is what the operator takes. A weight is packed once.

        Raises `LayoutError` unless weight and `out` are contiguous, `out` is writable and both are apart, `CapacityError` when `out` is too small, and what
        `packed_type` raises.
        """
        source = TensorView.of(weight, "pack.weight")
        packed = self.packed_type(source, operator, level=level)
        if not source.is_contiguous:
            raise LayoutError(
                f"expected a contiguous weight, found {source}", node="pack.weight", hint="ops.contiguous(w, out=...)"
            )
        target = self._bytes(out, packed.nbytes, "pack.out")
        if target.overlaps(source.memory):
            raise LayoutError("the packed weight would overlap the weight it is made of", node="pack.out")
        rows = np.arange(packed.static_shape[0], dtype=np.int64)
        stored = source.reinterpret("u8", (source.span,)).numpy()
        self._device.pack(packed, target.address, PackSource(stored, source.dtype, rows), 0)
        shape, size = packed.static_shape, packed.nbytes
        return TensorView(target.address, size, shape, None, packed.dtype, owner=target.owner, layout=packed.layout)

    # parts of a call

    def _opdef(self, name: object) -> OpDef:
        found = self._ops.get(name) if isinstance(name, str) else None
        if found is None:
            alike = get_close_matches(str(name), self._ops)
            raise InputError(f"there is no operator {shown(name)}", hint=f"of like name: {', '.join(alike) or 'none'}")
        return found

    def _memory_of(self, value: Any, label: str) -> Memory:
        if isinstance(value, TensorView):
            memory, device = value.memory, value.device
        else:
            memory, device = memory_of(value, label), "cpu"  # arrays elsewhere are refused where they are read
        if device != self._memory:
            raise ConfigError(f"the tensor is on {device}, the operator runs on {self._memory}", node=label)
        return memory

    def _site(self, name: str, operands: Sequence[Any], named: Mapping[str, Any]) -> CallSite:
        opdef = self._opdef(name)
        given, attrs = _arguments(opdef, operands, named)
        forms = [
            None
            if value is None
            else form_of_type(value)
            if isinstance(value, TensorType)
            else self._memory_of(value, label).form
            for value, label in zip(given, self._labels[name], strict=True)
        ]
        return call_site_of(opdef, tuple(forms), attrs)

    def _prepare(self, opdef: OpDef, forms: Forms, attrs: Mapping[str, Any], level: str | None) -> _Ready:
        # attributes by their type and text, which tell 1, True, 1.0 and -0.0 from each other and are always hashable
        key = (opdef.name, level, forms, *[(name, type(value), shown(value)) for name, value in attrs.items()])
        ready = self._ready.get(key)
        if ready is None:
            count = len(opdef.operands)
            site = call_site_of(opdef, forms[:count], attrs)
            writable = [form is None or form.writable for form in forms[:count]]
            plan = plan_call(opdef, self.target, site, writable, forms[count:], level)
            ready = _Ready(plan, self._device.make_launch(plan.call(opdef.name)))
            if len(self._ready) >= _MAX_PLANS:
                self._ready.clear()
            self._ready[key] = ready
        return ready

    def _workspace(self, given: Any, needed: int, name: str) -> Memory:
        if given is None:
            raise CapacityError(
                f"{name} needs {needed} bytes of workspace, none are given",
                node=name,
                hint=f'workspace=np.empty({needed}, np.uint8); ops.workspace_bytes("{name}", ...) says how many',
            )
        return self._bytes(given, needed, f"{name}.workspace")

    def _bytes(self, given: Any, needed: int, label: str) -> Memory:
        """The first bytes of the caller's memory for scratch or packed data, of any dtype."""
        memory = self._memory_of(given, label)
        if not (memory.form.is_contiguous and memory.form.writable):
            raise LayoutError(f"expected contiguous writable memory, found {TensorView.of(given)}", node=label)
        if memory.span < needed:
            raise CapacityError(f"{needed} bytes are needed, {memory.span} are given", node=label)
        if needed and memory.address % BYTES_ALIGNMENT:
            raise LayoutError(f"{memory.address:#x} is not aligned to {BYTES_ALIGNMENT} bytes", node=label)
        return memory._replace(span=needed)


def _arguments(opdef: OpDef, operands: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Operands in schema order, None for each absent one, and attributes."""
    count = len(opdef.operands)
    if len(operands) > count:
        raise ShapeError(
            f"expected at most {count} operands, found {len(operands)}", node=opdef.name, hint=_schema(opdef)
        )
    given, attrs = [*operands, *([None] * (count - len(operands)))], dict(named)
    if attrs:
        for index, spec in enumerate(opdef.operands):
            if spec.name in attrs:
                if index < len(operands):
                    raise InputError(f"{spec.name} is given twice", node=opdef.name, hint=_schema(opdef))
                given[index] = attrs.pop(spec.name)
    return given, attrs


def _schema(opdef: OpDef) -> str:
    operands = [f"{spec.name}?" if spec.optional else spec.name for spec in opdef.operands]
    return f"operands are {', '.join(operands)}; attributes go by name"


def _level_name(level: object, name: str) -> str | None:
    if isinstance(level, Level):
        return level.name.lower()
    if level is None or isinstance(level, str):
        return level
    raise ConfigError(f"level is {shown(level)}, expected the name of a level or a row", node=name)


def _operand(memory: Sequence[Memory | None], place: int | None) -> tuple[int, int]:
    found = None if place is None else memory[place]
    if found is None:
        return (0, 0)
    return (found.address, found.span) if found.span else (_NOTHING.address, 0)


def _refuse_overlaps(name: str, plan: CallPlan, memory: Sequence[Memory | None], in_place: bool) -> None:
    """Raises `LayoutError` where memory that is written overlaps other memory of the call, unless it is exactly an operand's that may be written in place."""
    for place in plan.written:
        written = memory[place]
        if written is None:
            continue
        for other, found in enumerate(memory):
            if other == place or found is None or not written.overlaps(found):
                continue
            allowed = (place, other) in plan.in_place and written[:2] == found[:2]
            if allowed and in_place:
                continue
            raise LayoutError(
                f"{_range(plan, place, written)} overlaps {_range(plan, other, found)}",
                node=name,
                hint="in_place=True allows an output that is exactly this operand"
                if allowed
                else "use separate memory",
            )


def _range(plan: CallPlan, place: int, memory: Memory) -> str:
    return f"{plan.names[place]} [{memory.address:#x}, {memory.end:#x})"


def _view_of(
    opdef: OpDef, given: Sequence[Any], memory: Sequence[Memory | None], attrs: Mapping[str, Any], out: Any
) -> TensorView:
    """The result of an operator that moves no bytes. Raises what its rule raises."""
    if out is not None:
        raise InputError(
            f"{opdef.name} makes a view of its operand and writes nothing", node=opdef.name, hint="leave out= away"
        )
    full = opdef.attributes(attrs)
    types = [None if item is None else item.form.type for item in memory]
    (result,) = opdef.infer(types, full)
    source = TensorView.of(given[0], opdef.name)
    assert opdef.view is not None
    found = opdef.view(types, full, source.strides)
    return source.viewed(result.static_shape, found.strides, found.offset)
