"""The shortcuts through all stages (`stages.py`): a decoder served in buckets, an encoder, and the program of several entries that either becomes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from ostinato.backend_hip.evidence.first_use import with_validation
from ostinato.frontend.model import CacheShape, Model
from ostinato.frontend.source import CheckpointSource
from ostinato.ir.errors import CapacityError
from ostinato.ir.evidence import sum_of
from ostinato.ir.files import read_text
from ostinato.ir.graph import Graph
from ostinato.ir.precision import PrecisionPolicy
from ostinato.ir.target import Target
from ostinato.passes.pipeline import PipelineOptions, settled_options
from ostinato.passes.policy import Policy
from ostinato.planner.check import check_program
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.program import build_program
from ostinato.planner.saved import read_plan
from ostinato.planner.settings import DEFAULT_SETTINGS, PlanSettings
from ostinato.runtime.device import Device
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.options import Route, bucket_entries, bucket_sizes, check_progress, settle_route
from ostinato.runtime.program import Program
from ostinato.runtime.weights import Progress
from ostinato.saving.manifest import Kind
from ostinato.saving.request import request_of
from ostinato.saving.save import ArtifactSaver
from ostinato.stages import Entries, Lowered, Passes, open_device, open_model, plan_settings, positions_of, trace

__all__ = [
    "Choices",
    "compile",
    "compile_encoder",
    "load_entries",
    "load_text_plan",
    "plan_text_program",
]


_E = TypeVar("_E", bound=Executable)


class Choices(TypedDict, total=False):
    """The arguments of `compile` that say how any entries are compiled, beside the precision that they were traced in."""

    mode: str
    memory_limit: int | str | None
    reuse: bool
    levels: Mapping[str, str] | None
    disable: Iterable[str]
    policy: Policy | str
    passes: Passes
    validate: str | None
    progress: Progress | None


def _lower_all(entries: Entries, target: Target, options: PipelineOptions | None = None) -> dict[str, Lowered]:
    """Lowers the graph of each entry."""
    return {
        name: traced.lower(target, dims=dims, name=name, options=options) for name, (traced, dims) in entries.items()
    }


def plan_text_program(
    entries: Entries,
    target: Target,
    options: PipelineOptions | None = None,
    settings: PlanSettings = DEFAULT_SETTINGS,
) -> Program:
    """Lowers, plans and checks the packed graphs of one model over shared regions; a limit of memory is one of their arena."""
    lowered = _lower_all(entries, target, options)
    fitted: dict[str, tuple[Graph, EntryPlan]] = {}
    short: list[CapacityError] = []
    for name, item in lowered.items():
        try:
            fitted[name] = item.fit_entry(settings)
        except CapacityError as error:
            short.append(error)
    if len(short) > 1:
        raise CapacityError("\n".join(f"{error.node}: {error.message}" for error in short), hint=short[0].hint)
    if short:
        raise short[0]
    return _proven(build_program(fitted), {name: graph for name, (graph, _) in fitted.items()}, lowered)


def load_text_plan(
    path: str | os.PathLike[str],
    entries: Entries,
    target: Target,
    options: PipelineOptions | None = None,
    settings: PlanSettings = DEFAULT_SETTINGS,
) -> Program:
    """`plan_text_program` with a plan that was saved: lowers, reads and checks. Raises what `Lowered.load_plan` raises."""
    lowered = _lower_all(entries, target, options)
    purposes = {name: item.purpose(settings) for name, item in lowered.items()}
    saved = read_plan(read_text(Path(path)), target, purposes)
    return _proven(saved.plan, saved.graphs, lowered)


def _proven(plan: ProgramPlan, graphs: Mapping[str, Graph], lowered: Mapping[str, Lowered]) -> Program:
    """The program of a plan, checked; `graphs` are at least those of entries that recompute values."""
    *_, last = lowered.values()
    sources = {name: item.graph for name, item in lowered.items()}
    planned = {**sources, **graphs}
    check_program(plan, planned, last.target, sources=sources)
    decisions = {name: item.decisions for name, item in lowered.items()}
    done = sum_of(item.validations for item in lowered.values())
    source, relower = CheckpointSource(last.model.checkpoint), {name: item.relower for name, item in lowered.items()}
    return Program(plan, planned, last.target, source, sources, decisions, done, relower)


def compile(  # noqa: A001 - the design's public name
    model: Model | str | os.PathLike[str],
    *,
    buckets: Mapping[str, Sequence[int]] | None = None,
    device: str | Device = "auto",
    mode: str = "auto",
    logits: str = "last",
    precision: str | PrecisionPolicy = "auto",
    context: int | None = None,
    memory_limit: int | str | None = None,
    reuse: bool = True,
    threads: int = 0,
    isa: str = "auto",
    on_fallback: str = "report",
    capture: Sequence[str] | None = None,
    markers: bool | None = None,
    levels: Mapping[str, str] | None = None,
    disable: Iterable[str] = (),
    policy: Policy | str = "balanced",
    passes: Passes = (),
    validate: str | None = None,
    progress: Progress | None = None,
) -> TextExecutable:
    """Compiles a model for buckets of B sequences times T tokens (one sequence of 128 or 512 by default); the result is callable on token ids.

    `context` is how many positions a sequence can hold (2048 or the largest T by default, as far as the model allows); longer prompts than T are chunked.
    `mode` "auto" is the fastest the device has; a mode the device lacks falls back and says why in `.reason`, or raises with `on_fallback="raise"`. "guarded"
    watches every byte of activations and raises `BackendError` for a kernel that leaves its own. "captured" replays each entry as one graph of a GPU, or only
    the steps that `capture` names, by patterns like "layers.0" or "ffn", with the steps between them submitted one by one. `reuse=False` gives every activation
    bytes of its own. With `markers` (by default where OSTINATO_MARKERS is 1) steps and replays are ranges for Nsight Systems or rocprof (docs/profile.md).
    `precision` is the dtype of activations, `policy` the numerics: "strict", "batch_invariant", "balanced" or "fast" (docs/choose.md). `levels` forces rows,
    `disable` leaves passes out and `passes` adds your own, as in `Traced.lower`. `memory_limit` is the most that the arena may take, in bytes or as a text like
    "512M": values that do not fit are computed again. `validate` says what happens to rows that no record says are right here: "first-use" (the default, unless
    OSTINATO_VALIDATE says otherwise) validates them, once on a machine, "never" uses the plainest rows in their place (docs/evidence.md).

    Raises what `trace` and `Traced.lower` raise; `ConfigError` for buckets, context, mode, device, threads or isa that cannot be used, and for a fallback with
    `on_fallback="raise"`; `DeviceUnavailable` for a device that is not here; `PlanError` for a plan that is not proven; `CapacityError` when memory is short,
    or no plan keeps to `memory_limit`.
    """
    route = settle_route(open_device(device, threads, isa), mode, on_fallback, capture, markers)
    check_progress(progress)
    opened = open_model(model)
    batches, lengths = bucket_sizes(buckets, opened.config.context_limit)
    cache = CacheShape(max(batches), positions_of(opened, context, lengths), 1)
    traced = trace(opened, "step", cache=cache, logits=logits, precision=precision)
    entries = traced.at(bucket_entries("prefill", batches, lengths))
    return load_entries(
        entries,
        route,
        TextExecutable,
        "text",
        {"buckets": {"B": batches, "T": lengths}, "context": context, "logits": logits},
        precision=precision,
        mode=mode,
        memory_limit=memory_limit,
        reuse=reuse,
        levels=levels,
        disable=disable,
        policy=policy,
        passes=passes,
        validate=validate,
        progress=progress,
    )


def compile_encoder(
    model: Model | str | os.PathLike[str],
    *,
    buckets: Mapping[str, Sequence[int]] | None = None,
    device: str | Device = "auto",
    mode: str = "auto",
    precision: str | PrecisionPolicy = "auto",
    memory_limit: int | str | None = None,
    reuse: bool = True,
    threads: int = 0,
    isa: str = "auto",
    on_fallback: str = "report",
    capture: Sequence[str] | None = None,
    markers: bool | None = None,
    levels: Mapping[str, str] | None = None,
    disable: Iterable[str] = (),
    policy: Policy | str = "balanced",
    passes: Passes = (),
    validate: str | None = None,
    progress: Progress | None = None,
) -> EmbedExecutable:
    """Compiles an encoder for steps of up to B texts and B * T tokens in all (one text of 128 or 512 by default); the result is callable on token ids.

    How the tokens of a step are shared out among its texts is free. The other arguments and errors are those of `compile`.
    """
    route = settle_route(open_device(device, threads, isa), mode, on_fallback, capture, markers)
    check_progress(progress)
    opened = open_model(model)
    batches, lengths = bucket_sizes(buckets, opened.config.context_limit)
    traced = trace(opened, "embed", precision=precision)
    entries = traced.at(bucket_entries("embed", batches, lengths))
    return load_entries(
        entries,
        route,
        EmbedExecutable,
        "encoder",
        {"buckets": {"B": batches, "T": lengths}},
        precision=precision,
        mode=mode,
        memory_limit=memory_limit,
        reuse=reuse,
        levels=levels,
        disable=disable,
        policy=policy,
        passes=passes,
        validate=validate,
        progress=progress,
    )


def load_entries(
    entries: Entries,
    route: Route,
    kind: type[_E],
    door: Kind,
    sizes: Mapping[str, Any],
    *,
    precision: str | PrecisionPolicy = "auto",
    mode: str = "auto",
    memory_limit: int | str | None = None,
    reuse: bool = True,
    levels: Mapping[str, str] | None = None,
    disable: Iterable[str] = (),
    policy: Policy | str = "balanced",
    passes: Passes = (),
    validate: str | None = None,
    progress: Progress | None = None,
) -> _E:
    """The entries of a program on a route: lowered, with rows validated as `validate` says, planned, checked and loaded.

    `door` is the front door that this was asked of and `sizes` are its arguments that are not among these, for who compiles a saved program again. Raises what
    `compile` raises.
    """
    traced, _ = next(iter(entries.values()))
    options = settled_options(None, traced.precision, levels=levels, disable=disable, policy=policy, passes=passes)
    settings = plan_settings(memory_limit, reuse, mode)
    asked = request_of(door, traced.model.family, precision, mode, options, settings, route, **sizes)
    program = plan_text_program(entries, with_validation(route.device.target, validate, progress), options, settings)
    return load_program(replace(program, saver=ArtifactSaver(asked)), route, progress=progress, kind=kind)
