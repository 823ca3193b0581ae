"""Known oddities of drivers and vendor libraries, as data: how each is detected, and what follows from it.

A quirk is no failure: what it costs is said, and what depends on it is done another way or refused. "unknown" is a detection that could not be carried out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.kernel_source import compile_options, expanded
from ostinato.ir.errors import OstinatoError
from ostinato.ir.ops import OP
from ostinato.ir.step import StepKind
from ostinato.ir.target import Impl
from ostinato.runtime.device import CapturedNode, Device, ResolvedStep
from ostinato.tools.conformance.report import QuirkVerdict

__all__ = ["QUIRKS", "Quirk", "find_quirks", "listed_quirks"]

_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Quirk:
    """`detect` returns what was seen where the device has the quirk, and nothing where it does not; it raises where that cannot be found out."""

    name: str
    detection: str
    consequence: str
    detect: Callable[[HipDevice], str]


def find_quirks(device: Device) -> Iterator[QuirkVerdict]:
    """Which of `QUIRKS` a GPU has. A CPU has none of them."""
    if not isinstance(device, HipDevice):
        return
    for quirk in QUIRKS:
        try:
            detail = quirk.detect(device)
            present = "yes" if detail else "no"
        except OstinatoError as error:
            present, detail = "unknown", f"[{error.code}] {error}"
        yield QuirkVerdict.model_validate(
            {
                "name": quirk.name,
                "present": present,
                "detection": quirk.detection,
                "consequence": quirk.consequence,
                "detail": detail,
            }
        )


def listed_quirks() -> list[tuple[str, str, str]]:
    """Name, detection and consequence of each of `QUIRKS`."""
    return [(quirk.name, quirk.detection, quirk.consequence) for quirk in QUIRKS]


# what is captured to see how a driver tells of it


def _call(device: HipDevice, *, vendor: bool = False) -> Call | None:
    """A call of some row of the device, of a kernel of ours or of the vendor's."""
    kind, names = (StepKind.GEMM, ("linear", "matmul")) if vendor else (StepKind.LAUNCH, ("add",))
    rows: list[Impl] = [row for name in names for row in device.target.rows_for(name) if row.kind is kind]
    rng = np.random.default_rng(0)
    found = (
        call
        for row in rows
        for sample in OP[row.op].samples(rng)
        if sample.error is None
        for call in calls(row, sample)
    )
    return next(found, None)


def _captured(device: HipDevice, call: Call | None) -> tuple[Sequence[CapturedNode], Sequence[tuple[int, int]]]:
    """The nodes and edges of a fill, the call and another fill."""
    buffer = device.allocate(_BYTES)
    try:
        steps = [_fill(buffer.address)]
        if call is not None:
            steps.append(_step(call, buffer.address))
        table = device.make_table([*steps, _fill(buffer.address)], device.open_stream())
        graph = table.capture()
        nodes, edges = graph.nodes, graph.edges
        graph.release()
        return nodes, edges
    finally:
        buffer.free()


def _fill(address: int) -> ResolvedStep:
    return ResolvedStep("fill", StepKind.FILL, "", ((address, 256),), (0,))


def _step(call: Call, address: int) -> ResolvedStep:
    """The call over memory at an address. Nothing of it runs."""
    sizes = [tensor.nbytes for tensor in (*call.site.operands, *call.site.results) if tensor is not None]
    nbytes = max(*sizes, call.row.workspace(call.site))
    operands = tuple((0, 0) if name == "-" else (address, nbytes) for name in call.row.operands)
    row = call.row
    return ResolvedStep(
        "step", row.kind, row.kernel(call.site), operands, row.params(call.site), launch=row.launch_of(call.site)
    )


def _edges(device: HipDevice) -> str:
    try:
        _, edges = _captured(device, None)
    except OstinatoError as error:
        return str(error)
    return "" if edges == [(0, 1)] else f"two steps of a stream have the edges {edges}"


def _parameters(device: HipDevice) -> str:
    try:
        nodes, _ = _captured(device, _call(device))
    except OstinatoError as error:
        return str(error)
    kernels = [node for node in nodes if node.type == "kernel"]
    return "" if kernels and all(node.arguments for node in kernels) else f"{len(kernels)} kernels, without arguments"


def _vendor_parameters(device: HipDevice) -> str:
    call = _call(device, vendor=True)
    if call is None:
        return ""
    nodes, _ = _captured(device, call)
    hidden = sum(node.type == "kernel" and node.arguments is None for node in nodes)
    return f"{hidden} of {len(nodes) - 2} nodes of a product" if hidden else ""


def _node_order(device: HipDevice) -> str:
    nodes, edges = _captured(device, _call(device))
    return "" if all(a < b for a, b in edges) else f"{len(nodes)} nodes with the edges {edges}"


def _thread_local(device: HipDevice) -> str:
    native = device.native
    stream = _native.Stream(native, non_blocking=True)
    address = native.allocate(64)
    problems: list[str] = []

    def elsewhere() -> None:
        try:
            own, block = (
                _native.Stream(native, non_blocking=True),
                native.allocate(_BYTES + 4096),
            )  # a size that nobody has pooled
            _native.fill_async(block, native, 0, 64, own)
            own.synchronize()
            native.free(block)
        except OstinatoError as error:
            problems.append(f"another thread: {error}")

    def submit() -> None:
        _native.fill_async(address, native, 0, 64, stream)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        _native.fill_async(address, native, 1, 64, stream)

    try:
        _native.HipGraphExecutable.capture(stream, submit).release()
    except OstinatoError as error:
        problems.append(f"the capture: {error}")
    finally:
        native.free(address)
    return "; ".join(problems)


def _update(device: HipDevice) -> str:
    native = device.native
    stream = _native.Stream(native, non_blocking=True)
    first, second = native.allocate(64), native.allocate(64)
    try:
        graph = _native.HipGraphExecutable.capture(stream, lambda: _native.fill_async(first, native, 0, 64, stream))
        taken = graph.update(stream, lambda: _native.fill_async(second, native, 0, 64, stream))
        graph.release()
    finally:
        native.free(first)
        native.free(second)
    return "" if taken else "another address of a fill was refused"


def _stream_ordered(device: HipDevice) -> str:
    return "" if _native.StreamOrderedHipBuffer.supported(device.native) else "the driver says that it has none"


def _vendor(device: HipDevice) -> str:
    try:
        _native.warm_vendor(device.native)
    except OstinatoError as error:
        return str(error)
    return ""


def _compiler(device: HipDevice) -> str:
    native = device.native
    try:
        native.gpu.compile(expanded("device.h"), "device.h", compile_options(native.gpu.platform, native.architecture))
    except OstinatoError as error:
        return str(error)
    return ""


def _collectives(device: HipDevice) -> str:
    found = [report for report in device.native.gpu.reports if report.role == "collective"]
    return "; ".join(f"{report.name} is {report.finding}" for report in found if report.finding != "found")


def _graph_memory(device: HipDevice) -> str:
    native = device.native
    stream = _native.Stream(native, non_blocking=True)
    address = native.allocate(64)
    try:
        graph = _native.HipGraphExecutable.capture(stream, lambda: _native.fill_async(address, native, 0, 64, stream))
        native.synchronize()
        before = native.memory_info[0]
        graph.launch(stream)
        stream.synchronize()
        taken = before - native.memory_info[0]
        graph.release()
    finally:
        native.free(address)
    return f"{taken} bytes" if taken > 0 else ""


QUIRKS = (
    Quirk(
        "edges cannot be read back",
        "two steps captured on one stream have one edge",
        "no captured graph can be proven: executables run planned and say so, or raise where captured is required",
        _edges,
    ),
    Quirk(
        "parameters of kernels cannot be read back",
        "a captured kernel of ours shows its arguments",
        "no captured graph can be proven: executables run planned and say so, or raise where captured is required",
        _parameters,
    ),
    Quirk(
        "parameters of the vendor's kernels cannot be read back",
        "a captured product shows the arguments of its kernels",
        "nodes of products are counted as opaque; poison and red zones watch what they touch",
        _vendor_parameters,
    ),
    Quirk(
        "nodes are not listed in the order of capture",
        "the edges of a captured stream go from earlier to later nodes",
        "none: nodes are put in order by their edges",
        _node_order,
    ),
    Quirk(
        "captures are not local to their thread",
        "another thread allocates memory and waits for its own stream while this one captures",
        "nothing else may use the device while steps are captured: prewarm before other threads start",
        _thread_local,
    ),
    Quirk(
        "graphs are not updated in place",
        "a captured fill gets another address by an update",
        "a graph whose addresses change is captured and instantiated again",
        _update,
    ),
    Quirk(
        "the first replay takes memory",
        "free memory of the device before and after the first launch of a graph",
        "a device that is filled to the byte may fail at the first replay: prewarm and replay once",
        _graph_memory,
    ),
    Quirk(
        "no stream-ordered memory",
        "the driver's answer",
        "StreamOrderedHipBuffer cannot be used; nothing of the package needs it",
        _stream_ordered,
    ),
    Quirk(
        "no products of the vendor",
        "the vendor's library is opened and a handle is made",
        "matrix products run on kernels of our own",
        _vendor,
    ),
    Quirk(
        "the run-time compiler is incomplete",
        "it compiles the header of the kernels, for which NVIDIA's needs its built-ins",
        "only kernels that the cache has can be run; `ostinato doctor` says what to install",
        _compiler,
    ),
    Quirk(
        "no collectives",
        "the vendor's library is opened",
        "none on one GPU",
        _collectives,
    ),
)
