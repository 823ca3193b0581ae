"""Arrays of other libraries that lie on a GPU: DLPack capsules and `__cuda_array_interface__`, read and made without a copy.

Both say in whose order the values are there. A DLPack producer is asked to have them there in the order of the stream on which they will be used, the device's
default stream where none is named. `__cuda_array_interface__` names the stream of its producer: the stream on which the values will be used is told to follow
it. It does not name the device: whoever passes one names a stream of it, which does.

A capsule is read and never renamed: as long as it lives the memory does, and it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, InputError, LayoutError
from ostinato.ir.types import DType
from ostinato.runtime.device import Device, OrderedDevice
from ostinato.runtime.dlpack import COPIED, CUDA, DTYPES, READ_ONLY, ROCM, tensor_of
from ostinato.runtime.forms import Form, Memory, Order, Shape, misalignment, natural_strides, reach, settled_strides

__all__ = ["cuda_interface", "gpu_device", "negotiated", "of_cuda_interface", "of_gpu_capsule"]

_LEGACY = 1
"""How `__cuda_array_interface__` and DLPack on CUDA call a device's default stream, which is 0 everywhere else."""
_UNORDERED = -1
"""How a consumer of DLPack says that it sees to the order itself."""


def of_gpu_capsule(value: Any, device: str, kind: int, node: str | None, order: Order | None) -> Memory:
    """The memory of an object whose DLPack device is a GPU, its values there in the order of `order` (None: of the device's default stream).

    Raises what `memory_of` raises, `ConfigError` for a stream of another device, and whatever the object raises.
    """
    if order is not None and order.device != device:
        raise ConfigError(f"the stream is of {order.device}, the tensor is on {device}", node=node)
    handle = 0 if order is None else order.handle
    named = _LEGACY if handle == 0 and kind == CUDA else handle
    try:
        capsule = value.__dlpack__(stream=named, max_version=(1, 0))
    except TypeError:  # exporters of the first version know no versions
        capsule = value.__dlpack__(stream=named)
    tensor, flags = tensor_of(capsule)
    if flags & COPIED:
        raise InputError(f"{type(value).__name__} exports a copy of its values", node=node)
    if tensor.device_kind != kind or f"hip:{tensor.device_index}" != device:
        raise InputError(f"{type(value).__name__} is on {device} and exports memory elsewhere", node=node)
    dtype = DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise DTypeError(
            f"DLPack elements of code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes have no counterpart",
            node=node,
        )
    shape = tuple(tensor.shape[: tensor.rank]) if tensor.rank else ()
    strides = tuple(tensor.strides[: tensor.rank]) if tensor.rank and tensor.strides else natural_strides(shape)
    address = (tensor.data or 0) + tensor.byte_offset
    return _memory(address, shape, strides, dtype, not flags & READ_ONLY, capsule, device, handle, node)


def of_cuda_interface(value: Any, node: str | None, order: Order | None) -> Memory:
    """The memory of an object with `__cuda_array_interface__`, from version 2 on, on the device of `order`, which is told to follow the object's stream.

    Raises what `memory_of` raises.
    """
    if order is None or not order.device.startswith("hip:"):
        raise InputError(
            f"{type(value).__name__} does not say which GPU it is on",
            node=node,
            hint='name a stream of it: TensorView.of(x, stream=ost.Stream("hip:0")), or stream= of the call',
        )
    try:
        described: Mapping[str, Any] = value.__cuda_array_interface__
        address, read_only = described["data"]
        shape, gaps = tuple(map(int, described["shape"])), described.get("strides")
        gaps = None if gaps is None else tuple(map(int, gaps))
        kind, stream = np.dtype(described["typestr"]), described.get("stream")
        stream = None if stream is None else int(stream)
    except Exception as error:  # code of somebody else: it may fail in any way
        raise InputError(f"{type(value).__name__} cannot be read as memory: {error}", node=node) from error
    if described.get("mask") is not None:
        raise LayoutError("the mask of the array would not be seen", node=node)
    if not kind.isnative:
        raise DTypeError(f"elements {described['typestr']} are not in the order of bytes of this machine", node=node)
    try:
        dtype = DType.of(kind)
    except DTypeError as error:
        raise DTypeError(error.message, node=node, hint=error.hint) from None
    strides = natural_strides(shape)
    if gaps is not None:
        if any(gap % kind.itemsize for gap in gaps):
            raise LayoutError(f"strides {list(gaps)} (bytes) are not whole elements of {kind}", node=node)
        strides = tuple(gap // kind.itemsize for gap in gaps)
    if stream == 0:
        raise InputError("stream 0 of __cuda_array_interface__ is ambiguous", node=node, hint="1 is the default stream")
    if stream is not None:
        producer = 0 if stream == _LEGACY else stream
        if producer != order.handle:
            order.follow(producer)
    return _memory(int(address or 0), shape, strides, dtype, not read_only, value, order.device, order.handle, node)


def gpu_device(device: Device) -> tuple[int, int]:
    """DLPack's name of a GPU."""
    return (CUDA if device.target.name.startswith("sm_") else ROCM, int(device.name.partition(":")[2]))


def negotiated(
    memory: Memory,
    device: OrderedDevice,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> dict[str, Any]:
    """What is left to ask of the exporter of a tensor on a GPU when its consumer, who names a stream as DLPack does, has been told to follow the tensor's.

    Raises `BufferError` where only a copy, or another device, would do.
    """
    if copy:
        raise BufferError("a view makes no copies")
    if dl_device is not None and tuple(dl_device) != gpu_device(device):
        raise BufferError(f"a view stays on {memory.device}")
    first, then = memory.stream or 0, 0 if stream in (None, _LEGACY) else int(stream or 0)
    if then not in (first, _UNORDERED):
        device.order(first, then)
    return {} if max_version is None else {"max_version": max_version}


def cuda_interface(memory: Memory) -> dict[str, Any]:
    """`__cuda_array_interface__` of a tensor on a GPU, whose elements have a name in numpy."""
    form, kind = memory.form, memory.form.dtype.numpy
    gaps = None if form.is_contiguous else tuple(stride * kind.itemsize for stride in form.strides or ())
    stream = _LEGACY if memory.stream == 0 else memory.stream
    return {
        "version": 3,
        "shape": form.shape,
        "typestr": kind.str,
        "data": (memory.address, not form.writable),
        "strides": gaps,
        "stream": stream,
    }


def _memory(
    address: int,
    shape: Shape,
    strides: Shape,
    dtype: DType,
    writable: bool,
    owner: Any,
    device: str,
    stream: int,
    node: str | None,
) -> Memory:
    if any(stride < 0 and extent > 1 for extent, stride in zip(shape, strides, strict=True)):
        raise LayoutError(
            f"strides {list(strides)} run backwards", node=node, hint="make the copy where it can be seen"
        )
    settled = settled_strides(shape, strides)
    span = reach(shape, settled) * dtype.block_bytes
    if span and not address:
        raise BoundsError("the array has elements and no address", node=node)
    if span and address % dtype.block_bytes:
        raise LayoutError(
            f"the elements of {dtype.block_bytes} bytes, the first at {address:#x}, are not aligned",
            node=node,
            hint="copy them to an array of their own first",
        )
    form = Form(shape, settled, dtype, None, writable, misalignment(address, dtype))
    return Memory(address, span, form, owner, device, stream)
