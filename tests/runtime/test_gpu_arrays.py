"""Arrays of other libraries on a GPU, as memory: DLPack with its negotiation of streams, `__cuda_array_interface__`, torch. No GPU is asked anything."""

from __future__ import annotations

import ctypes
import gc
import sys
import types
import weakref
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.runtime.arrays import memory_of
from ostinato.runtime.forms import Memory

CUDA, ROCM, CUDA_HOST, ROCM_HOST, MANAGED = 2, 10, 3, 11, 13
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


class Order:
    """A stream of a GPU that remembers whom it was told to follow."""

    def __init__(self, handle: int, device: str = "hip:0") -> None:
        self.handle, self.device = handle, device
        self.followed: list[int] = []

    def follow(self, handle: int) -> None:
        self.followed.append(handle)


class Exporter:
    """An array that says it is on a GPU: numpy's own capsule with another device in it."""

    def __init__(self, values: Array, kind: int = CUDA, index: int = 0, *, versioned: bool = True, **changes: int):
        self.values, self.kind, self.index, self.versioned, self.changes = values, kind, index, versioned, changes
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, self.index)

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versioned and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(options.get("stream", "none"))
        capsule = self.values.__dlpack__(max_version=(1, 0)) if self.versioned else self.values.__dlpack__()
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        place = ctypes.pythonapi.PyCapsule_GetPointer
        place.restype, place.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        start = place(capsule, name) + (32 if self.versioned else 0)
        ctypes.c_int32.from_address(start + 8).value = self.changes.get("elsewhere", self.kind)
        ctypes.c_int32.from_address(start + 12).value = self.index
        if "address" in self.changes:
            ctypes.c_void_p.from_address(start).value = self.changes["address"]
        if "lanes" in self.changes:
            ctypes.c_uint16.from_address(start + 22).value = self.changes["lanes"]
        if "flags" in self.changes:
            ctypes.c_uint64.from_address(start - 8).value |= self.changes["flags"]
        return capsule


class Described:
    """An array with `__cuda_array_interface__` and nothing else."""

    def __init__(self, values: Array, **changes: Any) -> None:
        self._values = values
        self._described = {
            "version": 3,
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (values.ctypes.data, False),
            "strides": None if values.flags.c_contiguous else values.strides,
        } | changes

    @property
    def __cuda_array_interface__(self) -> Any:
        return self._described


def facts(memory: Memory) -> tuple[Any, ...]:
    return (memory.address, memory.span, memory.device, memory.stream, *memory.form[:3])


# DLPack


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("kind", [CUDA, ROCM])
def test_a_dlpack_array_of_a_gpu_is_read_in_place(kind: int, versioned: bool) -> None:
    for values in (VALUES, VALUES.T, VALUES[1:3, ::2], VALUES[0, :1].reshape(()), VALUES[:0]):
        exporter = Exporter(values, kind, 3, versioned=versioned)
        memory = memory_of(exporter)
        cpu = memory_of(values)
        assert facts(memory) == (cpu.address, cpu.span, "hip:3", 0, *cpu.form[:3])
        assert memory.form.writable
        # the default stream is 1 of CUDA's DLPack and 0 of ROCm's
        assert exporter.streams == [1 if kind == CUDA else 0]


def test_a_producer_is_asked_for_the_order_of_the_stream_in_use() -> None:
    exporter, order = Exporter(VALUES), Order(0x77)
    memory = memory_of(exporter, "x", order)
    assert (exporter.streams, memory.stream, order.followed) == ([0x77], 0x77, [])
    with pytest.raises(ost.ConfigError, match="x: the stream is of hip:1, the tensor is on hip:0"):
        memory_of(exporter, "x", Order(0x77, "hip:1"))
    assert exporter.streams == [0x77]
    view = ost.TensorView.of(exporter)
    assert (view.stream, view.slice(0, 1, 3).stream, view.reinterpret("u8", (96,)).stream) == (0, 0, 0)
    assert ost.TensorView(64, 16, (4,), None, "f32", "hip:0").stream is None


def test_what_was_exported_lives_as_long_as_the_view() -> None:
    class Owned(np.ndarray[Any, Any]):
        pass

    values = VALUES.copy().view(Owned)
    gone = weakref.ref(values)
    exporter = Exporter(values)
    view = ost.TensorView.of(exporter)
    part = view.slice(0, 0, 1)
    del values, exporter, view
    gc.collect()
    assert gone() is not None
    del part
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("exporter", "family", "text"),
    [
        (Exporter(VALUES, MANAGED), ost.InputError, "managed memory moves"),
        (Exporter(VALUES, 8), ost.InputError, r"DLPack device \(8, 0\)"),
        (Exporter(VALUES, flags=2), ost.InputError, "exports a copy"),
        (Exporter(VALUES, elsewhere=1), ost.InputError, "is on hip:0 and exports memory elsewhere"),
        (Exporter(VALUES, lanes=2), ost.DTypeError, "2 lanes have no counterpart"),
        (Exporter(VALUES.astype(np.complex64)), ost.DTypeError, "code 5, 64 bits"),
        (Exporter(VALUES[::-1]), ost.LayoutError, "run backwards"),
    ],
    ids=["managed", "Metal", "a copy", "elsewhere", "vectors", "complex", "backwards"],
)
def test_what_is_no_plain_memory_of_a_gpu_is_refused(exporter: Any, family: type[ost.OstinatoError], text: str) -> None:
    with pytest.raises(family, match=text):
        memory_of(exporter, "x")


def test_a_read_only_array_stays_so() -> None:
    assert not memory_of(Exporter(VALUES, flags=1)).form.writable


@pytest.mark.parametrize("kind", [CUDA_HOST, ROCM_HOST])
def test_pinned_memory_is_memory_of_the_cpu(kind: int) -> None:
    exporter = Exporter(VALUES, kind)
    view = ost.TensorView.of(exporter)
    assert (view.device, view.stream, view.address) == ("cpu", None, VALUES.ctypes.data)
    assert (view.numpy() == VALUES).all()
    assert exporter.streams == ["none"], "the CPU has no streams to name"


# __cuda_array_interface__


def test_a_described_array_is_on_the_device_of_the_stream_that_follows_its_own() -> None:
    for values in (VALUES, VALUES.T, VALUES[1:3, ::2], VALUES[0, :1].reshape(()), VALUES[:0]):
        order = Order(5, "hip:2")
        memory = memory_of(Described(values), "x", order)
        cpu = memory_of(values)
        assert facts(memory) == (cpu.address, cpu.span, "hip:2", 5, *cpu.form[:3])
        assert order.followed == [], "nothing is said of a stream"
    for stream, followed in ((None, []), (5, []), (9, [9]), (1, [0]), (2, [2])):
        order = Order(5)
        memory_of(Described(VALUES, stream=stream), "x", order)
        assert order.followed == followed
    order = Order(0)
    memory_of(Described(VALUES, stream=1), "x", order)
    assert order.followed == [], "1 is the default stream"


@pytest.mark.parametrize(
    ("changes", "family", "text"),
    [
        ({"stream": 0}, ost.InputError, "stream 0 of __cuda_array_interface__ is ambiguous"),
        ({"mask": VALUES}, ost.LayoutError, "the mask of the array"),
        ({"typestr": ">f4"}, ost.DTypeError, "not in the order of bytes"),
        ({"typestr": "<c8"}, ost.DTypeError, "no counterpart"),
        ({"typestr": "|V2"}, ost.DTypeError, "no counterpart"),
        ({"strides": (24, -4)}, ost.LayoutError, "run backwards"),
        ({"strides": (24, 3)}, ost.LayoutError, "not whole elements"),
        ({"data": (0, False)}, ost.BoundsError, "no address"),
        ({"data": (6, False)}, ost.LayoutError, "not aligned"),
        ({"data": None}, ost.InputError, "cannot be read as memory"),
        ({"shape": None}, ost.InputError, "cannot be read as memory"),
        ({"stream": "first"}, ost.InputError, "cannot be read as memory"),
        ({"shape": (-1, 6)}, ost.ShapeError, "-1"),
    ],
)
def test_descriptions_that_no_view_can_be_are_refused(
    changes: dict[str, Any], family: type[ost.OstinatoError], text: str
) -> None:
    with pytest.raises(family, match=text):
        memory_of(Described(VALUES, **changes), "x", Order(5))


def test_a_described_array_needs_a_stream_that_says_where_it_is() -> None:
    for order in (None, Order(0, "cpu")):
        with pytest.raises(ost.InputError, match=r"x: Described does not say which GPU[\s\S]*stream=ost\.Stream"):
            memory_of(Described(VALUES), "x", order)


def test_a_view_describes_itself() -> None:
    """What another library reads of a view, read back."""
    values = VALUES.astype(np.float16)
    view = ost.TensorView(values.ctypes.data, values.nbytes, (4, 6), None, "f16", "hip:1", values, writable=False)
    for part in (view, view.transpose(), view.slice(1, 1, 5, 2), view.slice(0, 2, 2)):
        described = part.__cuda_array_interface__
        assert (described["version"], described["stream"]) == (3, None)
        back = memory_of(Described(VALUES, **described), "x", Order(0, "hip:1"))
        assert facts(back)[:3] == facts(part.memory)[:3]
        assert back.form == part.memory.form
    ordered = ost.TensorView.of(Exporter(VALUES))
    assert ordered.__cuda_array_interface__["stream"] == 1
    for silent in (
        ost.TensorView.of(VALUES),
        view.reinterpret("bf16", (24,)),
        ost.TensorView(64, 34, (32,), None, "q8_0", "hip:0"),
    ):
        assert not hasattr(silent, "__cuda_array_interface__")


class Device:
    """A GPU, as far as an exported view asks."""

    def __init__(self, name: str, architecture: str) -> None:
        self.name, self.target = name, types.SimpleNamespace(name=architecture)
        self.ordered: list[tuple[int, int]] = []

    def order(self, first: int, then: int) -> None:
        self.ordered.append((first, then))


@pytest.mark.parametrize(("architecture", "kind"), [("sm_90", CUDA), ("gfx942", ROCM)])
def test_views_travel_through_dlpack(architecture: str, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read back here: elements where they lie, bf16 too, on the device, alive as long as somebody has them."""
    device = Device("hip:3", architecture)
    monkeypatch.setattr("ostinato.runtime.stream.OPENED", {"hip:3": device})
    for dtype, values in (
        ("f32", VALUES.copy()),
        ("bf16", np.zeros((4, 6), np.int16)),
        ("i64", np.zeros((4, 6), np.int64)),
    ):
        whole = ost.TensorView(values.ctypes.data, values.nbytes, (4, 6), None, dtype, "hip:3", values)
        for part in (whole, whole.transpose(), whole.slice(1, 1, 5, 2), whole.slice(0, 2, 2)):
            assert part.__dlpack_device__() == (kind, 3)
            back = memory_of(Reexported(part), "x")
            assert back.form == part.memory.form
            assert (back.device, back.span) == ("hip:3", part.span)
            assert back.address == part.address or not part.span
    view = ost.TensorView(VALUES.ctypes.data, VALUES.nbytes, (24,), None, "f32", "hip:3", VALUES)
    device.ordered.clear()
    for stream in (None, 1, 0, -1):
        view.__dlpack__(stream=stream)
    assert device.ordered == [], "the default stream, or no order at all"
    view.__dlpack__(stream=77, max_version=(1, 0), copy=False, dl_device=(kind, 3))
    ordered = ost.TensorView.of(Exporter(VALUES, kind, 3), stream=Order(5, "hip:3"))  # type: ignore[arg-type]
    for stream in (5, 6, 1):
        ordered.__dlpack__(stream=stream)
    assert device.ordered == [(0, 77), (5, 6), (5, 0)]
    for options in ({"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (kind, 0)}):
        with pytest.raises(BufferError):
            view.__dlpack__(**options)


class Reexported:
    """What another library makes of a view: nothing but its DLPack."""

    def __init__(self, view: ost.TensorView) -> None:
        self._view = view

    def __dlpack__(self, **options: Any) -> Any:
        return self._view.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._view.__dlpack_device__()


# torch


class Tensor:
    """A tensor of torch, as far as it is read."""

    requires_grad, layout, dtype, is_cpu, is_cuda = False, "strided", "float32", False, True

    def __init__(self, values: Array, index: int = 0) -> None:
        self._values, self._index = values, index
        self.shape = values.shape
        self.device = f"cuda:{index}"

    def is_neg(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return int(self._values.ctypes.data)

    def numel(self) -> int:
        return self._values.size

    def is_contiguous(self) -> bool:
        return self._values.flags.c_contiguous

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self._values.itemsize for stride in self._values.strides)

    def storage_offset(self) -> int:
        return 0

    def untyped_storage(self) -> Any:
        return types.SimpleNamespace(nbytes=lambda: self._values.nbytes)

    def get_device(self) -> int:
        return self._index


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    names = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool", "strided")
    module = types.ModuleType("torch")
    vars(module).update({name: name for name in names}, Tensor=Tensor)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.usefixtures("torch")
def test_a_tensor_of_torch_is_read_on_its_own_device() -> None:
    for values in (VALUES, VALUES.T):
        tensor = Tensor(values, 1)
        view = ost.TensorView.of(tensor)
        assert (view.device, view.address, view.owner, view.stream) == ("hip:1", values.ctypes.data, tensor, None)
        assert (view.shape, view.strides) == (memory_of(values).form.shape, memory_of(values).form.strides)
    shrunk = Tensor(VALUES)
    shrunk.untyped_storage = lambda: types.SimpleNamespace(nbytes=lambda: 4)  # type: ignore[method-assign]
    with pytest.raises(ost.BoundsError, match="made smaller"):
        ost.TensorView.of(shrunk)
    elsewhere = Tensor(VALUES)
    elsewhere.is_cuda, elsewhere.device = False, "mps:0"
    with pytest.raises(ost.InputError, match="on mps:0, which is neither the CPU nor a GPU"):
        ost.TensorView.of(elsewhere)


def test_the_place_within_16_bytes_is_part_of_the_form_of_memory_on_a_gpu() -> None:
    """Rows ask for it, so calls that differ in it are different calls."""
    for skew, expected in ((0, 0), (4, 1), (12, 3), (16, 0)):
        view = ost.TensorView(4096 + skew, 64, (4,), None, "f32", "hip:0")
        assert view.memory.form.offset == expected
        assert view.slice(0, 1, 3).memory.form.offset == (expected + 1) % 4
        assert ost.TensorView(4096 + skew, 64, (4,), None, "f32").memory.form.offset == 0
    assert ost.TensorView(4098, 34, (32,), None, "q8_0", "hip:0").memory.form.offset == 0
