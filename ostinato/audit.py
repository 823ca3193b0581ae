"""Audits of captured graphs that somebody else made: what a `torch.cuda.CUDAGraph` has the addresses and numbers of, and what of it will not hold in a replay.

    import torch
    from ostinato import audit

    graph = torch.cuda.CUDAGraph(keep_graph=True)  # torch 2.8 or later
    with torch.cuda.graph(graph):
        y = model(x)
    report = audit.torch_graph(graph, named={"x": x, **dict(model.named_parameters())})
    print(report.markdown())

Nothing of Ostinato has compiled or captured anything, nothing runs, and the graph is only read. Ask again whenever something was freed or replaced since: the
report is of the moment. docs/audit.md has the findings and what to do about each. For executables of ours see `Executable.audit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.backend_hip.cuda_graphs import CudaGraphs
from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError, InputError, LifecycleError, NotYetAvailable
from ostinato.ir.foreign import ForeignGraph, GraphDriver
from ostinato.runtime.foreign.differences import differences
from ostinato.runtime.foreign.report import GraphNodeEntry, GraphPointer, GraphScalar, TorchFinding, TorchGraphReport
from ostinato.runtime.foreign.torch_audit import NamedBytes, audit_graph
from ostinato.runtime.foreign.torch_memory import TorchMemory

__all__ = [
    "GraphNodeEntry",
    "GraphPointer",
    "GraphScalar",
    "TorchFinding",
    "TorchGraphReport",
    "torch_graph",
]


def torch_graph(
    graph: Any,
    *,
    against: Any = None,
    named: Any = None,
    snapshot: Sequence[Mapping[str, Any]] | None = None,
    driver: GraphDriver | None = None,
) -> TorchGraphReport:
    """Audits a graph that torch captured: a `torch.cuda.CUDAGraph(keep_graph=True)` after its capture.

    `named` are the tensors that the graph should use, by name, or a module, whose parameters and buffers are meant: pointers get names, and a tensor that was
    replaced is found. `against` is another capture of the same work: numbers and addresses that differ between the two are frozen in each. `snapshot` is what
    `torch.cuda.memory_snapshot()` gave, by default now; `driver` reads the graph, by default through `libcuda`.

    Raises `LifecycleError` for a graph that was not kept or not captured, `InputError` for what is no graph, snapshot or tensor, `DeviceUnavailable` without a
    driver of NVIDIA's, `NotYetAvailable` for torch on AMD, whose driver does not tell the arguments of captured kernels, `BackendError` for what the driver
    refuses.
    """
    tensors = _named(named)
    memory = TorchMemory(_snapshot() if snapshot is None else snapshot)
    reader = _driver() if driver is None else driver
    report = audit_graph(_read(reader, graph), reader, memory, _pool(graph), tensors)
    if against is None:
        return report
    other = audit_graph(_read(reader, against), reader, memory, _pool(against), tensors)
    found = tuple(differences(report, other))
    return report.model_copy(update={"findings": (*found, *report.findings)})


def _read(reader: Any, graph: Any) -> ForeignGraph:
    """What the driver, which may be the caller's own, tells of a graph."""
    if not (callable(getattr(reader, "read", None)) and callable(getattr(reader, "memory_kind", None))):
        raise InputError(f"driver is {shown(reader)}", hint="leave it out, or give what has read and memory_kind")
    found = reader.read(_handle(graph))
    if not isinstance(found, ForeignGraph):
        raise InputError(f"the driver tells {shown(found)}", hint="a driver's read returns a ForeignGraph")
    if wrong := [edge for edge in found.edges if not all(0 <= end < len(found.nodes) for end in edge)]:
        raise InputError(f"the driver tells edge {wrong[0]} of {len(found.nodes)} nodes", hint="edges are indices")
    return found


def _handle(graph: Any) -> int:
    """The driver's handle of a kept graph."""
    raw = getattr(graph, "raw_cuda_graph", None)
    if isinstance(graph, type) or not callable(raw):
        raise InputError(
            f"{shown(graph)} has no raw_cuda_graph()",
            hint="pass a torch.cuda.CUDAGraph(keep_graph=True) of torch 2.8 or later",
        )
    try:
        handle = int(raw())
    except RuntimeError as error:
        raise LifecycleError(
            f"torch does not give the graph: {str(error).splitlines()[0]}",
            hint="capture into torch.cuda.CUDAGraph(keep_graph=True), and audit it after the capture and before reset()",
        ) from None
    except (TypeError, ValueError) as error:
        raise InputError(
            f"raw_cuda_graph() of {shown(graph)} is no handle: {error}", hint="pass a torch.cuda.CUDAGraph"
        ) from None
    if not handle:
        raise LifecycleError("the graph is empty: nothing was captured", hint="audit it after the capture")
    return handle


def _pool(graph: Any) -> tuple[int, int] | None:
    """The graph's private pool; None where it does not say."""
    try:
        first, second = graph.pool()
        return int(first), int(second)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


def _snapshot() -> Sequence[Mapping[str, Any]]:
    torch = _torch()
    if not torch.cuda.is_initialized():
        raise LifecycleError("torch has not used a GPU in this process", hint="audit where the graph was captured")
    found: Sequence[Mapping[str, Any]] = torch.cuda.memory_snapshot()
    return found


def _driver() -> CudaGraphs:
    torch = _torch()
    if getattr(torch.version, "hip", None):
        raise NotYetAvailable(
            "graphs of torch for ROCm cannot be audited: the HIP runtime does not tell the arguments of captured kernels",
            hint="Executable.audit audits graphs that Ostinato captured, on AMD too",
        )
    return CudaGraphs()


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ConfigError(
            "torch is not installed, and neither a snapshot nor a driver was given",
            hint="audit in the process of torch",
        ) from None
    return torch


def _named(given: Any) -> tuple[NamedBytes, ...]:
    """The caller's tensors as bytes of their storages' parts."""
    if given is None:
        return ()
    if hasattr(given, "named_parameters") and not isinstance(given, type):
        given = {**dict(given.named_parameters()), **dict(given.named_buffers())}
    if not isinstance(given, Mapping):
        raise InputError(f"named is {shown(given)}", hint="give tensors by name, or a module")
    found: list[NamedBytes] = []
    for name, tensor in given.items():
        try:
            address = int(tensor.data_ptr())
            nbytes = int(tensor.element_size()) * (
                1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            )
            empty = not int(tensor.numel())
        except (AttributeError, TypeError, RuntimeError) as error:
            raise InputError(
                f"{type(tensor).__name__} is no tensor with an address: {error}",
                node=str(name),
                hint="give tensors of the GPU by name",
            ) from None
        found.append(NamedBytes(str(name), address, 0 if empty else nbytes))
    return tuple(found)
