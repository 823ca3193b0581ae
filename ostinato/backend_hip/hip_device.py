"""A GPU as the runtime uses it: memory, streams, step tables, launches and weights, over the opened libraries of its vendor.

The default stream is for what runs node by node; whatever has a step table has a stream of its own. Kernels are loaded once a device, whoever asks. Weights are
packed by the host's kernels into a pinned buffer of a few MiB and sent from there, so that no second copy of a weight exists anywhere.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np

from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.environment import gpu_environment
from ostinato.backend_hip.evidence.first_use import FirstUse
from ostinato.backend_hip.evidence.known import DeviceRecords
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.hip_kernels import HipKernels
from ostinato.backend_hip.hip_memory import HipBuffer, PinnedBytes, native_stream
from ostinato.backend_hip.hip_table import HipLaunch, HipTable, instances_of, make_launch, make_table
from ostinato.backend_hip.hip_weights import WeightCarrier
from ostinato.backend_hip.packing import Source
from ostinato.backend_hip.runtime_faults import doubt_of
from ostinato.backend_hip.steps import HipStep, LaunchCall
from ostinato.backend_hip.stopwatch import stopwatch_calls
from ostinato.backend_hip.target import ALIGNMENT, hip_target
from ostinato.ir.errors import BoundsError, ConfigError, LifecycleError
from ostinato.ir.forks import renew_after_fork
from ostinato.ir.step import KernelCall
from ostinato.ir.target import Target
from ostinato.ir.types import Array, TensorType

__all__ = ["HipDevice"]

_NUMBERS = 2**32 - 1
"""Of launches, as kernels report them: 32 bits, and 0 is nobody."""


class HipDevice:
    """One GPU. Threads may share it; each thread that runs has a stream of its own, or the default one."""

    def __init__(
        self,
        device: _native.GpuDevice,
        *,
        cache: CodeCache | None = None,
        host: HostDevice | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """`cache` is where compiled kernels are kept, by default the user's folder; `host` packs weights, by default all cores. `ledger`, with what ships, says
        which rows are right here; without one all are taken on trust."""
        self.native = device
        self._vendor = any(report.role == "blas" and report.finding == "found" for report in device.gpu.reports)
        self._ledger = ledger
        self.kernels = HipKernels(device, CodeCache() if cache is None else cache)
        self._weights = WeightCarrier(device, host)
        self._launches: weakref.WeakValueDictionary[int, HipLaunch] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._default_status: _native.StatusBlock | None = None
        self._statuses: weakref.WeakKeyDictionary[_native.Stream, _native.StatusBlock] = weakref.WeakKeyDictionary()
        self._external: dict[int, _native.Stream] = {}
        self._reader: tuple[_native.Stream, PinnedBytes] | None = None
        self.after_fork()
        renew_after_fork(self)
        if not device.pool_banned:
            device.pool_enabled = True

    def after_fork(self) -> None:
        self._lock, self._reading = threading.Lock(), threading.Lock()

    @property
    def name(self) -> str:
        return f"hip:{self.native.index}"

    @functools.cached_property
    def records(self) -> DeviceRecords | None:
        """The records of the card, None where its rows are on trust."""
        return None if self._ledger is None else DeviceRecords(gpu_environment(self.native), self._ledger)

    @property
    def target(self) -> Target:
        """The rows of the card, with its records."""
        rows = hip_target(self.native.architecture, self.native.wave, vendor=self._vendor)
        found = replace(rows, device=self.name)
        return found if self.records is None else FirstUse.of(found, self.records, self)

    @property
    def threads(self) -> int:
        """Threads of the host that pack weights."""
        return self._weights.host.threads

    @property
    def isa(self) -> str:
        """The architecture, as compilers name it."""
        return self.native.architecture

    @property
    def captures(self) -> bool:
        """True: its tables become graphs."""
        return True

    @functools.cached_property
    def replay_doubt(self) -> str:
        """Why replays may be wrong with the runtime that was opened, in a sentence; "" where nothing is known against them (`runtime_faults.py`)."""
        runtime = next((report.version for report in self.native.gpu.reports if report.role == "runtime"), "")
        return doubt_of(self.native.gpu.platform, runtime, self.native.architecture)

    @property
    def launches(self) -> int:
        """How many launches of kernels (`make_launch`) were submitted so far; steps of tables are not among them."""
        return self.native.launches

    def allocate(self, nbytes: int, alignment: int = ALIGNMENT, *, zeroed: bool = True) -> HipBuffer:
        """Memory. Raises `CapacityError` with the bytes asked for and those that are free, `ConfigError` for an impossible size, or an alignment that drivers
        do not promise (above 256)."""
        if nbytes < 0 or alignment < 1 or alignment & (alignment - 1) or alignment > ALIGNMENT:
            raise ConfigError(
                f"{nbytes} bytes aligned to {alignment} cannot be allocated",
                hint=f"the alignment is a power of two up to {ALIGNMENT}",
            )
        return HipBuffer(self.native, nbytes, alignment, zeroed=zeroed)

    @property
    def free_bytes(self) -> int:
        """Bytes that the driver could give now, and those that the pool keeps."""
        return self.native.memory_info[0] + self.native.counters.cached_bytes

    def open_stream(self) -> _native.Stream:
        """An order of work of its own, beside the default stream's too."""
        return _native.Stream(self.native, non_blocking=True)

    def launch_stream(self, *, non_blocking: bool = False) -> _native.Stream:
        """A stream for launches, with what they report to; `non_blocking` beside the default stream's order too.

        Raises `LifecycleError` while this thread captures.
        """
        made = _native.Stream(self.native, non_blocking)
        self._status(made)
        return made

    def external_stream(self, handle: int) -> _native.Stream | None:
        """A stream that somebody else made and keeps, 0 for the default one; what launches on it report to is kept as long as the device."""
        if not handle:
            return None
        with self._lock:
            found = self._external.get(handle)
            if found is None:
                found = self._external[handle] = _native.Stream.external(self.native, handle)
        self._status(found)
        return found

    def make_event(self, *, timing: bool = False) -> _native.Event:
        """A place in the order of any of its streams, not recorded yet; with `timing` it knows how long after another one it is."""
        return _native.Event(self.native, timing=timing)

    def stopwatch(self, ticks: int = 0) -> tuple[KernelCall, KernelCall]:
        """The calls of its clock's kernels, `stamp` and `hold`; see `stopwatch.py`."""
        return stopwatch_calls(ticks)

    def order(self, first: int, then: int) -> None:
        """What is submitted to the stream with the handle `then` from now on runs after what that with the handle `first` has now; 0 is the default stream.

        Nothing waits here.
        """
        before, after = (_native.Stream.external(self.native, handle) if handle else None for handle in (first, then))
        event = _native.Event(self.native, timing=False)
        event.record(before)
        event.wait(after)

    def make_table(self, steps: Sequence[HipStep], stream: object = None) -> HipTable:
        """Compiles, loads and packs what the steps need. Raises `BackendError`, naming the node, for a step that cannot run."""
        return make_table(self.native, self.kernels, steps, native_stream(stream, self.native))

    def prepare(self, calls: Sequence[LaunchCall]) -> None:
        """Compiles and loads the kernels of calls, all of them side by side. Raises `BackendError`, naming the node, for a launch without a shape."""
        self.kernels.load(instances_of(calls))

    def make_launch(self, call: LaunchCall) -> HipLaunch:
        """A step without addresses. Raises `BackendError`, naming the node, for one that cannot run, `LifecycleError` while this thread captures."""
        if _native.capturing():
            raise LifecycleError(
                "this thread captures, and nothing can be compiled or loaded for a graph",
                node=call.node,
                hint="make the same call once before the capture, on operands of the same types",
            )
        number = next(self._numbers) % _NUMBERS
        launch = make_launch(self.native, self.kernels, call, number, self._status)
        self._launches[number] = launch
        return launch

    def wait(self) -> None:
        """Waits for all work, after the captures that are under way, and asks no launch what it met.

        Raises `BackendError` for a device that failed, `LifecycleError` while this thread captures or another one does for seconds.
        """
        self.native.synchronize()

    def synchronize(self) -> None:
        """Waits for all work. Raises `BoundsError`, naming the node, when a launch on any stream met an index out of range since somebody last waited."""
        self.native.synchronize()
        with self._lock:
            blocks = list(self._statuses.values())
        if not blocks:
            self.finish()
            return
        # not through the streams themselves: another thread may capture on one, and one of somebody else may be gone
        if self._default_status is not None:
            blocks.append(self._default_status)
        with self._reading:
            if self._reader is None:
                self._reader = _native.Stream(self.native, non_blocking=True), PinnedBytes(self.native, 4)
            reader, seen = self._reader
            for block in blocks:  # what the next ones met is for the next call
                self._refuse(self._taken(block, self._place(None) or reader, seen))

    def _taken(self, block: _native.StatusBlock, reader: _native.Stream, seen: PinnedBytes) -> int:
        """The status word of a stream whose work is done, which is forgotten."""
        _native.copy_async(seen.address, None, block.address, self.native, 4, reader)
        reader.synchronize()
        word = int(seen.view(np.uint32, (1,))[0])
        if word:
            _native.fill_async(block.address, self.native, 0, 4, reader)
            reader.synchronize()
        return word

    def finish(self, stream: object = None) -> None:
        """Waits for a stream (None: the default one). Raises `BoundsError`, naming the node, when a launch on it met an index out of range since the last
        call; steps of tables are told by their tables."""
        own = self._place(stream)
        status = self._default_status if own is None else self._statuses.get(own)
        if status is None:  # nothing was launched there
            self.native.synchronize() if own is None else own.synchronize()
            return
        self._refuse(status.take())

    def _refuse(self, word: int) -> None:
        """Raises what a status word says."""
        if word:
            launch = self._launches.get(word - 1)
            raise BoundsError(
                "an index in device memory was out of range",
                node=None if launch is None else launch.node,
                hint="a token id, row, position or block index given to this run is out of range",
            )

    def pack(self, tensor_type: TensorType, address: int, source: Source, first_row: int) -> None:
        """Writes `source` as logical rows [first_row, first_row + len(row_index)) of the weight at `address`, in its dtype; done on return.

        Raises what `pack_call` raises, and `LayoutError` for a layout that is not the natural one.
        """
        self._weights.pack(tensor_type, address, source, first_row)

    def unpack(self, tensor_type: TensorType, address: int) -> Array:
        """The logical values of the weight at `address` as float32. Raises `LayoutError` for a layout that is not the natural one."""
        return self._weights.unpack(tensor_type, address)

    def __reduce__(self) -> NoReturn:
        raise LifecycleError("a device cannot be copied or pickled", hint="open one in the other process")

    def _place(self, stream: object) -> _native.Stream | None:
        """Where work of a stream goes: of the default one elsewhere in a `ScopedDeferredHipStream` of this thread."""
        return _native.routed_stream(self.native) if stream is None else native_stream(stream, self.native)

    def _status(self, stream: _native.Stream | None) -> _native.StatusBlock:
        """What launches on a stream report to: each stream has a block of its own, since blocks of one kernel meet there."""
        own = self._place(stream)
        found = self._default_status if own is None else self._statuses.get(own)
        if found is not None:
            return found
        with self._lock:
            if own is None:
                self._default_status = self._default_status or _native.StatusBlock(self.native, None)
                return self._default_status
            return self._statuses.setdefault(own, _native.StatusBlock(self.native, own))
