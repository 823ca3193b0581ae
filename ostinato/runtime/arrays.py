"""Arrays of other libraries as memory: on which device and where their elements lie, read without a copy.

numpy arrays (ml_dtypes' too), torch tensors, objects with DLPack, with `__cuda_array_interface__` or with the buffer protocol. What would have to be copied to
be understood is refused, and the hint names the copy: negative strides, masks, lazily negated tensors, bytes that are not aligned to their elements.
torch is never imported: a torch tensor can only exist once its owner has done so.

Memory that the host pinned is memory of the CPU. Managed memory is where it was used last, which nobody says: it is refused, but as a raw pointer.

numpy reads no bf16 through DLPack. Its two bytes travel as uint16, with the code of the element type changed in the capsule, both ways.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from ostinato.ir.errors import BoundsError, DTypeError, InputError, LayoutError, OstinatoError
from ostinato.ir.types import Array, DType
from ostinato.runtime.dlpack import BFLOAT, CPU, GPU_KINDS, MANAGED, PINNED_KINDS, UINT, tensor_of
from ostinato.runtime.forms import Form, Memory, Order, Shape, misalignment, natural_strides, reach, settled_strides
from ostinato.runtime.gpu_arrays import of_cuda_interface, of_gpu_capsule

__all__ = ["memory_of"]


def memory_of(value: Any, node: str | None = None, order: Order | None = None) -> Memory:
    """Where the elements of an array lie; `node` is what errors name, `order` where on a GPU the memory will be used (None: in its default order).

    Raises `LayoutError` for strides, alignments and storage that no view describes, `DTypeError` for what is no array or has a dtype without a counterpart,
    `BoundsError` for a tensor past the end of its storage, `InputError` for what lies on no device that is known here, takes part in autograd or cannot be
    exported.
    """
    if isinstance(value, np.ndarray):
        return _of_numpy(value, value, node)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        try:
            return _of_torch(torch, value, node)
        except OstinatoError:
            raise
        except Exception as error:  # nested and uninitialised tensors, subclasses with functions of their own
            raise InputError(f"a {type(value).__name__} cannot be read as memory: {error}", node=node) from error
    # the array holds what was exported: a capsule may be all that keeps the memory, and a buffer keeps its owner from moving it
    if hasattr(type(value), "__dlpack__"):
        return _through_dlpack(value, node, order)
    if hasattr(type(value), "__cuda_array_interface__"):
        return of_cuda_interface(value, node, order)
    array = _through_buffer(value, node)
    return _of_numpy(array, array, node)


def _through_buffer(value: Any, node: str | None) -> Array:
    try:
        buffer = memoryview(value)
    except TypeError:
        raise DTypeError(
            f"expected an array, found {type(value).__name__}",
            node=node,
            hint="pass a numpy array, a torch tensor, an object with DLPack, a buffer of bytes or a TensorView",
        ) from None
    except (BufferError, ValueError) as error:  # one that was released or closed
        raise InputError(f"{type(value).__name__} gives no access to its bytes: {error}", node=node) from None
    try:
        return np.asarray(buffer)
    except ValueError:
        raise DTypeError(f"elements of format {buffer.format!r} have no counterpart", node=node) from None


_numpy_dtype = functools.lru_cache(maxsize=256)(DType.of)


def _of_numpy(array: Array, owner: Any, node: str | None) -> Memory:
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise LayoutError("the mask of the array would not be seen", node=node, hint="pass x.data, or x.filled(value)")
    try:
        dtype = _numpy_dtype(array.dtype)
    except DTypeError as error:
        raise DTypeError(error.message, node=node, hint=error.hint) from None
    shape, flags, address = array.shape, array.flags, array.ctypes.data
    if not flags.aligned:
        raise _misaligned(array.itemsize, address, node)
    if flags.c_contiguous:
        return Memory(address, array.nbytes, Form(shape, natural_strides(shape), dtype, None, flags.writeable), owner)
    strides = _element_strides(shape, array.strides, array.itemsize, node)
    span = reach(shape, strides) * array.itemsize
    return Memory(address, span, Form(shape, strides, dtype, None, flags.writeable), owner)


def _misaligned(size: int, address: int, node: str | None) -> LayoutError:
    return LayoutError(
        f"the elements of {size} bytes, the first at {address:#x}, are not aligned",
        node=node,
        hint="copy them to an array of their own first",
    )


def _element_strides(shape: Shape, byte_strides: Shape, size: int, node: str | None) -> Shape:
    """Strides in elements of aligned memory, where bytes between elements are whole elements: every dtype here is aligned to its size."""
    if any(stride < 0 and extent > 1 for extent, stride in zip(shape, byte_strides, strict=True)):
        raise LayoutError(
            f"strides {list(byte_strides)} (bytes) run backwards",
            node=node,
            hint="make the copy where it can be seen: np.ascontiguousarray(x)",
        )
    return settled_strides(shape, tuple(stride // size for stride in byte_strides))


# torch


@functools.lru_cache(maxsize=1)
def _torch_dtypes(torch: ModuleType) -> Mapping[Any, DType]:
    names = {
        "float32": DType.F32,
        "float16": DType.F16,
        "bfloat16": DType.BF16,
        "float64": DType.F64,
        "int64": DType.I64,
        "int32": DType.I32,
        "int8": DType.I8,
        "uint8": DType.U8,
        "bool": DType.BOOL,
    }
    return {getattr(torch, name): dtype for name, dtype in names.items()}


def _of_torch(torch: Any, tensor: Any, node: str | None) -> Memory:
    if tensor.requires_grad:
        raise InputError(
            "the tensor takes part in autograd, which would not see this call", node=node, hint="pass x.detach()"
        )
    if tensor.layout is not torch.strided:
        raise LayoutError(f"a {tensor.layout} tensor has no strides", node=node, hint="pass x.to_dense()")
    if tensor.is_neg():
        raise LayoutError("the bytes of the tensor are its negated values", node=node, hint="pass x.resolve_neg()")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise InputError(
            f"the tensor is on {tensor.device}, which is neither the CPU nor a GPU", node=node, hint="x.cpu()"
        )
    dtypes = _torch_dtypes(torch)
    dtype = dtypes.get(tensor.dtype)
    if dtype is None:
        known = ", ".join(str(kind) for kind in dtypes)
        raise DTypeError(f"{tensor.dtype} has no counterpart", node=node, hint=f"convert to one of {known}")
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        address = 0
    if not address and tensor.numel():  # one that only stands for others: a fake one, one of a function transform
        raise InputError(f"a {type(tensor).__name__} has no memory", node=node, hint="call with the tensor behind it")
    if address % dtype.block_bytes:
        raise _misaligned(dtype.block_bytes, address, node)
    shape = tuple(tensor.shape)
    strides = natural_strides(shape) if tensor.is_contiguous() else settled_strides(shape, tensor.stride())
    span = reach(shape, strides) * dtype.block_bytes
    if span and tensor.storage_offset() * dtype.block_bytes + span > tensor.untyped_storage().nbytes():
        raise BoundsError("the storage of the tensor was made smaller than the tensor", node=node)
    if tensor.is_cpu:
        return Memory(address, span, Form(shape, strides, dtype, None, True), tensor)
    form = Form(shape, strides, dtype, None, True, misalignment(address, dtype))
    return Memory(address, span, form, tensor, f"hip:{tensor.get_device()}")  # torch says cuda of AMD's devices too


# DLPack


class _Capsule:
    """A capsule for numpy, which asks an object for one."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule = capsule
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def _through_dlpack(value: Any, node: str | None, order: Order | None) -> Memory:
    try:
        kind, index = value.__dlpack_device__()
        if kind in GPU_KINDS:
            return of_gpu_capsule(value, f"hip:{int(index)}", int(kind), node, order)
        if kind == MANAGED:
            raise InputError(
                "managed memory moves between the host and a GPU while nobody says so",
                node=node,
                hint="say which device uses it: TensorView(pointer, nbytes, shape, strides, dtype, device, owner)",
            )
        if kind != CPU[0] and kind not in PINNED_KINDS:
            raise InputError(
                f"the array is on DLPack device {(kind, index)}, which is neither the CPU nor a GPU", node=node
            )
        try:
            capsule = value.__dlpack__(max_version=(1, 0))
        except TypeError:  # exporters of the first version take no arguments
            capsule = value.__dlpack__()
        tensor, _ = tensor_of(capsule)
        is_bfloat = tensor.code == BFLOAT
        if is_bfloat:
            tensor.code = UINT
        array: Array = np.from_dlpack(_Capsule(capsule, (kind, index)))
    except OstinatoError:
        raise
    except Exception as error:  # code of somebody else: it may fail in any way
        raise InputError(f"{type(value).__name__} cannot be read without a copy: {error}", node=node) from error
    if is_bfloat:
        array = array.view(DType.BF16.numpy)
    return _of_numpy(array, array, node)
