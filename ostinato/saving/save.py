"""An executable written as an artifact: everything that loading it again needs to be checked and to run, but for what is elsewhere anyway.

Weights stay in their checkpoint, which the artifact names and knows again; `weights=True` puts them in, with the tokenizer. Code objects of a GPU go in with
the program, to be used by who trusts the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.first_use import FirstUse
from ostinato.backend_hip.evidence.known import Known
from ostinato.backend_hip.evidence.records import ValidationRecord, write_record
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.hip_table import instances_of
from ostinato.backend_hip.prebuilt import Module
from ostinato.backend_hip.vendor_choices import vendor_choices
from ostinato.backend_hip.vendor_record import Record
from ostinato.frontend.checkpoints import Checkpoint
from ostinato.frontend.source import CheckpointSource
from ostinato.ir.checks import boolean
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import need_writable
from ostinato.ir.step import KernelCall, StepKind
from ostinato.ir.target import Target
from ostinato.ir.text import print_graph
from ostinato.planner.saved import program_to_json
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.saving.container import Content, Written, write_members
from ostinato.saving.embedded import embedded_contents, embedded_model
from ostinato.saving.facts import environment_of, extensions_of, has_vendor_steps, identity_of, sources_of
from ostinato.saving.manifest import (
    CODE,
    DECISIONS,
    MANIFEST,
    PLAN,
    RECORDS,
    CodeObject,
    EntryFiles,
    Manifest,
    Member,
    Request,
    graph_member,
)
from ostinato.saving.read import DECISION_TABLE

__all__ = ["ArtifactSaver"]


@dataclass(frozen=True, slots=True)
class ArtifactSaver:
    """Saves executables of a program that was made as `request` says."""

    request: Request

    def __call__(self, executable: Executable, path: Path, *, weights: bool = False, whole: bool = False) -> Path:
        """Writes the artifact and returns its path; see `Executable.save`."""
        embed, read_all = boolean(weights, "weights"), boolean(whole, "whole")
        program, checkpoint = executable.program, _checkpoint_of(executable)
        need_writable(path)
        originals = {name: program.original(name) for name in program.plan.entries}
        sources = sources_of(originals.values(), program.target)
        contents = list(_program_contents(program))
        modules = _modules(executable)
        code = [
            CodeObject(
                member=f"{CODE}/{number}", key=module.key, file=module.file, kernels=tuple(sorted(module.kernels))
            )
            for number, module in enumerate(modules)
        ]
        contents += [Content.of(item.member, module.code) for item, module in zip(code, modules, strict=True)]
        model = None
        if embed:
            model = embedded_model(checkpoint, recipe=self.request.kind in ("encoder", "embedder"))
            contents += embedded_contents(checkpoint, model)
        manifest = partial(
            Manifest,
            abi_version=_native.abi_version(),
            request=self.request,
            target=program.target.name,
            device=program.target.device,
            entries=tuple(
                EntryFiles(name=name, graph=graph_member(number)) for number, name in enumerate(program.plan.entries)
            ),
            environment=environment_of(executable.device),
            rows=sources.rows,
            kernels=sources.kernels,
            extensions=extensions_of(originals.values(), sources),
            model=identity_of(checkpoint, whole=read_all),
            embedded=model,
            vendor=_vendor_choices(executable),
            code=tuple(code),
        )

        def closing(written: Sequence[Written]) -> Content:
            members = {item.name: Member(size=item.size, digest=item.digest) for item in written}
            return Content.of(MANIFEST, manifest(members=members).model_dump_json(indent=1).encode())

        write_members(path, contents, closing)
        return path


def _checkpoint_of(executable: Executable) -> Checkpoint:
    """The checkpoint whose weights the executable has. Raises `ConfigError` where it has others."""
    source = executable.program.source
    if not isinstance(source, CheckpointSource):
        raise ConfigError("its weights are of no checkpoint", hint="save what was compiled from a model")
    if replaced := executable.regions.shared.replaced:
        raise ConfigError(
            f"weights were replaced since it was compiled ({', '.join(sorted(replaced)[:3])}), which an artifact would lose",
            hint="write the weights as a checkpoint (ostinato.export_model), compile that and save it",
        )
    return source.checkpoint


def _program_contents(program: Program) -> Iterator[Content]:
    """Plan, graphs, decisions and the records they rest on."""
    yield Content.of(PLAN, program_to_json(program.plan, program.graphs).encode())
    for number, name in enumerate(program.plan.entries):
        yield Content.of(graph_member(number), print_graph(program.original(name)).encode())
    decisions = {entry: dict(nodes) for entry, nodes in program.decisions.items()}
    yield Content.of(DECISIONS, DECISION_TABLE.dump_json(decisions, indent=1))
    used = {record for nodes in decisions.values() for decision in nodes.values() for record in decision.evidence}
    lines = {write_record(record) for record in _records(program.target) if record.id in used}
    yield Content.of(RECORDS, "".join(sorted(lines)).encode())


def _records(target: Target) -> Sequence[ValidationRecord]:
    """The validations that are known of a target's rows; none where rows are on trust."""
    evidence = target.evidence.known if isinstance(target.evidence, FirstUse) else target.evidence
    return evidence.validations if isinstance(evidence, Known) else ()


def _modules(executable: Executable) -> list[Module]:
    """The compiled kernels of a GPU's program, in an order of their own; none on the host, whose kernels are the library's."""
    device = executable.device
    if not isinstance(device, HipDevice):
        return []
    calls = [KernelCall.of(step) for entry in executable.entries.values() for step in entry.steps]
    return sorted(
        device.kernels.compiled(instances_of(calls)), key=lambda module: (module.file, sorted(module.kernels))
    )


def _vendor_choices(executable: Executable) -> tuple[Record, ...]:
    """The algorithms that the products of a program have here."""
    device, plan = executable.device, executable.program.plan
    if not isinstance(device, HipDevice) or not has_vendor_steps(plan):
        return ()
    choices = vendor_choices(device.native, device.kernels.cache.folder)
    found: dict[tuple[object, ...], Record] = {}
    for entry in plan.entries.values():
        for step in entry.steps:
            if step.kind is StepKind.GEMM:
                workspace = 0 if step.workspace is None else step.workspace.size
                found.setdefault((step.params, workspace), dict(choices.chosen(step.params, workspace, step.node)))
    return tuple(found.values())
