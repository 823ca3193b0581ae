"""`TraceSession`: chosen values of an executable's runs, brought out by a traced plan of their own.

The ordinary plan is not touched: its steps, reuse, arena and hash are what they are without a session, and so is what a run costs before and after one.
Within the session the entries run by another plan under its own key, in memory of its own, over the same weights and the same state (caches, parameters,
moments): what is generated or trained goes on through it.

Values are kept by making them outputs. By default that is done behind the passes: the nodes, their rows and so every bit of the final outputs are those of
the ordinary program. A value that a fusion swallowed does not exist there; with `unfused` it is made an output in front of the passes, which then cannot
swallow it: `bit_equal` and `differences` say whether that changed who computes what.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType, TracebackType
from typing import Any, Self

from ostinato.ir.checks import boolean, shown
from ostinato.ir.decision import Decision
from ostinato.ir.errors import ConfigError, InputError, LifecycleError, PlanError
from ostinato.ir.files import named_path, write_bytes
from ostinato.ir.graph import Graph
from ostinato.ir.safetensors import file_blocks
from ostinato.ir.step import ByteRange, Region
from ostinato.ir.types import Array
from ostinato.passes.traced_values import TracedValues, traced_values, with_outputs
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions, SharedRegions, require_memory
from ostinato.runtime.runners import Runner
from ostinato.runtime.traced import TracedRunner
from ostinato.runtime.weights import load_shared
from ostinato.stages import plan_settings

__all__ = ["TraceSession", "TracedStep"]

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class TracedStep:
    """The traced values of one run of an entry, in program order; `number` counts the runs of the session from 0."""

    number: int
    entry: str
    values: Mapping[str, Array]


class TraceSession:
    """While it is open, runs of an executable (or of an `LLM`, `Embedder` or `TrainStep`) note the values that patterns name.

    `values` are names and patterns as everywhere ("layers.0.attn.out", "layers.0": everything in that layer, "layers.*.ffn"); `results_of` names scopes of
    which only what leaves them is kept ("layers.*": what each layer hands on). Float values of every width are kept, as numpy arrays (bf16 through
    ml_dtypes), padded rows cut off. `unfused` keeps values that a fusion swallowed, by a program in which it does not.

    Raises `DTypeError` that names integer values among them, `ConfigError` for patterns that find nothing, names that a fusion swallowed (with the node that
    has them) and what cannot be executed at all; `CapacityError` on entering where the traced plan's memory is missing, `LifecycleError` while another
    session or call is in progress. Bound executables (`bind`) have memory of the caller's and are not traced.
    """

    def __init__(
        self,
        subject: Any,
        values: str | Sequence[str] = (),
        *,
        results_of: str | Sequence[str] = (),
        unfused: bool = False,
    ) -> None:
        self._executable = _executable_of(subject)
        wanted, scopes = _patterns(values, "values"), _patterns(results_of, "results_of")
        if not wanted and not scopes:
            raise ConfigError("nothing is to be traced", hint='name values ("layers.0") or results_of ("layers.*")')
        self._unfused = boolean(unfused, "unfused")
        self._steps: list[TracedStep] = []
        self._regions: tuple[Regions, SharedRegions] | None = None
        self._runners: dict[str, Runner] = {}
        found = _choose(self._executable.program, wanted, scopes, self._unfused)
        self._chosen = {name: item.values for name, item in found.items()}
        self._program = _plan(self._executable, found)
        self.differences = _differences(self._executable.program, found)
        """The nodes of the traced program that are not those of the ordinary one: made by other operators or rows, or split out of a fused one."""

    # what is traced

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The values that are noted, by entry."""
        return MappingProxyType({name: found.names for name, found in self._chosen.items()})

    @property
    def scopes(self) -> Mapping[str, tuple[str, ...]]:
        """The values that leave each scope of `results_of`."""
        return {scope: names for found in self._chosen.values() for scope, names in found.scopes.items()}

    @property
    def left_out(self) -> Mapping[str, str]:
        """What patterns found that is not noted, with the reason: updates of state, bytes that are taken over, names inside of a fused node."""
        return {name: reason for found in self._chosen.values() for name, reason in found.left_out.items()}

    @property
    def bit_equal(self) -> bool:
        """Whether the final outputs have the bits of the ordinary program, because the same rows compute them; `differences` says what does not."""
        return not self.differences

    @property
    def plan(self) -> ProgramPlan:
        """The traced plan."""
        return self._program.plan

    @property
    def key(self) -> Mapping[str, str]:
        """Hashes of the traced entries' plans, which differ from those of the ordinary ones."""
        return {name: plan.hash for name, plan in self._program.plan.entries.items()}

    # what was noted

    @property
    def steps(self) -> tuple[TracedStep, ...]:
        """What each run left, in order."""
        return tuple(self._steps)

    @property
    def values(self) -> Mapping[str, Array]:
        """The values of the last run by name. Raises `LifecycleError` before the first."""
        if not self._steps:
            raise LifecycleError(
                "nothing has run in this session", hint="run the executable inside of the `with` block"
            )
        return self._steps[-1].values

    def series(self, name: str) -> list[Array]:
        """A value in every run that made it, in order: one array a step of a generation. Raises `InputError` for a name that is not traced."""
        if not any(name in found.names for found in self._chosen.values()):
            traced = list(dict.fromkeys(n for found in self._chosen.values() for n in found.names))
            raise InputError(f"{name!r} is not traced", hint=f"traced are {', '.join(traced[:_SHOWN])}")
        return [step.values[name] for step in self._steps if name in step.values]

    def clear(self) -> None:
        """Forgets what was noted so far."""
        self._steps.clear()

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes all that was noted as safetensors and returns the path: tensors are called `<step>/<entry>/<value>`, the plans' hashes and the differences are
        metadata. Raises `ConfigError` for a place that cannot be written."""
        file = named_path(path)
        tensors = {
            f"{step.number:06d}/{step.entry}/{name}": array
            for step in self._steps
            for name, array in step.values.items()
        }
        said = {f"plan {name}": text for name, text in self.key.items()} | {"bit_equal": str(self.bit_equal).lower()}
        if self.differences:
            said["differences"] = "\n".join(self.differences)
        return write_bytes(file, b"".join(bytes(block) for block in file_blocks(tensors, said)))

    def __str__(self) -> str:
        plan, own = self._program.plan, self._executable.program.plan
        where = self._executable.device.name
        arena, usual = (each.size_of(Region(where, "arena")) for each in (plan, own))
        lines = [f"traced plan: arena {arena} bytes (ordinary {usual}), {len(self._steps)} runs noted; not for timing"]
        for name, found in self._chosen.items():
            shown_names = ", ".join(found.names[:_SHOWN]) + (" ..." if len(found.names) > _SHOWN else "")
            lines.append(f"  {name}: {len(found.names)} values: {shown_names}")
        out = self.left_out
        lines += [f"  left out %{name}: {reason}" for name, reason in list(out.items())[:_SHOWN]]
        lines += [f"  left out {len(out) - _SHOWN} more (`left_out`)"] if len(out) > _SHOWN else []
        if self.bit_equal:
            lines.append("  final outputs have the bits of the ordinary program: the same rows compute them")
        else:
            count = len(self.differences)
            lines.append(
                f"  final outputs may differ in their last bits: {count} nodes are not those of the ordinary program"
            )
            lines += [f"    {text}" for text in self.differences[:_SHOWN]]
        return "\n".join(lines)

    # running

    def __enter__(self) -> Self:
        held, self._regions = self._regions, self._regions or _memory(self._executable, self._program.plan)
        try:
            self._executable.divert(self)
        except LifecycleError:
            self._regions = held
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executable.diversion is not self:
            return  # it is closed already, and another session may be open
        self._executable.divert(None)
        if (
            not self.bit_equal and self._steps
        ):  # what the caches hold now is not to the bit what the ordinary program would have put there
            with self._executable.exclusive():
                pass
        self._runners.clear()
        self._regions = None

    def runner(self, name: str) -> Runner:
        """The runner of an entry while the session is open: a traced one, or the executable's own where nothing of the entry is traced."""
        if name not in self._chosen:
            return self._executable.runners.own(name)
        if name not in self._runners:
            assert self._regions is not None, "an open session has memory"
            regions, _ = self._regions
            bound = _kept_in_place(self._executable, name, self._program.plan.entries[name])
            inner = self._executable.runners.make(name, self._program, replace(regions, bound=bound))
            graph, names = self._program.graphs[name], self._chosen[name].names
            self._runners[name] = TracedRunner(inner, name, graph, names, self._note)
        return self._runners[name]

    def renew(self) -> None:
        """The executable has bound or watches something else: its runners are made anew."""
        self._runners.clear()

    def _note(self, entry: str, values: Mapping[str, Array]) -> None:
        self._steps.append(TracedStep(len(self._steps), entry, MappingProxyType(dict(values))))


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the traced program: its graph with the traced values as outputs, who decided what in it, and the values."""

    graph: Graph
    decisions: Mapping[str, Decision]
    values: TracedValues


def _executable_of(subject: Any) -> Executable:
    found = subject if isinstance(subject, Executable) else getattr(subject, "executable", None)
    if not isinstance(found, Executable):
        raise ConfigError(
            f"{shown(subject)} cannot be traced", hint="give an executable, an LLM, an Embedder or a training step"
        )
    return found


def _patterns(given: str | Sequence[str], what: str) -> tuple[str, ...]:
    listed = (given,) if isinstance(given, str) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(item, str) and item for item in listed):
        raise ConfigError(f"{what} is {shown(given)}", hint='give names or patterns, such as ["layers.0.attn"]')
    return tuple(listed)


def _choose(program: Program, values: Sequence[str], scopes: Sequence[str], unfused: bool) -> dict[str, _Entry]:
    """The entries that have any of the values. Raises the error of a pattern that no entry has anything for."""
    entries = {name: (_unfused if unfused else _fused)(program, name, values, scopes) for name in program.plan.entries}
    for pattern in (*values, *scopes):
        errors = [entry.values.missing.get(pattern) for entry in entries.values()]
        if errors and errors[0] is not None and all(errors):
            raise errors[0]
    return {name: entry for name, entry in entries.items() if entry.values.names}


def _fused(program: Program, name: str, values: Sequence[str], scopes: Sequence[str]) -> _Entry:
    """The lowered graph with more outputs: the nodes stay what they are."""
    graph, decisions = program.original(name), program.decisions.get(name, {})
    found = traced_values(graph, decisions, values, scopes)
    return _Entry(with_outputs(graph, found.names), decisions, found)


def _unfused(program: Program, name: str, values: Sequence[str], scopes: Sequence[str]) -> _Entry:
    """The graph lowered again with the values as outputs."""
    if name not in program.relower:
        raise ConfigError(
            f"entry {name} was loaded as it was lowered: the model's own graph is not at hand",
            hint="compile the model, or trace without unfused=True",
        )
    found: list[TracedValues] = []

    def choose(graph: Graph) -> tuple[str, ...]:
        found.append(traced_values(graph, {}, values, scopes))
        return found[0].names

    graph, decisions = program.relower[name](choose)
    return _Entry(graph, decisions, found[0])


def _plan(executable: Executable, entries: Mapping[str, _Entry]) -> Program:
    """The proven traced program. Entries of which nothing is traced are not in it, but its tables are those of the whole program."""
    program, target = executable.program, executable.program.target
    settings = plan_settings(None, mode=executable.mode)
    skipped = {spec.name for spec in fields(PlanSettings)}
    graphs = {name: entries[name].graph if name in entries else program.original(name) for name in program.plan.entries}
    planned: dict[str, tuple[Graph, EntryPlan]] = {}
    for name, graph in graphs.items():
        own = program.plan.entries[name]
        options = {key: value for key, value in own.options.items() if key not in skipped}
        if name in entries:
            options["traced"] = " ".join(entries[name].values.names)
        planned[name] = (graph, plan_entry(graph, target, name=name, dims=own.dims, options=options, settings=settings))
    plan = build_program(planned)
    check_program(plan, graphs, target)
    decisions = {name: entry.decisions for name, entry in entries.items()}
    return Program(plan, graphs, target, program.source, decisions=decisions)


def _memory(executable: Executable, plan: ProgramPlan) -> tuple[Regions, SharedRegions]:
    """Arena and io of the traced plan's own, beside the executable's state, and weights: the executable's where they lie as in its plan.

    Raises `PlanError` where the state does not lie as in the executable's plan, and `LifecycleError` where other weights are needed than were loaded and some
    were replaced.
    """
    own, device, regions = executable.program.plan, executable.device, executable.regions
    if (plan.state, plan.parameters) != (own.state, own.parameters):
        raise PlanError(
            "without fusion the parameters lie elsewhere, and a traced step could not update those of the ordinary one",
            hint="trace without unfused=True, or compile another step with the pass disabled",
        )
    shared = regions.shared
    if (plan.weights, plan.constants) != (own.weights, own.constants):
        if shared.replaced:
            raise LifecycleError(
                "weights were replaced, and without fusion others are loaded from the checkpoint",
                hint="trace without unfused=True",
            )
        shared = load_shared(device, plan, executable.program.source)
    require_memory(plan, device, ("arena", "io"))
    arena, io = (device.allocate(plan.size_of(Region(device.name, kind))) for kind in ("arena", "io"))
    window = io.window(regions.stream)
    return replace(regions, shared=shared, arena=arena, io=io, window=window, bound=(), bound_arena=None), shared


def _kept_in_place(executable: Executable, name: str, plan: EntryPlan) -> tuple[tuple[ByteRange, int], ...]:
    """Outputs that stay where they are from run to run (gradients) lie where the ordinary entry has them."""
    regions = executable.runners.regions_of(name)
    usual = {binding.name: binding.range for binding in executable.entries[name].outputs}
    kept = executable.runners.kept_outputs(name)
    return tuple((b.range, regions.address(usual[b.name])[0]) for b in plan.outputs if b.name in kept)


def _differences(program: Program, entries: Mapping[str, _Entry]) -> tuple[str, ...]:
    """What of the traced entries' nodes is made otherwise than in the ordinary program."""
    found: list[str] = []
    for name, entry in entries.items():
        usual = {node.name: node for node in program.original(name).nodes}
        for node in entry.graph.nodes:
            before = usual.get(node.name)
            made = f"{node.op}@{node.impl}" if node.impl else node.op
            results = " ".join(f"%{value.name}" for value in node.results)
            if before is None:
                found.append(f"{name}: {results} = {made}, no node of its own in the ordinary program")
            elif (before.op, before.impl, before.operands, before.attrs) != (
                node.op,
                node.impl,
                node.operands,
                node.attrs,
            ):
                was = f"{before.op}@{before.impl}" if before.impl else before.op
                was = "with other operands or attributes" if was == made else was
                found.append(f"{name}: {results} = {made}, ordinarily {was}")
    return tuple(found)
