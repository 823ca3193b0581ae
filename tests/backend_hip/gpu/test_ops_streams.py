"""`ostinato.ops` on a GPU in order: streams, captures, and arrays of other libraries that have streams of their own, on the emulated device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from tests.backend_hip.gpu.device_memory import COPIES, ELEMENTWISE, MEMORY, WAITS, OnDevice, counts, floats, gpu, other
from tests.runtime.test_gpu_arrays import ROCM, Described, Exporter, Reexported

__all__ = ["gpu", "other"]


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
