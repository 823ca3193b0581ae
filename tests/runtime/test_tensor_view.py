"""External storage: bounds, lifetimes and the invariants of tensors (contracts, sections 1 and 5)."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ostinato as ost
from ostinato.ir.types import Array, DType


def over(
    array: Array, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, **options: Any
) -> ost.TensorView:
    """A view of a float32 array's bytes."""
    return ost.TensorView(array.ctypes.data, array.nbytes, shape, strides, "f32", owner=array, **options)


# bounds


@given(
    nbytes=st.integers(0, 64),
    offset=st.integers(0, 8),
    axes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=3),
)
def test_a_view_is_accepted_exactly_when_its_elements_lie_inside(
    nbytes: int, offset: int, axes: list[tuple[int, int]]
) -> None:
    """Every element is named by brute force. An empty view must still begin inside, or at the end."""
    shape, strides = tuple(extent for extent, _ in axes), tuple(stride for _, stride in axes)
    places = [offset + sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(shape)]
    inside = all(place * 4 + 4 <= nbytes for place in places) and offset * 4 <= nbytes
    memory = np.zeros(16, np.float32)
    pointer = memory.ctypes.data if nbytes else 0
    try:
        view = ost.TensorView(pointer, nbytes, shape, strides, "f32", owner=memory, offset=offset)
    except ost.BoundsError:
        assert not inside
    else:
        assert inside
        assert view.elements == len(places)
        assert view.span == (max(places) - min(places) + 1) * 4 if places else view.span == 0


def test_a_scalar_has_one_element_and_sizes_may_be_zero() -> None:
    memory = np.arange(4, dtype=np.float32)
    scalar = over(memory, (), offset=3)
    assert (scalar.elements, scalar.span, scalar.numpy().item()) == (1, 4, 3.0)
    for shape in ((0,), (3, 0), (0, 2**40)):
        assert over(memory, shape).elements == 0
    assert ost.TensorView(0, 0, (0, 3), None, "f32").numpy().shape == (0, 3)


def test_impossible_views_are_refused_by_family() -> None:
    memory = np.arange(6, dtype=np.float32)
    pointer, nbytes = memory.ctypes.data, memory.nbytes

    def view(*arguments: Any, **options: Any) -> Any:
        return lambda: ost.TensorView(*arguments, **options)

    cases: list[tuple[Any, type[ost.OstinatoError], str]] = [
        (view(0, 4, (1,), None, "f32"), ost.InputError, "a null pointer to 4 bytes"),
        (view(-1, 4, (1,), None, "f32"), ost.InputError, "pointer"),
        (view(1.5, 4, (1,), None, "f32"), ost.InputError, "pointer"),
        (view(pointer, -1, (1,), None, "f32"), ost.InputError, "nbytes"),
        (view(2**64 - 4, 8, (1,), None, "f32"), ost.CapacityError, "past the end of the address space"),
        (view(pointer, nbytes, (-1,), None, "f32"), ost.ShapeError, r"shape\[0\] is -1"),
        (view(pointer, nbytes, (2**32, 2**31), None, "f32"), ost.CapacityError, "elements, more than"),
        (view(pointer, nbytes, (2**61,), None, "f64"), ost.BoundsError, "there are 24"),
        (view(pointer, nbytes, (2, 3), (-3, 1), "f32"), ost.LayoutError, "negative"),
        (view(pointer, nbytes, (2, 3), (3,), "f32"), ost.LayoutError, "1 strides .* for 2 extents"),
        (view(pointer, nbytes, (2,), (2**62,), "f32"), ost.BoundsError, "there are 24"),
        (view(pointer, nbytes, (7,), None, "f32"), ost.BoundsError, r"takes bytes \[0, 28\), there are 24"),
        (view(pointer, nbytes, (2, 3), (3, 2), "f32"), ost.BoundsError, r"takes bytes \[0, 32\), there are 24"),
        (view(pointer, nbytes, (2,), None, "f32", offset=5), ost.BoundsError, r"takes bytes \[20, 28\)"),
        (view(pointer, nbytes, (2,), None, "f32", offset=-1), ost.BoundsError, "offset"),
        (view(pointer, nbytes, (0,), None, "f32", offset=7), ost.BoundsError, r"takes bytes \[28, 28\)"),
        (view(pointer + 2, 8, (1,), None, "f32"), ost.LayoutError, "not aligned to its 4 bytes"),
        (view(pointer, nbytes, (1,), None, "float32"), ost.DTypeError, "unknown dtype 'float32'"),
        (view(pointer, nbytes, (1,), None, None), ost.DTypeError, "None is no dtype"),
        (view(pointer, nbytes, (1,), None, np.complex64), ost.DTypeError, "no counterpart"),
        (view(pointer, nbytes, (33,), None, "q8_0"), ost.DTypeError, "32"),
        (view(pointer, nbytes, (), None, "q8_0"), ost.DTypeError, "32"),
        (view(pointer, nbytes, (32,), None, "q4_0", offset=16), ost.LayoutError, "inside of a block"),
        (view(pointer, nbytes, (2, 32), (64, 1), "q4_0"), ost.LayoutError, "dense blocks"),
        (view(pointer, nbytes, (1, 2), None, "f32", layout="panel7"), ost.LayoutError, "panel7"),
        (view(pointer, nbytes, (1, 2), None, "f32", layout="panel32"), ost.BoundsError, "256"),
        (view(pointer, nbytes, (1, 2), (2, 1), "f32", layout="panel32"), ost.LayoutError, "has no strides"),
        (view(pointer, nbytes, (1,), None, "f32", "tpu"), ost.ConfigError, "device 'tpu' is unknown"),
        (view(pointer, nbytes, 3, None, "f32"), ost.ShapeError, "expected a list of integers"),
    ]
    for make, family, text in cases:
        with pytest.raises(family, match=text):
            make()
    assert memory.tolist() == [0, 1, 2, 3, 4, 5]


def test_errors_are_what_python_users_catch() -> None:
    """Section 0: invalid arguments are ValueErrors, places outside are IndexErrors, sizes that overflow OverflowErrors, backends RuntimeErrors."""
    memory = np.zeros(4, np.float32)
    for arguments, family in (
        (((-1,), None), ValueError),
        (((2,), (-1,)), ValueError),
        (((5,), None), IndexError),
        (((2**62, 2), None), OverflowError),
    ):
        with pytest.raises(family):
            over(memory, *arguments)
    with pytest.raises(RuntimeError):
        copy.copy(over(memory, (4,)))


# views of the same bytes


def test_reshape_transpose_and_slice_move_nothing() -> None:
    memory = np.arange(24, dtype=np.float32)
    x = over(memory, (4, 6))
    assert x.reshape((2, 12)).numpy().tolist() == memory.reshape(2, 12).tolist()
    assert x.slice(0, 0, 1).slice(1, 2, 3).reshape(()).numpy().item() == 2
    turned = x.transpose()
    assert (turned.shape, turned.strides, turned.address) == ((6, 4), (1, 6), x.address)
    assert turned.transpose((1, 0)).is_contiguous
    part = x.slice(1, 1, 6, 2).slice(0, 1, 4)
    assert np.array_equal(part.numpy(), memory.reshape(4, 6)[1:4, 1:6:2])
    assert part.offset == 7
    assert part.nbytes == x.nbytes
    for view in (x.reshape((24,)), turned, part):
        assert np.shares_memory(view.numpy(), memory)
        assert view.owner is memory
    part.numpy()[0, 0] = -1
    assert memory[7] == -1


def test_an_empty_slice_at_the_end_stays_inside() -> None:
    x = over(np.zeros(6, np.float32), (2, 3))
    assert x.slice(0, 2, 2).shape == (0, 3)
    assert x.slice(1, 3, 3).slice(0, 2, 2).shape == (0, 0)


def test_views_that_cannot_be_are_refused() -> None:
    x = over(np.zeros(6, np.float32), (2, 3))
    with pytest.raises(ost.ShapeError, match="expected 6 elements"):
        x.reshape((4,))
    with pytest.raises(ost.ShapeError):
        x.reshape((-1, 3))
    with pytest.raises(ost.LayoutError, match=r"not contiguous[\s\S]*ops\.contiguous"):
        x.transpose().reshape((6,))
    for order in ((0,), (0, 0), (0, 2), (0, 1, 2)):
        with pytest.raises(ost.ShapeError):
            x.transpose(order)
    for place in ((2, 0, 1), (-1, 0, 1), (0, 0, 3), (0, -1, 1), (0, 2, 1)):
        with pytest.raises(ost.BoundsError):
            x.slice(*place)
    for step in (0, -1):
        with pytest.raises(ost.ConfigError):
            x.slice(1, 0, 3, step)
        with pytest.raises(ValueError, match="step"):
            x.slice(1, 0, 3, step)


def test_strides_that_nobody_walks_do_not_matter() -> None:
    memory = np.zeros(8, np.float32)
    assert over(memory, (1, 8), (999, 1)).is_contiguous
    assert over(memory, (0, 3), (7, 9)).is_contiguous
    assert over(memory, (4, 1), (1, 5)).reshape((4,)).is_contiguous
    assert not over(memory, (2, 2), (4, 1)).is_contiguous
    assert over(memory, (8, 2), (1, 0)).span == 32  # one element seen twice


def test_bytes_are_reinterpreted_only_when_asked() -> None:
    raw = np.arange(68, dtype=np.uint8)
    blocks = ost.TensorView.of(raw).reinterpret("q8_0", (2, 32))
    assert (blocks.dtype, blocks.shape, blocks.span) == (DType.Q8_0, (2, 32), 68)
    for use in (blocks.numpy, blocks.transpose, lambda: blocks.reshape((64,)), lambda: blocks.slice(0, 0, 1)):
        with pytest.raises(ost.DTypeError):
            use()
    assert blocks.reinterpret("u8", (68,)).numpy().tolist() == raw.tolist()
    halves = ost.TensorView.of(np.array([0x3F80, 0x4000], np.uint16).view(np.uint8))
    assert halves.reinterpret("bf16", (2,)).numpy().tolist() == [1.0, 2.0]
    with pytest.raises(ost.ShapeError, match="expected 68 bytes"):
        ost.TensorView.of(raw).reinterpret("f32", (16,))
    with pytest.raises(ost.LayoutError, match="not contiguous"):
        ost.TensorView.of(raw[::2]).reinterpret("u8", (34,))
    with pytest.raises(ost.LayoutError, match="not aligned"):
        ost.TensorView.of(raw[1:65]).reinterpret("f32", (16,))


# lifetimes


class Owner:
    """Memory of somebody else, who may be watched."""

    def __init__(self) -> None:
        self.memory = (ctypes.c_float * 4)(1, 2, 3, 4)


def test_the_owner_lives_as_long_as_a_view_or_an_array_of_it() -> None:
    owner = Owner()
    watched = weakref.ref(owner)
    view = ost.TensorView(ctypes.addressof(owner.memory), 16, (4,), None, "f32", owner=owner)
    del owner
    gc.collect()
    assert watched() is not None
    part = view.slice(0, 1, 3)
    del view
    array = part.numpy()
    exported = np.from_dlpack(part)
    interfaced = np.asarray(part)
    del part
    gc.collect()
    assert watched() is not None
    assert array.tolist() == exported.tolist() == interfaced.tolist() == [2, 3]
    del array
    del exported
    gc.collect()
    assert watched() is not None
    del interfaced
    gc.collect()
    assert watched() is None


def test_external_memory_is_never_freed() -> None:
    memory = (ctypes.c_float * 2)(5, 6)
    for _ in range(3):
        view = ost.TensorView(ctypes.addressof(memory), 8, (2,), None, "f32")
        assert view.owner is None
        assert view.numpy().tolist() == [5, 6]
        del view
        gc.collect()
    assert list(memory) == [5, 6]


def test_a_view_is_fixed_and_is_not_copied_with_its_bytes() -> None:
    view = over(np.zeros(4, np.float32), (4,))
    with pytest.raises(AttributeError):
        view.pointer = 0  # type: ignore[misc]
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ost.LifecycleError):
            duplicate(view)
    assert weakref.ref(view)() is view


# arrays of other libraries


def test_exports_share_the_bytes() -> None:
    memory = np.arange(6, dtype=np.float32)
    view = over(memory, (2, 3)).transpose()
    for array in (view.numpy(), np.asarray(view), np.from_dlpack(view)):
        assert array.shape == (3, 2)
        assert np.shares_memory(array, memory)
    assert np.asarray(view, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(view, copy=True), memory)
    half = ost.TensorView.of(np.array([1, 2], ml_dtypes.bfloat16))
    assert np.asarray(half).dtype == ml_dtypes.bfloat16
    assert not hasattr(half, "__array_interface__")


def test_read_only_memory_stays_read_only() -> None:
    memory = np.arange(4, dtype=np.float32)
    memory.flags.writeable = False
    view = ost.TensorView.of(memory)
    assert not view.writable
    assert not view.slice(0, 0, 2).reshape((2, 1)).writable
    assert not view.numpy().flags.writeable
    assert "read-only" in repr(view)
    assert not over(np.zeros(1, np.float32), (1,), writable=False).numpy().flags.writeable


def test_numpy_arrays_of_every_layout() -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for array in (x, x.T, x[:, ::2], x[..., 1], np.asfortranarray(x), np.broadcast_to(x[0, 0], (3, 4)), x[:0], x[1:2]):
        view = ost.TensorView.of(array)
        assert view.shape == array.shape
        assert np.array_equal(view.numpy(), array)
        assert view.is_contiguous == array.flags.c_contiguous
    record = np.zeros(4, np.dtype([("a", np.int32), ("b", np.int16)]))
    with pytest.raises(ost.LayoutError, match="not aligned"):
        ost.TensorView.of(record["a"])
    with pytest.raises(ost.LayoutError, match="not aligned"):
        ost.TensorView.of(np.zeros(9, np.uint8)[1:9].view(np.int64))
    with pytest.raises(ost.LayoutError, match="mask"):
        ost.TensorView.of(np.ma.masked_array(x, x > 3))
    for wrong in (x.astype(">i4"), x.astype(np.uint32), x.astype(np.complex64), x.astype("O"), x.astype("U3")):
        with pytest.raises(ost.DTypeError, match="no counterpart"):
            ost.TensorView.of(wrong)


def test_buffers_are_read_where_they_lie() -> None:
    raw = bytearray(b"\x01\x02\x03\x04")
    view = ost.TensorView.of(raw)
    view.numpy()[0] = 9
    assert raw[0] == 9
    assert not ost.TensorView.of(bytes(raw)).writable
    assert ost.TensorView.of((ctypes.c_float * 3)(1, 2, 3)).numpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize("value", [None, 3, 2.5, "text", [1.0, 2.0], (1, 2), object(), {"a": 1}, np.float32])
def test_what_is_no_array_is_refused(value: object) -> None:
    with pytest.raises(ost.DTypeError, match="x: expected an array, found"):
        ost.TensorView.of(value, "x")
