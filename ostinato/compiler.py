"""The wiring: model -> traced -> lowered -> planned -> executable. No policy lives here.

Each stage is a value that prints as its text form and can be handed on; `compile` is the shortcut through all of them for a decoder served in buckets, and
`compile_encoder` for an encoder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ostinato.backend_hip.device import open_named
from ostinato.backend_hip.target import host_target
from ostinato.frontend.embed import trace_embed
from ostinato.frontend.model import CacheShape, Model, load, trace_forward, trace_step
from ostinato.frontend.source import CheckpointSource
from ostinato.ir.checks import instance, integer
from ostinato.ir.errors import ConfigError, NotYetAvailable, ShapeError
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.ir.text import print_graph
from ostinato.passes.base import Decision
from ostinato.passes.pipeline import PipelineOptions, settled_options
from ostinato.passes.runner import PipelineReport, run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan, ProgramPlan, print_program
from ostinato.planner.program import build_program
from ostinato.planner.settings import DEFAULT_SETTINGS, PlanSettings
from ostinato.runtime.device import Device
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.options import bucket_entries, bucket_sizes, check_progress, context_length, resolve_mode
from ostinato.runtime.program import Program
from ostinato.runtime.weights import Progress

__all__ = [
    "Lowered",
    "Planned",
    "Traced",
    "compile",
    "compile_encoder",
    "load_text_program",
    "open_device",
    "open_model",
    "plan_text_program",
    "positions_of",
    "trace",
]


@dataclass(frozen=True, slots=True)
class Planned:
    """A program of one planned entry, with the graph it came from."""

    model: Model
    lowered: Lowered
    program: ProgramPlan

    def __str__(self) -> str:
        return print_program(self.program)

    def __repr__(self) -> str:
        stats = self.plan.stats
        return f"<planned {self.lowered.name}: {stats.steps} steps, arena {stats.arena_bytes} bytes>"

    @property
    def plan(self) -> EntryPlan:
        """The entry's plan."""
        return self.program.entries[self.lowered.name]

    def check(self) -> None:
        """Runs the independent checker; raises `PlanError` listing every violation."""
        check_program(self.program, {self.lowered.name: self.lowered.graph}, self.lowered.target)

    def load(self, device: Device | str = "auto", mode: str = "auto") -> Executable:
        """Checks the plan and loads it on a device (the host by default). Raises what `compile` raises for plan, device, mode and weights."""
        chosen, reason = resolve_mode(mode, "report")
        opened = open_device(device)
        self.check()
        graphs, source = {self.lowered.name: self.lowered.graph}, CheckpointSource(self.model.checkpoint)
        program = Program(self.program, graphs, self.lowered.target, source)
        return load_program(program, opened, mode=chosen, reason=reason, kind=Executable)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph after the passes: every node has an implementation, every value a layout."""

    model: Model
    name: str
    dims: Mapping[str, int]
    target: Target
    report: PipelineReport

    def __str__(self) -> str:
        return print_graph(self.graph)

    def __repr__(self) -> str:
        return f"<lowered {self.name} for {self.target.name}: {dict(self.dims)}, {len(self.graph.nodes)} nodes>"

    @property
    def graph(self) -> Graph:
        return self.report.graph

    @property
    def decisions(self) -> Mapping[str, Decision]:
        """Chosen row and rejected candidates by node name."""
        return self.report.decisions

    def plan_entry(self, settings: PlanSettings = DEFAULT_SETTINGS) -> EntryPlan:
        """The plan of this graph alone, not yet part of a program."""
        options = self.report.options
        return plan_entry(self.graph, self.target, name=self.name, dims=self.dims, options=options, settings=settings)

    def plan(self, memory_limit: int | None = None) -> Planned:
        """Plans the bytes. `memory_limit` needs recomputation, which this version does not have: `NotYetAvailable`."""
        if memory_limit is not None:
            raise NotYetAvailable(
                "memory_limit needs recomputation, which this version does not have", hint="leave memory_limit out"
            )
        return Planned(self.model, self, build_program({self.name: (self.graph, self.plan_entry())}))


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph with symbolic dimensions."""

    model: Model
    graph: Graph
    precision: str

    def __str__(self) -> str:
        return print_graph(self.graph)

    def __repr__(self) -> str:
        return f"<traced {self.graph.name}: {len(self.graph.nodes)} nodes, {self.precision}>"

    def lower(
        self,
        target: Target | None = None,
        *,
        dims: Mapping[str, int],
        name: str | None = None,
        levels: Mapping[str, str] | None = None,
        disable: Iterable[str] = (),
        options: PipelineOptions | None = None,
    ) -> Lowered:
        """Binds the dimensions and runs the passes for a target (the host by default).

        `levels` forces rows: operator or node name -> the name of a row or of a level, which alone may then serve it. `disable` leaves optional passes out by
        name. Both come on top of `options` (default: none, in the trace's precision).

        Raises `ConfigError` for options of the wrong kind or another precision than the trace's, and for names of passes, operators, nodes, rows or levels
        that do not exist (with those that do); `ShapeError` for missing, unknown or unsuitable dimensions; `LayoutError` for weights whose readers disagree
        and for work on weights alone; `BackendError` for nodes that no row takes.
        """
        if not isinstance(dims, Mapping):
            raise ConfigError(f"dims are {dims!r}", hint="give an integer by name for each dimension of the graph")
        chosen = instance(target, Target, "target") or host_target()
        asked = settled_options(options, self.precision, levels, disable)
        plain = {key: integer(value, f"dimension {key}", error=ShapeError) for key, value in dims.items()}
        report = run_pipeline(self.graph.bind(plain), chosen, asked)
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
    """Traces a model: entry "forward" (dense over whole sequences) or "step" (packed over a cache, see `trace_step`) of a decoder, "embed" of an encoder (see
    `trace_embed`).

    Raises `ConfigError` for an entry, cache, logits or precision that is unknown, and for an unsupported architecture; `WeightsError` for a checkpoint that is
    missing, damaged or does not fit its model.
    """
    opened = open_model(model)
    if entry == "forward":
        graph = trace_forward(opened, logits=logits, precision=precision)
    elif entry == "step":
        shape = instance(cache, CacheShape, "cache") or CacheShape(1, positions_of(opened, None), 1)
        graph = trace_step(opened, shape, logits=logits, precision=precision, sampling=sampling)
    elif entry == "embed":
        graph = trace_embed(opened, precision=precision)
    else:
        raise ConfigError(f"entry {entry!r} is unknown", hint='use "forward", "step" or "embed"')
    return Traced(opened, graph, opened.precision(precision))


def plan_text_program(
    traced: Traced, buckets: Mapping[str, Mapping[str, int]], options: PipelineOptions | None = None
) -> Program:
    """Lowers, plans and checks a packed graph for each bucket (entry name -> dims) over shared regions."""
    target = host_target()
    lowered = {name: traced.lower(target, dims=dims, name=name, options=options) for name, dims in buckets.items()}
    plan = build_program({name: (item.graph, item.plan_entry()) for name, item in lowered.items()})
    graphs = {name: item.graph for name, item in lowered.items()}
    check_program(plan, graphs, target)
    return Program(plan, graphs, target, CheckpointSource(traced.model.checkpoint))


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
    levels: Mapping[str, str] | None = None,
    disable: Iterable[str] = (),
    progress: Progress | None = None,
) -> TextExecutable:
    """Compiles a model for buckets of B sequences times T tokens (one sequence of 128 or 512 by default); the result is callable on token ids.

    `context` is how many positions a sequence can hold (2048 or the largest T by default, as far as the model allows); longer prompts than T are chunked.
    `mode` "auto" is the fastest the device has; a mode the device lacks falls back and says why in `.reason`, or raises with `on_fallback="raise"`.
    `precision` is the dtype of activations. `levels` forces rows and `disable` leaves passes out, as in `Traced.lower`.

    Raises what `trace` and `Traced.lower` raise; `ConfigError` for buckets, context, mode, device, threads or isa that cannot be used; `DeviceUnavailable` for
    a device that is not here; `NotYetAvailable` for a fallback with `on_fallback="raise"`; `PlanError` for a plan that is not proven; `CapacityError` when
    memory is short.
    """
    opened = open_model(model)
    batches, lengths = bucket_sizes(buckets, opened.config.context_limit)
    cache = CacheShape(max(batches), positions_of(opened, context, lengths), 1)
    traced = trace(opened, "step", cache=cache, logits=logits, precision=precision)
    entries = bucket_entries("prefill", batches, lengths)
    program = plan_text_program(traced, entries, settled_options(None, traced.precision, levels, disable))
    return load_text_program(program, device, mode, threads, isa, on_fallback, progress, TextExecutable)


def compile_encoder(
    model: Model | str | os.PathLike[str],
    *,
    buckets: Mapping[str, Sequence[int]] | None = None,
    device: str | Device = "auto",
    mode: str = "auto",
    precision: str = "auto",
    threads: int = 0,
    isa: str = "auto",
    on_fallback: str = "report",
    levels: Mapping[str, str] | None = None,
    disable: Iterable[str] = (),
    progress: Progress | None = None,
) -> EmbedExecutable:
    """Compiles an encoder for steps of up to B texts and B * T tokens in all (one text of 128 or 512 by default); the result is callable on token ids.

    How the tokens of a step are shared out among its texts is free. The other arguments and errors are those of `compile`.
    """
    opened = open_model(model)
    batches, lengths = bucket_sizes(buckets, opened.config.context_limit)
    traced = trace(opened, "embed", precision=precision)
    options = settled_options(None, traced.precision, levels, disable)
    program = plan_text_program(traced, bucket_entries("embed", batches, lengths), options)
    return load_text_program(program, device, mode, threads, isa, on_fallback, progress, EmbedExecutable)


_E = TypeVar("_E", bound=Executable)


def load_text_program(
    program: Program,
    device: str | Device,
    mode: str,
    threads: int,
    isa: str,
    on_fallback: str,
    progress: Progress | None,
    kind: type[_E],
) -> _E:
    """Opens the device, settles the mode and loads the weights into an executable of that kind."""
    chosen, reason = resolve_mode(mode, on_fallback)
    check_progress(progress)
    opened = open_device(device, threads, isa)
    return load_program(program, opened, mode=chosen, reason=reason, progress=progress, kind=kind)


def open_model(model: Model | str | os.PathLike[str]) -> Model:
    """The model itself, or the one at a path or of that name; raises what `load` raises."""
    return model if isinstance(model, Model) else load(model)


def positions_of(model: Model, context: int | None, lengths: Sequence[int] = ()) -> int:
    """Positions a sequence of this model holds: `context_length` with the model's limit."""
    limit = model.config.context_limit
    return context_length(context, limit, lengths=lengths, node=str(model.checkpoint.path))


def open_device(device: str | Device = "auto", threads: int = 0, isa: str = "auto") -> Device:
    """The device itself, or the one of that name (`open_named`); raises `ConfigError` for what is neither."""
    if isinstance(device, str):
        return open_named(device, threads, isa)
    if not hasattr(device, "make_table"):
        raise ConfigError(f"device is {device!r}", hint='use "auto", "cpu" or "hip", or an open device')
    return device
