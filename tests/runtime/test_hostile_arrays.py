"""Objects that misbehave where an array is expected: whatever they do is one typed error of the call, and memory that is read is held."""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import ops

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def fail(error: BaseException) -> Any:
    raise error


class Exporter:
    """Has DLPack, of a kind: `capsule` and `device` are called when they are asked for."""

    def __init__(self, capsule: Callable[[], Any], device: Callable[[], Any] = lambda: (1, 0)) -> None:
        self._capsule = capsule
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule()

    def __dlpack_device__(self) -> Any:
        return self._device()


class WithoutDevice:
    def __dlpack__(self, **options: Any) -> Any:
        return X.__dlpack__()


class Vanishing:
    @property
    def __dlpack__(self) -> Any:
        return fail(RuntimeError("gone"))


def capsule_named(name: bytes | None) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(X.ctypes.data, name, None)


_FOREIGN = b"foreign"  # a capsule does not copy its name
FAILURES = (KeyError("x"), AttributeError("x"), OSError("x"), MemoryError(), ZeroDivisionError(), Exception("odd"))
EXPORTERS: dict[str, Callable[[], object]] = {
    **{f"capsule {error!r}": lambda error=error: Exporter(lambda: fail(error)) for error in FAILURES},  # type: ignore[misc]
    **{f"device {error!r}": lambda error=error: Exporter(X.__dlpack__, lambda: fail(error)) for error in FAILURES},  # type: ignore[misc]
    "no capsule": lambda: Exporter(lambda: None),
    "foreign capsule": lambda: Exporter(lambda: capsule_named(_FOREIGN)),
    "capsule without a name": lambda: Exporter(lambda: capsule_named(None)),
    "device of no numbers": lambda: Exporter(X.__dlpack__, lambda: ()),
    "no device": WithoutDevice,
    "vanishing": Vanishing,
}


@pytest.mark.parametrize("how", EXPORTERS)
def test_an_exporter_may_fail_in_any_way(how: str) -> None:
    out = np.zeros_like(X)
    with pytest.raises(ost.InputError, match=r"silu\.x: .* cannot be read without a copy"):
        ops.silu(EXPORTERS[how](), out=out)
    assert not out.any()


def test_a_capsule_is_used_once() -> None:
    capsule = X.__dlpack__()
    once = Exporter(lambda: capsule)
    assert ost.TensorView.of(once).numpy().tolist() == X.tolist()
    with pytest.raises(ost.InputError, match="expected a fresh DLPack capsule, found one named b'used_dltensor'"):
        ost.TensorView.of(once)


def test_classes_are_no_arrays_of_theirs() -> None:
    for kind in (np.ndarray, Exporter, ost.TensorView):
        with pytest.raises(ost.DTypeError, match="expected an array, found type"):
            ost.TensorView.of(kind)


def test_buffers_that_are_gone_are_refused() -> None:
    released, closed = memoryview(bytearray(16)), mmap.mmap(-1, 4096)
    released.release()
    closed.close()
    for buffer in (released, closed):
        with pytest.raises(ost.InputError, match="gives no access to its bytes"):
            ost.TensorView.of(buffer)


def test_elements_without_a_counterpart_are_refused() -> None:
    for buffer in ((ctypes.c_void_p * 3)(), (ctypes.c_float.__ctype_be__ * 3)(), (ctypes.c_char * 3)()):
        with pytest.raises(ost.DTypeError, match="no counterpart"):
            ost.TensorView.of(buffer)


def test_a_buffer_cannot_move_while_a_view_holds_it() -> None:
    raw, mapped = bytearray(64), mmap.mmap(-1, 4096)
    views = [ost.TensorView.of(raw), ost.TensorView.of(mapped)]
    packed = ops.pack(X, out=bytearray(ops.packed_bytes(X)))
    with pytest.raises(BufferError):
        raw.extend(b"more")
    with pytest.raises(BufferError):
        mapped.close()
    with pytest.raises(BufferError):
        packed.owner.base.obj.clear()
    del views
    gc.collect()
    raw.extend(b"more")
    mapped.close()


# plain values


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400, 10**5000], ids=["large", "small", "long", "longer"])
def test_integers_that_no_kernel_holds_are_refused(number: int) -> None:
    """Numbers of thousands of digits have no text in Python: the error must not need one."""
    out = np.zeros_like(X)
    calls: list[Callable[[], object]] = [
        lambda: ops.scale(X, factor=number, out=out),
        lambda: ops.repeat_interleave(X, axis=number, repeats=1, out=out),
        lambda: ops.reshape(X, shape=(number,)),
        lambda: ops.cast(X, dtype=number, out=out),
        lambda: ops.rotary_table_longrope(X, X, X, X, original_positions=number, out=(out, out)),
    ]
    for call in calls:
        with pytest.raises(ost.OstinatoError):
            call()
    with pytest.raises(ost.ConfigError, match=r"attribute axis expected int[\s\S]*64 bits"):
        calls[1]()
    assert not out.any()
    for arguments in ((number, 32, (8,)), (X.ctypes.data, number, (8,)), (X.ctypes.data, 32, (number,))):
        if number != 2**63:  # which an address may be
            with pytest.raises(ost.OstinatoError):
                ost.TensorView(*arguments, None, "f32")


def test_a_text_that_looks_alike_is_no_value() -> None:
    """What was accepted once must not answer for an object that only writes itself the same way."""

    class Disguised:
        def __repr__(self) -> str:
            return "2.0"

    class Mute:
        def __repr__(self) -> str:
            raise RuntimeError

    out = np.zeros_like(X)
    ops.scale(X, factor=2.0, out=out)
    for value in (Disguised(), Mute(), np.float64(2.0)):
        with pytest.raises(ost.ConfigError, match="expected float"):
            ops.scale(X, factor=value, out=out)
    level: Any = Mute()
    with pytest.raises(ost.ConfigError, match="level is a Mute without text"):
        ops.scale(X, factor=2.0, out=out, level=level)


def test_flags_are_true_or_false() -> None:
    """Any other value that counts as true would allow what nobody asked for."""
    x = X.copy()
    flag: Any
    for flag in ("no", 1, None, np.ones(2)):
        with pytest.raises(ost.ConfigError, match=r"silu: in_place is .*, expected True or False"):
            ops.silu(x, out=x, in_place=flag)
        with pytest.raises(ost.ConfigError, match=r"writable is .*, expected True or False"):
            ost.TensorView(x.ctypes.data, 32, (8,), None, "f32", writable=flag)
    assert x.tolist() == X.tolist()


def test_names_are_text() -> None:
    name: Any
    for name in ([], X, None, 3):
        with pytest.raises(ost.InputError, match="there is no operator"):
            ops.result_types(name, X)
        with pytest.raises(ost.ConfigError, match="unknown"):
            ost.TensorView(X.ctypes.data, 32, (8,), None, "f32", name)
        if name is not None:
            with pytest.raises(ost.LayoutError, match="no format of packed weights"):
                ost.TensorView(X.ctypes.data, 32, (8,), None, "f32", layout=name)
    with pytest.raises(ost.LayoutError, match="layout 'row' is no format of packed weights"):
        ost.TensorView(X.ctypes.data, 32, (8,), None, "f32", layout="row")


def test_a_view_that_was_refused_does_not_exist() -> None:
    view = ost.TensorView.__new__(ost.TensorView)
    with pytest.raises(ost.BoundsError):
        view.__init__(X.ctypes.data, 32, (9,), None, "f32")  # type: ignore[misc]
    with pytest.raises(AttributeError):
        _ = view.memory


def test_a_packed_weight_has_no_elements_to_view() -> None:
    packed = ops.pack(X, out=np.empty(ops.packed_bytes(X), np.uint8))
    with pytest.raises(ost.DTypeError, match="no elements that can be addressed"):
        packed.viewed((1,), (1,), 0)
