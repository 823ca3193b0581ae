"""Tensors over memory that somebody else owns: a pointer, the bytes that may be accessed there, and how elements lie in them.

A `TensorView` never allocates, copies, converts or frees. Offsets and strides count elements. It lies inside its bytes or does not exist: everything is checked
when it is made, so that whoever receives one may hand its address to a kernel. The owner it was given is kept alive with it and with every array exported from
it; without an owner the caller keeps the memory. Memory that its owner moves (`resize_`, `set_` of torch) is not followed.

Strides are never negative, and those of axes with at most one element are set to the natural ones, since nobody walks them. Reshape, transpose and slice are
views of the same bytes. What needs bytes of its own (a dense copy, another dtype, a packed weight) is an operator with an `out=` (`ostinato.ops`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ostinato.ir.checks import boolean, integer, integers
from ostinato.ir.errors import (
    BoundsError,
    CapacityError,
    DTypeError,
    InputError,
    LayoutError,
    LifecycleError,
    ShapeError,
)
from ostinato.ir.types import MAX_ELEMENTS, Array, DType, TensorType
from ostinato.runtime.arrays import memory_of
from ostinato.runtime.dlpack import CPU, as_exported
from ostinato.runtime.forms import (
    CPU_MEMORY,
    Form,
    Memory,
    checked_strides,
    dtype_of,
    misalignment,
    natural_strides,
    span_of,
)
from ostinato.runtime.gpu_arrays import cuda_interface, gpu_device, negotiated
from ostinato.runtime.opened import memory_name
from ostinato.runtime.stream import Stream, ordered

__all__ = ["TensorView", "memory_for"]

_ADDRESSES = 2**64


class _Bytes:
    """What numpy sees of a view's bytes: an array made from it keeps the view alive."""

    __slots__ = ("__array_interface__", "view")

    def __init__(self, view: TensorView) -> None:
        self.view = view
        self.__array_interface__ = {
            "version": 3,
            "shape": (view.span,),
            "typestr": "|u1",
            "data": (view.address, not view.writable),
        }


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False, weakref_slot=True)
class TensorView:
    """A tensor over external memory."""

    pointer: int
    nbytes: int
    offset: int
    memory: Memory
    """The elements themselves; what a call takes of the view."""

    def __init__(
        self,
        pointer: int,
        nbytes: int,
        shape: Sequence[int],
        strides: Sequence[int] | None,
        dtype: DType | npt.DTypeLike,
        device: str = CPU_MEMORY,
        owner: Any = None,
        *,
        offset: int = 0,
        writable: bool = True,
        layout: str | None = None,
    ) -> None:
        """`nbytes` bytes may be accessed from `pointer` on; the first element is `offset` elements after it.

        `strides` (elements) None is the logical order without gaps. `dtype` is a name such as "f32", "bf16", "i32" or "q8_0", a `DType` or a numpy dtype.
        Block dtypes are dense. `layout` is the format of a packed weight. `device` is whose memory it is: "cpu" or a GPU such as "hip:0", which nothing can
        check. `owner` is kept alive and never freed; without one the caller keeps the memory.

        Raises `InputError` for a null pointer to bytes, `CapacityError` where sizes overflow, `ShapeError` for negative extents, `LayoutError` for strides or
        an alignment that cannot be, `BoundsError` unless all elements lie inside the bytes, `DTypeError` for a dtype that is none, `ConfigError` for a device
        that is none.
        """
        start = integer(pointer, "pointer", low=0, error=InputError)
        size = integer(nbytes, "nbytes", low=0, error=InputError)
        extents = integers(shape, "shape", low=0, error=ShapeError)
        first = integer(offset, "offset", low=0, error=BoundsError)
        kind, where = dtype_of(dtype), memory_name(device)
        if not start and size:
            raise InputError(f"a null pointer to {size} bytes", hint="pass the address of the first byte")
        if start + size > _ADDRESSES:
            raise CapacityError(f"{size} bytes at {start:#x} go past the end of the address space")
        if (count := math.prod(extents)) > MAX_ELEMENTS:
            raise CapacityError(f"shape {list(extents)} has {count} elements, more than {MAX_ELEMENTS}")
        if first % kind.block_elements:
            raise LayoutError(f"offset {first} is inside of a block of {kind.block_elements} elements")
        settled = checked_strides(extents, strides, kind, layout)
        begin = kind.nbytes(first)
        phase = 0 if where == CPU_MEMORY else misalignment(start + begin, kind)
        form = Form(extents, settled, kind, layout, boolean(writable, "writable"), phase)
        span = span_of(form)
        if begin + span > size:
            raise BoundsError(
                f"{form.type} with strides {list(form.strides or ())} from element {first} on takes bytes "
                f"[{begin}, {begin + span}), there are {size}",
                hint="nbytes is what may be accessed from the pointer on; strides and offset count elements",
            )
        if span and not kind.is_block and (start + begin) % kind.block_bytes:
            raise LayoutError(
                f"the first element, at {start + begin:#x}, is not aligned to its {kind.block_bytes} bytes",
                hint="copy the bytes to memory of their own first",
            )
        self._fill(start, size, first, Memory(start + begin, span, form, owner, where))

    @staticmethod
    def of(value: Any, node: str | None = None, *, stream: Stream | None = None) -> TensorView:
        """A view of an array, without a copy: numpy (ml_dtypes' too), torch tensors, DLPack, `__cuda_array_interface__`, the buffer protocol; a view as it is.

        `node` is what errors name. `stream` is where an array on a GPU will be used, by default the default stream of its device: values that come through
        DLPack or `__cuda_array_interface__` are there in its order, which `stream` of the view tells. torch tensors say nothing of an order: they are used on
        torch's current stream, or their caller waits.

        Raises `LayoutError` for negative strides and for masked, sparse, lazily negated or misaligned arrays, `DTypeError` for what is no array or has a dtype
        without a counterpart, `InputError` for what is neither on the CPU nor on a GPU that is named, or takes part in autograd, `ConfigError` for a stream
        of another device.
        """
        if isinstance(value, TensorView):
            return value
        memory = memory_of(value, node, stream)
        view = object.__new__(TensorView)
        view._fill(memory.address, memory.span, 0, memory)
        return view

    def _fill(self, pointer: int, nbytes: int, offset: int, memory: Memory) -> None:
        put = object.__setattr__
        put(self, "pointer", pointer)
        put(self, "nbytes", nbytes)
        put(self, "offset", offset)
        put(self, "memory", memory)

    @property
    def device(self) -> str:
        """Whose memory it is: "cpu", or a GPU such as "hip:0"."""
        return self.memory.device

    @property
    def stream(self) -> int | None:
        """The handle of the stream in whose order the values are there, 0 for the default one; None where nobody said."""
        return self.memory.stream

    @property
    def shape(self) -> tuple[int, ...]:
        return self.memory.form.shape

    @property
    def strides(self) -> tuple[int, ...] | None:
        """In elements; None for a packed weight."""
        return self.memory.form.strides

    @property
    def dtype(self) -> DType:
        return self.memory.form.dtype

    @property
    def layout(self) -> str | None:
        """The format of a packed weight, None for elements that stand one by one."""
        return self.memory.form.layout

    @property
    def writable(self) -> bool:
        return self.memory.form.writable

    @property
    def owner(self) -> Any:
        return self.memory.owner

    @property
    def address(self) -> int:
        """Where the first element lies."""
        return self.memory.address

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last one, gaps included."""
        return self.memory.span

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def type(self) -> TensorType:
        """Shape, dtype and layout: what the operator table asks about."""
        return self.memory.form.type

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow each other in logical order without gaps."""
        return self.memory.form.is_contiguous

    # views of the same bytes

    def reshape(self, shape: Sequence[int]) -> TensorView:
        """The same elements in another shape. Raises `LayoutError` unless contiguous, `ShapeError` for another number of elements."""
        strides = self._addressable("reshape")
        wanted = integers(shape, "shape", low=0, error=ShapeError)
        if math.prod(wanted) != self.elements:
            raise ShapeError(f"expected {self.elements} elements as in {list(self.shape)}, found {list(wanted)}")
        if not self.is_contiguous:
            raise LayoutError(
                f"strides {list(strides)} of shape {list(self.shape)} are not contiguous, a reshape would move elements",
                hint="make a dense copy with ops.contiguous(x, out=...)",
            )
        return self.viewed(wanted, natural_strides(wanted), 0)

    def transpose(self, order: Sequence[int] | None = None) -> TensorView:
        """The axes in another order, reversed if None. Raises `ShapeError` unless every axis is named once."""
        strides = self._addressable("transpose")
        axes = range(len(self.shape))
        wanted = tuple(reversed(axes)) if order is None else integers(order, "order", error=ShapeError)
        if sorted(wanted) != list(axes):
            raise ShapeError(f"expected an order of {len(axes)} axes, counted from 0, found {list(wanted)}")
        return self.viewed(tuple(self.shape[axis] for axis in wanted), tuple(strides[axis] for axis in wanted), 0)

    def slice(self, axis: int, start: int, stop: int, step: int = 1) -> TensorView:
        """Every step-th index of [start, stop) along one axis. Raises `BoundsError` outside of the view, `ConfigError` for a step below 1."""
        strides = self._addressable("slice")
        place = integer(axis, "axis", low=0, high=len(self.shape) - 1, error=BoundsError)
        last = integer(stop, "stop", low=0, high=self.shape[place], error=BoundsError)
        first = integer(start, "start", low=0, high=last, error=BoundsError)
        every = integer(step, "step", low=1)
        shape = (*self.shape[:place], -(-(last - first) // every), *self.shape[place + 1 :])
        steps = (*strides[:place], strides[place] * every, *strides[place + 1 :])
        return self.viewed(shape, steps, first * strides[place])

    def viewed(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> TensorView:
        """Other elements of the same bytes, `offset` elements after this view's own. Raises what the constructor raises, `DTypeError` where there are none."""
        self._addressable("viewed")
        # an empty view begins nowhere: at the end of an axis its offset would leave the bytes
        begin = self.offset + (0 if 0 in shape else offset)
        return self._within(self.pointer, self.nbytes, shape, strides, self.dtype, begin)

    def reinterpret(self, dtype: DType | npt.DTypeLike, shape: Sequence[int]) -> TensorView:
        """All bytes of a dense view, read as another dtype and shape: u8 as blocks or as bf16, a packed weight as u8.

        Raises `LayoutError` unless the elements are dense and aligned, `ShapeError` for another number of bytes.
        """
        if self.strides is not None and not self.is_contiguous:
            raise LayoutError(f"strides {list(self.strides)} of shape {list(self.shape)} are not contiguous")
        span, kind = self.span, dtype_of(dtype)
        wanted = TensorType(integers(shape, "shape", low=0, error=ShapeError), kind)
        if wanted.nbytes != span:
            raise ShapeError(f"expected {span} bytes as in {self.type}, {wanted} has {wanted.nbytes}")
        return self._within(self.address, span, wanted.static_shape, None, kind, 0)

    def _within(
        self,
        pointer: int,
        nbytes: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        dtype: DType,
        offset: int,
    ) -> TensorView:
        """Other elements of the same memory, whose owner, order and access they have."""
        writable = self.writable
        made = TensorView(
            pointer, nbytes, shape, strides, dtype, self.device, self.owner, offset=offset, writable=writable
        )
        if self.stream is not None:
            made._fill(pointer, nbytes, offset, made.memory._replace(stream=self.stream))
        return made

    def _addressable(self, what: str) -> tuple[int, ...]:
        if self.strides is None or self.dtype.is_block:
            raise DTypeError(f"{what}: {self.type} has no elements that can be addressed one by one")
        return self.strides

    # arrays of other libraries over the same bytes

    def numpy(self) -> Array:
        """A numpy array over the same elements, which keeps view and owner alive.

        Raises `DTypeError` for blocks, `LayoutError` for packed weights, `InputError` for memory of a GPU.
        """
        if self.device != CPU_MEMORY:
            raise InputError(
                f"{self.type} is on {self.device}, where numpy does not reach",
                hint="copy it where it can be seen: ostinato.hip.copy_async, or .cpu() of a torch tensor",
            )
        return self._array()

    def _array(self) -> Array:
        """What numpy makes of the addresses, which it does not look at."""
        if self.strides is None:
            raise LayoutError(f"{self.type} is no array of elements", hint="reinterpret it as u8 to see its bytes")
        kind = self.dtype.numpy
        if not self.elements:
            return np.zeros(self.shape, kind)
        steps = tuple(stride * kind.itemsize for stride in self.strides)
        return np.ndarray(self.shape, kind, np.asarray(_Bytes(self)), 0, steps)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is None or np.dtype(dtype) == array.dtype:
            return array.copy() if copy else array
        if copy is False:
            raise ValueError(f"{array.dtype} becomes {np.dtype(dtype)} only in a copy")
        return array.astype(dtype)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # numpy has no name for bf16 there but raw bytes; without the attribute it asks __array__
        if self.device != CPU_MEMORY:
            raise AttributeError(f"__array_interface__ is of memory of the CPU, this is on {self.device}")
        if self.strides is None or self.dtype.is_block or self.dtype is DType.BF16:
            raise AttributeError(f"__array_interface__ has no name for {self.type}")
        return self.numpy().__array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # the attribute is there exactly where it says something: memory of a GPU, of a dtype that numpy has a name for
        if self.device == CPU_MEMORY or self.strides is None or self.dtype.is_block or self.dtype is DType.BF16:
            raise AttributeError(f"__cuda_array_interface__ has no name for {self!r}")
        return cuda_interface(self.memory)

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule for `from_dlpack` of any library.

        On a GPU the consumer's stream is told to follow the stream in whose order the view is, the default one where nobody said. Raises `BufferError` where
        only a copy, or another device, would do.
        """
        if self.device != CPU_MEMORY:
            options = negotiated(self.memory, ordered(self.device), **options)
        is_bfloat = self.dtype is DType.BF16
        array = self._array()
        capsule = (array.view(np.uint16) if is_bfloat else array).__dlpack__(**options)
        return as_exported(capsule, self.__dlpack_device__(), is_bfloat)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU if self.device == CPU_MEMORY else gpu_device(ordered(self.device))

    def __reduce__(self) -> NoReturn:
        raise LifecycleError("a view of memory can be neither copied nor pickled", hint="copy its numpy() array")

    def __repr__(self) -> str:
        strided = "" if self.strides is None or self.is_contiguous else f", strides {list(self.strides)}"
        access = "" if self.writable else ", read-only"
        where = "" if self.device == CPU_MEMORY else f" on {self.device}"
        return f"<TensorView {self.type}{strided} at {self.address:#x}{where}{access}>"


def memory_for(value: Any, label: str, order: Stream | None = None) -> Memory:
    """The memory of a view or of an array of another library, for use; `label` is what errors name, `order` the stream of the use.

    Raises what `memory_of` raises, and `LifecycleError` where a buffer of a device was freed that a view is of.
    """
    if not isinstance(value, TensorView):
        return memory_of(value, label, order)
    memory = value.memory
    if memory.device != CPU_MEMORY and getattr(memory.owner, "freed", False) is True:
        raise LifecycleError("the owner of the memory freed it", node=label, hint="make a view of memory that is there")
    return memory
