"""`TraceSession`: chosen values of an executable's runs, brought out by a traced plan of their own.

The ordinary plan is not touched: its steps, reuse, arena and hash are what they are without a session, and so is what a run costs before and after one. Within
the session the entries run by another plan under its own key, in memory of its own, over the same weights and the same state (caches, parameters, moments): what
is generated or trained goes on through it.

Values are kept by making them outputs. By default that is done behind the passes: the nodes, their rows and so every bit of the final outputs are those of the
ordinary program. A value that a fusion swallowed does not exist there; with `unfused` it is made an output in front of the passes, which then cannot swallow it:
`bit_equal` and `differences` say whether that changed who computes what.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from ostinato.compiler import plan_settings
from ostinato.ir.checks import boolean, shown
from ostinato.ir.decision import Decision
from ostinato.ir.errors import ConfigError, InputError, LifecycleError, OstinatoError, PlanError
from ostinato.ir.files import write_bytes
from ostinato.ir.graph import Graph
from ostinato.ir.safetensors import file_blocks
from ostinato.ir.step import Region
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

    `values` are names and patterns as everywhere ("layers.0.attn.out", "layers.0": everything in that layer, "layers.*.ffn"); `results_of` names scopes of which
    only what leaves them is kept ("layers.*": what each layer hands on). Float values of every width are kept, as numpy arrays (bf16 through ml_dtypes), padded
    rows cut off. `unfused` keeps values that a fusion swallowed, by a program in which it does not.

    Raises `DTypeError` that names integer values among them, `ConfigError` for patterns that find nothing, names that a fusion swallowed (with the node that has
    them) and what cannot be executed at all; `CapacityError` on entering where the traced plan's memory is missing, `LifecycleError` while another session or
    call is in progress. Bound executables (`bind`) have memory of the caller's and are not traced.
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
            raise LifecycleError("nothing has run in this session", hint="run the executable inside of the `with` block")
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
        tensors = {
            f"{step.number:06d}/{step.entry}/{name}": array for step in self._steps for name, array in step.values.items()
        }
        said = {f"plan {name}": text for name, text in self.key.items()} | {"bit_equal": str(self.bit_equal).lower()}
        if self.differences:
            said["differences"] = "\n".join(self.differences)
        return write_bytes(Path(path), b"".join(bytes(block) for block in file_blocks(tensors, said)))

    def __str__(self) -> str:
        plan, own = self._program.plan, self._executable.program.plan
        where = self._executable.device.name
        arena, usual = (each.size_of(Region(where, "arena")) for each in (plan, own))
        lines = [f"traced plan: arena {arena} bytes (ordinary {usual}), {len(self._steps)} runs noted; not for timing"]
        for name, found in self._chosen.items():
            shown_names = ", ".join(found.names[:_SHOWN]) + (" ..." if len(found.names) > _SHOWN else "")
            lines.append(f"  {name}: {len(found.names)} values: {shown_names}")
        lines += [f"  left out %{name}: {reason}" for name, reason in self.left_out.items()]
        if self.bit_equal:
            lines.append("  final outputs have the bits of the ordinary program: the same rows compute them")
        else:
            count = len(self.differences)
            lines.append(f"  final outputs may differ in their last bits: {count} nodes are not those of the ordinary program")
            lines += [f"    {text}" for text in self.differences[:_SHOWN]]
        return "\n".join(lines)

    # running

    def __enter__(self) -> Self:
        executable = self._executable
        if self._regions is None:
            self._regions = _memory(executable, self._program.plan)
        executable.divert(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executable.divert(None)
        self._runners.clear()
        self._regions = None

    def runner(self, name: str) -> Runner:
        """The runner of an entry while the session is open: a traced one, or the executable's own where nothing of the entry is traced."""
        if name not in self._chosen:
            return self._executable.own_runner(name)
        if name not in self._runners:
            assert self._regions is not None, "an open session has memory"
            regions, _ = self._regions
            bound = _kept_in_place(self._executable, name, self._program.plan.entries[name])
            inner = self._executable.make_runner(name, self._program, replace(regions, bound=bound))
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


def _choose(
    program: Program, values: Sequence[str], scopes: Sequence[str], unfused: bool
) -> dict[str, _Entry]:
    """The entries that have any of the values. Each pattern must be found in one of them."""
    found: dict[str, _Entry] = {}
    failed: dict[tuple[str, str], OstinatoError] = {}
    wanted = [*(("values", pattern) for pattern in values), *(("results_of", pattern) for pattern in scopes)]
    for name in program.plan.entries:
        missing: list[tuple[str, str]] = []

        def pick(graph: Graph, decisions: Mapping[str, Decision], missing: list[tuple[str, str]] = missing) -> TracedValues:
            here: list[tuple[str, str]] = []
            for kind, pattern in wanted:
                try:
                    traced_values(graph, decisions, **{"values": (), **{kind: (pattern,)}})
                except ConfigError as error:
                    failed.setdefault((kind, pattern), error)
                    missing.append((kind, pattern))
                else:
                    here.append((kind, pattern))
            asked = {kind: [pattern for each, pattern in here if each == kind] for kind in ("values", "results_of")}
            return traced_values(graph, decisions, **asked)

        entry = _unfused(program, name, pick) if unfused else _fused(program, name, pick)
        for key in wanted:
            if key not in missing:
                failed[key] = failed.get(key, ConfigError(""))
                failed[key].code = "found"
        if entry.values.names:
            found[name] = entry
    for error in failed.values():
        if error.code != "found":
            raise error
    return found
