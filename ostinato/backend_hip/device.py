"""The host device as the runtime uses it: step tables, launches and packing, over the native extension.

Errors of the native layer come back as the public families, with the name of the node that ran. Nothing here knows a graph: steps arrive with addresses, and
whoever hands an address over keeps its memory alive.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.environment import host_environment
from ostinato.backend_hip.evidence.first_use import FirstUse
from ostinato.backend_hip.evidence.known import DeviceRecords
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.host_memory import HostBuffer
from ostinato.backend_hip.packing import PackCall, Source, pack_call, unpack_call
from ostinato.backend_hip.reference_calls import ReferenceCall
from ostinato.backend_hip.steps import LaunchCall, NativeStep
from ostinato.backend_hip.target import host_rows_target
from ostinato.ir.checks import integer
from ostinato.ir.errors import (
    BackendError,
    BoundsError,
    CapacityError,
    ConfigError,
    DeviceUnavailable,
    LifecycleError,
    OstinatoError,
)
from ostinato.ir.step import StepKind
from ostinato.ir.target import Target
from ostinato.ir.types import Array, TensorType

__all__ = ["DeviceInfo", "HostDevice", "HostLaunch", "HostTable"]

_MAX_THREADS = 1024
_MAX_THREADS_HINT = "threads is how many cores to use; 0 takes one for each physical core"


class _Status(enum.IntEnum):
    """Numbers of `ost_status` in native/ostinato.h."""

    INVALID_ARGUMENT = 1
    OUT_OF_RANGE = 2
    LIFECYCLE = 3
    BACKEND = 4
    CAPACITY = 5
    INTERRUPTED = 6
    NOT_FOUND = 7


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What the device is: the CPU, the kernel unit in use, the units it could use, and its threads."""

    name: str
    cpu: str
    isa: str
    available: tuple[str, ...]
    threads: int
    abi_version: int


class HostTable:
    """A loaded step table. Steps and parameters were copied; the memory they point to belongs to the caller."""

    def __init__(self, table: _native.Table, nodes: tuple[str, ...]) -> None:
        self._table = table
        self._nodes = nodes

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def status_bytes(self) -> int:
        """0: kernels of the host report through memory of the native table."""
        return 0

    def run(self, first: int = 0, count: int = -1) -> None:
        """Runs steps [first, first + count) (-1: to the end) in one native call, without the GIL; Ctrl-C is answered between steps.

        Raises `BoundsError` when an index in device memory was out of range, `LifecycleError` when interrupted, `BackendError` otherwise; each names the node.
        """
        if not 0 <= first <= len(self._nodes) or not -1 <= count <= len(self._nodes) - first:
            raise BoundsError(f"steps [{first}, {first} + {count}) are outside of a table of {len(self._nodes)}")
        try:
            self._table.run(first, count)
        except _native.NativeError as error:
            raise _typed(error, self._nodes) from None

    def enqueue(self, first: int = 0, count: int = -1) -> None:
        """`run`: work of the host is done when its call returns."""
        self.run(first, count)

    def finish(self) -> None:
        """Nothing is left to wait for."""

    def capture(self, first: int = 0, count: int = -1) -> NoReturn:
        """Raises `BackendError`: a CPU has no graphs."""
        raise BackendError("a step table of the CPU cannot be captured", hint="run it, or use a GPU")

    def interrupt(self) -> None:
        """Stops the run in progress on another thread, or the next one, between two steps."""
        self._table.interrupt()


class HostLaunch:
    """One kernel with its parameters, run on operands that may differ from call to call. Threads may share it."""

    def __init__(self, launch: _native.Launch, node: str) -> None:
        self._launch = launch
        self._node = node

    def run(self, operands: tuple[tuple[int, int], ...], stream: object = None) -> None:
        """One native call, without the GIL, that allocates nothing. Operands are (address, bytes), (0, 0) where an optional one is absent.

        Raises `BoundsError` when an index in device memory was out of range, `BackendError` for operands that the kernel cannot work with.
        """
        del stream
        try:
            self._launch.run(operands)
        except _native.NativeError as error:
            raise _typed(error, (self._node,)) from None


class HostDevice:
    """The CPU: one kernel unit and a pool of worker threads. Runs of one device are serialised."""

    def __init__(self, threads: int = 0, isa: str = "auto", *, ledger: Ledger | None = None) -> None:
        """`threads` 0 takes one for each physical core; `isa` "auto" the best unit the CPU has. `ledger`, with what ships, says which rows are right here;
        without one all are taken on trust.

        Raises `ConfigError` for an unknown unit or a number of threads that cannot be, `DeviceUnavailable` for a unit this CPU cannot run.
        """
        threads = integer(threads, "threads")
        if not 0 <= threads <= _MAX_THREADS:
            raise ConfigError(f"threads is {threads}, expected 0 to {_MAX_THREADS}", hint=_MAX_THREADS_HINT)
        if not isinstance(isa, str):
            raise ConfigError(f"isa is {isa!r}", hint=f"kernel units: auto, {', '.join(_native.isa_available())}")
        try:
            self._device = _native.Device(threads, isa)
        except _native.NativeError as error:
            raise _unopened(error) from None
        self.info = DeviceInfo(
            name="host:0",
            cpu=self._device.cpu,
            isa=self._device.isa,
            available=tuple(_native.isa_available()),
            threads=self._device.threads,
            abi_version=_native.abi_version(),
        )
        self._kernels: dict[str, int] = {}
        self._references = 0
        self.records: DeviceRecords | None = None
        if ledger is not None:
            self.records = DeviceRecords(host_environment(self.info.cpu, self.info.isa), ledger)

    def __reduce__(self) -> NoReturn:
        raise LifecycleError("a device cannot be copied or pickled", hint="open one in the other process")

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def threads(self) -> int:
        return self.info.threads

    @property
    def isa(self) -> str:
        """The kernel unit in use."""
        return self.info.isa

    @property
    def target(self) -> Target:
        """The host's rows, which do not depend on the kernel unit, with the records of this one."""
        found = host_rows_target()
        return found if self.records is None else FirstUse.of(found, self.records, self)

    @property
    def captures(self) -> bool:
        """False: a CPU has no graphs."""
        return False

    @property
    def replay_doubt(self) -> str:
        """Nothing: what is never captured is never replayed wrongly."""
        return ""

    @property
    def available(self) -> tuple[str, ...]:
        """Kernel units that this build has and this CPU can run, in ascending order of preference."""
        return self.info.available

    @property
    def launches(self) -> int:
        """How many launches (`make_launch`) ran so far, those of `pack` and `unpack` too; steps of tables are not among them."""
        return self._device.launches + self._references

    def allocate(self, nbytes: int, alignment: int = 256, *, zeroed: bool = True) -> HostBuffer:
        """Memory, which is zeroed in any case.

        Raises `CapacityError` with the bytes asked for when there is none, `ConfigError` for an impossible size or alignment.
        """
        del zeroed
        if nbytes < 0 or alignment < 1 or alignment & (alignment - 1):
            raise ConfigError(
                f"{nbytes} bytes aligned to {alignment} cannot be allocated", hint="the alignment is a power of two"
            )
        try:
            return HostBuffer(self._device, nbytes, alignment)
        except _native.NativeError as error:
            raise _typed(error, ()) from None

    def kernel(self, name: str) -> int:
        """The number of a kernel; raises `BackendError` for one the device does not have."""
        found = self._kernels.get(name)
        if found is None:
            try:
                found = self._kernels[name] = self._device.kernel(name)
            except _native.NativeError as error:
                raise _typed(error, ()) from None
        return found

    @property
    def free_bytes(self) -> None:
        """None: what the system could give is not told."""
        return None

    def open_stream(self) -> None:
        """None: work of the host is done when its call returns."""
        return

    def wait(self) -> None:
        """Nothing is left to wait for: a call is done when it returns, and has told what it met."""

    def finish(self, stream: object = None) -> None:
        """As `wait`."""

    def synchronize(self) -> None:
        """As `wait`."""

    def make_table(self, steps: Sequence[NativeStep], stream: object = None) -> HostTable:
        """Copies and checks steps; raises `BackendError` naming the node whose step cannot run."""
        del stream
        nodes = tuple(step.node for step in steps)
        rows: list[_native._Step] = []
        functions: list[Callable[[], None]] = []
        for step in steps:
            if step.kind is StepKind.CALL:
                functions.append(ReferenceCall(step.node, step.kernel, step.params).bind(step.operands))
                rows.append((step.kind.number, len(functions) - 1, step.lane, (), (), step.waits, step.signals))
                continue
            kernel = self.kernel(step.kernel) if step.kind is StepKind.LAUNCH else 0
            rows.append((step.kind.number, kernel, step.lane, step.operands, step.params, step.waits, step.signals))
        try:
            return HostTable(_native.Table(self._device, rows, tuple(functions)), nodes)
        except _native.NativeError as error:
            raise _typed(error, nodes) from None

    def prepare(self, calls: Sequence[LaunchCall]) -> None:
        """Nothing: the host's kernels are there."""

    def make_launch(self, call: LaunchCall) -> HostLaunch | ReferenceCall:
        """A kernel with its parameters, or a reference; the call's node is what its errors name. Raises `BackendError` for one that the device lacks."""
        if call.kind is StepKind.CALL:
            return ReferenceCall(call.node, call.kernel, call.params, counter=self._count_reference)
        return self._launch(call.node, call.kernel, call.params)

    def _count_reference(self) -> None:
        self._references += 1

    def _launch(self, node: str, kernel: str, params: Sequence[int | float]) -> HostLaunch:
        return HostLaunch(_native.Launch(self._device, self.kernel(kernel), params), node)

    def pack(self, tensor_type: TensorType, address: int, source: Source, first_row: int) -> None:
        """Writes `source` as logical rows [first_row, first_row + len(row_index)) of the weight at `address`, in its dtype and layout.

        Raises what `pack_call` raises.
        """
        self._run_once(pack_call(tensor_type, address, source, first_row))

    def unpack(self, tensor_type: TensorType, address: int) -> Array:
        """The logical values of the weight at `address` as float32. Raises `LayoutError` for a layout that is not one of a weight."""
        call, values = unpack_call(tensor_type, address)
        self._run_once(call)
        return values

    def _run_once(self, call: PackCall) -> None:
        self._launch(call.kernel, call.kernel, call.params).run(call.operands)


def _unopened(error: _native.NativeError) -> OstinatoError:
    """Why a device could not be created."""
    hint = f"kernel units of this machine: auto, {', '.join(_native.isa_available())}"
    if error.status in (_Status.INVALID_ARGUMENT, _Status.NOT_FOUND):
        return ConfigError(error.text, hint=hint)
    return DeviceUnavailable(error.text, hint=hint) if error.status == _Status.BACKEND else _typed(error, ())


def _typed(error: _native.NativeError, nodes: tuple[str, ...]) -> OstinatoError:
    """The public error for a native one."""
    node = nodes[error.step] if 0 <= error.step < len(nodes) else None
    match error.status:
        case _Status.OUT_OF_RANGE:
            return BoundsError(
                error.text, node=node, hint="a token id, row, position or block index given to this run is out of range"
            )
        case _Status.LIFECYCLE:
            return LifecycleError(error.text, node=node)
        case _Status.CAPACITY:
            return CapacityError(error.text, node=node, hint="free memory, or plan for fewer or shorter sequences")
        case _Status.INTERRUPTED:
            return LifecycleError(error.text, node=node, hint="the run was interrupted; its outputs are not valid")
        case _:
            return BackendError(error.text, node=node)
