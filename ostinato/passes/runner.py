"""Runs passes over a graph: checks, cleans up, times and records after each of them.

After every pass that changed something, dead nodes are removed and the verifier runs at the phase that was reached, so a broken graph is reported with the
name of the pass that made it. Options are the fields of the passes; nothing here or in them reads the environment.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ostinato.ir.errors import ConfigError, OstinatoError, PlanError
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.ir.text import print_graph
from ostinato.ir.verify import PHASES, verify
from ostinato.passes.base import DecidingPass, Decision, Pass
from ostinato.passes.dead_code import DeadCode
from ostinato.passes.pipeline import PipelineOptions, describe, pipeline

__all__ = ["PipelineReport", "Stage", "run_passes", "run_pipeline"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one pass did. `seconds` includes cleaning up and verification; `text` is the graph after it, when texts were asked for."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    changed: bool
    text: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """The graph after all passes, what each stage did, the decision for each node by name, and the options of each pass as text."""

    graph: Graph
    stages: tuple[Stage, ...]
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def diff(self, stage: str) -> str:
        """What a stage changed, as a unified diff of the text form. Raises `ConfigError` without texts or for an unknown stage."""
        names = [item.name for item in self.stages]
        if stage not in names or names.index(stage) == 0:
            raise ConfigError(f"there is no stage {stage!r} to compare", hint=f"stages: {', '.join(names[1:])}")
        index = names.index(stage)
        before, after = self.stages[index - 1].text, self.stages[index].text
        if before is None or after is None:
            raise ConfigError("the texts of the stages were not kept", hint="run the passes with texts=True")
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), names[index - 1], stage, n=1, lineterm="")
        return "\n".join(lines)


def run_pipeline(
    graph: Graph, target: Target, options: PipelineOptions | None = None, *, texts: bool = False
) -> PipelineReport:
    """Every pass of `pipeline.py` over a bound graph; see `run_passes` for what it raises."""
    chosen = PipelineOptions() if options is None else options
    return run_passes(graph, target, pipeline(chosen), disable=chosen.disable, texts=texts)


def run_passes(
    graph: Graph,
    target: Target,
    passes: Sequence[Pass],
    *,
    disable: frozenset[str] = frozenset(),
    texts: bool = False,
) -> PipelineReport:
    """Applies `passes` in order, leaving out the optional ones named in `disable`.

    The first stage, `input`, is the given graph, verified. Raises `ConfigError` for a name that cannot be disabled, `PlanError` for a pass whose
    requirement no earlier pass established, `VerificationError` naming the pass that broke a rule, and whatever a pass itself raises.
    """
    _check_disabled(passes, disable)
    is_bound = not graph.dims
    facts = {"traced", "bound"} if is_bound else {"traced"}
    stages = [_stage(graph, target, facts, "input", None, time.perf_counter(), texts)]
    decisions: dict[str, Decision] = {}
    for item in passes:
        if item.name in disable:
            continue
        if missing := [fact for fact in item.requires if fact not in facts]:
            hint = "bind the graph to a bucket first" if missing == ["bound"] else "run the pass that ensures it before"
            raise PlanError(f"pass {item.name} requires {missing} of @{graph.name}", hint=hint)
        start = time.perf_counter()
        before = graph
        if isinstance(item, DecidingPass):
            graph, found = item.decide(graph, target)
            decisions.update(found)
        else:
            graph = item.apply(graph, target)
        if graph is not before:
            graph = DeadCode().apply(graph, target)
        facts.update(item.ensures)
        stages.append(_stage(graph, target, facts, item.name, before, start, texts))
    alive = {name: decisions[name] for name in (node.name for node in graph.nodes) if name in decisions}
    options = {item.name: describe(item) for item in passes if item.name not in disable}
    return PipelineReport(graph, tuple(stages), MappingProxyType(alive), MappingProxyType(options))


def _check_disabled(passes: Sequence[Pass], disable: frozenset[str]) -> None:
    optional = [item.name for item in passes if item.optional]
    if unknown := sorted(disable - set(optional)):
        raise ConfigError(f"passes {unknown} cannot be disabled", hint=f"these can: {', '.join(optional)}")


def _stage(
    graph: Graph, target: Target, facts: set[str], name: str, before: Graph | None, start: float, texts: bool
) -> Stage:
    """Verifies what a pass left, unless that is the graph it was given, and records it."""
    changed = graph is not before
    if changed:
        phase = max((phase for phase in PHASES if phase in facts), key=PHASES.index)
        try:
            verify(graph, target=target if phase == PHASES[-1] else None, phase=phase)
        except OstinatoError as error:
            error.message = f"after pass {name}: {error.message}"
            raise
    text = print_graph(graph) if texts else None
    nodes_before = len(graph.nodes if before is None else before.nodes)
    return Stage(name, time.perf_counter() - start, nodes_before, len(graph.nodes), changed, text)
