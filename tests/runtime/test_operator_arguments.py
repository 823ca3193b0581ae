"""Arguments of caller-owned operators: by place and by name, attributes, streams, devices, levels, queries and packed weights."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.target import Level
from ostinato.ir.types import DType, TensorType
from ostinato.runtime import operators
from ostinato.runtime.device import Device
from ostinato.runtime.opened import OpenedDevices
from ostinato.runtime.operators import Operators

X = np.arange(8, dtype=np.float32).reshape(2, 4)
GAIN = np.full(4, 2, np.float32)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    ops.use(threads=1)


def y() -> Any:
    return np.zeros_like(X)


def test_operands_go_by_place_or_by_name() -> None:
    outs = [y() for _ in range(3)]
    ops.rms_norm(X, GAIN, eps=1e-6, out=outs[0])
    ops.rms_norm(X, gain=GAIN, eps=1e-6, out=outs[1])
    ops.rms_norm(gain=GAIN, eps=1e-6, x=X, out=outs[2])
    assert outs[0].any()
    assert (outs[0] == outs[1]).all()
    assert (outs[0] == outs[2]).all()


def refused(call: Callable[[], object], family: type[ost.OstinatoError], text: str) -> None:
    with pytest.raises(family, match=text):
        call()


def test_wrong_arguments_are_refused_by_family() -> None:
    out = y()
    refused(lambda: ops.rms_norm(X, GAIN, x=X, eps=1e-6, out=out), ost.InputError, "x is given twice")
    refused(lambda: ops.rms_norm(X, GAIN, X, eps=1e-6, out=out), ost.ShapeError, "at most 2 operands, found 3")
    refused(lambda: ops.rms_norm(X, eps=1e-6, out=out), ost.ShapeError, "operand gain, found none")
    refused(lambda: ops.rms_norm(X, GAIN, out=out), ost.ConfigError, "eps is missing")
    refused(lambda: ops.rms_norm(X, GAIN, eps="1", out=out), ost.ConfigError, "expected float, found '1'")
    refused(lambda: ops.rms_norm(X, GAIN, eps=[1e-6], out=out), ost.ConfigError, "expected float")
    refused(lambda: ops.rms_norm(X, GAIN, eps=1e-6, epsilon=1, out=out), ost.ConfigError, "unknown attributes")
    refused(lambda: ops.rms_norm(X, GAIN, eps=0.0, out=out), ost.ConfigError, "eps")
    refused(lambda: ops.rms_norm(X, [1.0] * 4, eps=1e-6, out=out), ost.DTypeError, r"rms_norm\.gain: expected an array")
    level: Any = 3.5
    refused(lambda: ops.rms_norm(X, GAIN, eps=1e-6, out=out, level=level), ost.ConfigError, "level is 3.5")
    refused(lambda: ops.rms_norm(X, GAIN, eps=1e-6, out=out, level="vendor"), ost.ConfigError, "no level 'vendor'")
    refused(lambda: ops.add(X, X.astype(np.float16), out=out), ost.DTypeError, "cast")
    refused(lambda: ops.add(X, GAIN, out=out), ost.ShapeError, "nothing is broadcast")
    refused(lambda: ops.silu(X.astype(np.float64), out=out), ost.DTypeError, "nothing is converted silently")
    refused(lambda: ops.argmax(X, out=np.zeros(2, np.int64)), ost.DTypeError, "expected an output of i32")
    assert not out.any()
    refused(lambda: ops.result_types("rmsnorm", X), ost.InputError, r"no operator 'rmsnorm'[\s\S]*rms_norm")


def test_equal_attributes_that_differ_are_told_apart() -> None:
    """1, True and 1.0 are equal in Python, and so are 0.0 and -0.0; what was accepted once must not answer for the others."""
    out = y()
    ops.scale(X, factor=1.0, out=out)
    ops.scale(X, factor=1, out=out)
    refused(lambda: ops.scale(X, factor=True, out=out), ost.ConfigError, "expected float, found True")
    refused(lambda: ops.scale(X, factor="1.0", out=out), ost.ConfigError, "expected float")
    ops.scale(X, factor=0.0, out=out)
    assert not np.signbit(out).any()
    ops.scale(X, factor=-0.0, out=out)
    assert np.signbit(out).all()


def test_an_index_out_of_range_names_the_operator() -> None:
    table, out = np.ones((3, 4), np.float32), np.zeros((2, 4), np.float32)
    refused(lambda: ops.embedding(np.array([0, 3], np.int32), table, out=out), ost.BoundsError, "^embedding: ")


def test_queries_need_no_memory() -> None:
    types = [TensorType((2, 4), DType.F32), TensorType((4,), DType.F32)]
    assert [str(t) for t in ops.result_types("add_rms_norm", types[0], types[0], types[1], eps=1e-6)] == [
        "f32[2,4]"
    ] * 2
    assert ops.result_types("rms_norm", X, GAIN, eps=1e-6, dtype="bf16")[0].dtype is DType.BF16
    assert ops.workspace_bytes("rms_norm", *types, eps=1e-6) == 0
    assert ops.workspace_bytes("reshape", types[0], shape=(8,)) == 0
    refused(lambda: ops.result_types("add", *types), ost.ShapeError, "nothing is broadcast")
    x, blocks = TensorType((2, 32), DType.F32), TensorType((8, 32), DType.Q8_0)
    refused(lambda: ops.workspace_bytes("linear", x, blocks), ost.LayoutError, "pack the weight once")
    packed = TensorType((8, 4), DType.F32, layout="panel32")
    assert ops.workspace_bytes("linear", types[0], packed) == 0
    refused(lambda: ops.workspace_bytes("linear", types[0], packed, level="x"), ost.ConfigError, "no row 'x'")


# streams and devices


def test_streams_of_the_cpu_are_legal_and_synchronous() -> None:
    stream = ost.Stream()
    out = y()
    ops.silu(X, out=out, stream=stream)
    assert out.any()
    stream.synchronize()
    assert stream.device == "cpu"
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        refused(lambda: duplicate(stream), ost.LifecycleError, "neither copied nor pickled")  # noqa: B023 - called at once
    assert stream.handle == 0
    stream.wait(ost.Stream("cpu"))
    refused(lambda: ost.Stream.external("cpu", 0), ost.ConfigError, "has no handle")
    refused(lambda: ost.Stream("moon"), ost.ConfigError, "unknown")


@pytest.mark.parametrize("stream", [0, "cpu", object(), np.zeros(1)])
def test_foreign_streams_are_refused(stream: Any) -> None:
    out = y()
    refused(
        lambda: ops.silu(X, out=out, stream=stream), ost.ConfigError, r"silu: stream is a .*expected an ostinato Stream"
    )
    assert not out.any()


def test_memory_of_a_gpu_is_named_without_one() -> None:
    """A view is data: the device is asked for when a call needs it."""
    for name in ("hip:0", "hip", "cuda:0", "cuda"):
        assert ost.TensorView(64, 16, (4,), None, "f32", name).device == "hip:0"
    assert ost.TensorView(64, 16, (4,), None, "f32", "cuda:7").device == "hip:7"
    unknown: tuple[Any, ...] = ("hip:", "hip:-1", "hip:1a", "HIP:0", "gpu", "", 0, None)
    for wrong in unknown:
        with pytest.raises(ost.ConfigError, match="is unknown"):
            ost.TensorView(64, 16, (4,), None, "f32", wrong)


def test_operands_of_two_devices_are_refused_naming_both() -> None:
    """Before any device is asked for."""
    far = ost.TensorView(64, X.nbytes, X.shape, None, "f32", "hip:0")
    refused(lambda: ops.silu(far, out=y()), ost.ConfigError, r"silu: x is on hip:0, out on cpu")
    refused(lambda: ops.add(X, far, out=y()), ost.ConfigError, r"add: a is on cpu, b on hip:0")
    refused(lambda: ops.add(X, X, out=far), ost.ConfigError, r"add: a is on cpu, out on hip:0")
    refused(
        lambda: ops.silu(far, out=far, stream=ost.Stream()),
        ost.ConfigError,
        "the stream is of cpu, the tensors are on hip:0",
    )


def test_a_gpu_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = OpenedDevices()
    far = ost.TensorView(64, X.nbytes, X.shape, None, "f32", "hip:5")
    refused(lambda: Operators(devices).call("silu", [far], {}, out=far), ost.DeviceUnavailable, "nothing opens hip:5")
    refused(lambda: Operators(devices).call("silu", [X], {}, out=y()), ost.DeviceUnavailable, "nothing opens cpu")

    def none(name: str) -> Device:
        raise ost.DeviceUnavailable(f"there is no {name}")

    devices.open_with(none)
    monkeypatch.setattr("ostinato.runtime.stream.OPENED", devices)
    for make in (lambda: ost.Stream("hip:5"), lambda: ost.Stream.external("cuda:5", 3)):
        refused(make, ost.DeviceUnavailable, "there is no hip:5")


def test_the_device_in_use_can_be_chosen() -> None:
    device = HostDevice(threads=1, isa="portable")
    ops.use(device)
    ops.silu(X, out=y())
    assert device.launches == ops.launches() == 1
    ops.use("cpu", threads=1)
    assert ops.launches() == 0
    refused(lambda: ops.use("moon"), ost.ConfigError, "unknown")
    refused(lambda: ops.use(3), ost.ConfigError, "device is 3")  # type: ignore[arg-type]
    ops.silu(X, out=y())
    assert ops.launches() == 1


def test_calls_work_in_a_forked_child() -> None:
    ops.use(threads=2)
    out = y()
    ops.silu(X, out=out)
    child = os.fork()
    if not child:
        again = y()
        ops.silu(X, out=again)
        os._exit(0 if (again == out).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_remembered_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_MAX_PLANS", 3)
    for rows in (1, 2, 3, 4, 5, 1, 2):
        x = np.full((rows, 4), 2, np.float32)
        out = np.empty_like(x)
        ops.add(x, x, out=out)
        assert (out == 4).all()


# packed weights


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_weight_is_packed_once_into_the_callers_bytes(dtype: str) -> None:
    rng = np.random.default_rng(5)
    kind = DType.parse(dtype).numpy
    x, weight = rng.standard_normal((3, 48)).astype(np.float32), rng.standard_normal((40, 48)).astype(kind)
    size = ops.packed_bytes(weight)
    assert size == ops.packed_bytes(TensorType((40, 48), DType.parse(dtype))) >= weight.nbytes
    memory = np.zeros(size + 5, np.uint8)
    packed = ops.pack(weight, out=memory)
    assert (packed.layout, packed.owner is memory, packed.address) == ("panel32", True, memory.ctypes.data)
    assert not memory[size:].any()
    out = np.empty((3, 40), np.float32)
    ops.linear(x, packed, out=out)
    assert np.allclose(out, x @ weight.astype(np.float32).T, rtol=2e-4, atol=2e-4)
    rows = np.empty((2, 48), np.float32)  # the table of an embedding may be the same bytes
    ops.embedding(np.array([39, 0], np.int32), packed, out=rows)
    assert (rows == weight[[39, 0]].astype(np.float32)).all()
    refused(packed.numpy, ost.LayoutError, "no array of elements")
    assert packed.reinterpret("u8", (size,)).numpy().tobytes() == memory[:size].tobytes()


def test_gate_and_up_are_packed_as_pairs() -> None:
    rng = np.random.default_rng(6)
    x, weight = rng.standard_normal((2, 32)).astype(np.float32), rng.standard_normal((48, 32)).astype(np.float32)
    packed = ops.pack(
        weight, out=np.empty(ops.packed_bytes(weight, operator="linear_swiglu"), np.uint8), operator="linear_swiglu"
    )
    assert packed.layout == "panel32_pair"
    out = np.empty((2, 24), np.float32)
    ops.linear_swiglu(x, packed, out=out)
    gate, up = np.split(x @ weight.T, 2, axis=1)
    assert np.allclose(out, gate / (1 + np.exp(-gate)) * up, rtol=2e-4, atol=2e-4)
    refused(lambda: ops.linear(x, packed, out=np.empty((2, 48), np.float32)), ost.LayoutError, "panel32_pair")


def test_weights_that_cannot_be_packed_are_refused() -> None:
    weight = np.ones((40, 32), np.float32)
    size = ops.packed_bytes(weight)
    out = np.zeros(size, np.uint8)
    refused(lambda: ops.pack(weight, out=out[:-1]), ost.CapacityError, f"pack.out: {size} bytes are needed")
    refused(lambda: ops.pack(weight, out=bytes(size)), ost.LayoutError, "contiguous writable")
    refused(lambda: ops.pack(weight, out=np.zeros(size + 8, np.uint8)[8:]), ost.LayoutError, "not aligned to 16")
    refused(lambda: ops.pack(weight.T, out=out), ost.LayoutError, r"contiguous weight[\s\S]*ops\.contiguous")
    refused(lambda: ops.pack(weight, out=out, operator="rms_norm"), ost.ConfigError, "packs none of its operands")
    refused(lambda: ops.pack(weight, out=out, operator="warp"), ost.InputError, "no operator 'warp'")
    refused(lambda: ops.pack(weight[0], out=out), ost.LayoutError, "two dimensions")
    refused(lambda: ops.pack(np.ones((3, 4), np.int32), out=out), ost.DTypeError, "i32")
    refused(lambda: ops.pack(weight[:3], out=out, operator="linear_swiglu"), ost.LayoutError, "even number of rows")
    both = np.zeros(size + weight.nbytes, np.uint8)
    inside = both[: weight.nbytes].view(np.float32).reshape(weight.shape)
    refused(lambda: ops.pack(inside, out=both[16:]), ost.LayoutError, "would overlap")
    assert not out.any()
    assert not both.any()


def test_levels_are_names_or_members() -> None:
    out = y()
    for level in ("tuned", Level.TUNED, "host"):
        ops.silu(X, out=out, level=level)
    refused(lambda: ops.silu(X, out=out, level="vendor"), ost.ConfigError, "no level 'vendor'")


def test_bf16_needs_no_conversion() -> None:
    x = np.array([[1.0, 2.0]], ml_dtypes.bfloat16)
    out = np.empty_like(x)
    ops.add(x, x, out=out)
    assert out.astype(np.float32).tolist() == [[2.0, 4.0]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_another_thread_opens_the_device_can_open_it() -> None:
    in_use = OpenedDevices()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with in_use._lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if in_use._lock.acquire(blocking=False) else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
