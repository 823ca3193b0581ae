"""Runs passes over a graph: checks, cleans up, times and records after each of them.

After every pass that changed something, dead nodes are removed and the verifier runs at the phase that was reached, so a broken graph is reported with the
name of the pass that made it. Options are the fields of the passes; nothing here or in them reads the environment.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ostinato.ir.checks import shown
from ostinato.ir.decision import Counters, Decision, PolicyUse, policy_counters
from ostinato.ir.diagnostics import plain
from ostinato.ir.errors import ConfigError, OstinatoError, PlanError, VerificationError
from ostinato.ir.evidence import Finding, Verdict
from ostinato.ir.graph import Graph, Role
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.text import print_graph
from ostinato.ir.users import raised
from ostinato.ir.verify import PHASES, verify
from ostinato.passes.base import DecidingPass, Pass
from ostinato.passes.dead_code import DeadCode
from ostinato.passes.gated import uses_of, weighed
from ostinato.passes.origins import Origins
from ostinato.passes.pipeline import PipelineOptions, describe, pipeline

__all__ = ["PipelineReport", "Stage", "run_passes", "run_pipeline"]

_NO_GATES: Mapping[str, Verdict] = MappingProxyType({})


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

    @property
    def policies(self) -> Mapping[str, Counters]:
        """How often each selection policy was taken and bypassed, among the nodes in its range."""
        return policy_counters(self.decisions.values())

    def diff(self, stage: str, since: str | None = None) -> str:
        """What a stage changed, or all stages behind `since` up to it, as a unified diff of the text form.

        Raises `ConfigError` without texts, and for stages that are unknown or stand in another order.
        """
        names = [item.name for item in self.stages]
        known = all(name in names for name in (stage, since or stage))
        last = names.index(stage) if known else 0
        first = last - 1 if since is None else names.index(since) if known else 0
        if not 0 <= first < last:
            which = f"stage {stage!r}" if since is None else f"stage {since!r} in front of {stage!r}"
            raise ConfigError(f"there is no {which} to compare", hint=f"stages: {', '.join(names)}")
        before, after = self.stages[first].text, self.stages[last].text
        if before is None or after is None:
            raise ConfigError("the texts of the stages were not kept", hint="run the passes with texts=True")
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), names[first], stage, n=1, lineterm="")
        return "\n".join(lines)


def run_pipeline(
    graph: Graph,
    target: Target,
    options: PipelineOptions | None = None,
    *,
    texts: bool = False,
    stop_after: str | None = None,
) -> PipelineReport:
    """Every pass of `pipeline.py` over a bound graph, or those up to the stage `stop_after`; see `run_passes` for what it raises."""
    chosen = PipelineOptions() if options is None else options
    passes = pipeline(chosen)
    gates = weighed(passes, target, chosen.choice.policy)
    users = frozenset(item.name for _, item in chosen.passes)
    return run_passes(
        graph, target, passes, disable=chosen.disable, gates=gates, texts=texts, stop_after=stop_after, users=users
    )


def run_passes(
    graph: Graph,
    target: Target,
    passes: Sequence[Pass],
    *,
    disable: frozenset[str] = frozenset(),
    gates: Mapping[str, Verdict] = _NO_GATES,
    texts: bool = False,
    stop_after: str | None = None,
    users: frozenset[str] = frozenset(),
) -> PipelineReport:
    """Applies `passes` in order, leaving out the optional ones named in `disable` and those that `gates` validate to be left out, and those behind `stop_after`
    where it is given. Those named in `users` are the user's own: they must keep what the graph's caller knows of it.

    The first stage, `input`, is the given graph, verified. Raises `ConfigError` for a name that cannot be disabled and for a stage that does not exist,
    `PlanError` for a pass whose requirement no earlier pass established, `VerificationError` naming the pass and the rules that it broke,
    `UserCodeError` for what a pass of the user's raises, and whatever one of ours does, with a note that names the pass. What a failed pass leaves is dropped:
    graphs are values.
    """
    _check_disabled(passes, disable)
    gates = {name: verdict for name, verdict in gates.items() if name not in disable}
    left_out = frozenset(name for name, verdict in gates.items() if verdict.finding is Finding.VALIDATED)
    running = _until(passes, disable, left_out, stop_after)
    uses: dict[str, list[PolicyUse]] = {}
    is_bound = not graph.dims
    facts = {"traced", "bound"} if is_bound else {"traced"}
    stages = [_stage(graph, target, facts, "input", None, time.perf_counter(), texts)]
    decisions: dict[str, Decision] = {}
    origins = Origins()
    for item in running:
        if item.name in left_out:
            made, _ = _made(item, graph, target, users)
            _note(uses, uses_of(item, gates[item.name], graph, made, target))
            continue
        if missing := [fact for fact in item.requires if fact not in facts]:
            hint = "bind the graph to a bucket first" if missing == ["bound"] else "run the pass that ensures it before"
            raise PlanError(f"pass {item.name} requires {missing} of @{graph.name}", hint=hint)
        start = time.perf_counter()
        before = graph
        graph, found = _made(item, graph, target, users)
        decisions.update(found)
        with _readable(item.name) if item.name in users else nullcontext():
            if graph is not before:
                _require_graph(item.name, graph)
                graph = DeadCode().apply(graph, target)
                if item.name in gates:
                    _note(uses, uses_of(item, gates[item.name], before, graph, target))
                origins.follow(before, graph)
            facts.update(item.ensures)
            stages.append(_stage(graph, target, facts, item.name, before, start, texts))
            if item.name in users:
                _check_interface(item.name, before, graph)
    nodes = {node.name: node for node in graph.nodes if node.name in decisions}
    alive = {
        name: replace(found, origins=origins.of(nodes[name]), policies=(*found.policies, *uses.get(name, ())))
        for name, found in decisions.items()
        if name in nodes
    }
    options = {item.name: describe(item) for item in running if item.name not in left_out}
    return PipelineReport(graph, tuple(stages), MappingProxyType(alive), MappingProxyType(options))


def _note(uses: dict[str, list[PolicyUse]], found: Iterable[tuple[str, PolicyUse]]) -> None:
    for name, use in found:
        uses.setdefault(name, []).append(use)


def _until(
    passes: Sequence[Pass], disable: frozenset[str], left_out: frozenset[str], stop_after: str | None
) -> list[Pass]:
    """The passes to look at, in order: those that run, and those left out between them."""
    running = [item for item in passes if item.name not in disable]
    names = ["input", *(item.name for item in running)]
    if stop_after is None:
        return running
    if stop_after not in names or stop_after in left_out:
        stages = [name for name in names if name not in left_out]
        raise ConfigError(f"there is no stage {stop_after!r} to stop after", hint=f"stages: {', '.join(stages)}")
    return running[: names.index(stop_after)]


def _made(item: Pass, graph: Graph, target: Target, users: frozenset[str]) -> tuple[Graph, Mapping[str, Decision]]:
    """What a pass makes of a graph, and what it decided, where it is one that decides. Raises as `run_passes` says."""
    try:
        if isinstance(item, DecidingPass):
            return item.decide(graph, target)
        return _applied(item, graph, target) if item.name in users else item.apply(graph, target), {}
    except Exception as error:
        if item.name in users and not isinstance(error, OstinatoError):
            raise raised(error, f"pass {item.name}") from error
        error.add_note(f"raised by pass {item.name}")
        raise


def _applied(item: Pass, graph: Graph, target: Target) -> Graph:
    """What a pass of the user's makes of a graph: of a copy, so that the graph stays what it is whatever the pass does to it."""
    found = item.apply(replace(graph), target)
    return graph if found == graph else found


def _require_graph(name: str, found: object) -> None:
    """Raises `VerificationError` for a pass that gave something else, or a graph of operators that do not exist."""
    if not isinstance(found, Graph):
        raise VerificationError(
            f"after pass {name}: expected a Graph, found {shown(found)}",
            hint="a pass returns a new graph, or the one that it was given",
        )
    if unknown := sorted({node.op for node in found.nodes} - OP.keys()):
        raise VerificationError(
            f"after pass {name}: there are no operators {unknown}", hint="`ost.extend` adds operators of your own"
        )


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Raises `VerificationError` where a pass of the user's made a graph of things that are none of a graph's."""
    try:
        yield
    except OstinatoError:
        raise
    except Exception as error:
        raise VerificationError(
            f"after pass {name}: the graph cannot be read: {type(error).__name__}: {error}",
            hint="give nodes, inputs, outputs and extents the types that `Graph` and `Node` declare",
        ) from error


def _check_interface(name: str, before: Graph, after: Graph) -> None:
    """Raises `VerificationError` for a pass whose graph the caller would not know any more."""
    expected, found = _interface(before), _interface(after)
    if expected != found:
        lost, new = sorted(expected - found), sorted(found - expected)
        raise VerificationError(
            f"after pass {name}: interface: inputs, state, parameters and outputs of @{before.name} are what its caller knows; "
            f"expected {', '.join(lost) or 'no more'}, found {', '.join(new) or 'nothing in place of it'}",
            hint="keep their names, shapes and dtypes; weights and constants may change",
        )


def _interface(graph: Graph) -> set[str]:
    """What a caller gives and gets, as text: names, shapes and dtypes, whatever the layouts."""
    inputs = [
        f"{'carried ' if item.carried else ''}{item.role.value} %{item.value.name}: {plain(item.value.type)}"
        for item in graph.inputs
        if item.role in (Role.INPUT, Role.STATE, Role.PARAMETER)
    ]
    outputs = [
        f"output {index} %{name}" + (f": {plain(graph.types[name])}" if name in graph.types else "")
        for index, name in enumerate(graph.outputs)
    ]
    return {*inputs, *outputs}


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
