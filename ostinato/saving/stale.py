"""Whether an artifact is still good where it is loaded: everything that is not what it was, in words.

| what | counts |
| --- | --- |
| format, library and native interface versions | always |
| class of device, its name in the plan, architecture or kernel unit, lanes of a wave | always |
| rows of the program and the sources of their kernels | those that the program uses |
| rows whose validation failed here, or that were validated neither here nor there | always |
| driver and runtime of a GPU | always: it has none on the host |
| the run-time compiler of a GPU | unless the code objects of the file are trusted, which it does not make |
| the vendor's library, and the name of the card | where the program has products by that library |
| operators, rows and kernels of the user's | those that the program uses |
| the checkpoint | its tensors by name, dtype, shape and samples of their bytes (all bytes, where these were hashed) |

What is let pass: the name of a CPU whose kernel unit is the same, the compiler that the package was built with, the number of threads, kernels, rows and
extensions that the program does not use, and where the checkpoint lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.first_use import FirstUse
from ostinato.backend_hip.evidence.known import Known
from ostinato.frontend.checkpoints import Checkpoint
from ostinato.ir.decision import Decision
from ostinato.ir.evidence import Finding
from ostinato.ir.signature import signature_class
from ostinato.ir.target import Target
from ostinato.ir.version import VERSION
from ostinato.runtime.device import Device
from ostinato.saving.facts import (
    environment_of,
    extensions_here,
    has_vendor_steps,
    rows_used,
    sources_of,
    whole_digest,
)
from ostinato.saving.manifest import Manifest, ModelIdentity
from ostinato.saving.read import Artifact

__all__ = [
    "checkpoint_differences",
    "device_differences",
    "extension_differences",
    "row_differences",
    "target_of",
    "version_differences",
]

_MOST = 12
"""Tensors, nodes and the like that are named one by one."""


def version_differences(manifest: Manifest) -> Iterator[str]:
    """The library that reads it is not the one that wrote it."""
    if manifest.package_version != VERSION:
        yield _difference("library", manifest.package_version, VERSION)
    if manifest.abi_version != _native.abi_version():
        yield _difference("native interface", manifest.abi_version, _native.abi_version())


def extension_differences(manifest: Manifest) -> Iterator[str]:
    """Operators, rows and kernels of the user's that are not here, or are others."""
    wanted, here = manifest.extensions, extensions_here(manifest.extensions)
    for what in ("operators", "rows", "kernels"):
        found: Mapping[str, str] = getattr(here, what)
        for name, saved in getattr(wanted, what).items():
            if name not in found:
                yield f"your {what[:-1]} {name}: the program needs it, and it is not here"
            elif found[name] != saved:
                yield f"your {what[:-1]} {name}: it is not what it was ({_values(saved, found[name])})"


def device_differences(artifact: Artifact, device: Device, trust: bool) -> Iterator[str]:
    """The device is not what the program was compiled for."""
    manifest, target = artifact.manifest, device.target
    for what, saved, found in (
        ("target", manifest.target, target.name),
        ("device in the plan", manifest.device, target.device),
        ("alignment", next(iter(artifact.plan.entries.values())).alignment, target.alignment),
    ):
        if saved != found:
            yield _difference(what, saved, found)
    here = environment_of(device)
    for name in _compared(artifact, trust):
        saved, found = getattr(manifest.environment, name), getattr(here, name)
        if saved != found:
            yield _difference(name.replace("_", " "), saved or "none", found or "none")


def target_of(artifact: Artifact, device: Device) -> Target:
    """The target of a device whose records are its own and, where it has none of a row, those that came with the file."""
    target = device.target
    known = target.evidence.known if isinstance(target.evidence, FirstUse) else target.evidence
    return replace(target, evidence=known.beside(artifact.records)) if isinstance(known, Known) else target


def row_differences(artifact: Artifact, target: Target) -> Iterator[str]:
    """What the program runs on the target it was compiled for (`target_of`) is not what it was, or is not known to be right. Its graphs must be verified, with
    operators that are all here."""
    yield from _source_differences(artifact, target)
    yield from _evidence_differences(artifact, target)


def _compared(artifact: Artifact, trust: bool) -> Iterator[str]:
    """The fields of the environment that count."""
    yield from ("architecture", "wave", "driver", "runtime")
    if artifact.manifest.environment.wave and not (trust and artifact.manifest.code):
        yield "compiler"
    if has_vendor_steps(artifact.plan):
        yield from ("vendor_library", "device")


def _source_differences(artifact: Artifact, target: Target) -> Iterator[str]:
    saved, found = artifact.manifest, sources_of(artifact.originals.values(), target)
    for what, before, now in (("row", saved.rows, found.rows), ("kernel source", saved.kernels, found.kernels)):
        for name in dict.fromkeys((*before, *now)):
            if before.get(name) != now.get(name):
                yield _difference(f"{what} {name}", before.get(name, "none"), now.get(name, "none"))


def _evidence_differences(artifact: Artifact, target: Target) -> Iterator[str]:
    """Rows that are known to be wrong here, and rows of which nobody knows that they are right."""
    if target.evidence is None:
        return
    seen: set[tuple[str, str]] = set()
    for entry, graph in artifact.originals.items():
        for node, row, site in rows_used((graph,), target):
            if row is None or (key := (row.identity, signature_class(site))) in seen:
                continue
            seen.add(key)
            verdict = target.evidence.verdict(row, site)
            if verdict.finding is Finding.FAILED:
                yield f"row {row.identity} on {key[1]}: its validation failed here: {verdict.reason}"
            elif verdict.finding is not Finding.VALIDATED and not _without(artifact.decisions.get(entry, {}).get(node)):
                yield f"row {row.identity} on {key[1]}: {verdict.reason}"


def _without(decision: Decision | None) -> bool:
    """Whether the row was taken although nothing validated was left, as `validate="never"` has it."""
    return decision is not None and bool(decision.note)


def checkpoint_differences(saved: ModelIdentity, found: ModelIdentity, checkpoint: Checkpoint) -> Iterator[str]:
    """The checkpoint, which is `found`, is another one."""
    if found.architecture != saved.architecture:
        yield _difference("architecture of the model", saved.architecture, found.architecture)
    names = list(dict.fromkeys((*saved.tensors, *found.tensors)))
    others = [name for name in names if saved.tensors.get(name) != found.tensors.get(name)]
    for name in others[:_MOST]:
        before, now = (side.tensors.get(name) for side in (saved, found))
        texts = ("none" if item is None else str(item) for item in (before, now))
        yield _difference(f"tensor {name}", *texts)
    if len(others) > _MOST:
        yield f"and {len(others) - _MOST} more tensors"
    if not others and found.sampled != saved.sampled:
        yield _difference("content of the weights, sampled", saved.sampled, found.sampled)
    elif not others and saved.whole is not None and (whole := whole_digest(checkpoint)) != saved.whole:
        yield _difference("content of the weights", saved.whole, whole)


def _difference(what: str, saved: object, found: object) -> str:
    return f"{what}: {_values(saved, found)}"


def _values(saved: object, found: object) -> str:
    return f"saved {saved}, found {found}"
