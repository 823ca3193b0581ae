"""The wiring: model -> traced -> lowered -> planned -> executable. No policy lives here.

Each stage is a value that prints and can be handed on; `compile` is the shortcut through all of them for a decoder served in buckets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.frontend.model import CacheShape, Model, load, trace_forward, trace_step
from ostinato.frontend.source import CheckpointSource
from ostinato.ir.checks import integer, integers
from ostinato.ir.errors import ConfigError, DeviceUnavailable, NotYetAvailable, ShapeError
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.passes.base import Decision
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import PipelineReport, run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.program import build_program
from ostinato.runtime.device import Device
from ostinato.runtime.executable import MODES, Executable, load_program
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.program import Program
from ostinato.runtime.weights import Progress

__all__ = ["Lowered", "Planned", "Traced", "compile", "open_device", "plan_text_program", "trace"]

DEFAULT_TOKENS = (128, 512)
DEFAULT_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Planned:
    """A program of one planned entry, with the graph it came from."""

    model: Model
    lowered: Lowered
    program: ProgramPlan

    @property
    def plan(self) -> EntryPlan:
        """The entry's plan."""
        return self.program.entries[self.lowered.name]

    def check(self) -> None:
        """Runs the independent checker; raises `PlanError` listing every violation."""
        check_program(self.program, {self.lowered.name: self.lowered.graph}, self.lowered.target)

    def load(self, device: Device | str = "auto", mode: str = "auto") -> Executable:
        """Checks the plan and loads it on a device (the host by default). Raises what `compile` raises for them."""
        chosen, reason = resolve_mode(mode, "report")
        opened = open_device(device)
        self.check()
        program = Program(
            self.program,
            {self.lowered.name: self.lowered.graph},
            self.lowered.target,
            CheckpointSource(self.model.checkpoint),
        )
        return load_program(program, opened, mode=chosen, reason=reason, kind=Executable)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph after the passes: every node has an implementation, every value a layout."""

    model: Model
    name: str
    dims: Mapping[str, int]
    target: Target
    report: PipelineReport

    @property
    def graph(self) -> Graph:
        return self.report.graph

    @property
    def decisions(self) -> Mapping[str, Decision]:
        """Chosen row and rejected candidates by node name."""
        return self.report.decisions

    def plan_entry(self) -> EntryPlan:
        """The plan of this graph alone, not yet part of a program."""
        return plan_entry(self.graph, self.target, name=self.name, dims=self.dims, options=self.report.options)

    def plan(self, memory_limit: int | None = None) -> Planned:
        """Plans the bytes. `memory_limit` needs recomputation, which this version does not have: `NotYetAvailable`."""
        if memory_limit is not None:
            raise NotYetAvailable("memory_limit needs recomputation, which this version does not have")
        return Planned(self.model, self, build_program({self.name: (self.graph, self.plan_entry())}))


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph with symbolic dimensions."""

    model: Model
    graph: Graph
    precision: str

    def lower(
        self,
        target: Target | None = None,
        *,
        dims: Mapping[str, int],
        name: str | None = None,
        disable: Iterable[str] = (),
    ) -> Lowered:
        """Binds the dimensions and runs the passes for a target (the host by default), but those named in `disable`."""
        if not isinstance(dims, Mapping):
            raise ConfigError(f"dims are {dims!r}", hint="give an integer by name for each dimension of the graph")
        if target is not None and not isinstance(target, Target):
            raise ConfigError(f"target is {target!r}, expected a Target", hint="leave it out for the host")
        chosen = target or host_target()
        plain = {key: integer(value, f"dimension {key}", error=ShapeError) for key, value in dims.items()}
        options = PipelineOptions(precision=self.precision, disable=pass_names(disable))
        report = run_pipeline(self.graph.bind(plain), chosen, options)
        return Lowered(self.model, name or self.graph.name, plain, chosen, report)


def trace(
    model: Model | str | os.PathLike[str],
    entry: str = "forward",
    *,
    cache: CacheShape | None = None,
    logits: str = "last",
    precision: str = "auto",
    sampling: bool = False,
) -> Traced:
    """Traces a model: entry "forward" (dense over whole sequences) or "step" (packed over a cache, see `trace_step`)."""
    opened = open_model(model)
    if entry == "forward":
        graph = trace_forward(opened, logits=logits, precision=precision)
    elif entry == "step":
        if cache is not None and not isinstance(cache, CacheShape):
            raise ConfigError(f"cache is {cache!r}, expected a CacheShape", hint="leave it out for one sequence")
        shape = cache or CacheShape(1, min(DEFAULT_CONTEXT, opened.config.max_position_embeddings), 1)
        graph = trace_step(opened, shape, logits=logits, precision=precision, sampling=sampling)
    else:
        raise ConfigError(f"entry {entry!r} is unknown", hint='use "forward" or "step"')
    return Traced(opened, graph, opened.precision(precision))


def plan_text_program(
    traced: Traced,
    buckets: Mapping[str, Mapping[str, int]],
    disable: Iterable[str] = (),
    target: Target | None = None,
) -> Program:
    """Lowers, plans and checks a step graph for each bucket (entry name -> dims) over shared regions."""
    chosen, disable = target or host_target(), pass_names(disable)
    lowered = {name: traced.lower(chosen, dims=dims, name=name, disable=disable) for name, dims in buckets.items()}
    plan = build_program({name: (item.graph, item.plan_entry()) for name, item in lowered.items()})
    graphs = {name: item.graph for name, item in lowered.items()}
    check_program(plan, graphs, chosen)
    return Program(plan, graphs, chosen, CheckpointSource(traced.model.checkpoint))


def compile(  # noqa: A001 - the design's public name
    model: Model | str | os.PathLike[str],
    *,
    buckets: Mapping[str, Sequence[int]] | None = None,
    device: str | Device = "auto",
    mode: str = "auto",
    logits: str = "last",
    precision: str = "auto",
    context: int | None = None,
    threads: int = 0,
    isa: str = "auto",
    on_fallback: str = "report",
    disable: Iterable[str] = (),
    progress: Progress | None = None,
) -> TextExecutable:
    """Compiles a model for buckets of B sequences times T tokens (one sequence of 128 or 512 by default); the result is callable on token ids.

    `context` is how many positions a sequence can hold (2048 or the largest T by default, as far as the model allows); longer prompts than T are chunked.
    `mode` "auto" is the fastest the device has; a mode the device lacks falls back and says why in `.reason`, or raises with `on_fallback="raise"`.
    """
    opened = open_model(model)
    limit = opened.config.max_position_embeddings
    if buckets is None:
        buckets = {"B": (1,), "T": sorted({min(tokens, limit) for tokens in DEFAULT_TOKENS})}
    batches, lengths = _bucket_sizes(buckets)
    rows, longest = max(batches), max(lengths)
    positions = max(longest, min(DEFAULT_CONTEXT, limit)) if context is None else context
    positions = check_context(opened, positions)
    traced = trace(opened, "step", cache=CacheShape(rows, positions, 1), logits=logits, precision=precision)
    dims = {(b, b * t): {"N": b * t, "R": b} for b in batches for t in lengths}
    program = plan_text_program(traced, {f"prefill[N={n},R={r}]": d for (r, n), d in dims.items()}, disable)
    return load_text_program(program, device, mode, threads, isa, on_fallback, progress)


def load_text_program(
    program: Program,
    device: str | Device,
    mode: str,
    threads: int,
    isa: str,
    on_fallback: str,
    progress: Progress | None,
) -> TextExecutable:
    """Opens the device, settles the mode and loads the weights."""
    chosen, reason = resolve_mode(mode, on_fallback)
    opened = open_device(device, threads, isa)
    return load_program(program, opened, mode=chosen, reason=reason, progress=progress, kind=TextExecutable)


def open_model(model: Model | str | os.PathLike[str]) -> Model:
    """The model itself, or the one at a path or of that name; raises what `load` raises."""
    return model if isinstance(model, Model) else load(model)


def pass_names(names: Iterable[str]) -> frozenset[str]:
    """Names of passes to leave out, from any collection of them."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(f"disable is {names!r}, expected a list of pass names")
    return frozenset(names)


def _bucket_sizes(buckets: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    hint = 'give positive sizes for both, like {"B": [1], "T": [128, 512]}'
    if not isinstance(buckets, Mapping) or set(buckets) != {"B", "T"}:
        raise ConfigError(f"buckets {buckets!r} are not usable", hint=hint)
    batches, lengths = (integers(buckets[axis], f"buckets[{axis!r}]", low=1) for axis in ("B", "T"))
    if not batches or not lengths:
        raise ConfigError(f"buckets {dict(buckets)} are not usable", hint=hint)
    return batches, lengths


def open_device(name: str | Device = "auto", threads: int = 0, isa: str = "auto") -> Device:
    """Opens a device: "auto" and "cpu" are the host; "hip" raises `DeviceUnavailable` in this version. An open device is taken as it is."""
    if not isinstance(name, str):
        if not hasattr(name, "make_table"):
            raise ConfigError(f"device is {name!r}", hint='use "auto", "cpu" or "hip", or an open device')
        return name
    if name in ("auto", "cpu"):
        return HostDevice(threads=threads, isa=isa)
    if name.partition(":")[0] == "hip":
        raise DeviceUnavailable("the HIP backend is not yet available in this version", hint='use device="cpu"')
    raise ConfigError(f"device {name!r} is unknown", hint='use "auto", "cpu" or "hip"')


def resolve_mode(mode: str, on_fallback: str) -> tuple[str, str]:
    """The mode that will run and why it is not the one asked for."""
    if on_fallback not in ("report", "raise"):
        raise ConfigError(f"on_fallback={on_fallback!r} is unknown", hint='use "report" or "raise"')
    if mode == "auto":
        return "planned", "auto: planned is the fastest mode of the host device"
    if mode not in MODES:
        raise ConfigError(f"mode {mode!r} is unknown", hint=f"use auto or one of {', '.join(MODES)}")
    if mode == "captured":
        reason = "captured needs a GPU and the HIP backend; the host device replays a step table instead"
        if on_fallback == "raise":
            raise NotYetAvailable(reason, hint='use mode="planned"')
        return "planned", reason
    return mode, ""


def check_context(model: Model, context: int) -> int:
    """The context as a plain integer; raises `ConfigError` for one that the model was not made for."""
    limit = model.config.max_position_embeddings
    context = integer(context, "context")
    if not 1 <= context <= limit:
        raise ConfigError(
            f"context {context} is outside [1, {limit}], the positions of the model", node=str(model.checkpoint.path)
        )
    return context
