"""What a program depends on outside of its own file, as values to be saved and to be held against what is there when it is loaded.

Of a device that is its environment, of the library the rows and kernels that the program uses, of a user the operators and rows that were added, and of a
checkpoint which tensors it has. Only what the program uses is recorded, so that a change of anything else leaves its artifact good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.environment import gpu_environment, host_environment
from ostinato.backend_hip.evidence.records import Environment
from ostinato.backend_hip.evidence.sources import declared, file_hash, source_of
from ostinato.backend_hip.evidence.user_code import code_text
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.kernel_source import kernel_files
from ostinato.backend_hip.user_rows import user_rows
from ostinato.frontend.checkpoints import MODEL_PACKAGES, Checkpoint
from ostinato.frontend.checkpoints.files import system_errors
from ostinato.frontend.checkpoints.packages import find_model_package
from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.ir.graph import Graph
from ostinato.ir.ops import OP, added_operators
from ostinato.ir.step import StepKind
from ostinato.ir.target import CallSite, Impl, Target
from ostinato.ir.views import ViewTable, call_site
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.device import Device
from ostinato.saving.manifest import Extensions, ModelFile, ModelIdentity, TensorIdentity

__all__ = [
    "Sources",
    "environment_of",
    "extensions_here",
    "extensions_of",
    "has_vendor_steps",
    "identity_of",
    "rows_used",
    "sources_of",
    "whole_digest",
]

_EDGE = 4096
"""Bytes of each end of a tensor that tell one model from another."""
_BLOCK = 1 << 24


@dataclass(frozen=True, slots=True)
class Sources:
    """Hashes of the implementation rows of a program and of the sources of its kernels, by name."""

    rows: Mapping[str, str]
    kernels: Mapping[str, str]


def environment_of(device: Device) -> Environment:
    """The card or the CPU with its driver, libraries and compiler. Raises `ConfigError` for a device that is neither."""
    if isinstance(device, HostDevice):
        return host_environment(device.info.cpu, device.info.isa)
    if isinstance(device, HipDevice):
        return gpu_environment(device.native)
    raise ConfigError(f"{device.name} is a device of another kind", hint="use the CPU, or a GPU by name")


def has_vendor_steps(plan: ProgramPlan) -> bool:
    """Whether steps are products by the vendor's library."""
    return any(step.kind is StepKind.GEMM for entry in plan.entries.values() for step in entry.steps)


def rows_used(graphs: Iterable[Graph], target: Target) -> Iterator[tuple[str, Impl | None, CallSite]]:
    """Every node that runs, by the name of its graph's node, with its row (None where the target has none of that name) and the call."""
    for graph in graphs:
        views = ViewTable(graph)
        for node in graph.nodes:
            if not OP[node.op].is_view:
                row = None if node.impl is None else target.row(node.op, node.impl)
                yield node.name, row, call_site(graph, node, views)


def sources_of(graphs: Iterable[Graph], target: Target) -> Sources:
    """What the nodes of lowered graphs run; a row that the target does not have is left out."""
    rows: dict[str, str] = {}
    kernels: dict[str, str] = {}
    for _, row, site in rows_used(graphs, target):
        if row is not None:
            rows.setdefault(row.identity, declared(row))
            name, found = source_of(row, site)
            if found:
                kernels[name] = found
    return Sources(dict(sorted(rows.items())), dict(sorted(kernels.items())))


def extensions_of(graphs: Iterable[Graph], sources: Sources) -> Extensions:
    """What of it a user added."""
    used = {node.op for graph in graphs for node in graph.nodes}
    operators = {op.name: _hash(op) for op in added_operators() if op.name in used}
    rows = {row.identity: sources.rows[row.identity] for row in user_rows() if row.identity in sources.rows}
    ours = set(kernel_files())
    kernels = {name: found for name, found in sources.kernels.items() if "/" in name and name not in ours}
    return Extensions(operators=operators, rows=rows, kernels=kernels)


def extensions_here(wanted: Extensions) -> Extensions:
    """What a user added by now of the names in `wanted`."""
    operators = {op.name: _hash(op) for op in added_operators() if op.name in wanted.operators}
    rows = {row.identity: declared(row) for row in user_rows() if row.identity in wanted.rows}
    kernels = {name: found for name in wanted.kernels if (found := file_hash(name))}
    return Extensions(operators=operators, rows=rows, kernels=kernels)


def _hash(value: object) -> str:
    return hashlib.sha256(code_text((value,)).encode()).hexdigest()[:16]


def identity_of(checkpoint: Checkpoint, *, whole: bool = False) -> ModelIdentity:
    """Which checkpoint it is. `whole` reads all of its tensors. Raises `WeightsError` for files that changed since it was opened."""
    tensors = {
        name: TensorIdentity(dtype=tensor.dtype.value, shape=tensor.shape, transform=tensor.transform)
        for name, tensor in sorted(checkpoint.tensors.items())
    }
    with system_errors(checkpoint.path):
        paths = sorted({tensor.file for tensor in checkpoint.tensors.values()})
        files = tuple(ModelFile(name=path.name, size=path.stat().st_size) for path in paths)
    return ModelIdentity(
        path=str(checkpoint.path.absolute()),
        package=_package(checkpoint.path),
        format=checkpoint.format,
        architecture=checkpoint.config.architecture,
        files=files,
        tensors=tensors,
        sampled=_sampled(checkpoint),
        whole=whole_digest(checkpoint) if whole else None,
    )


def whole_digest(checkpoint: Checkpoint) -> str:
    """xxh3_128 over the names and all bytes of the tensors, in order of their names."""
    digest = xxhash.xxh3_128()
    for name in sorted(checkpoint.tensors):
        data = checkpoint.map(name)
        digest.update(f"{name}:{data.size}:".encode())
        for start in range(0, data.size, _BLOCK):
            digest.update(data[start : start + _BLOCK].data)
        checkpoint.release(name)
    return digest.hexdigest()


def _sampled(checkpoint: Checkpoint) -> str:
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(checkpoint.tensors.items()):
        data = checkpoint.map(name)
        digest.update(f"{name}:{tensor.dtype.value}:{tensor.shape}:{float(tensor.shift)!r}:".encode())
        if tensor.row_order is not None:
            digest.update(tensor.row_order.tobytes())
        digest.update(data[:_EDGE].tobytes())
        digest.update(data[-_EDGE:].tobytes())
    return digest.hexdigest()


def _package(path: Path) -> str | None:
    """The name of the installed model package at a path."""
    for name in MODEL_PACKAGES:
        try:
            if find_model_package(name) == path:
                return name
        except OstinatoError:
            continue
    return None
