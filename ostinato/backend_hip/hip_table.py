"""Step tables, their captured graphs and single launches of a GPU, over the native extension.

Steps become native ones with everything resolved: the kernel, its arguments, the vendor's algorithm. What a step is to run is decided elsewhere, in the rows;
here it is only found. Errors of the native layer come back with the name of the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from ostinato.backend_hip import _native
from ostinato.backend_hip.hip_kernels import HipKernels
from ostinato.backend_hip.hip_memory import native_stream
from ostinato.backend_hip.impls.hip.vendor import ALIGNMENT, GEMM_OPERANDS
from ostinato.backend_hip.kernel_source import STATUS_BYTES, Instance, instance_of
from ostinato.backend_hip.steps import HipStep, LaunchCall
from ostinato.backend_hip.vendor_choices import Gemm, vendor_choices
from ostinato.ir.errors import BackendError, LayoutError, LifecycleError, OstinatoError, UnreadableCapture
from ostinato.ir.step import Launch, StepKind

__all__ = ["HipGraph", "HipLaunch", "HipTable", "instances_of", "make_launch", "make_table"]

Runs: TypeAlias = Callable[[tuple[tuple[int, int], ...], _native.StatusBlock, _native.Stream | None], None]
"""Runs a step on operands, reporting to a block, on a stream."""
_READING = re.compile("(counting|listing) the (nodes|edges) of a graph")
"""What the native layer says that it did when a graph was captured and could not be read back (native/gpu/capture.cpp)."""


class HipGraph:
    """Steps of a table as a captured graph; it keeps the table alive, whose status word its kernels write."""

    def __init__(self, graph: _native.HipGraphExecutable, table: HipTable, stream: _native.Stream) -> None:
        self._graph, self._table, self._stream = graph, table, stream

    @property
    def status(self) -> int:
        """The address of the table's status word."""
        return self._table.status

    @property
    def functions(self) -> tuple[int, ...]:
        """For every step of the table the handle of its kernel, 0 where it launches none of ours."""
        return self._table.functions

    @property
    def node_counts(self) -> tuple[int, ...]:
        """For every step of the table how many nodes it records."""
        return self._table.node_counts

    @property
    def node_count(self) -> int:
        return self._graph.node_count

    @property
    def nodes(self) -> list[_native.CapturedNode]:
        return self._graph.nodes

    @property
    def edges(self) -> list[tuple[int, int]]:
        """(from, to) by index in `nodes`."""
        return self._graph.edges

    @property
    def early_edges(self) -> list[tuple[int, int]]:
        """Those of `edges` that start the later kernel early."""
        return self._graph.early_edges

    def enqueue(self) -> None:
        """Submits one replay. Raises `LifecycleError` after `release`."""
        self._graph.launch(self._stream)

    def release(self) -> None:
        """Gives the executable back now. A second call does nothing."""
        self._graph.release()


class HipTable:
    """A loaded step table. The memory that its steps point to belongs to the caller. One thread at a time uses it."""

    def __init__(
        self,
        table: _native.GpuTable,
        stream: _native.Stream | None,
        steps: Sequence[_Loaded],
    ) -> None:
        self._table, self._stream, self._gemms = table, stream, tuple(step.gemm for step in steps)
        self.functions = tuple(step.function for step in steps)
        self.node_counts = tuple(step.nodes for step in steps)
        self.status = table.status_address

    def __len__(self) -> int:
        return len(self._table)

    @property
    def status_bytes(self) -> int:
        """Of device memory: the word through which kernels report, and those through which blocks of a launch find the last of them."""
        return STATUS_BYTES

    def enqueue(self, first: int = 0, count: int = -1) -> None:
        """Submits steps [first, first + count) (-1: to the end) in one native call, without the GIL, that allocates nothing.

        Raises `BoundsError` for steps that the table does not have, `BackendError`, naming the node, for what the driver refuses.
        """
        self._table.enqueue(first, count)

    def finish(self) -> None:
        """Waits for what was submitted to the stream.

        Raises `BoundsError`, naming the node, when an index in device memory was out of range in any run since the last call; `BackendError` for a device
        that failed.
        """
        self._table.finish()

    def run(self, first: int = 0, count: int = -1) -> None:
        """`enqueue` and `finish`."""
        self._table.enqueue(first, count)
        self._table.finish()

    def capture(self, first: int = 0, count: int = -1) -> HipGraph:
        """The steps as a graph; nothing runs. Vendor GEMM that this thread did not run yet runs once before, in memory of its own.

        Raises `BackendError` for a table of the default stream, `UnreadableCapture` where the driver does not show what it captured, `LifecycleError` within
        another capture, `ConfigError` where the steps submit nothing.
        """
        stream = self._stream
        if stream is None:
            raise BackendError("the default stream cannot be captured", hint="make the table for a stream of its own")
        for gemm in self._gemms[first : first + count if count >= 0 else None]:
            if gemm is not None:
                gemm.warm()
        try:
            graph = _native.HipGraphExecutable.capture(stream, lambda: self._table.enqueue(first, count), record=True)
        except BackendError as error:
            if _READING.match(error.message) is None:
                raise
            raise UnreadableCapture(error.message, hint='use mode="planned", which runs the same steps') from error
        return HipGraph(graph, self, stream)

    def __reduce__(self) -> NoReturn:
        raise LifecycleError("a step table cannot be copied or pickled", hint="make another one")


def instances_of(calls: Iterable[LaunchCall]) -> set[Instance]:
    """The kernels of calls. Raises `BackendError`, naming the node, for a launch without a shape."""
    return {
        _instance(call.node, call.kernel, call.operands, call.params, call.launch)
        for call in calls
        if call.kind is StepKind.LAUNCH
    }


def make_table(
    device: _native.GpuDevice, kernels: HipKernels, steps: Sequence[HipStep], stream: _native.Stream | None
) -> HipTable:
    """Loads what the steps need and packs them. Raises `BackendError`, naming the node, for a step that cannot run."""
    kernels.load(
        _instance(step.node, step.kernel, len(step.operands), step.params, step.launch)
        for step in steps
        if step.kind is StepKind.LAUNCH
    )
    made = [_native_step(device, step, kernels) for step in steps]
    return HipTable(_native.GpuTable(device, stream, [step.native for step in made]), stream, made)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A step for the native table, how many nodes it records, and the handle of its kernel or the vendor's product that it is."""

    native: _native.GpuStep
    nodes: int
    function: int = 0
    gemm: Gemm | None = None


def _native_step(device: _native.GpuDevice, step: HipStep, kernels: HipKernels) -> _Loaded:
    if step.lane or step.waits or step.signals:
        raise BackendError(
            f"a table of a GPU has one lane; the step is of lane {step.lane}, waits for {list(step.waits)} and signals {list(step.signals)}",
            node=step.node,
            hint="plan for one lane",
        )
    addresses = [address for address, _ in step.operands]
    match step.kind:
        case StepKind.LAUNCH:
            launch = _shape(step.node, step.launch)
            function = kernels.function(
                _instance(step.node, step.kernel, len(addresses), step.params, launch), launch.shared
            )
            made = _native.GpuStep.launch(
                step.node, function, launch.grid, launch.block, launch.shared, addresses, step.params, launch.early
            )
            return _Loaded(made, 1, function=function.handle)
        case StepKind.GEMM:
            gemm = _gemm(device, kernels, step.node, step.params, step.operands)
            return _Loaded(gemm.step(step.node, step.operands), gemm.node_count, gemm=gemm)
        case StepKind.COPY:
            (source, nbytes), (to, room) = _operands(step, 2)
            if nbytes != room:
                raise BackendError(f"a copy of {nbytes} bytes to {room}", node=step.node)
            return _Loaded(_native.GpuStep.copy(step.node, to, source, nbytes), int(nbytes != 0 and source != to))
        case StepKind.FILL:
            ((to, nbytes),) = _operands(step, 1)
            (value,) = step.params
            return _Loaded(_native.GpuStep.fill(step.node, to, int(value), nbytes), int(nbytes != 0))
    raise BackendError(f"a GPU runs no step of kind {step.kind.value}", node=step.node)


class HipLaunch:
    """One step on operands that may differ from call to call. Threads may share it.

    An index out of range is told by the device's `synchronize` or `finish`, which name the node.
    """

    def __init__(
        self,
        device: _native.GpuDevice,
        node: str,
        run: Runs,
        status: Callable[[_native.Stream | None], _native.StatusBlock],
    ) -> None:
        self.node = node
        self._device = device
        self._run, self._status = run, status

    def run(self, operands: tuple[tuple[int, int], ...], stream: object = None) -> None:
        """Submits it to a stream, by default to the device's default one: one native call, without the GIL, that allocates nothing.

        Operands are (address, bytes), (0, 0) where an optional one is absent. Raises `BackendError`, naming the node, for what the driver refuses.
        """
        own = native_stream(stream, self._device)
        try:
            self._run(operands, self._status(own), own)
        except OstinatoError as error:
            raise _named(error, self.node) from None


def _named(error: OstinatoError, node: str) -> OstinatoError:
    """The same error, of a node."""
    return error if error.node else type(error)(error.message, node=node, hint=error.hint)


def make_launch(
    device: _native.GpuDevice,
    kernels: HipKernels,
    call: LaunchCall,
    number: int,
    status: Callable[[_native.Stream | None], _native.StatusBlock],
) -> HipLaunch:
    """Loads what the call needs. `number` is what its kernel reports to the `status` of a stream.

    Raises `BackendError`, naming the node, for a kind of step that is none of a launch.
    """
    if call.kind is StepKind.GEMM:

        def product(
            operands: tuple[tuple[int, int], ...], _: _native.StatusBlock, stream: _native.Stream | None
        ) -> None:
            # looked up at each call: the algorithm depends on the workspace that the call brings
            _gemm(device, kernels, call.node, call.params, operands).run(operands, stream)

        return HipLaunch(device, call.node, product, status)
    if call.kind is not StepKind.LAUNCH:
        raise BackendError(f"a step of kind {call.kind.value} is no launch", node=call.node)
    launch = _shape(call.node, call.launch)
    instance = _instance(call.node, call.kernel, call.operands, call.params, launch)
    kernels.load({instance})
    native = _native.GpuLaunch(
        device,
        kernels.function(instance, launch.shared),
        launch.grid,
        launch.block,
        launch.shared,
        call.operands,
        call.params,
        number,
    )
    return HipLaunch(device, call.node, native.run, status)


def _gemm(
    device: _native.GpuDevice,
    kernels: HipKernels,
    node: str,
    params: tuple[int | float, ...],
    operands: tuple[tuple[int, int], ...],
) -> Gemm:
    """The vendor's product of a step, with the algorithm that is chosen for it and recorded beside the kernels."""
    if len(operands) != len(GEMM_OPERANDS):
        raise BackendError(f"a product has {len(GEMM_OPERANDS)} operands, found {len(operands)}", node=node)
    for name, (address, _) in zip(GEMM_OPERANDS, operands, strict=True):
        if address % ALIGNMENT:
            raise LayoutError(
                f"the vendor's product takes operands at multiples of {ALIGNMENT} bytes, its {name} lies at {address:#x}",
                node=node,
                hint=f"bind memory that starts at such a multiple, or compile with levels={{{node!r}: 'tuned'}}",
            )
    return vendor_choices(device, kernels.cache.folder).gemm(
        params, operands[GEMM_OPERANDS.index("workspace")][1], node
    )


def _shape(node: str, launch: Launch | None) -> Launch:
    if launch is None:
        raise BackendError("a launch on a GPU has a grid", node=node, hint="the step was planned for a host")
    return launch


def _instance(
    node: str, kernel: str, operands: int, params: tuple[int | float, ...], launch: Launch | None
) -> Instance:
    return instance_of(kernel, operands, params, _shape(node, launch))


def _operands(step: HipStep, count: int) -> tuple[tuple[int, int], ...]:
    if len(step.operands) != count:
        raise BackendError(f"a {step.kind.value} has {count} operands, found {len(step.operands)}", node=step.node)
    return step.operands
