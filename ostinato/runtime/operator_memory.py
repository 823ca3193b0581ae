"""Memory of a caller-owned call: on one device, in the order of its stream, large and aligned enough, and apart where it is written.

Everything here depends on the addresses of one call; what types can tell is in `operator_call.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.ir.errors import CapacityError, ConfigError, LayoutError
from ostinato.ir.opdef import OpDef
from ostinato.runtime.arrays import memory_of
from ostinato.runtime.forms import CPU_MEMORY, Memory
from ostinato.runtime.operator_call import CallPlan
from ostinato.runtime.stream import Stream
from ostinato.runtime.tensor_view import TensorView, memory_for

__all__ = [
    "NOTHING",
    "bytes_for",
    "device_of",
    "kernel_operand",
    "refuse_other_orders",
    "refuse_overlaps",
    "workspace_for",
]

BYTES_ALIGNMENT = 16
"""Of workspaces and packed weights, in bytes; memory of numpy, torch and malloc begins at a multiple of it."""

NOTHING = memory_of(np.zeros(64, np.uint8))._replace(span=0)
"""Memory of what has no bytes, and may have no address of its own, where a kernel asks for an address that it never reads."""


def device_of(opdef: OpDef, memory: Sequence[Memory | None]) -> str:
    """Where all memory of a call is: operands, then outputs. Raises `ConfigError` naming two that are apart."""
    found = [item.device for item in memory if item is not None]
    where = found[0] if found else CPU_MEMORY
    if found.count(where) == len(found):
        return where
    named = [(_name_of(opdef, place), item.device) for place, item in enumerate(memory) if item is not None]
    raise _apart(opdef.name, *named[0], *next(pair for pair in named if pair[1] != where))


def _name_of(opdef: OpDef, place: int) -> str:
    return opdef.operands[place].name if place < len(opdef.operands) else "out"


def _apart(node: str, first: str, device: str, second: str, other: str) -> ConfigError:
    return ConfigError(
        f"{first} is on {device}, {second} on {other}",
        node=node,
        hint="all memory of a call is on one device: copy what is elsewhere first, where it can be seen",
    )


def workspace_for(given: Any, needed: int, where: str, order: Stream | None, name: str) -> Memory:
    if given is None:
        memory = f"np.empty({needed}, np.uint8)" if where == CPU_MEMORY else f"{needed} bytes on {where}"
        raise CapacityError(
            f"{name} needs {needed} bytes of workspace, none are given",
            node=name,
            hint=f'workspace={memory}; ops.workspace_bytes("{name}", ...) says how many',
        )
    return bytes_for(given, needed, where, order, f"{name}.workspace")


def bytes_for(given: Any, needed: int, where: str, order: Stream | None, label: str) -> Memory:
    """The first bytes of the caller's memory for scratch or packed data, of any dtype."""
    memory = memory_for(given, label, order)
    if memory.device != where:
        raise _apart(label.partition(".")[0], "the call", where, label.partition(".")[2], memory.device)
    if not (memory.form.is_contiguous and memory.form.writable):
        raise LayoutError(f"expected contiguous writable memory, found {TensorView.of(given)}", node=label)
    if memory.span < needed:
        raise CapacityError(f"{needed} bytes are needed, {memory.span} are given", node=label)
    if needed and memory.address % BYTES_ALIGNMENT:
        raise LayoutError(f"{memory.address:#x} is not aligned to {BYTES_ALIGNMENT} bytes", node=label)
    return memory._replace(span=needed)


def kernel_operand(memory: Sequence[Memory | None], place: int | None) -> tuple[int, int]:
    found = None if place is None else memory[place]
    if found is None:
        return (0, 0)
    return (found.address, found.span) if found.span else (NOTHING.address, 0)


def refuse_overlaps(name: str, plan: CallPlan, memory: Sequence[Memory | None], in_place: bool) -> None:
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


def refuse_other_orders(plan: CallPlan, memory: Sequence[Memory | None], order: Stream | None, name: str) -> None:
    """Raises `ConfigError` where values are there in the order of a stream that the call does not run on."""
    for place, found in enumerate(memory):
        if found is None or found.stream is None:
            continue
        handle = 0 if order is None else order.handle
        if found.stream != handle:
            raise ConfigError(
                f"{plan.names[place]} is there in the order of {_stream_name(found.stream)}, the call runs on {_stream_name(handle)}",
                node=name,
                hint=f'call with stream=ost.Stream.external("{found.device}", {found.stream:#x}), or take it for this stream: TensorView.of(x, stream=...)',
            )


def _stream_name(handle: int) -> str:
    return f"stream {handle:#x}" if handle else "the default stream"


def _range(plan: CallPlan, place: int, memory: Memory) -> str:
    return f"{plan.names[place]} [{memory.address:#x}, {memory.end:#x})"
