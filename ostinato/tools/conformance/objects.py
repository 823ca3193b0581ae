"""The runtime's objects on a device, one short check each: do they what their contracts say with this driver.

The tests hold every sentence of the contracts against the emulated device; here are the sentences that a driver can break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from ostinato.backend_hip import _native
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.errors import LifecycleError, OstinatoError
from ostinato.runtime.device import Device
from ostinato.tools.conformance.report import CheckVerdict

__all__ = ["Failed", "Skipped", "checked", "run_objects"]


class Failed(Exception):
    """A check that did not hold."""


class Skipped(Exception):
    """A check that this device has nothing for."""


def checked(name: str, check: Callable[[], str]) -> CheckVerdict:
    """The verdict on a check, which returns what it saw."""
    try:
        return CheckVerdict(name=name, verdict="pass", detail=check())
    except Skipped as reason:
        return CheckVerdict(name=name, verdict="skipped", detail=str(reason))
    except Failed as error:
        return CheckVerdict(name=name, verdict="fail", detail=str(error))
    except OstinatoError as error:
        return CheckVerdict(name=name, verdict="fail", detail=f"[{error.code}] {error}")


def run_objects(device: Device) -> Iterator[CheckVerdict]:
    """The verdict on each object. A CPU has memory alone: everything else it does is done when a call returns."""
    yield checked("memory", lambda: _memory(device))
    for name, check in _CHECKS.items():
        if isinstance(device, HipDevice):
            yield checked(name, lambda check=check: check(device))  # type: ignore[misc]
        else:
            yield CheckVerdict(
                name=name, verdict="skipped", detail="a CPU has none: what is called is done when the call returns"
            )


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise Failed(text)


def _memory(device: Device) -> str:
    values = np.arange(1000, dtype=np.uint32)
    buffer = device.allocate(values.nbytes + 64)
    _require(not buffer.read(np.uint8, (buffer.nbytes,)).any(), "fresh memory is not zeroed")
    _require(buffer.address % 256 == 0, f"memory at {buffer.address:#x} is not aligned to 256 bytes")
    buffer.write(values, 64)
    buffer.fill(0x5A, 0, 64)
    found = buffer.read(np.uint32, (1000,), 64)
    _require(bool((found == values).all()), "what was written is not what is read")
    _require(bool((buffer.read(np.uint8, (64,)) == 0x5A).all()), "a fill did not fill, or what came after it did")
    window = buffer.window(device.open_stream())
    view = window.view(np.uint32, (1000,), 64)
    view[:] = values[::-1]
    window.upload(64, buffer.nbytes)
    device.synchronize()
    _require(bool((buffer.read(np.uint32, (1000,), 64) == values[::-1]).all()), "an upload did not arrive")
    buffer.write(values, 64)
    window.download(64, buffer.nbytes)
    device.synchronize()
    _require(bool((view == values).all()), "a download did not arrive")
    buffer.free()
    return f"{values.nbytes + 64} bytes written, filled, read, uploaded and downloaded"


def _streams(device: HipDevice) -> str:
    """Work of two streams is ordered by an event alone; a long chain of copies makes a missing order show."""
    native, count = device.native, 1 << 20
    first, second = (_native.Stream(native, non_blocking=True) for _ in range(2))
    a, b = native.allocate(count), native.allocate(count)
    start, done = (_native.Event(native) for _ in range(2))
    start.record(first)
    for value in range(20):
        _native.fill_async(a, native, value, count, first)
    done.record(first)
    done.wait(second)
    _native.copy_async(b, native, a, native, count, second)
    second.synchronize()
    found = np.empty(count, np.uint8)
    _native.copy_async(found.ctypes.data, None, b, native, count)
    native.synchronize()
    elapsed = start.milliseconds_to(done)
    native.free(a)
    native.free(b)
    _require(first.done and second.done and done.ready, "a stream that was waited for is not done")
    _require(bool((found == 19).all()), "a stream did not wait for the event of another one")
    _require(elapsed >= 0, f"the events are {elapsed} ms apart")
    return f"two streams in the order of an event, {elapsed:.3g} ms of fills"


def _pool(device: HipDevice) -> str:
    native = device.native
    native.hand_off()
    kept = native.pool_enabled
    native.pool_enabled = True
    native.trim_pool()
    size = 40_961
    before = native.counters

    def twice() -> None:
        for _ in range(2):
            native.free(native.allocate(size))

    try:
        twice()
        after = native.counters
        made, reused = after.backend_allocations - before.backend_allocations, after.reuses - before.reuses
        _require((made, reused) == (1, 1), f"two allocations were {made} of the driver and {reused} reuses")
        stream = _native.Stream(native, non_blocking=True)
        _require(native.pool_banned, "a stream of its own did not ban the pool")
        before = native.counters
        twice()
        _require(native.counters.reuses == before.reuses, "the banned pool was used")
        stream.synchronize()
        native.hand_off()
        _require(not native.pool_banned, "the hand-off did not lift the ban")
        _require(native.counters.handoffs == before.handoffs + 1, "the hand-off was not counted")
        before = native.counters
        twice()
        _require(native.counters.reuses > before.reuses, "the pool is not used after the hand-off")
    finally:
        if not native.pool_banned:
            native.pool_enabled = kept
    return "reuse of an exact size, the ban by a stream, the hand-off"


def _deferral(device: HipDevice) -> str:
    native = device.native
    stream = _native.Stream(native, non_blocking=True)
    with _native.DeferredHipDeallocationScope(stream, 2) as scope:
        for _ in range(5):
            address = native.allocate(256)
            _native.fill_async(address, native, 1, 256, stream)
            native.free(address)
        found = scope.counters
        scope.finish()
        pending = scope.counters.pending_blocks
    _require((found.total_blocks, found.flushes) == (5, 2), f"{found.total_blocks} blocks, {found.flushes} flushes")
    _require(pending == 0, f"{pending} blocks are pending after the end")
    return "5 blocks in a table of 2, 2 flushes"


def _arena(device: HipDevice) -> str:
    arena = _native.HipActivationArena(_native.Stream(device.native, non_blocking=True), 4096)
    first, second = arena.allocate_slice(100), arena.allocate_slice(100)
    _require((first % 256, second - first) == (0, 256), f"slices at {first:#x} and {second:#x}")
    used = arena.planned_bytes
    try:
        arena.allocate_slice(4096)
    except OstinatoError:
        _require(arena.planned_bytes == used, "a refused slice moved the cursor")
    else:
        raise Failed("a slice beyond the capacity was given")
    arena.reset_plan()
    _require(arena.allocate_slice(1) == first, "the arena moved")
    return "slices of 256 bytes, overflow refused, one base"


def _stream_ordered(device: HipDevice) -> str:
    native = device.native
    if not _native.StreamOrderedHipBuffer.supported(native):
        raise Skipped("the driver has no stream-ordered memory")
    stream = _native.Stream(native, non_blocking=True)
    buffer = _native.StreamOrderedHipBuffer(stream, 4096)
    _native.fill_async(buffer.address, native, 3, 4096, stream)
    found = np.zeros(4096, np.uint8)
    _native.copy_async(found.ctypes.data, None, buffer.address, native, 4096, stream)
    stream.synchronize()
    buffer.release()
    stream.synchronize()
    _native.StreamOrderedHipBuffer.trim(native)
    _require(bool((found == 3).all()), "what was filled is not what is read")
    return f"usage {_native.StreamOrderedHipBuffer.usage(native)}"


def _capture(device: HipDevice) -> str:
    """Nothing runs while it is captured; what a capture forbids is refused, and the same stream captures again."""
    native = device.native
    stream = _native.Stream(native, non_blocking=True)
    address = native.allocate(64)
    native.free(native.allocate(64))

    def fill(value: int) -> Callable[[], None]:
        return lambda: _native.fill_async(address, native, value, 64, stream)

    def read() -> int:
        found = np.zeros(64, np.uint8)
        _native.copy_async(found.ctypes.data, None, address, native, 64)
        native.synchronize()
        return int(found[63])

    _native.fill_async(address, native, 1, 64)
    native.synchronize()
    try:
        graph = _native.HipGraphExecutable.capture(stream, fill(2))
        _require(read() == 1, "a captured fill ran")
        with suppress(LifecycleError):
            _native.HipGraphExecutable.capture(stream, lambda: native.allocate(1 << 20))
            raise Failed("memory was allocated in a capture")
        again = _native.HipGraphExecutable.capture(stream, fill(3))
        for one, value in ((graph, 2), (again, 3), (graph, 2)):
            one.launch(stream)
            stream.synchronize()
            _require(read() == value, f"a replay left {read()}, expected {value}")
        graph.release()
        again.release()
    finally:
        native.free(address)
    return "a graph of one fill, a refused allocation, another graph, three replays"


_CHECKS: dict[str, Callable[[HipDevice], str]] = {
    "streams and events": _streams,
    "pool and hand-off": _pool,
    "deferred deallocation": _deferral,
    "activation arena": _arena,
    "stream-ordered memory": _stream_ordered,
    "capture": _capture,
}
