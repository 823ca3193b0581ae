"""Every operator of the table as a call on memory that the caller owns, on the device where that memory is.

A call reads its operands where they lie, writes the memory given as `out`, and does nothing else: no allocation, no conversion, no copy, no move to another
device. What does not fit is refused before anything is written, but for indices out of range, which only the kernel meets: it stays in bounds, and the call
raises `BoundsError` afterwards, on a GPU whoever next waits for the stream. Outputs may not overlap operands, each other or the workspace; `in_place=True`
allows an output to be exactly the memory of an operand where the row declares that it may (so `add(a, a, out=a, in_place=True)`), and partial overlaps are
refused always. Operands that an operator updates (caches) are written themselves and are no outputs.

All operands of a call are on one device, whose rows it chooses from; a GPU's is submitted to a stream and returns. One call is one launch of one kernel, or one
product of the vendor's; `launches` counts them, so that no copy can hide. What a call is by its types is worked out once (`operator_call.py`): a capture can
only hold calls that were made before. Nothing is locked but the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from ostinato.ir.checks import boolean, shown
from ostinato.ir.errors import ConfigError, InputError, LayoutError, ShapeError
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.target import CallSite, Level
from ostinato.ir.types import PACKED_LAYOUTS, TensorType
from ostinato.ir.weights import PackSource
from ostinato.runtime.device import Device, Launch
from ostinato.runtime.forms import CPU_MEMORY, Memory
from ostinato.runtime.opened import OPENED, OpenedDevices
from ostinato.runtime.operator_call import CallPlan, Forms, call_site_of, form_of_type, plan_call, serving_row
from ostinato.runtime.operator_memory import (
    NOTHING,
    bytes_for,
    device_of,
    kernel_operand,
    refuse_other_orders,
    refuse_overlaps,
    workspace_for,
)
from ostinato.runtime.stream import Stream, check_stream
from ostinato.runtime.tensor_view import TensorView, memory_for

__all__ = ["OPERATOR_OPTIONS", "Operators"]

OPERATOR_OPTIONS = ("out", "workspace", "stream", "level", "in_place")
"""Arguments of every call besides the operands and attributes of its operator."""

_MAX_PLANS = 4096


@dataclass(frozen=True, slots=True)
class _Ready:
    plan: CallPlan
    launch: Launch


@dataclass(frozen=True, slots=True)
class _Served:
    """A device, and the calls that are ready to be made on it."""

    device: Device
    ready: dict[tuple[Any, ...], _Ready]


class Operators:
    """The operators of a table on the devices of their operands. Threads may share it; calls of one device wait for each other."""

    def __init__(self, devices: OpenedDevices = OPENED, *, ops: Mapping[str, OpDef] = OP) -> None:
        self._devices = devices
        self._ops = ops
        # operators that were called stay, so that no other one ever has the id of one
        self._called: dict[int, tuple[OpDef, tuple[str, ...]]] = {}
        self._served: dict[str, _Served] = {}

    def forget(self, memory: str) -> None:
        """Lets go of a device and of the calls that are ready on it."""
        self._served.pop(memory, None)

    def launches(self, memory: str) -> int:
        """Kernels that a device launched so far: one for each call (none for a view or an empty result) and one for each weight packed."""
        return self._devices.get(memory).launches

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
        """Runs an operator on operands, by place or by name, with attributes by name; returns `out`, the operands that it updates where it only updates, or the
        view that it makes.

        Raises `ShapeError`, `DTypeError`, `LayoutError`, `BoundsError` and `ConfigError` for operands, attributes, outputs, streams and rows that do not fit,
        and for operands of several devices; `InputError` for memory that is missing, given twice or out of reach; `LayoutError` for memory that overlaps;
        `LifecycleError` for memory that its owner freed, and for a first call within a capture; `CapacityError` for a workspace that is too small;
        `BackendError` where no row takes the dtypes: all of it before anything is written. `BoundsError` for indices out of range after the run, which left
        the results of those indices unspecified: at once on the CPU, on a GPU when somebody waits.
        """
        opdef = self._opdef(name)
        given, attrs = _arguments(opdef, operands, named)
        boolean(in_place, f"{name}: in_place")
        order = stream if isinstance(stream, Stream) else None
        memory = [
            None if value is None else memory_for(value, label, order)
            for value, label in zip(given, self._labels(opdef), strict=True)
        ]
        outs = () if out is None else out if isinstance(out, tuple) else (out,)
        if not opdef.is_view:
            memory += [None if value is None else memory_for(value, name, order) for value in outs]
        where = device_of(opdef, memory)
        check_stream(stream, where, name)
        if opdef.is_view:
            return _view_of(opdef, given, memory, attrs, out)
        served = self._serve(where)
        ready = _prepare(
            served,
            opdef,
            tuple([None if item is None else item.form for item in memory]),
            attrs,
            _level_name(level, name),
        )
        plan = ready.plan
        memory.append(workspace_for(workspace, plan.workspace, where, order, name) if plan.workspace else NOTHING)
        refuse_overlaps(name, plan, memory, in_place)
        if where != CPU_MEMORY:
            refuse_other_orders(plan, memory, order, name)
        if not plan.empty:
            taken = tuple([kernel_operand(memory, place) for place in plan.places])
            ready.launch.run(taken) if order is None else ready.launch.run(taken, order.native)
        return tuple(given[operand] for _, operand in opdef.aliased(given)) if opdef.only_updates else out

    # queries: types may stand for operands

    def result_types(self, name: str, operands: Sequence[Any], named: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """Types of the results of a call on arrays or `TensorType`s. Raises what the operator's rule raises."""
        return self._site_on(self._opdef(name), operands, named)[0].results

    def workspace_bytes(
        self,
        name: str,
        operands: Sequence[Any],
        named: Mapping[str, Any],
        *,
        level: Level | str | None = None,
        device: str | None = None,
    ) -> int:
        """Bytes of workspace that a call on arrays or `TensorType`s needs, 0 for none. Raises what the call would raise of its operands.

        `device` is where the call will run, by default where the arrays are, and the CPU where all are types.
        """
        opdef = self._opdef(name)
        site, found = self._site_on(opdef, operands, named)
        if opdef.is_view:
            return 0
        where = device or found or CPU_MEMORY
        if found not in (None, where):
            raise ConfigError(f"the tensors are on {found}, device is {where}", node=name)
        return serving_row(opdef, self._serve(where).device.target, site, _level_name(level, name)).workspace(site)

    # packed weights

    def packed_type(self, weight: Any, operator: str, *, level: Level | str | None = None) -> TensorType:
        """The type that an operator reads a weight of this type (or array) as.

        Raises `ConfigError` for an operator that packs none of its operands: on a GPU none does.
        """
        memory = None if isinstance(weight, TensorType) else memory_for(weight, "weight", None)
        tensor, where = (weight, CPU_MEMORY) if memory is None else (memory.form.type, memory.device)
        opdef, wanted, target = self._opdef(operator), _level_name(level, operator), self._serve(where).device.target
        rows = target.ranked(operator) if wanted is None else target.forced(operator, wanted, operator)
        for row in rows:
            for spec in opdef.operands:
                for layout in row.layouts_of(spec.name):
                    if layout in PACKED_LAYOUTS:
                        packed = TensorType(tensor.static_shape, tensor.dtype, layout=layout)
                        packed.nbytes  # noqa: B018 - refuses shapes and dtypes that have no packed form
                        return packed
        raise ConfigError(
            f"{operator} packs none of its operands on {where}",
            hint="pass the weight as it is"
            + ("" if where == CPU_MEMORY else ": a GPU reads weights as they are stored"),
        )

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
        target = bytes_for(out, packed.nbytes, source.device, None, "pack.out")
        if target.overlaps(source.memory):
            raise LayoutError("the packed weight would overlap the weight it is made of", node="pack.out")
        rows = np.arange(packed.static_shape[0], dtype=np.int64)
        stored = source.reinterpret("u8", (source.span,)).numpy()
        self._serve(source.device).device.pack(packed, target.address, PackSource(stored, source.dtype, rows), 0)
        shape, size = packed.static_shape, packed.nbytes
        return TensorView(target.address, size, shape, None, packed.dtype, owner=target.owner, layout=packed.layout)

    # parts of a call

    def _opdef(self, name: object) -> OpDef:
        found = self._ops.get(name) if isinstance(name, str) else None
        if found is None:
            alike = get_close_matches(str(name), self._ops)
            raise InputError(f"there is no operator {shown(name)}", hint=f"of like name: {', '.join(alike) or 'none'}")
        return found

    def _labels(self, opdef: OpDef) -> tuple[str, ...]:
        """What errors call the operands."""
        found = self._called.get(id(opdef))
        if found is None:
            found = self._called[id(opdef)] = opdef, tuple(f"{opdef.name}.{spec.name}" for spec in opdef.operands)
        return found[1]

    def _serve(self, memory: str) -> _Served:
        device, found = self._devices.get(memory), self._served.get(memory)
        if found is None or found.device is not device:
            found = self._served[memory] = _Served(device, {})
        return found

    def _site_on(self, opdef: OpDef, operands: Sequence[Any], named: Mapping[str, Any]) -> tuple[CallSite, str | None]:
        """The call of arrays or types, and the device that the arrays are on (None where there are none)."""
        given, attrs = _arguments(opdef, operands, named)
        memory = [
            None if value is None or isinstance(value, TensorType) else memory_for(value, label, None)
            for value, label in zip(given, self._labels(opdef), strict=True)
        ]
        forms = [
            form_of_type(value) if isinstance(value, TensorType) else None if found is None else found.form
            for value, found in zip(given, memory, strict=True)
        ]
        where = None if all(found is None for found in memory) else device_of(opdef, memory)
        return call_site_of(opdef, tuple(forms), attrs), where


def _prepare(served: _Served, opdef: OpDef, forms: Forms, attrs: Mapping[str, Any], level: str | None) -> _Ready:
    # attributes by their type and text, which tell 1, True, 1.0 and -0.0 from each other and are always hashable
    key = (id(opdef), level, forms, *[(name, type(value), shown(value)) for name, value in attrs.items()])
    ready = served.ready.get(key)
    if ready is None:
        count = len(opdef.operands)
        site = call_site_of(opdef, forms[:count], attrs)
        writable = [form is None or form.writable for form in forms[:count]]
        plan = plan_call(opdef, served.device.target, site, writable, forms[count:], level)
        ready = _Ready(plan, served.device.make_launch(plan.call(opdef.name)))
        if len(served.ready) >= _MAX_PLANS:
            served.ready.clear()
        served.ready[key] = ready
    return ready


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
