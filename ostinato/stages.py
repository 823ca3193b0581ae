"""The stages of a compilation: model -> traced -> lowered -> planned -> executable. No policy lives here.

Each stage is a value that prints as its text form and can be handed on; `compiler.py` has the shortcuts through all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ostinato.backend_hip.evidence.first_use import lowered as validated_lowering
from ostinato.backend_hip.open import open_named
from ostinato.frontend.embed import trace_embed
from ostinato.frontend.model import CacheShape, Model, load, trace_decode, trace_forward, trace_step
from ostinato.frontend.source import CheckpointSource
from ostinato.ir.checks import byte_count, instance, integer, shown
from ostinato.ir.decision import Decision
from ostinato.ir.errors import ConfigError, ShapeError
from ostinato.ir.evidence import Validations
from ostinato.ir.explain import Explanation, explain
from ostinato.ir.explain_layout import LayoutAnswer, explain_layout
from ostinato.ir.files import read_text, write_text
from ostinato.ir.graph import Graph
from ostinato.ir.precision import PrecisionPolicy
from ostinato.ir.target import Target
from ostinato.ir.text import print_graph
from ostinato.passes.base import Pass
from ostinato.passes.copies import Copy, copies_of
from ostinato.passes.pipeline import PipelineOptions, settled_options
from ostinato.passes.policy import Policy
from ostinato.passes.runner import PipelineReport, run_pipeline
from ostinato.passes.traced_values import with_outputs
from ostinato.planner.check import check_program
from ostinato.planner.explain import AddressAnswer, PeakAnswer, explain_address, explain_peak
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.plan_text import print_program
from ostinato.planner.problem import Problem
from ostinato.planner.program import build_program
from ostinato.planner.recompute.fit import fit_entry
from ostinato.planner.saved import Purpose, program_to_json, read_plan
from ostinato.planner.settings import DEFAULT_SETTINGS, GUARD_BYTES, PlanSettings
from ostinato.runtime.device import Device
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import context_length, settle_route
from ostinato.runtime.program import Program
from ostinato.saving.manifest import Request
from ostinato.saving.save import ArtifactSaver

__all__ = [
    "Entries",
    "Lowered",
    "Passes",
    "Planned",
    "Traced",
    "open_device",
    "open_model",
    "plan_settings",
    "positions_of",
    "trace",
]


Passes = Iterable[tuple[str, Pass]]
"""Passes of the user's own, each behind a stage that it names."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A program of one planned entry, with the lowered graph it came from and the graph it is the plan of (the same one, but for recomputation)."""

    model: Model
    lowered: Lowered
    graph: Graph
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

    def explain(self, node: str) -> Explanation:
        """Why nodes run as they do, as `Executable.explain` says it."""
        return self.lowered.explain(node)

    def explain_layout(self, value: str) -> LayoutAnswer:
        """Why values lie as they do, as `Executable.explain_layout` says it."""
        return self.lowered.explain_layout(value)

    def explain_address(self, value: str) -> AddressAnswer:
        """Why values have their offsets, as `Executable.explain_address` says it; nothing is loaded here."""
        return explain_address(self.program, {self.lowered.name: self.graph}, value)

    def explain_peak(self) -> PeakAnswer:
        """Who has the arena where it is fullest, and what would lower it, as `Executable.explain_peak` says it."""
        (answer,) = explain_peak(self.program, {self.lowered.name: self.graph})
        return answer

    def check(self) -> None:
        """Runs the independent checker; raises `PlanError` listing every violation."""
        name, lowered = self.lowered.name, self.lowered
        check_program(self.program, {name: self.graph}, lowered.target, sources={name: lowered.graph})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, for `Lowered.load_plan`. Raises `ConfigError` for a place that cannot be written."""
        write_text(Path(path), program_to_json(self.program, {self.lowered.name: self.graph}))

    def problem(self, device: str | None = None) -> Problem:
        """The placement problem that this plan solves, of the arena of the entry's own device or of another one that the plan names."""
        return self.plan.problem(device)

    def load(
        self, device: Device | str = "auto", mode: str = "auto", capture: Sequence[str] | None = None
    ) -> Executable:
        """Checks the plan and loads it on a device (the host by default). Raises what `compile` raises for plan, device, mode, capture and weights."""
        route = settle_route(open_device(device), mode, capture=capture)
        self.check()
        graphs, source = {self.lowered.name: self.graph}, CheckpointSource(self.model.checkpoint)
        sources = {self.lowered.name: self.lowered.graph}
        decisions = {self.lowered.name: self.lowered.decisions}
        relower = {self.lowered.name: self.lowered.relower}
        saver = ArtifactSaver(Request(kind="staged", mode=mode, capture=route.capture))
        done = self.lowered.validations
        program = Program(self.program, graphs, self.lowered.target, source, sources, decisions, done, relower, saver)
        return load_program(program, route, kind=Executable)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph after the passes: every node has an implementation, every value a layout."""

    model: Model
    name: str
    dims: Mapping[str, int]
    target: Target
    report: PipelineReport
    validations: Validations = field(default_factory=Validations)
    """Rows that were validated for it, because they had no record."""
    again: Callable[[Graph], Lowered] | None = field(default=None, repr=False, compare=False)
    """Lowers another graph with the same dimensions, target and options."""
    bound: Graph | None = field(default=None, repr=False, compare=False)
    """The graph before any pass, at these dimensions."""

    def __str__(self) -> str:
        return print_graph(self.graph)

    def __repr__(self) -> str:
        return f"<lowered {self.name} for {self.target.name}: {dict(self.dims)}, {len(self.graph.nodes)} nodes>"

    @property
    def graph(self) -> Graph:
        return self.report.graph

    @property
    def decisions(self) -> Mapping[str, Decision]:
        """Chosen row, its records, and rejected candidates by node name."""
        return self.report.decisions

    def explain(self, node: str) -> Explanation:
        """Why nodes run as they do, as `Executable.explain` says it."""
        return explain({self.name: self.graph}, {self.name: self.decisions}, node)

    def explain_layout(self, value: str) -> LayoutAnswer:
        """Why values lie as they do, as `Executable.explain_layout` says it."""
        return explain_layout({self.name: self.graph}, {self.name: self.decisions}, self.target, value)

    @property
    def copies(self) -> tuple[Copy, ...]:
        """Every node that only moves bytes, with the line that needs it and why no row takes the bytes as they lie."""
        return copies_of(self.graph, self.target)

    def relower(self, choose: Callable[[Graph], Sequence[str]]) -> tuple[Graph, Mapping[str, Decision]]:
        """The graph lowered again with more values kept: as outputs, which no pass may swallow. `choose` names them, of the graph before any pass.

        Raises `ConfigError` where that graph is not at hand, and what `Traced.lower` raises.
        """
        if self.again is None or self.bound is None:
            raise ConfigError(f"{self.name} was lowered elsewhere", hint="trace and lower the model here")
        made = self.again(with_outputs(self.bound, choose(self.bound)))
        return made.graph, made.decisions

    def fit_entry(self, settings: PlanSettings = DEFAULT_SETTINGS, *, thorough: bool = True) -> tuple[Graph, EntryPlan]:
        """The plan of this graph alone, not yet part of a program, and the graph it is the plan of: with clones where a limit of memory asks for them.

        Without `thorough` nobody looks for the smallest plan there is where none fits, to say so.
        """
        return fit_entry(
            self.graph,
            self.target,
            name=self.name,
            dims=self.dims,
            options=self.report.options,
            settings=settings,
            thorough=thorough,
        )

    def plan(self, memory_limit: int | str | None = None) -> Planned:
        """Plans the bytes. `memory_limit` is the most that the arena may take, in bytes or as a text like "512M": what does not fit is computed again.

        Raises `CapacityError` for a limit that no plan found keeps, saying how many bytes are missing and who lives at the peak.
        """
        graph, plan = self.fit_entry(plan_settings(memory_limit))
        return Planned(self.model, self, graph, build_program({self.name: (graph, plan)}))

    def load_plan(self, path: str | os.PathLike[str], memory_limit: int | str | None = None) -> Planned:
        """The plan that `Planned.save` wrote of what `plan` makes with the same limit, proven for this graph; no planning happens.

        Raises `StaleArtifact` that lists every difference for a plan of another graph, target, bucket, library or other options (the limit among them),
        `PlanError` for a file that is damaged or no plan and for a plan that is not proven, `ConfigError` for a file that cannot be read.
        """
        purpose = self.purpose(plan_settings(memory_limit))
        saved = read_plan(read_text(Path(path)), self.target, {self.name: purpose})
        planned = Planned(self.model, self, saved.graphs.get(self.name, self.graph), saved.plan)
        planned.check()
        return planned

    def purpose(self, settings: PlanSettings = DEFAULT_SETTINGS) -> Purpose:
        """What a plan of this graph must be for."""
        return Purpose(self.graph, self.dims, {**self.report.options, **settings.printed()})


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
        policy: Policy | str | None = None,
        passes: Passes = (),
        options: PipelineOptions | None = None,
    ) -> Lowered:
        """Binds the dimensions and runs the passes for a target (the host by default). Rows that the graph would have and that are not validated on the
        target's device are validated first, once (docs/evidence.md); a target that has no device takes them on trust.

        `levels` forces rows: operator or node name -> the name of a row or of a level, which alone may then serve it. `disable` leaves optional passes out by
        name. `policy` is that of numerics, by its name or as a value: "balanced" unless options say otherwise. `passes` are your own, (stage, pass) each, run
        behind that stage. All come on top of `options` (default: none, in the trace's precision).

        Raises `ConfigError` for options of the wrong kind or another precision than the trace's, and for names of passes, operators, nodes, rows, levels or
        policies that do not exist (with those that do); `VerificationError`, naming pass and rule, for a pass of yours that breaks the graph; `ShapeError` for
        missing, unknown or unsuitable dimensions; `LayoutError` for weights whose readers disagree and for work on weights alone; `BackendError` for nodes that
        no row takes.
        """
        if not isinstance(dims, Mapping):
            raise ConfigError(f"dims are {dims!r}", hint="give an integer by name for each dimension of the graph")
        chosen = instance(target, Target, "target") or open_device("cpu").target
        asked = settled_options(options, self.precision, levels=levels, disable=disable, policy=policy, passes=passes)
        plain = {key: integer(value, f"dimension {key}", error=ShapeError) for key, value in dims.items()}
        bound = self.graph.bind(plain)
        called = name or self.graph.name

        def run(graph: Graph) -> Lowered:
            report, proven, done = validated_lowering(lambda target: run_pipeline(graph, target, asked), chosen)
            return Lowered(self.model, called, plain, proven, report, done, run, graph)

        return run(bound)

    def at(self, buckets: Mapping[str, Mapping[str, int]]) -> Entries:
        """Entries of a program, by name: this graph at the dimensions of each."""
        return {name: (self, dims) for name, dims in buckets.items()}


Entries = Mapping[str, tuple[Traced, Mapping[str, int]]]
"""What the entries of a program are made of, by name: a traced graph of one model, and its dimensions."""


def trace(
    model: Model | str | os.PathLike[str],
    entry: str = "forward",
    *,
    cache: CacheShape | None = None,
    logits: str = "last",
    precision: str | PrecisionPolicy = "auto",
    sampling: bool = False,
) -> Traced:
    """Traces a model: entry "forward" (dense over whole sequences), "step" (packed over a cache, see `trace_step`) or "decode" (one token a row, goes on by
    itself, see `trace_decode`) of a decoder, "embed" of an encoder (see `trace_embed`).

    Raises `ConfigError` for an entry, cache, logits or precision that is unknown, and for an unsupported architecture; `WeightsError` for a checkpoint that is
    missing, damaged or does not fit its model.
    """
    opened = open_model(model)
    if entry == "forward":
        graph = trace_forward(opened, logits=logits, precision=precision)
    elif entry in ("step", "decode"):
        shape = instance(cache, CacheShape, "cache") or CacheShape(1, positions_of(opened, None), 1)
        if entry == "step":
            graph = trace_step(opened, shape, logits=logits, precision=precision, sampling=sampling)
        else:
            graph = trace_decode(opened, shape, precision=precision)
    elif entry == "embed":
        graph = trace_embed(opened, precision=precision)
    else:
        raise ConfigError(f"entry {entry!r} is unknown", hint='use "forward", "step", "decode" or "embed"')
    return Traced(opened, graph, opened.precision(precision))


def plan_settings(memory_limit: int | str | None, reuse: bool = True, mode: str = "auto") -> PlanSettings:
    """The default settings with a limit of memory, where there is one (bytes, or a text like "512M"), without reuse of bytes where that is asked for, and with
    guards for the guarded mode. Raises `ConfigError` for anything else."""
    limit = None if memory_limit is None else byte_count(memory_limit, "memory_limit")
    reused = instance(reuse, bool, "reuse") is not False
    return replace(DEFAULT_SETTINGS, memory_limit=limit, reuse=reused, guard=GUARD_BYTES if mode == "guarded" else 0)


def open_model(model: Model | str | os.PathLike[str]) -> Model:
    """The model itself, or the one at a path or of that name; raises what `load` raises."""
    return model if isinstance(model, Model) else load(model)


def positions_of(model: Model, context: int | None, lengths: Sequence[int] = ()) -> int:
    """Positions a sequence of this model holds: `context_length` with the model's limit."""
    limit = model.config.context_limit
    return context_length(context, limit, lengths=lengths, node=str(model.checkpoint.path))


def open_device(device: str | Device = "auto", threads: int = 0, isa: str = "auto") -> Device:
    """The device itself, or the one of that name (`open_named`); raises `ConfigError` for what is neither, and for threads or an isa beside an open device."""
    if isinstance(device, str):
        return open_named(device, threads, isa)
    if not hasattr(device, "make_table"):
        raise ConfigError(f"device is {device!r}", hint='use "auto", "cpu" or "hip", or an open device')
    if (threads, isa) != (0, "auto"):
        raise ConfigError(
            f"threads={shown(threads)} and isa={shown(isa)} are for a device that is opened here, {device.name} is open already",
            hint="name them where the device is opened, or give the name of a device",
        )
    return device
