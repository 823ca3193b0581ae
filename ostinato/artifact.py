"""Saved executables: `Executable.save` writes one file, `load_executable` makes an executable of it again; the parts are in `saving/`.

Loading reads, checks and proves: no graph is traced, no pass runs, nothing is selected, validated or planned. What does not fit any more is a `StaleArtifact`
that lists everything, or is compiled again where that was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ostinato.backend_hip import _native
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.prebuilt import Module
from ostinato.backend_hip.vendor_choices import vendor_choices
from ostinato.compiler import compile as compile_decoder
from ostinato.compiler import compile_encoder
from ostinato.frontend.checkpoints import Checkpoint
from ostinato.frontend.model import Model, load
from ostinato.frontend.models import FAMILIES
from ostinato.frontend.source import CheckpointSource
from ostinato.ir.checks import boolean
from ostinato.ir.errors import ConfigError, OstinatoError, StaleArtifact, WeightsError
from ostinato.ir.verify import verify
from ostinato.planner.check import check_program
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.device import Device
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.options import Route, check_progress, settle_route
from ostinato.runtime.program import Program
from ostinato.runtime.weights import Progress
from ostinato.saving.container import damaged
from ostinato.saving.embedded import EmbeddedCheckpoint
from ostinato.saving.facts import identity_of
from ostinato.saving.manifest import Kind, ModelIdentity, Request
from ostinato.saving.read import Artifact, ArtifactFile, contents_of, is_artifact, open_file, read_artifact
from ostinato.saving.save import ArtifactSaver
from ostinato.saving.stale import (
    checkpoint_differences,
    device_differences,
    extension_differences,
    row_differences,
    target_of,
    version_differences,
)
from ostinato.served import serve_decoder, serve_encoder
from ostinato.stages import open_device, positions_of

__all__ = ["Artifact", "Opened", "Weights", "is_artifact", "load_executable", "open_artifact", "read_artifact"]

_KINDS: dict[Kind, type[Executable]] = {
    "text": TextExecutable,
    "llm": TextExecutable,
    "encoder": EmbedExecutable,
    "embedder": EmbedExecutable,
    "staged": Executable,
}
_MADE_BY: dict[Kind, str] = {
    "text": "ostinato.compile",
    "llm": "an LLM",
    "encoder": "ostinato.compile_encoder",
    "embedder": "an Embedder",
    "staged": "Planned.load",
}
_E = TypeVar("_E", bound=Executable)
_TEXT = frozenset(("input_ids", "row_of_token", "position", "block_table", "length", "token_count"))
_EMBED = frozenset(("input_ids", "row_of_token", "position", "start", "length", "token_count", "row_count"))
"""Inputs without which an entry does not serve texts."""
_EXTEND = "add your operators, rows and kernels with ostinato.extend before you load it"
Weights = Model | str | os.PathLike[str]


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A loaded artifact: the executable, the checkpoint that its weights are of, and what it was compiled as. `stale` lists what was not as it was, where the
    program was compiled again for it."""

    executable: Executable
    checkpoint: Checkpoint
    request: Request
    stale: tuple[str, ...] = ()

    @property
    def model(self) -> Model:
        """The checkpoint with its family. Raises `ConfigError` for a family that is not the library's."""
        return _model_of(self.checkpoint)

    def of_kind(self, kind: Kind, executable: type[_E], what: str) -> _E:
        """The executable, if it was compiled as that. Raises `ConfigError` for another."""
        if self.request.kind != kind or not isinstance(self.executable, executable):
            raise ConfigError(
                f"the artifact is of {_MADE_BY[self.request.kind]}, not of {what}",
                hint="ostinato.load_executable opens any; `save` of LLM and Embedder writes theirs",
            )
        return self.executable


def load_executable(
    path: str | os.PathLike[str],
    device: str | Device = "auto",
    mode: str = "auto",
    *,
    trust: bool = False,
    recompile: bool = False,
    weights: Weights | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Executable:
    """The executable that `Executable.save` wrote: a `TextExecutable`, an `EmbedExecutable`, or a plain one of what was made stage by stage.

    `device` "auto" is the one it was compiled for, `mode` "auto" what was asked for then. Its weights are those in the file, or those of the checkpoint that it
    names: at its path, beside the file, in an installed model package, or where `weights` says, which may be another file that has them in it. `recompile`
    compiles the program again, from that checkpoint and with the saved options, where it is stale; save the result to have it next time. `trust` lets the file
    bring machine code: the compiled kernels of a GPU in it, and the algorithms of the vendor's products, are used as they are. Without it nothing in the file
    is executed. `threads` are of the CPU, 0 for all.

    Raises `ArtifactError` for a file that is none or is damaged; `StaleArtifact`, listing every difference, for one that was made for another version of the
    library, device, driver, kernels, extensions or weights; `WeightsError` for a checkpoint that is not found; `VerificationError` and `PlanError` for a
    program that is not proven; `DeviceUnavailable`, and `ConfigError` for arguments that cannot be used.
    """
    how: dict[str, Any] = {"trust": trust, "recompile": recompile, "weights": weights, "threads": threads}
    return open_artifact(path, device, mode, progress=progress, **how).executable


def open_artifact(
    path: str | os.PathLike[str],
    device: str | Device = "auto",
    mode: str = "auto",
    *,
    trust: bool = False,
    recompile: bool = False,
    weights: Weights | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Opened:
    """`load_executable` with what else there is to know. Raises what that raises."""
    trusted, again = boolean(trust, "trust"), boolean(recompile, "recompile")
    check_progress(progress)
    file = open_file(path)
    request = file.manifest.request
    where = _device(file, device, threads)
    route = settle_route(where, request.mode if mode == "auto" else mode, capture=_capture(request, mode))
    checkpoint, found = _checkpoint(file, weights)
    differences, artifact = _judged(file, where, trusted, checkpoint, found)
    if differences or artifact is None:
        if not again:
            raise StaleArtifact(
                f"{file.path} was saved for something else than is here:",
                differences=differences,
                hint=_hint(file, differences),
            )
        executable = _recompiled(file, route, mode, _model_of(checkpoint), progress)
        return Opened(executable, checkpoint, request, differences)
    program = _proven(artifact, where, checkpoint)
    if trusted:
        _bring(artifact, where)
    executable = load_program(program, route, progress=progress, kind=_KINDS[request.kind])
    return Opened(executable, checkpoint, request)


def _judged(
    file: ArtifactFile, device: Device, trust: bool, checkpoint: Checkpoint, found: ModelIdentity | None
) -> tuple[tuple[str, ...], Artifact | None]:
    """Everything that is not as it was, and the program, if its file can be read by this version. Raises what reading and verifying it raise."""
    extensions = tuple(extension_differences(file.manifest))
    differences, operators = [*version_differences(file.manifest), *extensions], not extensions
    artifact: Artifact | None = None
    try:
        artifact = contents_of(file)
    except StaleArtifact as error:
        differences += error.differences
    except OstinatoError:
        if not any(version_differences(file.manifest)):  # of another version it may be written otherwise
            raise
    if artifact is not None:
        differences += device_differences(artifact, device, trust)
    if found is not None:
        differences += checkpoint_differences(file.manifest.model, found, checkpoint)
    if artifact is not None and operators and file.manifest.target == device.target.name:
        try:
            target = target_of(artifact, device)
            for graph in artifact.every_graph:
                verify(graph, target=target, phase="selected")
        except OstinatoError as error:
            if not differences:
                raise
            differences.append(f"graphs: {error.message.splitlines()[0]}")
        else:
            differences += row_differences(artifact, target)
    return tuple(differences), artifact


def _proven(artifact: Artifact, device: Device, checkpoint: Checkpoint) -> Program:
    """The program, if the checker proves its plan and its entries are of its kind."""
    request, target = artifact.manifest.request, target_of(artifact, device)
    check_program(artifact.plan, artifact.graphs, target, sources=artifact.originals)
    _check_kind(artifact.path, request.kind, artifact.plan)
    return Program(
        artifact.plan,
        artifact.graphs,
        target,
        CheckpointSource(checkpoint),
        artifact.originals,
        artifact.decisions,
        saver=ArtifactSaver(request),
    )


def _check_kind(path: Path, kind: Kind, plan: ProgramPlan) -> None:
    """Raises `ArtifactError` for entries that an executable of that kind cannot drive."""
    if kind == "staged":
        return
    encoder = kind in ("encoder", "embedder")
    needed, outputs = (_EMBED, {"pooled", "normalized"}) if encoder else (_TEXT, {"logits"})
    for name, entry in plan.entries.items():
        shapes = {item.name: item.type.static_shape for item in entry.inputs}
        missing = sorted(needed - set(shapes)) + sorted(outputs - {item.name for item in entry.outputs})
        if kind == "llm" and "token" not in {item.name for item in entry.outputs}:
            missing.append("token")
        if missing:
            raise damaged(path, f"entry {name} serves no texts: it has no {', '.join(missing)}")
        rows, tokens = (next(iter(shapes[name]), 0) for name in ("length", "input_ids"))
        stated = {"N": tokens, "R": rows} if "N" in entry.dims or tokens != rows else {"R": rows}
        if dict(entry.dims) != stated:
            raise damaged(path, f"entry {name} serves no texts: it is of {dict(entry.dims)}, its inputs of {stated}")
        if not encoder and (not plan.state or len(plan.state[0].type.shape) != 4):
            raise damaged(path, f"entry {name} serves no texts: it has no cache")


def _bring(artifact: Artifact, device: Device) -> None:
    """Hands over what the file brings to be executed: its caller trusts it."""
    manifest = artifact.manifest
    if isinstance(device, HipDevice):
        data = artifact.file.data
        device.kernels.trust(
            Module(item.key, item.file, frozenset(item.kernels), data(item.member)) for item in manifest.code
        )
        vendor_choices(device.native, device.kernels.cache.folder).trust(manifest.vendor)


def _device(file: ArtifactFile, device: str | Device, threads: int) -> Device:
    """The device itself, or the one of that name; "auto" is the one of the file, of a host with the kernel unit that it was compiled for if this CPU has it."""
    name = file.manifest.device
    if name.startswith("host:") and device in ("auto", "cpu"):
        unit = file.manifest.environment.architecture.rpartition("/")[2]
        return open_device("cpu", threads, unit if unit in _native.isa_available() else "auto")
    return open_device(name if device == "auto" else device, threads)


def _capture(request: Request, mode: str) -> tuple[str, ...] | None:
    """What is captured, where the mode is the saved one or captures."""
    captures = mode == "captured" or (mode == "auto" and request.mode in ("auto", "captured"))
    return request.capture if captures else None


def _checkpoint(file: ArtifactFile, weights: Weights | None) -> tuple[Checkpoint, ModelIdentity | None]:
    """The checkpoint of the program and which one it is; None for that in the file itself, which cannot be another."""
    if weights is not None:
        checkpoint = weights.checkpoint if isinstance(weights, Model) else _checkpoint_at(weights)
        return checkpoint, identity_of(checkpoint)
    if file.manifest.embedded is not None:
        return EmbeddedCheckpoint(file), None
    saved, reasons = file.manifest.model, list[str]()
    others: list[tuple[Checkpoint, ModelIdentity]] = []
    for place in _places(file):
        try:
            checkpoint = _checkpoint_at(place)
            found = identity_of(checkpoint)
        except OstinatoError as error:
            reasons.append(error.message)
            continue
        if found.sampled == saved.sampled:
            return checkpoint, found
        others.append((checkpoint, found))
    if others:
        return others[0]
    raise WeightsError(
        f"the weights of {file.path} are not found: {'; '.join(reasons)}",
        hint="say where its checkpoint is: weights=PATH, or --weights PATH",
    )


def _checkpoint_at(place: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at a path or of a name, or that in another artifact."""
    if is_artifact(place) and not os.path.isdir(place):
        return EmbeddedCheckpoint(open_file(place))
    return load(place).checkpoint


def _places(file: ArtifactFile) -> Iterator[str]:
    """Where the checkpoint may be: where it was, beside the file, in a model package."""
    saved = file.manifest.model
    beside = file.path.parent / Path(saved.path).name
    yield from dict.fromkeys((saved.path, str(beside)))
    if saved.package is not None:
        yield saved.package


def _model_of(checkpoint: Checkpoint) -> Model:
    name = checkpoint.config.architecture
    family = next((family for family in FAMILIES if family.name == name), None)
    if family is None:
        raise ConfigError(f"{name} is a family of yours", hint="give the model: weights=ostinato.load(PATH, FAMILIES)")
    return Model(checkpoint, family)


def _recompiled(file: ArtifactFile, route: Route, mode: str, model: Model, progress: Progress | None) -> Executable:
    """The program compiled again as it was asked for. Raises `ConfigError` for one that was asked for in words that no file holds."""
    request = file.manifest.request
    if request.kind == "staged" or request.unsaid:
        what = "; ".join(request.unsaid) or "it was made stage by stage"
        raise ConfigError(
            f"{file.path} cannot be compiled again from what it says: {what}",
            hint="compile it where it was made, and save that",
        )
    if missing := tuple(extension_differences(file.manifest)):
        raise ConfigError(f"{file.path} cannot be compiled again: {'; '.join(missing)}", hint=_EXTEND)
    common: dict[str, Any] = {
        "precision": request.precision,
        "memory_limit": request.memory_limit,
        "reuse": request.reuse,
        "levels": request.levels or None,
        "disable": request.disable,
        "policy": request.policy,
        "mode": request.mode if mode == "auto" else mode,
        "progress": progress,
    }
    if request.kind == "llm":
        context = positions_of(model, request.context)
        return serve_decoder(model, route, max_num_seqs=request.max_num_seqs or 1, context=context, **common)
    if request.kind == "embedder":
        longest = request.max_seq_length or model.config.max_position_embeddings
        return serve_encoder(model, route, max_seq_length=longest, **common)
    common |= {"buckets": request.buckets, "device": route.device, "capture": route.capture, "markers": route.markers}
    if request.kind == "text":
        return compile_decoder(model, logits=request.logits, context=request.context, **common)
    return compile_encoder(model, **common)


def _hint(file: ArtifactFile, differences: tuple[str, ...]) -> str:
    """What to do about it."""
    if any(difference.startswith("your ") for difference in differences):
        return _EXTEND
    if file.manifest.request.kind == "staged" or file.manifest.request.unsaid:
        return "compile it again where it was made, and save that"
    return "recompile=True, or --recompile, compiles it again with the saved options; `ostinato compile FILE --recompile --output FILE` keeps that"
