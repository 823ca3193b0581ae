"""The runtime objects of GPUs: streams, events, captured graphs, arenas and scopes, as the native layer has them, in HIP's terms on every vendor's card.

    import ostinato as ost
    from ostinato import hip, ops

    stream = ost.Stream("hip:0")
    ops.add(x, y, out=z, stream=stream)  # once before the capture: this compiles the kernel
    graph = hip.HipGraphExecutable.capture(stream.native, lambda: ops.add(x, y, out=z, stream=stream))
    graph.launch(stream.native)  # again and again
    stream.synchronize()

Nothing of an executable needs these: they are for work that is put together by hand, beside or instead of compiled models. Memory is given as addresses and
stays where it is until its owner frees it; whoever captures keeps what was captured, its stream too, until the last replay.

| object | is |
| --- | --- |
| `device(0)` | a GPU: its facts, its memory with the exact-size pool (`allocate`, `free`, `counters`, `hand_off`), `synchronize` |
| `Stream(device, non_blocking)` | an order of work, like `ost.Stream("hip:0").native`. Making one closes the device's pool of freed memory until `hand_off` |
| `Event(device, timing)` | a place in a stream's order: `record`, `wait`, `synchronize`, `milliseconds_to` |
| `HipGraphExecutable` | what a callback submitted, captured in the thread-local mode, instantiated once; `launch`, `update`, `node_count`, `nodes` |
| `HipActivationArena` | one allocation of a fixed address, handed out in slices of one stream; `reset_plan` only rewinds |
| `DeferredHipDeallocationScope` | holds what this thread frees until its stream is done, in a table of fixed size |
| `ScopedDeferredHipStream` | sends this thread's default-stream work to its stream, and holds what it frees |
| `StreamOrderedHipBuffer` | memory that a stream allocates and frees in its order |
| `SourceScope` | names who asks for memory; `set_allocation_diagnostics`, `allocation_records` |

Wrong values raise `ConfigError` and arguments of another type `TypeError`, the right call at the wrong time `LifecycleError`, no room `CapacityError`, no GPU
`DeviceUnavailable`, and whatever a driver refuses `BackendError`.
"""

from __future__ import annotations

from ostinato.backend_hip._native import (
    AllocationCounters,
    CapturedNode,
    DeferralCounters,
    DeferredHipDeallocationScope,
    Event,
    GpuDevice,
    HipActivationArena,
    HipGraphExecutable,
    ScopedDeferredHipStream,
    SourceScope,
    Stream,
    StreamOrderedHipBuffer,
    allocation_records,
    capturing,
    clear_diagnostics,
    copy_async,
    copy_records,
    fill_async,
    set_allocation_diagnostics,
    set_copy_diagnostics,
    sources,
)
from ostinato.backend_hip.open import open_hip

__all__ = [
    "AllocationCounters",
    "CapturedNode",
    "DeferralCounters",
    "DeferredHipDeallocationScope",
    "Event",
    "GpuDevice",
    "HipActivationArena",
    "HipGraphExecutable",
    "ScopedDeferredHipStream",
    "SourceScope",
    "Stream",
    "StreamOrderedHipBuffer",
    "allocation_records",
    "capturing",
    "clear_diagnostics",
    "copy_async",
    "copy_records",
    "device",
    "fill_async",
    "set_allocation_diagnostics",
    "set_copy_diagnostics",
    "sources",
]


def device(index: int = 0) -> GpuDevice:
    """The GPU of that number. Raises `DeviceUnavailable` where there is none, with what to do."""
    return open_hip(index).native
