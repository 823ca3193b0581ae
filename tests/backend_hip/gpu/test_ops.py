"""`ostinato.ops` on device memory, on the emulated GPU: every operator's samples, streams, captures, and what a call does to the device: one launch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.ir.ops import OPS
from ostinato.ir.step import StepKind
from ostinato.ir.types import Array, DType
from tests.backend_hip.gpu.device_memory import Call, OnDevice, opened, valid_samples
from tests.runtime.operator_samples import check_result
from tests.runtime.test_gpu_arrays import ROCM, Described, Exporter, Reexported

COPIES = ("hipMemcpyAsync", "hipMemsetAsync")
WAITS = ("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize", "hipStreamQuery")
MEMORY = ("hipMalloc", "hipMallocAsync", "hipHostMalloc", "hipFree", "hipFreeAsync", "hipHostFree")


@pytest.fixture
def gpu(machine: EmulatedGpu) -> Iterator[OnDevice]:
    with opened(machine.gpu.device(0)) as found:
        yield found


@pytest.fixture
def other(machine: EmulatedGpu) -> Iterator[OnDevice]:
    with opened(machine.gpu.device(1)) as found:
        yield found


def counts(machine: EmulatedGpu, *names: str) -> dict[str, int]:
    return {name: machine.count(name) for name in names}


# operators


@pytest.mark.parametrize("index", [0, 1], ids=["wave 64", "wave 32"])
def test_every_operator_equals_its_reference(index: int, machine: EmulatedGpu, rng: np.random.Generator) -> None:
    """On raw pointers of device memory; each call is one launch of one kernel or one product of the vendor's, and no copy."""
    failures, ran = [], 0
    with opened(machine.gpu.device(index)) as gpu:
        gpu.load()
        ops.scale(
            gpu.put(np.ones(1, np.float32)), factor=1.0, out=gpu.empty(1)
        )  # the first call makes what others report to
        for op in OPS:
            if op.is_view:
                continue
            for number, sample in enumerate(valid_samples(op, rng)):
                call = Call(gpu, op, sample, rng)
                before, launches = counts(machine, *COPIES), gpu.launches
                products = machine.count("hipblasLtMatmul")
                call.run()
                ran += 1
                done = gpu.launches - launches + machine.count("hipblasLtMatmul") - products
                if done != int(any(tensor.elements for tensor in call.results)):
                    failures.append(f"{op.name}, sample {number}: {done} launches")
                if counts(machine, *COPIES) != before:
                    failures.append(f"{op.name}, sample {number}: a copy")
                ops.check(gpu.name)
                for tensor, actual, wanted in zip(call.results, call.found(), call.expected(), strict=True):
                    if problem := check_result(op, tensor, actual, wanted):
                        failures.append(f"{op.name}, sample {number}, {sample.attrs} -> {tensor}: {problem}")
        assert ran > len(OPS)
    assert not failures, f"{len(failures)} failures of {ran}\n" + "\n".join(failures[:10])


ELEMENTWISE = "elementwise/elementwise"


def floats(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8


def test_a_call_submits_one_launch_and_nothing_else(gpu: OnDevice, machine: EmulatedGpu) -> None:
    """Counted where the driver is: no memory, no copy, no wait, on the default stream and on another one."""
    gpu.load(ELEMENTWISE)
    a, b = (gpu.put(floats(40, 30) + shift) for shift in (0, 1))
    stream = ost.Stream(gpu.name)
    for queue in (None, stream):
        out = gpu.empty(40, 30)
        ops.add(a, a, out=out, stream=queue)  # the first call makes things ready
        before = counts(machine, *COPIES, *WAITS, *MEMORY, "hipModuleLoadData")
        launches, counters = machine.count("hipModuleLaunchKernel"), gpu.device.native.counters
        for _ in range(5):
            assert ops.add(a, b, out=out, stream=queue) is out
        assert machine.count("hipModuleLaunchKernel") == launches + 5
        assert counts(machine, *COPIES, *WAITS, *MEMORY, "hipModuleLoadData") == before
        assert gpu.device.native.counters.allocations == counters.allocations
        stream.synchronize()
        assert (gpu.get(out) == 2 * floats(40, 30) + 1).all()


def test_a_call_returns_before_its_work_is_done(gpu: OnDevice, machine: EmulatedGpu, seed: int) -> None:
    gpu.load(ELEMENTWISE)
    x, out = gpu.put(floats(64)), gpu.empty(64)
    ops.scale(x, factor=2.0, out=out)
    ops.check(gpu.name)
    machine.seed(seed, eagerness=0)
    ops.scale(x, factor=2.0, out=out)
    assert machine.count("pending") == 1
    ops.check(gpu.name)
    assert machine.count("pending") == 0


def test_views_of_device_memory_walk_the_same_bytes(gpu: OnDevice) -> None:
    gpu.load("movement/movement", ELEMENTWISE)
    values = floats(6, 8)
    x = gpu.put(values)
    part = ops.transpose(x, order=(1, 0)).slice(0, 2, 6, 2)
    assert (part.device, part.address) == (gpu.name, x.address + 8)
    with pytest.raises(ost.LayoutError, match=r"no row of gfx942[\s\S]*make a dense copy of x first: ops\.contiguous"):
        ops.scale(part, factor=1.0, out=gpu.empty(2, 6))
    dense = ops.contiguous(part, out=gpu.empty(2, 6))
    assert (gpu.get(dense) == values.T[2:6:2]).all()


def test_an_operator_without_a_row_for_the_dtype_is_refused(gpu: OnDevice) -> None:
    """Softmax of bf16 on a device whose rows know f32 alone: what there is is named, and nothing is routed through a temporary."""
    target = gpu.device.target

    def only_f32(row: Any) -> Any:
        return replace(
            row, accepts=lambda site: None if site.operand(0).dtype is DType.F32 else "x must be f32, found bf16"
        )

    rows = tuple(only_f32(row) if row.op == "softmax" else row for row in target.rows)
    gpu.device.target = replace(target, rows=rows)
    x = gpu.empty(4, 8, dtype="bf16")
    with pytest.raises(
        ost.BackendError, match=r"softmax: no row of gfx942 takes this call\n  softmax@hip: x must be f32"
    ):
        ops.softmax(x, out=gpu.empty(4, 8, dtype="bf16"))
    gpu.device.target = replace(target, rows=tuple(row for row in target.rows if row.op != "softmax"))
    with pytest.raises(ost.BackendError, match="no row of gfx942 takes this call"):
        ops.softmax(gpu.empty(4, 9), out=gpu.empty(4, 9))
    assert gpu.launches == 0


# what only a kernel meets


def embed(gpu: OnDevice, ids: list[int], stream: ost.Stream | None = None) -> ost.TensorView:
    table = gpu.put(floats(8, 4))
    out = gpu.empty(len(ids), 4)
    ops.embedding(gpu.put(np.array(ids, np.int32)), table, out=out, stream=stream)
    return out


def test_an_index_out_of_range_is_told_by_whoever_waits(gpu: OnDevice) -> None:
    gpu.load("linear/embedding")
    stream = ost.Stream(gpu.name)
    out = embed(gpu, [1, 99, 7])  # no error yet
    stream.synchronize()  # nothing of this stream's
    with pytest.raises(ost.BoundsError, match=r"embedding: an index in device memory was out of range"):
        ops.check(gpu.name)
    ops.check(gpu.name)  # told once
    assert (gpu.get(out)[[0, 2]] == floats(8, 4)[[1, 7]]).all()
    embed(gpu, [-1], stream)
    with pytest.raises(ost.BoundsError, match="embedding"):
        stream.synchronize()
    stream.synchronize()
    embed(gpu, [8], stream)
    with pytest.raises(ost.BoundsError, match="embedding"):
        ops.check(gpu.name)
    embed(gpu, [0], stream)
    ops.check(gpu.name)
    embed(gpu, [8], stream)
    embed(gpu, [8])
    for _ in range(2):
        with pytest.raises(ost.BoundsError, match="embedding"):
            ops.check(gpu.name)
    ops.check(gpu.name)
    ops.check("cpu")


def test_a_lost_device_is_told_too(gpu: OnDevice, machine: EmulatedGpu) -> None:
    gpu.load(ELEMENTWISE)
    x, out = gpu.put(floats(8)), gpu.empty(8)
    ops.scale(x, factor=1.0, out=out)
    ops.check(gpu.name)
    machine.fail("hipModuleLaunchKernel", 1)
    with pytest.raises(ost.BackendError, match="scale: launching kernel"):
        ops.scale(x, factor=1.0, out=out)
    machine.fail("kernel", 719)
    ops.scale(x, factor=1.0, out=out)
    with pytest.raises(ost.BackendError):
        ops.check(gpu.name)
    machine.recover()


def test_a_check_touches_no_stream_of_others(gpu: OnDevice, machine: EmulatedGpu) -> None:
    """One on which another thread captures stays whole, and one that its owner destroyed is not asked."""
    gpu.load(ELEMENTWISE, "linear/embedding")
    x, y = gpu.put(floats(8)), gpu.empty(8)
    stream = ost.Stream(gpu.name, non_blocking=True)
    theirs = _native.Stream(gpu.device.native)
    borrowed = ost.Stream.external(gpu.name, theirs.handle)
    ops.scale(x, factor=2.0, out=y, stream=stream)
    embed(gpu, [99], borrowed)
    del theirs
    inside, checked = threading.Event(), threading.Event()
    found: list[int] = []

    def submit() -> None:
        ops.scale(x, factor=2.0, out=y, stream=stream)
        inside.set()
        checked.wait(30)
        ops.scale(y, factor=2.0, out=x, stream=stream)

    thread = threading.Thread(
        target=lambda: found.append(ost.hip.HipGraphExecutable.capture(stream.native, submit).node_count)
    )
    thread.start()
    inside.wait(30)
    try:
        with pytest.raises(ost.BoundsError, match="embedding"):
            ops.check(gpu.name)
        ops.check(gpu.name)
    finally:
        checked.set()
        thread.join()
    assert found == [2]


# captures


def test_calls_are_captured_and_replayed(gpu: OnDevice, machine: EmulatedGpu) -> None:
    """No memory, copy or wait within the capture; a replay reads what the same addresses hold now."""
    gpu.load(ELEMENTWISE)
    x, y, z = gpu.put(floats(16)), gpu.empty(16), gpu.empty(16)
    stream = ost.Stream(gpu.name)

    def submit() -> None:
        ops.scale(x, factor=2.0, out=y, stream=stream)
        ops.add(y, x, out=z, stream=stream)

    submit()
    stream.synchronize()
    before = counts(machine, *COPIES, *WAITS, *MEMORY)
    graph = ost.hip.HipGraphExecutable.capture(stream.native, submit, record=True)
    assert counts(machine, *COPIES, *WAITS, *MEMORY) == before
    assert [node.type for node in graph.nodes] == ["kernel", "kernel"]
    for value in (1, 5):
        x.owner.write(np.full(16, value, np.float32))
        graph.launch(stream.native)
        stream.synchronize()
        assert (gpu.get(z) == 3 * value).all()


def test_a_first_call_within_a_capture_is_refused_with_the_fix(gpu: OnDevice, machine: EmulatedGpu) -> None:
    gpu.load(ELEMENTWISE)
    x, y = gpu.put(floats(16)), gpu.empty(16)
    stream = ost.Stream(gpu.name)
    capture = ost.hip.HipGraphExecutable.capture

    def submit() -> None:
        ops.scale(x, factor=2.0, out=y, stream=stream)

    loaded = counts(machine, "hipModuleLoadData", "hiprtcCompileProgram", *MEMORY)
    with pytest.raises(ost.LifecycleError, match=r"scale: this thread captures[\s\S]*make the same call once before"):
        capture(stream.native, submit)
    assert counts(machine, "hipModuleLoadData", "hiprtcCompileProgram", *MEMORY) == loaded
    submit()  # on the stream that failed to capture
    stream.synchronize()
    assert capture(stream.native, submit).node_count == 1
    for wait in (stream.synchronize, lambda: ops.check(gpu.name)):

        def submit_and_wait(wait: Callable[[], None] = wait) -> None:
            submit()
            wait()

        with pytest.raises(ost.LifecycleError, match="this thread captures; waiting"):
            capture(stream.native, submit_and_wait)
    assert (gpu.get(y) == 2 * floats(16)).all()


def test_a_call_in_a_capture_on_another_stream_than_it_captures_is_no_part_of_it(gpu: OnDevice) -> None:
    gpu.load(ELEMENTWISE)
    x, y = gpu.put(floats(16)), gpu.empty(16)
    ops.scale(x, factor=3.0, out=y)
    stream = ost.Stream(gpu.name, non_blocking=True)
    ops.scale(x, factor=3.0, out=y, stream=stream)
    with pytest.raises(ost.OstinatoError):
        ost.hip.HipGraphExecutable.capture(stream.native, lambda: ops.scale(x, factor=3.0, out=y))
    ops.scale(x, factor=3.0, out=y, stream=stream)
    stream.synchronize()


# arrays of other libraries


def test_an_array_of_another_library_is_ordered_by_its_producer(gpu: OnDevice, machine: EmulatedGpu, seed: int) -> None:
    """A DLPack producer is asked for the call's stream; the stream of `__cuda_array_interface__` is followed, without the host."""
    gpu.load(ELEMENTWISE)
    values = floats(8)
    theirs, mine = ost.Stream(gpu.name, non_blocking=True), ost.Stream(gpu.name, non_blocking=True)
    source, x, y = gpu.put(values), gpu.empty(8), gpu.empty(8)
    exporter = Exporter(values, ROCM, address=x.address)
    for stream in (theirs, mine):
        ops.scale(source, factor=1.0, out=x, stream=stream)
        stream.synchronize()
    ops.scale(exporter, factor=3.0, out=y, stream=mine)
    ops.scale(exporter, factor=3.0, out=y)
    assert exporter.streams == [mine.handle, 0]
    ops.check(gpu.name)
    assert (gpu.get(y) == 3 * values).all()
    for turn in range(20):
        machine.seed(seed + turn, eagerness=0)
        waits = counts(machine, *COPIES, *WAITS, *MEMORY)
        ops.scale(source, factor=float(turn), out=x, stream=theirs)
        described = Described(values, data=(x.address, False), stream=theirs.handle)
        ops.scale(described, factor=2.0, out=y, stream=mine)
        assert counts(machine, *COPIES, *WAITS, *MEMORY) == waits
        mine.synchronize()
        assert (gpu.get(y) == 2 * turn * values).all()


def test_a_consumer_of_a_view_follows_our_work(gpu: OnDevice, machine: EmulatedGpu, seed: int) -> None:
    """Read back through DLPack onto another stream: what the default stream still has to do comes first, and the host waits for nothing."""
    gpu.load(ELEMENTWISE)
    source, x, y = gpu.put(floats(8)), gpu.empty(8, dtype="bf16"), gpu.empty(8)
    theirs = ost.Stream(gpu.name, non_blocking=True)
    ops.cast(source, dtype="bf16", out=x)
    ops.cast(x, dtype="f32", out=y, stream=theirs)
    ops.check(gpu.name)
    scaled = gpu.empty(8)
    for turn in range(20):
        machine.seed(seed + turn, eagerness=0)
        waits = counts(machine, *COPIES, *WAITS)
        ops.scale(source, factor=float(turn), out=scaled)
        ops.cast(scaled, dtype="bf16", out=x)
        ops.cast(Reexported(x), dtype="f32", out=y, stream=theirs)
        assert counts(machine, *COPIES, *WAITS) == waits
        theirs.synchronize()
        assert (gpu.get(y) == turn * floats(8)).all()


def test_a_view_is_used_in_the_order_it_was_made_for(gpu: OnDevice) -> None:
    gpu.load(ELEMENTWISE)
    values, stream, y = floats(8), ost.Stream(gpu.name), gpu.empty(8)
    x = gpu.put(values)
    exporter = Exporter(values, ROCM, address=x.address)
    for_default, for_stream = ost.TensorView.of(exporter), ost.TensorView.of(exporter, stream=stream)
    with pytest.raises(
        ost.ConfigError,
        match=rf"scale: x is there in the order of the default stream, the call runs on stream {stream.handle:#x}",
    ):
        ops.scale(for_default, factor=1.0, out=y, stream=stream)
    with pytest.raises(
        ost.ConfigError,
        match=rf"x is there in the order of stream {stream.handle:#x}, the call runs on the default stream",
    ):
        ops.scale(for_stream.slice(0, 0, 8), factor=1.0, out=y)
    ops.scale(for_default, factor=2.0, out=y)
    ops.scale(for_stream, factor=2.0, out=y, stream=stream)
    ops.check(gpu.name)
    assert (gpu.get(y) == 2 * values).all()
    with pytest.raises(ost.ConfigError, match=r"scale\.x: the stream is of hip:0, the tensor is on hip:1"):
        ops.scale(Exporter(values, ROCM, 1), factor=1.0, out=y, stream=stream)


# streams


def test_streams_of_somebody_else_are_used_as_they_are(gpu: OnDevice, machine: EmulatedGpu) -> None:
    gpu.load(ELEMENTWISE)
    theirs = _native.Stream(gpu.device.native)
    stream = ost.Stream.external(gpu.name, theirs.handle)
    again = ost.Stream.external("cuda:0", theirs.handle)
    assert stream.handle == again.handle == theirs.handle
    assert stream.native is again.native, "what it reports to is made once"
    x, y = gpu.put(floats(8)), gpu.empty(8)
    ops.scale(x, factor=2.0, out=y, stream=stream)
    made = counts(machine, *MEMORY)
    for _ in range(3):
        ops.scale(x, factor=2.0, out=y, stream=ost.Stream.external(gpu.name, theirs.handle))
    assert counts(machine, *MEMORY) == made
    stream.synchronize()
    assert (gpu.get(y) == 2 * floats(8)).all()
    default = ost.Stream.external(gpu.name, 0)
    assert (default.native, default.handle, repr(default)) == (None, 0, "<Stream of hip:0>")
    ops.scale(x, factor=4.0, out=y, stream=default)
    default.synchronize()
    live = machine.count("live streams")
    del stream, again
    assert machine.count("live streams") == live, "theirs stays"


def test_streams_wait_for_each_other_without_the_host(gpu: OnDevice, machine: EmulatedGpu, seed: int) -> None:
    gpu.load(ELEMENTWISE)
    first, second = (ost.Stream(gpu.name, non_blocking=True) for _ in range(2))
    x, y, z = gpu.put(floats(8)), gpu.empty(8), gpu.empty(8)
    for stream in (first, second):
        ops.scale(x, factor=1.0, out=z, stream=stream)
        stream.synchronize()
    for turn in range(20):
        machine.seed(seed + turn, eagerness=0)
        waits = counts(machine, *WAITS)
        ops.scale(x, factor=float(turn), out=y, stream=first)
        second.wait(first)
        ops.add(y, x, out=z, stream=second)
        assert counts(machine, *WAITS) == waits
        second.synchronize()
        assert (gpu.get(z) == (turn + 1) * floats(8)).all()


def test_a_call_on_a_stream_bans_the_pool_and_one_on_the_default_stream_does_not(gpu: OnDevice) -> None:
    gpu.load(ELEMENTWISE)
    x, y, stream = gpu.put(floats(8)), gpu.empty(8), ost.Stream(gpu.name)
    device = gpu.device.native
    for queue, banned in ((None, False), (ost.Stream.external(gpu.name, 0), False), (stream, True)):
        device.hand_off()
        ops.scale(x, factor=1.0, out=y, stream=queue)
        assert device.pool_banned == banned


def test_streams_of_another_device_are_refused(gpu: OnDevice, other: OnDevice) -> None:
    gpu.load(ELEMENTWISE)
    x, y = gpu.put(floats(8)), gpu.empty(8)
    far = ost.Stream("hip:1")
    with pytest.raises(ost.ConfigError, match="scale: the stream is of hip:1, the tensors are on hip:0"):
        ops.scale(x, factor=1.0, out=y, stream=far)
    with pytest.raises(ost.ConfigError, match="the stream is of cpu, the tensors are on hip:0"):
        ops.scale(x, factor=1.0, out=y, stream=ost.Stream())
    with pytest.raises(ost.ConfigError, match="the stream is of hip:1, the tensors are on cpu"):
        ops.scale(floats(8), factor=1.0, out=floats(8), stream=far)
    with pytest.raises(ost.ConfigError, match=r"expected an ostinato Stream[\s\S]*Stream\.external"):
        ops.scale(x, factor=1.0, out=y, stream=_native.Stream(gpu.device.native))  # type: ignore[arg-type]
    with pytest.raises(ost.ConfigError, match="hip:1"):
        ost.Stream("hip:0").wait(far)
    assert gpu.launches == 0


def test_routed_work_goes_where_the_thread_sends_it(gpu: OnDevice, machine: EmulatedGpu) -> None:
    """`ScopedDeferredHipStream` is for calls that name no stream; another one is an error."""
    gpu.load(ELEMENTWISE)
    x, y = gpu.put(floats(8)), gpu.empty(8)
    ops.scale(x, factor=1.0, out=y)
    mine, another = ost.Stream(gpu.name), ost.Stream(gpu.name)
    with ost.hip.ScopedDeferredHipStream(mine.native, 4):
        ops.scale(x, factor=2.0, out=y)
        ops.scale(x, factor=2.0, out=y, stream=mine)
        with pytest.raises(ost.LifecycleError, match=r"scale: .*another stream"):
            ops.scale(x, factor=2.0, out=y, stream=another)
    assert (gpu.get(y) == 2 * floats(8)).all()


# memory


def test_operands_on_two_devices_are_refused_naming_both(gpu: OnDevice, other: OnDevice) -> None:
    x, far = gpu.put(floats(8)), other.put(floats(8))
    for operands, out, text in (
        ((x, far), gpu.empty(8), "add: a is on hip:0, b on hip:1"),
        ((floats(8), x), gpu.empty(8), "add: a is on cpu, b on hip:0"),
        ((x, x), far, "add: a is on hip:0, out on hip:1"),
        ((x, x), floats(8), "add: a is on hip:0, out on cpu"),
    ):
        with pytest.raises(ost.ConfigError, match=text):
            ops.add(*operands, out=out)
    assert gpu.launches == other.launches == 0


def test_memory_that_its_owner_freed_is_refused(gpu: OnDevice) -> None:
    gpu.load(ELEMENTWISE)
    x, y = gpu.put(floats(8)), gpu.empty(8)
    ops.scale(x, factor=1.0, out=y)
    ops.check(gpu.name)
    x.owner.free()
    with pytest.raises(ost.LifecycleError, match=r"scale\.x: the owner of the memory freed it"):
        ops.scale(x, factor=1.0, out=y)
    with pytest.raises(ost.LifecycleError, match="the owner of the memory freed it"):
        ops.scale(y, factor=1.0, out=x)


def test_numpy_does_not_reach_device_memory(gpu: OnDevice) -> None:
    x = gpu.put(floats(8))
    for reach in (x.numpy, lambda: np.asarray(x), lambda: np.array(x), lambda: float(x.numpy()[0])):
        with pytest.raises(ost.InputError, match="is on hip:0, where numpy does not reach"):
            reach()
    assert not hasattr(x, "__array_interface__")
    assert repr(x) == f"<TensorView f32[8] at {x.address:#x} on hip:0>"


def test_workspaces_are_the_callers_and_on_the_device(gpu: OnDevice) -> None:
    gpu.load("selection/penalize")
    logits, seen, prompt = np.array([[1, -2, 3]], np.float32), np.array([[0, 1]], np.int32), np.zeros(1, np.int32)
    one = np.ones(1, np.float32)
    operands = [gpu.put(array) for array in (logits, seen, prompt, prompt + 2, 2 * one, 0 * one, 0 * one)]
    out = gpu.empty(1, 3)
    needed = ops.workspace_bytes("penalize", *operands)
    types = [operand.type for operand in operands]
    assert needed == ops.workspace_bytes("penalize", *types, device="cuda:0") > 0
    with pytest.raises(ost.ConfigError, match="the tensors are on hip:0, device is cpu"):
        ops.workspace_bytes("penalize", *operands, device="cpu")

    def call(workspace: Any) -> None:
        ops.penalize(*operands, out=out, workspace=workspace)

    with pytest.raises(ost.CapacityError, match=rf"needs {needed} bytes of workspace[\s\S]*{needed} bytes on hip:0"):
        call(None)
    with pytest.raises(ost.CapacityError, match=rf"{needed} bytes are needed, {needed - 1} are given"):
        call(gpu.bytes(needed - 1))
    with pytest.raises(ost.LayoutError, match=r"penalize\.workspace: .* is not aligned to 16"):
        call(gpu.bytes(needed, skew=8))
    with pytest.raises(ost.ConfigError, match="the call is on hip:0, workspace on cpu"):
        call(np.empty(needed, np.uint8))
    with pytest.raises(ost.LayoutError, match=r"#workspace .* overlaps logits"):
        call(operands[0])
    assert gpu.launches == 0
    call(gpu.bytes(needed))
    ops.check(gpu.name)
    assert gpu.get(out).tolist() == [[0.5, -4, 3]]


def test_slices_of_an_arena_are_tensors(gpu: OnDevice, machine: EmulatedGpu) -> None:
    gpu.load(ELEMENTWISE)
    stream = ost.Stream(gpu.name)
    arena = ost.hip.HipActivationArena(stream.native, 1024)

    def slice_of(owner: Any) -> ost.TensorView:
        return ost.TensorView(owner.allocate_slice(64), 64, (16,), None, "f32", gpu.name, owner)

    x, made = gpu.put(floats(16)), counts(machine, "hipMalloc")
    y, z = slice_of(arena), slice_of(arena)
    ops.scale(x, factor=2.0, out=y, stream=stream)
    ops.scale(y, factor=3.0, out=z, stream=stream)
    back = gpu.empty(16)
    ops.scale(z, factor=1.0, out=back, stream=stream)
    assert machine.count("hipMalloc") == made["hipMalloc"] + 1, "of the one that reads it back"
    stream.synchronize()
    assert (gpu.get(back) == 6 * floats(16)).all()
    assert (y.owner, arena.planned_bytes) == (arena, 320)


def test_weights_of_a_gpu_are_read_as_they_are_stored(gpu: OnDevice) -> None:
    weight = gpu.put(floats(32, 32))
    for refused in (lambda: ops.packed_bytes(weight), lambda: ops.pack(weight, out=gpu.bytes(1 << 13))):
        with pytest.raises(
            ost.ConfigError, match=r"linear packs none of its operands on hip:0[\s\S]*as they are stored"
        ):
            refused()
    with pytest.raises(ost.ConfigError, match="the call is on cpu, out on hip:0"):
        ops.pack(floats(32, 32), out=gpu.bytes(1 << 13))


def test_a_product_of_the_vendors_is_one_call(gpu: OnDevice, machine: EmulatedGpu, rng: np.random.Generator) -> None:
    """Where the vendor's library serves: its workspace is the caller's, its algorithm is settled before a capture, and memory must begin at its alignment."""
    gpu.load("matmul/matmul")
    a, b = (rng.integers(-3, 4, (64, 64)).astype(np.float32) for _ in range(2))
    on_a, on_b, out = gpu.put(a), gpu.put(b), gpu.empty(64, 64)
    needed = ops.workspace_bytes("matmul", on_a, on_b, level="vendor")
    workspace, stream = gpu.bytes(max(needed, 1)), ost.Stream(gpu.name)

    def submit(first: ost.TensorView = on_a, target: ost.TensorView = out, level: str = "vendor") -> None:
        ops.matmul(first, on_b, out=target, workspace=workspace, level=level, stream=stream)

    submit()
    before = counts(machine, *COPIES, *WAITS, *MEMORY)
    products = machine.count("hipblasLtMatmul")
    submit()
    assert machine.count("hipblasLtMatmul") == products + 1
    assert counts(machine, *COPIES, *WAITS, *MEMORY) == before
    graph = ost.hip.HipGraphExecutable.capture(stream.native, submit)
    out.owner.fill(0xFF)
    graph.launch(stream.native)
    stream.synchronize()
    assert (gpu.get(out) == a @ b).all()
    skewed = gpu.put(a, skew=4)
    with pytest.raises(ost.BackendError, match=r"matmul@hip_vendor: a must lie in runs of 4 elements"):
        submit(skewed)
    with pytest.raises(ost.LayoutError, match="writes memory that is aligned to 16 bytes"):
        submit(target=gpu.empty(64, 64, skew=4))
    submit(skewed, level="readable")
    stream.synchronize()
    assert (gpu.get(out) == a @ b).all()
    assert gpu.device.target.ranked("matmul")[0].kind is StepKind.GEMM
